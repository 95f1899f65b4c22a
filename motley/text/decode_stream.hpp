// Incremental decoding of many streams of tokens with one call of the codec.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "motley/text/text_codec.hpp"

namespace motley {

// What one stream remembers: the tokens of the last text given out, which decide how the next ones join it (a leading
// space is dropped at the start only), and those not given out yet.
struct DecodeStream {
  std::vector<std::int32_t> window;
  std::size_t given = 0;              // tokens of the window whose text is given out
  std::optional<std::string> before;  // their text, once it is known
};

struct StreamToken {
  DecodeStream* stream = nullptr;
  std::optional<std::int32_t> token;  // none: the end; what is still held back is given out
};

// The text that each token gives out, which can no longer change and never ends within a character. The codec is called
// once where no stream occurs twice.
std::vector<std::string> decode_streams(TextCodec& codec, const std::vector<StreamToken>& tokens,
                                        bool skip_special_tokens);

// Of UTF-8 text.
std::int64_t count_characters(std::string_view text);

}  // namespace motley
