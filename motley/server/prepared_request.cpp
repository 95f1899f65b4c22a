#include "motley/server/prepared_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "motley/base/error.hpp"
#include "motley/base/foreign.hpp"

namespace motley {
namespace {

constexpr std::size_t max_body_values = std::size_t{1} << 20;
constexpr std::size_t piece_bytes = std::size_t{64} << 10;
constexpr std::size_t long_token_bytes = 8;   // few texts have that many bytes per token
constexpr std::size_t echoed_at_once = 1024;  // tokens
constexpr std::size_t end_bytes = 64;         // more than a template opens an answer with

TextCodec& need(TextCodec* codec) {
  if (!codec)
    throw ApiError(400, "the server runs without its text packages: prompts must be token ids for /v1/completions",
                   "prompt", "text_unavailable");
  return *codec;
}

[[noreturn]] void refuse_length(const std::string& tokens, const CompletionRequest& request, std::int64_t context) {
  throw ApiError(400,
                 fmt::format("the prompt has {} tokens; the model's context is {} tokens{}", tokens, context,
                             request.max_tokens != 0 ? ", of which at least one is for the answer" : ""),
                 request.kind == ApiKind::chat ? "messages" : "prompt", "context_length_exceeded");
}

// Encoding takes a hundred times the memory of its text: of a text that is likely far too long, pieces are encoded
// first, as many as it takes to know. Cuts add a few tokens, so that texts just above the limit are left to the whole
// count.
std::vector<std::int32_t> encode_within(const std::string& text, bool add_special_tokens,
                                        const CompletionRequest& request, std::int64_t context, TextCodec& codec) {
  const auto far = static_cast<std::size_t>(context) + static_cast<std::size_t>(context) / 4;
  if (text.size() > std::max(piece_bytes, long_token_bytes * static_cast<std::size_t>(context))) {
    std::size_t tokens = 0;
    for (std::size_t begin = 0, end = 0; begin < text.size(); begin = end) {
      end = character_start(text, begin + piece_bytes);
      tokens += codec.encode(std::string_view(text).substr(begin, end - begin), false).size();
      if (tokens > far) refuse_length(fmt::format("more than {}", context), request, context);
    }
  }
  return codec.encode(text, add_special_tokens);
}

std::string chat_text(const CompletionRequest& request, TextCodec& codec) {
  try {
    return codec.apply_chat_template(request.messages, true, request.template_arguments);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
    throw ApiError(400, with_hint(error), "messages", "invalid_value");
  }
}

}  // namespace

bool Preparation::step() {
  if (count_ == 0) {
    parse();
    return true;
  }
  auto& prompts = prepared_.prompts;
  if (!prompts.empty() && prompts.back().echo && prompts.back().echo->offsets.size() < prompts.back().tokens.size()) {
    echo_some(prompts.back());
    return true;
  }
  if (prompts.size() == count_) return false;
  encode_next();
  return true;
}

void Preparation::parse() {
  prepared_.request = parse_completion_request(parse_json_within(body_, "request body", max_body_values), kind_,
                                               model_.arch.vocabulary);
  const CompletionRequest& request = prepared_.request;
  if (!request.model.empty()) require_model(request.model, model_);
  count_ = kind_ == ApiKind::chat ? 1 : request.prompts.size();
}

void Preparation::encode_next() {
  const CompletionRequest& request = prepared_.request;
  const std::int64_t context = model_.arch.context;
  const std::size_t number = prepared_.prompts.size();
  std::vector<std::int32_t> tokens;
  std::string end;
  if (kind_ == ApiKind::chat) {
    const std::string text = chat_text(request, need(codec_));
    tokens = encode_within(text, false, request, context, *codec_);
    end = text.substr(text.size() - std::min(text.size(), end_bytes));
  } else if (const std::string* text = sent_text(number)) {
    tokens = encode_within(*text, true, request, context, need(codec_));
  } else {
    tokens = std::get<std::vector<std::int32_t>>(request.prompts[number]);
  }
  if (tokens.empty())
    throw ApiError(400, "the prompt has no tokens", kind_ == ApiKind::chat ? "messages" : "prompt", "invalid_value");
  if (std::ssize(tokens) + (request.max_tokens != 0 ? 1 : 0) > context)
    refuse_length(fmt::format("{}", tokens.size()), request, context);
  prepared_.prompts.push_back({.tokens = std::move(tokens), .end = std::move(end)});
  characters_ = 0;
  if (request.echo) prepared_.prompts.back().echo.emplace();
}

void Preparation::echo_some(PreparedPrompt& prompt) {
  EchoedPrompt& echo = *prompt.echo;
  if (!codec_) {
    echo.offsets.resize(prompt.tokens.size(), 0);
    return;
  }
  std::vector<StreamToken> some;
  for (std::size_t i = echo.offsets.size(); i < prompt.tokens.size() && some.size() < echoed_at_once; ++i)
    some.push_back({&echo.stream, prompt.tokens[i]});
  for (const std::string& text : decode_streams(*codec_, some, true)) {
    echo.offsets.push_back(characters_);
    characters_ += count_characters(text);
    echo.text += text;
  }
  const std::string* sent = sent_text(prepared_.prompts.size() - 1);
  if (sent && echo.offsets.size() == prompt.tokens.size()) echo.text = *sent;
}

const std::string* Preparation::sent_text(std::size_t prompt) const {
  return kind_ == ApiKind::chat ? nullptr : std::get_if<std::string>(&prepared_.request.prompts[prompt]);
}

void require_model(const std::string& name, const Model& served) {
  if (name != served.name)
    throw ApiError(404, fmt::format("the model `{}` is not served; use `{}`", shortened(name), served.name), "model",
                   "model_not_found");
}

}  // namespace motley
