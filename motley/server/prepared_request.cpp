#include "motley/server/prepared_request.hpp"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "motley/base/error.hpp"
#include "motley/base/hints.hpp"

namespace motley {
namespace {

TextCodec& need(TextCodec* codec) {
  if (!codec)
    throw ApiError(400, "the server runs without its text packages: prompts must be token ids for /v1/completions",
                   "prompt", "text_unavailable");
  return *codec;
}

std::vector<std::int32_t> encode_chat(const Value& messages, TextCodec& codec) {
  try {
    return codec.encode(codec.apply_chat_template(messages, true), false);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
    throw ApiError(400, with_hint(error), "messages", "invalid_value");
  }
}

}  // namespace

PreparedRequest prepare_request(const std::string& body, ApiKind kind, const Model& model, TextCodec* codec) {
  PreparedRequest prepared;
  prepared.request = parse_completion_request(parse_json(body, "request body"), kind, model.arch.vocabulary);
  const CompletionRequest& request = prepared.request;
  if (!request.model.empty()) require_model(request.model, model);
  if (kind == ApiKind::chat) prepared.prompts.push_back(encode_chat(request.messages, need(codec)));
  for (const auto& prompt : request.prompts) {
    const auto* text = std::get_if<std::string>(&prompt);
    prepared.prompts.push_back(text ? need(codec).encode(*text, true) : std::get<std::vector<std::int32_t>>(prompt));
  }
  const char* param = kind == ApiKind::chat ? "messages" : "prompt";
  for (const auto& prompt : prepared.prompts) {
    if (prompt.empty()) throw ApiError(400, "the prompt has no tokens", param, "invalid_value");
    if (std::ssize(prompt) >= model.arch.context)
      throw ApiError(
          400,
          fmt::format(
              "the prompt has {} tokens; the model's context is {} tokens, of which at least one is for the answer",
              prompt.size(), model.arch.context),
          param, "context_length_exceeded");
  }
  return prepared;
}

void require_model(const std::string& name, const Model& served) {
  if (name != served.name)
    throw ApiError(404, fmt::format("the model `{}` is not served; use `{}`", name, served.name), "model",
                   "model_not_found");
}

}  // namespace motley
