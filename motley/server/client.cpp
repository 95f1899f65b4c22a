#include "motley/server/client.hpp"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <optional>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/foreign.hpp"

namespace motley {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using tcp = boost::asio::ip::tcp;

constexpr std::size_t largest_answer_bytes = 64 << 20;

// One request on a connection of its own; the answer's body is read piece by piece.
class ClientExchange {
 public:
  ClientExchange(const ServerAddress& server, http::verb verb, const std::string& path, std::string body)
      : stream_(context_) {
    try {
      stream_.connect(tcp::resolver(context_).resolve(server.host, server.port));
      http::request<http::string_body> request(verb, path, 11, std::move(body));
      request.set(http::field::host, server.host + ":" + server.port);
      request.set(http::field::content_type, "application/json");
      request.set(http::field::connection, "close");
      if (!server.api_key.empty()) request.set(http::field::authorization, "Bearer " + server.api_key);
      request.prepare_payload();
      http::write(stream_, request);
      parser_.body_limit(largest_answer_bytes);
      http::read_header(stream_, buffer_, parser_);
    } catch (const boost::system::system_error& error) {
      throw Error(ErrorCode::peer,
                  fmt::format("http://{}:{}{}: {}", server.host, server.port, path, error.code().message()),
                  "is the server running? `motley serve PLAN --model DIR` starts one");
    }
  }

  unsigned status() const { return parser_.get().result_int(); }

  // The next piece of the body; nothing at its end.
  std::optional<std::string> read_some() {
    if (parser_.is_done()) return std::nullopt;
    std::string piece(16384, '\0');
    parser_.get().body().data = piece.data();
    parser_.get().body().size = piece.size();
    beast::error_code status;
    http::read_some(stream_, buffer_, parser_, status);
    if (status && status != http::error::need_buffer)
      throw Error(ErrorCode::peer, fmt::format("the server's answer broke off: {}", status.message()));
    piece.resize(piece.size() - parser_.get().body().size);
    return piece;
  }

  std::string read_all() {
    std::string text;
    while (auto piece = read_some()) text += *piece;
    return text;
  }

 private:
  boost::asio::io_context context_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_;
  http::response_parser<http::buffer_body> parser_;
};

// The message of an OpenAI-shaped error, or the body itself.
Error server_error(unsigned status, const std::string& body) {
  std::string message = body;
  try {
    const Value answer = parse_json(body, "answer");
    if (const Value* error = answer.find("error"))
      if (const Value* text = error->find("message"); text && text->is_string()) message = text->as_string();
  } catch (const Error&) {  // not JSON: the body is shown as it is
  }
  return Error(status >= 500 ? ErrorCode::peer : ErrorCode::input,
               fmt::format("the server answered {}: {}", status, shortened(message, most_message_bytes)));
}

const Value* path(const Value* value, std::initializer_list<std::string_view> keys) {
  for (const auto key : keys) {
    if (value == nullptr) return nullptr;
    value = value->is_array() ? (value->as_array().empty() ? nullptr : &value->as_array()[0]) : value;
    if (value != nullptr) value = value->find(key);
  }
  return value;
}

void take_chunk(const Value& chunk, StreamedReply& reply, const TakeText& on_text, const TakeText& on_reasoning) {
  if (const Value* error = path(&chunk, {"error", "message"}); error && error->is_string())
    throw Error(ErrorCode::peer, shortened(error->as_string(), most_message_bytes));
  const auto take = [](const Value* text, std::string& whole, const TakeText& on) {
    if (text == nullptr || !text->is_string() || text->as_string().empty()) return;
    whole += text->as_string();
    on(text->as_string());
  };
  take(path(&chunk, {"choices", "delta", "reasoning_content"}), reply.reasoning, on_reasoning);
  const Value* text = path(&chunk, {"choices", "delta", "content"});
  take(text != nullptr ? text : path(&chunk, {"choices", "text"}), reply.text, on_text);
  if (const Value* ids = path(&chunk, {"choices", "token_ids"}); ids && ids->is_array())
    for (const auto& id : ids->as_array())
      if (id.is_integer()) reply.token_ids.push_back(static_cast<std::int32_t>(id.as_integer()));
  if (const Value* reason = path(&chunk, {"choices", "finish_reason"}); reason && reason->is_string())
    reply.finish_reason = reason->as_string();
  if (const Value* count = path(&chunk, {"usage", "prompt_tokens"}); count && count->is_integer())
    reply.prompt_tokens = count->as_integer();
  if (const Value* count = path(&chunk, {"usage", "completion_tokens"}); count && count->is_integer())
    reply.completion_tokens = count->as_integer();
}

}  // namespace

