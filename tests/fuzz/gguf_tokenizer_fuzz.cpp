#include "motley/text/text_codec.hpp"
#include "tests/fuzz/fuzz.hpp"

// Python's own objects live until the process ends.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  return refused_or_read([&] {
    const auto codec = TextCodec::open(file_of(text_of(data, size), ".gguf"));
    const std::int64_t count = codec->vocabulary_size();
    for (std::int64_t token = 0; token <= std::min<std::int64_t>(count, 8); ++token)
      codec->token_bytes(static_cast<std::int32_t>(token));
    codec->decode(codec->encode("a tale, 12 \xc3\xa9</s>", true), false);
  });
}
