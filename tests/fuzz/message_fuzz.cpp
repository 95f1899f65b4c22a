#include "motley/workers/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  // What can be read is written back as it was.
  return refused_or_read([&] {
    if (encode(decode(text_of(data, size))) != text_of(data, size)) std::abort();
  });
}
