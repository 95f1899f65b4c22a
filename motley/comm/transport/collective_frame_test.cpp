#include "motley/comm/transport/collective_frame.hpp"

#include <gtest/gtest.h>

#include <cstring>

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

// What a header with one byte changed, and the checksum recomputed, is refused for: nothing beyond what this program
// knows may stand in it.
std::string complaint(std::size_t place, std::uint8_t value) {
  CollectiveFrame frame;
  frame.shape = {.call = CollectiveCall::all_reduce, .bytes = 64};
  CollectiveHeader header;
  encode_header(frame, header);
  header[place] = static_cast<std::byte>(value);
  const std::uint32_t checksum = crc32c(std::span(header).first(header.size() - sizeof(std::uint32_t)));
  std::memcpy(header.data() + header.size() - sizeof checksum, &checksum, sizeof checksum);
  try {
    decode_header(header);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    return error.what();
  }
  return "none";
}

TEST(CollectiveFrame, FieldsBeyondWhatIsKnownAreRefused) {
  constexpr std::size_t version = 4, kind = 6, call = 7, shape = 32, length = 56;
  EXPECT_EQ(complaint(version, 1), "none");
  EXPECT_EQ(complaint(version, 2), "malformed frame header: version 2, this program speaks 1");
  EXPECT_EQ(complaint(version, 0), "malformed frame header: version 0, this program speaks 1");
  const auto last_kind = static_cast<std::uint8_t>(FrameKind::beat);
  EXPECT_EQ(complaint(kind, last_kind), "none");
  EXPECT_EQ(complaint(kind, last_kind + 1), "malformed frame header: unknown kind " + std::to_string(last_kind + 1));
  EXPECT_EQ(complaint(call, collective_calls - 1), "none");
  EXPECT_EQ(complaint(call, collective_calls),
            "malformed frame header: unknown operation " + std::to_string(collective_calls));
  // The shape's highest byte: the element below, the reduction above.
  EXPECT_EQ(complaint(shape + 7, collective_elements - 1), "none");
  EXPECT_EQ(complaint(shape + 7, collective_elements),
            "malformed frame header: unknown element type " + std::to_string(collective_elements));
  EXPECT_EQ(complaint(shape + 7, (collective_reductions - 1) << 4), "none");
  EXPECT_EQ(complaint(shape + 7, collective_reductions << 4),
            "malformed frame header: unknown reduction " + std::to_string(collective_reductions));
  EXPECT_NE(complaint(length + 3, 0x7f), "none") << "a payload of 2 GB";
}

TEST(CollectiveFrame, APayloadOfTheLargestSizeAndNoByteMore) {
  CollectiveFrame frame;
  frame.shape = {.call = CollectiveCall::all_reduce, .bytes = 64};
  CollectiveHeader header;
  frame.length = largest_payload_bytes;
  encode_header(frame, header);
  EXPECT_EQ(decode_header(header), frame);
  frame.length = largest_payload_bytes + 1;
  encode_header(frame, header);
  EXPECT_THROW(decode_header(header), Error);
}

}  // namespace
}  // namespace motley
