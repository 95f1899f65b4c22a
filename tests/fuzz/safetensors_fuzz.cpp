#include "motley/checkpoint/safetensors.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  return refused_or_read([&] { SafetensorsFile{file_of(text_of(data, size), ".safetensors")}; });
}
