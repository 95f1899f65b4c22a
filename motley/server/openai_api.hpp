// OpenAI's completion formats as pure functions: requests are read and checked, answers and stream chunks are built.
// Nothing here knows of sockets, tokenizers or the driver.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/value.hpp"
#include "motley/server/http.hpp"
#include "motley/workers/worker_messages.hpp"

namespace motley {

// An error with its HTTP status; `param` names the request's key that is at fault, `code` is OpenAI's word for the
// case.
class ApiError : public Error {
 public:
  ApiError(int status, std::string message, std::string param = {}, std::string code = {});
  int status;
  std::string param, code;
};

// What an error is in HTTP: input 400, limit 429, a failed deployment 503, a bug 500.
ApiError to_api_error(const Error& error);
Value error_value(const ApiError& error);  // {"error": {message, type, param, code}}
HttpResponse error_response(const ApiError& error);

enum class ApiKind { completion, chat };

using Prompt = std::variant<std::string, std::vector<std::int32_t>>;

struct CompletionRequest {
  ApiKind kind = ApiKind::chat;
  std::string model;            // empty: the one there is
  std::vector<Prompt> prompts;  // completion
  Value messages;               // chat: as sent, with parts of text joined and "developer" called "system"
  Value template_arguments;     // chat: an object, `chat_template_kwargs` and `reasoning_effort`
  std::int64_t n = 1;           // choices of each prompt
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
  bool echo = false;  // completion: the answer begins with the prompt
  std::optional<std::int64_t> max_tokens;
  std::int64_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<std::string> stop;
  std::optional<std::int64_t> seed;
  std::string cache_salt;        // prefixes are shared with requests that send the same
  std::string prompt_cache_key;  // of prompts that begin alike
  Sampling sampling;             // all but the seed
};

// Throws an ApiError with status 400 that names the key.
CompletionRequest parse_completion_request(Value body, ApiKind kind, std::int64_t vocabulary);

// ---- answers ----

struct TokenText {
  std::string text;
  std::vector<std::uint8_t> bytes;
  std::optional<float> logprob = 0;  // none: nothing precedes the token
};

struct TokenRecord {
  TokenText token;
  std::vector<TokenText> top;
  std::int64_t text_offset = 0;  // characters before it
};

// A choice, or the next piece of one.
struct ChoicePart {
  std::int64_t index = 0;
  std::string text;
  std::string reasoning;      // chat
  std::string finish_reason;  // empty: not yet
  std::optional<std::vector<TokenRecord>> logprobs;
  std::optional<std::vector<std::int32_t>> token_ids;
};

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t reasoning_tokens = 0;  // of these; chat
  std::int64_t cached_tokens = 0;     // of the prompt's: had been computed before
};

struct AnswerHead {
  ApiKind kind = ApiKind::chat;
  std::string id;
  std::string model;
  std::int64_t created = 0;  // seconds since 1970
};

Value answer_value(const AnswerHead& head, const std::vector<ChoicePart>& choices, const Usage& usage);

// Chunks carry `usage: null` where the client asked for usage in the last one.
enum class UsageInChunks { absent, null };
Value chunk_value(const AnswerHead& head, const ChoicePart& part, UsageInChunks usage);
Value role_chunk_value(const AnswerHead& head, std::int64_t choice,
                       UsageInChunks usage);  // chat: the first of a choice
Value usage_chunk_value(const AnswerHead& head, const Usage& usage);

std::string event(const Value& value);  // "data: {...}\n\n"
extern const char* const last_event;    // "data: [DONE]\n\n"

// The events of one choice that carry text, or reasoning, and nothing else, as nearly all do: what stands around it is
// written once, since building a document for each takes longer than decoding its token.
class TextEvents {
 public:
  TextEvents() = default;
  TextEvents(const AnswerHead& head, std::int64_t choice, UsageInChunks usage,
             std::string ChoicePart::*key = &ChoicePart::text);
  // event(chunk_value()) of a part with this text, which is not empty.
  std::string event(const std::string& text) const;

 private:
  std::string before_, after_;
};

}  // namespace motley
