#include "motley/checkpoint/gguf.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  return refused_or_read([&] { open_gguf(file_of(text_of(data, size), ".gguf")); });
}
