// Text to token ids and back, and chat templates, exactly as the model's own files say: the `tokenizers` and
// `jinja2` packages in processes of Python. Safe from any thread: no call waits for that of another one. A call that
// overruns its time or memory throws an input error.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/value.hpp"

namespace motley {

class TextCodec {
 public:
  // Of a Hugging Face folder or a GGUF file (of a split one, its first part). Throws: environment error when the
  // packages are missing, input error when there is no usable tokenizer.
  static std::shared_ptr<TextCodec> open(const std::filesystem::path& model);
  virtual ~TextCodec() = default;

  virtual std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) = 0;
  // With the place where each token's part of the text ends, in characters. No special tokens are added.
  struct Placed {
    std::vector<std::int32_t> tokens;
    std::vector<std::int64_t> ends;
  };
  virtual Placed encode_placed(std::string_view text) = 0;
  // The text of each list; one message to Python and back for all.
  virtual std::vector<std::string> decode_all(const std::vector<std::vector<std::int32_t>>& lists,
                                              bool skip_special_tokens) = 0;
  std::string decode(const std::vector<std::int32_t>& tokens, bool skip_special_tokens) {
    return decode_all({tokens}, skip_special_tokens).at(0);
  }
  virtual std::string token_text(std::int32_t token) = 0;  // of one token by itself, for logprobs
  virtual std::vector<std::uint8_t> token_bytes(std::int32_t token) = 0;
  virtual std::int64_t vocabulary_size() = 0;  // without tokens that were added later

  // The tokenizer's own, by which documents end; none where it names none.
  virtual std::optional<std::int32_t> eos_token() = 0;

  virtual bool has_chat_template() = 0;
  // `messages` is the request's list of {role, content}; `arguments`, an object, is what the template gets besides, as
  // it is. Throws an input error when the template refuses them.
  virtual std::string apply_chat_template(const Value& messages, bool add_generation_prompt,
                                          const Value& arguments) = 0;
  std::string apply_chat_template(const Value& messages, bool add_generation_prompt) {
    return apply_chat_template(messages, add_generation_prompt, Value::object());
  }
};

// What a GGUF file says of its tokenizer, in JSON, as a process of Python gets it. Throws an input error for texts that
// are not valid UTF-8 and a pre-tokenizer that is not known.
std::string tokenizer_keys(const std::filesystem::path& file);

}  // namespace motley
