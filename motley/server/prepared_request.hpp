// What a completion's body becomes before anything is generated: its parameters and its prompts as token ids. Parsing,
// chat templates and encoding of long prompts take long, so this depends on nothing that another thread changes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/plan/plan.hpp"
#include "motley/server/openai_api.hpp"
#include "motley/text/text_codec.hpp"

namespace motley {

struct PreparedRequest {
  CompletionRequest request;
  std::vector<std::vector<std::int32_t>> prompts;
};

// `codec` may be null: then prompts must be token ids. Throws an Error, an ApiError where a parameter is at fault.
PreparedRequest prepare_request(const std::string& body, ApiKind kind, const Model& model, TextCodec* codec);

// Throws an ApiError (404) where `name` is not what is served.
void require_model(const std::string& name, const Model& served);

}  // namespace motley
