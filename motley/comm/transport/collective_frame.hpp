// What stands before every payload between two members of an epoch, whatever the transport.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "motley/comm/transport/collective_element.hpp"

namespace motley {

enum class FrameKind : std::uint8_t {
  data,    // a piece of an operation all ranks take part in
  revoke,  // the sender has given the epoch up; the payload says why, in words
  beat     // nothing but the transport's own acknowledgement
};

enum class CollectiveCall : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  all_to_all,
  message,  // send and recv: counted per pair of ranks, apart from the other operations
  barrier
};
constexpr int collective_calls = 8;

// What all ranks must agree on before they exchange a byte.
struct OperationShape {
  CollectiveCall call = CollectiveCall::barrier;
  CollectiveElement element = CollectiveElement::uint8;
  CollectiveReduction reduction = CollectiveReduction::sum;
  std::uint16_t root = 0;  // of broadcast and reduce
  std::int64_t bytes = 0;  // of the whole vector; 0 where it may differ by rank (all_to_all)
  std::uint32_t plan = 0;  // hash of the program and of how it is cut
  bool operator==(const OperationShape&) const = default;
};
// "all_reduce of 1024 bytes fp32, sum": for messages.
std::string describe(const OperationShape& shape);

struct CollectiveFrame {
  FrameKind kind = FrameKind::data;
  std::uint32_t group = 0;         // group_hash()
  std::uint32_t acknowledged = 0;  // the transport's: frames taken on this stream, modulo 2^32
  std::uint64_t epoch = 0;
  std::uint64_t operation = 0;  // its number in the epoch, from 0
  OperationShape shape = {};
  std::uint32_t chunk = 0;
  std::uint32_t step = 0;    // place in the receiver's schedule
  std::uint32_t offset = 0;  // of the payload inside the step, bytes
  std::uint32_t length = 0;  // of the payload, bytes
  bool operator==(const CollectiveFrame&) const = default;
};

constexpr std::size_t collective_header_bytes = 64;
using CollectiveHeader = std::array<std::byte, collective_header_bytes>;
// The longest payload of a frame: every transport has room for one, and longer steps travel in pieces.
constexpr std::uint32_t largest_payload_bytes = 128 << 10;
constexpr std::int64_t largest_vector_bytes = (std::int64_t{1} << 44) - 1;

void encode_header(const CollectiveFrame& frame, std::span<std::byte, collective_header_bytes> out);

// Throws a peer error where the header is not one of ours: wrong magic, version or checksum, values out of range, a
// payload longer than a frame's.
CollectiveFrame decode_header(std::span<const std::byte, collective_header_bytes> header);

// Castagnoli's polynomial, as in iSCSI (RFC 3720).
std::uint32_t crc32c(std::span<const std::byte> bytes);

// Of the group's name: frames of another group that reach this one are told from its own.
std::uint32_t group_hash(std::string_view group);

}  // namespace motley
