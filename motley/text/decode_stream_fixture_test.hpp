// For the tests of this module: one stream, decoded by itself.
#pragma once

#include <string>
#include <vector>

#include "motley/text/decode_stream.hpp"

namespace motley {

class SingleStream {
 public:
  SingleStream(TextCodec& codec, bool skip_special_tokens) : codec_(codec), skip_special_tokens_(skip_special_tokens) {}
  std::string push(std::int32_t token) { return decode_streams(codec_, {{&stream_, token}}, skip_special_tokens_)[0]; }
  std::string finish() { return decode_streams(codec_, {{&stream_, {}}}, skip_special_tokens_)[0]; }

 private:
  TextCodec& codec_;
  bool skip_special_tokens_;
  DecodeStream stream_;
};

inline std::string streamed(TextCodec& codec, const std::vector<std::int32_t>& tokens) {
  SingleStream stream(codec, false);
  std::string text;
  for (const auto token : tokens) text += stream.push(token);
  return text + stream.finish();
}

}  // namespace motley
