#include "motley/text/text_codec.hpp"
#include "tests/fuzz/fuzz.hpp"

// Up to where a process of Python gets it; gguf_tokenizer.py goes on from there.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  return refused_or_read([&] { tokenizer_keys(file_of(text_of(data, size), ".gguf")); });
}
