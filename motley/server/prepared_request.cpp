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

std::vector<std::int32_t> encode_chat(const CompletionRequest& request, TextCodec& codec) {
  try {
    return codec.encode(codec.apply_chat_template(request.messages, true, request.template_arguments), false);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
    throw ApiError(400, with_hint(error), "messages", "invalid_value");
  }
}

// `sent`: null for a prompt of token ids, whose text is what they decode to.
EchoedPrompt echo_of(const std::vector<std::int32_t>& tokens, const std::string* sent, TextCodec* codec) {
  EchoedPrompt echo;
  if (!codec) {
    echo.offsets.resize(tokens.size(), 0);
    return echo;
  }
  std::vector<StreamToken> all;
  for (const std::int32_t token : tokens) all.push_back({&echo.stream, token});
  std::int64_t characters = 0;
  for (const std::string& text : decode_streams(*codec, all, true)) {
    echo.offsets.push_back(characters);
    characters += count_characters(text);
    echo.text += text;
  }
  if (sent) echo.text = *sent;
  return echo;
}

PreparedPrompt prepare_prompt(const Prompt& prompt, bool echo, TextCodec* codec) {
  const auto* text = std::get_if<std::string>(&prompt);
  PreparedPrompt prepared{.tokens =
                              text ? need(codec).encode(*text, true) : std::get<std::vector<std::int32_t>>(prompt)};
  if (echo) prepared.echo = echo_of(prepared.tokens, text, codec);
  return prepared;
}

}  // namespace

PreparedRequest prepare_request(const std::string& body, ApiKind kind, const Model& model, TextCodec* codec) {
  PreparedRequest prepared;
  prepared.request = parse_completion_request(parse_json(body, "request body"), kind, model.arch.vocabulary);
  const CompletionRequest& request = prepared.request;
  if (!request.model.empty()) require_model(request.model, model);
  if (kind == ApiKind::chat) prepared.prompts.push_back({encode_chat(request, need(codec)), {}});
  for (const auto& prompt : request.prompts) prepared.prompts.push_back(prepare_prompt(prompt, request.echo, codec));
  const char* param = kind == ApiKind::chat ? "messages" : "prompt";
  const bool answers = request.max_tokens != 0;
  for (const auto& [prompt, echo] : prepared.prompts) {
    if (prompt.empty()) throw ApiError(400, "the prompt has no tokens", param, "invalid_value");
    if (std::ssize(prompt) + (answers ? 1 : 0) > model.arch.context)
      throw ApiError(400,
                     fmt::format("the prompt has {} tokens; the model's context is {} tokens{}", prompt.size(),
                                 model.arch.context, answers ? ", of which at least one is for the answer" : ""),
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
