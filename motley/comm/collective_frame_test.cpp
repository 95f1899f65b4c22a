#include "motley/comm/collective_frame.hpp"

#include <gtest/gtest.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

TEST(CollectiveFrame, ChecksumIsCastagnolis) {
  EXPECT_EQ(crc32c(std::as_bytes(std::span("123456789", 9))), 0xe3069283U);
}

TEST(CollectiveFrame, HeadersComeBackAndNoChangedBitPasses) {
  const CollectiveFrame frame{.group = 5,
                              .acknowledged = 6,
                              .epoch = 7,
                              .operation = std::uint64_t{1} << 40,
                              .shape = {.call = CollectiveCall::broadcast,
                                        .element = CollectiveElement::bf16,
                                        .reduction = CollectiveReduction::max,
                                        .root = 3,
                                        .bytes = 4096,
                                        .plan = 8},
                              .chunk = 9,
                              .step = 10,
                              .offset = 64,
                              .length = 128};
  CollectiveHeader header;
  encode_header(frame, header);
  EXPECT_EQ(decode_header(header), frame);
  for (std::size_t bit = 0; bit < header.size() * 8; ++bit) {
    header[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_THROW(decode_header(header), Error) << bit;
    header[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace motley
