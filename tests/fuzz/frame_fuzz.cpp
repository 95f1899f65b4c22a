#include <algorithm>
#include <array>

#include "motley/comm/frame.hpp"
#include "tests/fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace motley;
  FrameHeader header{};
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(size, header.size()), header.begin());
  return refused_or_read([&] { decode_frame_header(header); });
}
