// A small client of the server's own API, for `motley chat` and the examples.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/value.hpp"

namespace motley {

struct ServerAddress {
  std::string host = "127.0.0.1";
  std::string port = "8000";
  std::string api_key;  // empty: none
};

// "http://127.0.0.1:8000", "127.0.0.1:8000" or "localhost". Throws an input error on anything else, https included.
ServerAddress parse_server_url(const std::string& url);

// GET, the body parsed as JSON. Throws a peer error when the server cannot be reached or answers with an error.
Value http_get(const ServerAddress& server, const std::string& path);
// The same of a POST.
Value http_post(const ServerAddress& server, const std::string& path, const Value& body);

struct StreamedReply {
  std::string text, reasoning;
  std::string finish_reason;
  std::vector<std::int32_t> token_ids;
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  // From sending the request.
  double first_token_s = 0, last_token_s = 0;
  double total_s = 0;
};

using TakeText = std::function<void(std::string_view)>;

// Streams an answer of /v1/chat/completions: `request` is its body without the streaming keys; `on_text` and
// `on_reasoning` get each piece as it comes.
StreamedReply stream_chat(const ServerAddress& server, Value request, const TakeText& on_text,
                          const TakeText& on_reasoning);
// The same of /v1/completions.
StreamedReply stream_completion(const ServerAddress& server, Value request, const TakeText& on_text);

}  // namespace motley