ServerAddress parse_server_url(const std::string& url) {
  std::string rest = url;
  if (rest.starts_with("https://"))
    throw input_error("https:// is not supported", "use http:// with a loopback address or a tunnel");
  if (rest.starts_with("http://")) rest = rest.substr(7);
  rest = rest.substr(0, rest.find('/'));
  ServerAddress server;
  const auto colon = rest.rfind(':');
  server.host = rest.substr(0, colon);
  if (colon != std::string::npos) server.port = rest.substr(colon + 1);
  if (server.host.empty() || server.port.empty() || server.port.find_first_not_of("0123456789") != std::string::npos)
    throw input_error(fmt::format("\"{}\" is not a server address", url), "write it as in http://127.0.0.1:8000");
  return server;
}

Value http_get(const ServerAddress& server, const std::string& path) {
  ClientExchange exchange(server, http::verb::get, path, "");
  const std::string body = exchange.read_all();
  if (exchange.status() >= 400) throw server_error(exchange.status(), body);
  return parse_json(body, "answer of " + path);
}

Value http_post(const ServerAddress& server, const std::string& path, const Value& request) {
  ClientExchange exchange(server, http::verb::post, path, to_json(request));
  const std::string body = exchange.read_all();
  if (exchange.status() >= 400) throw server_error(exchange.status(), body);
  return parse_json(body, "answer of " + path);
}

namespace {

StreamedReply stream(const ServerAddress& server, const char* path, Value request, const TakeText& on_text,
                     const TakeText& on_reasoning) {
  request.set("stream", true);
  request.set("stream_options", Value::object({{"include_usage", true}}));
  const Instant start = Clock::now();
  ClientExchange exchange(server, http::verb::post, path, to_json(request));
  if (exchange.status() >= 400) throw server_error(exchange.status(), exchange.read_all());

  StreamedReply reply;
  std::string pending;
  while (const auto piece = exchange.read_some()) {
    pending += *piece;
    for (auto end = pending.find('\n'); end != std::string::npos; end = pending.find('\n')) {
      const std::string line = pending.substr(0, end);
      pending.erase(0, end + 1);
      if (!line.starts_with("data: ") || line.starts_with("data: [DONE]")) continue;
      const auto size = [&] { return reply.text.size() + reply.reasoning.size() + reply.token_ids.size(); };
      const std::size_t known = size();
      take_chunk(parse_json(std::string_view(line).substr(6), "answer"), reply, on_text, on_reasoning);
      if (size() == known) continue;
      reply.last_token_s = seconds_since(start);
      if (known == 0) reply.first_token_s = reply.last_token_s;
    }
  }
  reply.total_s = seconds_since(start);
  if (reply.finish_reason.empty()) throw Error(ErrorCode::peer, "the server's answer broke off before its end");
  return reply;
}

}  // namespace

StreamedReply stream_chat(const ServerAddress& server, Value request, const TakeText& on_text,
                          const TakeText& on_reasoning) {
  return stream(server, "/v1/chat/completions", std::move(request), on_text, on_reasoning);
}

StreamedReply stream_completion(const ServerAddress& server, Value request, const TakeText& on_text) {
  return stream(server, "/v1/completions", std::move(request), on_text, [](std::string_view) {});
}

}  // namespace motley
