// What a completion's body becomes before anything is generated: its parameters and its prompts as token ids. Parsing,
// chat templates and encoding of long prompts take long, so this depends on nothing that another thread changes, and it
// is done in steps, between which others have their turn.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  std::string end = {};  // of a chat's text: a template may begin the answer
};

struct PreparedRequest {
  CompletionRequest request;
  std::vector<PreparedPrompt> prompts;
};

class Preparation {
 public:
  // `codec` may be null: then prompts must be token ids. All that is referred to must live on.
  Preparation(const std::string& body, ApiKind kind, const Model& model, TextCodec* codec)
      : body_(body), kind_(kind), model_(model), codec_(codec) {}

  // The next step; false where none is left. Throws an Error, an ApiError where a parameter is at fault.
  bool step();
  PreparedRequest take() { return std::move(prepared_); }

 private:
  void parse();
  void encode_next();
  void echo_some(PreparedPrompt& prompt);
  // Null for token ids, and for a chat.
  const std::string* sent_text(std::size_t prompt) const;

  const std::string& body_;
  const ApiKind kind_;
  const Model& model_;
  TextCodec* const codec_;
  PreparedRequest prepared_;
  std::size_t count_ = 0;        // of prompts; 0: the body is not parsed yet
  std::int64_t characters_ = 0;  // of the last prompt's echo
};

// Throws an ApiError (404) where `name` is not what is served.
void require_model(const std::string& name, const Model& served);

}  // namespace motley
