#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/foreign.hpp"
#include "motley/server/openai_api.hpp"

namespace motley {
namespace {

// JSON has no infinity; OpenAI writes this for a token that cannot come.
constexpr double least_logprob = -9999;

std::string_view type_of(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

ErrorCode code_of(int status) {
  if (status == 429) return ErrorCode::limit;
  return status < 500 ? ErrorCode::input : ErrorCode::peer;
}

Value or_null(const std::string& text) { return text.empty() ? Value() : Value(text); }

Value logprob_value(const TokenText& token) {
  return token.logprob ? Value(std::max(static_cast<double>(*token.logprob), least_logprob)) : Value();
}

Value chat_token(const TokenText& token) {
  Value::Array bytes;
  for (const auto byte : token.bytes) bytes.emplace_back(static_cast<int>(byte));
  return Value::object({{"token", token.text}, {"logprob", logprob_value(token)}, {"bytes", Value(std::move(bytes))}});
}

Value chat_logprobs(const std::vector<TokenRecord>& records) {
  Value::Array content;
  for (const auto& record : records) {
    Value entry = chat_token(record.token);
    Value::Array top;
    for (const auto& token : record.top) top.push_back(chat_token(token));
    content.push_back(std::move(entry.set("top_logprobs", Value(std::move(top)))));
  }
  return Value::object({{"content", Value(std::move(content))}, {"refusal", Value()}});
}

Value completion_logprobs(const std::vector<TokenRecord>& records) {
  Value::Array tokens, logprobs, top, offsets;
  for (const auto& record : records) {
    tokens.emplace_back(record.token.text);
    logprobs.push_back(logprob_value(record.token));
    Value by_text = Value::object();  // the format's own weakness: tokens of equal text fall together
    for (const auto& token : record.top)
      if (!by_text.find(token.text)) by_text.set(token.text, logprob_value(token));
    top.push_back(record.token.logprob ? std::move(by_text) : Value());
    offsets.emplace_back(record.text_offset);
  }
  return Value::object({{"tokens", Value(std::move(tokens))},
                        {"token_logprobs", Value(std::move(logprobs))},
                        {"top_logprobs", Value(std::move(top))},
                        {"text_offset", Value(std::move(offsets))}});
}

// What answers and chunks have in common; `text_key` and `text` differ.
Value choice_value(ApiKind kind, const ChoicePart& part, std::string_view text_key, Value text) {
  Value choice = Value::object({{"index", part.index}});
  choice.set(text_key, std::move(text));
  if (part.logprobs)
    choice.set("logprobs", kind == ApiKind::chat ? chat_logprobs(*part.logprobs) : completion_logprobs(*part.logprobs));
  else
    choice.set("logprobs", Value());
  choice.set("finish_reason", or_null(part.finish_reason));
  if (part.token_ids) {
    Value::Array ids;
    for (const auto id : *part.token_ids) ids.emplace_back(static_cast<int>(id));
    choice.set("token_ids", Value(std::move(ids)));
  }
  return choice;
}

Value usage_value(ApiKind kind, const Usage& usage) {
  Value value = Value::object({{"prompt_tokens", usage.prompt_tokens},
                               {"completion_tokens", usage.completion_tokens},
                               {"total_tokens", usage.prompt_tokens + usage.completion_tokens}});
  value.set("prompt_tokens_details", Value::object({{"cached_tokens", usage.cached_tokens}}));
  if (kind == ApiKind::chat)
    value.set("completion_tokens_details", Value::object({{"reasoning_tokens", usage.reasoning_tokens}}));
  return value;
}

Value message_value(const ChoicePart& part) {
  Value message = Value::object({{"role", "assistant"}, {"content", part.text}, {"refusal", Value()}});
  if (!part.reasoning.empty()) message.set("reasoning_content", part.reasoning);
  return message;
}

enum class Form { whole, chunk };

Value answer(const AnswerHead& head, Form form, Value::Array choices) {
  const bool chat = head.kind == ApiKind::chat;
  const char* object = !chat ? "text_completion" : form == Form::whole ? "chat.completion" : "chat.completion.chunk";
  return Value::object({{"id", head.id},
                        {"object", object},
                        {"created", head.created},
                        {"model", head.model},
                        {"choices", Value(std::move(choices))}});
}

Value chunk(const AnswerHead& head, Value choice, UsageInChunks usage) {
  Value value = answer(head, Form::chunk, {std::move(choice)});
  if (usage == UsageInChunks::null) value.set("usage", Value());
  return value;
}

}  // namespace

ApiError::ApiError(int http_status, std::string message, std::string at_fault, std::string word)
    : Error(code_of(http_status), std::move(message)),
      status(http_status),
      param(std::move(at_fault)),
      code(std::move(word)) {}

ApiError to_api_error(const Error& error) {
  const std::string text = with_hint(error);
  switch (error.code()) {
    case ErrorCode::input:
    case ErrorCode::negative: return ApiError(400, text);
    case ErrorCode::limit: return ApiError(429, text, {}, "queue_full");
    case ErrorCode::internal: return ApiError(500, text);
    case ErrorCode::environment:
    case ErrorCode::peer:
    case ErrorCode::interrupted: return ApiError(503, text, {}, "unavailable");
  }
  return ApiError(500, text);
}

Value error_value(const ApiError& error) {
  return Value::object({{"error", Value::object({{"message", shortened(error.what(), most_message_bytes)},
                                                 {"type", type_of(error.status)},
                                                 {"param", or_null(error.param)},
                                                 {"code", or_null(error.code)}})}});
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = to_json(error_value(error)) + "\n";
  if (error.status == 429) response.headers.emplace_back("Retry-After", "1");
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

Value answer_value(const AnswerHead& head, const std::vector<ChoicePart>& parts, const Usage& usage) {
  Value::Array choices;
  for (const auto& part : parts) {
    if (head.kind == ApiKind::completion)
      choices.push_back(choice_value(head.kind, part, "text", part.text));
    else
      choices.push_back(choice_value(head.kind, part, "message", message_value(part)));
  }
  Value value = answer(head, Form::whole, std::move(choices));
  return std::move(value.set("usage", usage_value(head.kind, usage)));
}

Value chunk_value(const AnswerHead& head, const ChoicePart& part, UsageInChunks usage) {
  if (head.kind == ApiKind::completion) return chunk(head, choice_value(head.kind, part, "text", part.text), usage);
  Value delta = Value::object();
  if (!part.reasoning.empty()) delta.set("reasoning_content", part.reasoning);
  if (!part.text.empty()) delta.set("content", part.text);
  return chunk(head, choice_value(head.kind, part, "delta", std::move(delta)), usage);
}

Value role_chunk_value(const AnswerHead& head, std::int64_t choice, UsageInChunks usage) {
  ChoicePart first;
  first.index = choice;
  return chunk(head, choice_value(head.kind, first, "delta", Value::object({{"role", "assistant"}, {"content", ""}})),
               usage);
}

Value usage_chunk_value(const AnswerHead& head, const Usage& usage) {
  Value value = answer(head, Form::chunk, {});
  return std::move(value.set("usage", usage_value(head.kind, usage)));
}

std::string event(const Value& value) { return "data: " + to_json(value) + "\n\n"; }

const char* const last_event = "data: [DONE]\n\n";

TextEvents::TextEvents(const AnswerHead& head, std::int64_t choice, UsageInChunks usage, std::string ChoicePart::*key) {
  ChoicePart part;
  part.index = choice;
  part.*key = "\x01";
  const std::string pattern = motley::event(chunk_value(head, part, usage)), text = to_json(part.*key);
  const std::size_t place = pattern.rfind(text);  // the model's name, which comes first, may hold anything
  before_ = pattern.substr(0, place);
  after_ = pattern.substr(place + text.size());
}

std::string TextEvents::event(const std::string& text) const { return before_ + to_json(text) + after_; }

}  // namespace motley
