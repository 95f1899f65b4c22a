// What a completion's body becomes before anything is generated: its parameters and its prompts as token ids. Parsing,
// chat templates and encoding of long prompts take long, so this depends on nothing that another thread changes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/plan/plan.hpp"
#include "motley/server/openai_api.hpp"
#include "motley/text/decode_stream.hpp"
#include "motley/text/text_codec.hpp"

namespace motley {

// What an answer begins with that repeats its prompt.
struct EchoedPrompt {
  std::string text;
  std::vector<std::int64_t> offsets;  // of each token, in characters of the text
  DecodeStream stream;                // behind the last token
};

struct PreparedPrompt {
  std::vector<std::int32_t> tokens;
  std::optional<EchoedPrompt> echo = {};
};

struct PreparedRequest {
  CompletionRequest request;
  std::vector<PreparedPrompt> prompts;
};

// `codec` may be null: then prompts must be token ids. Throws an Error, an ApiError where a parameter is at fault.
PreparedRequest prepare_request(const std::string& body, ApiKind kind, const Model& model, TextCodec* codec);

// Throws an ApiError (404) where `name` is not what is served.
void require_model(const std::string& name, const Model& served);

}  // namespace motley
