#include "motley/comm/transport/collective_frame.hpp"

#include <array>
#include <cstring>

#include <fmt/format.h>

#ifdef __x86_64__
#include <nmmintrin.h>
#endif

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::uint32_t header_magic = 0x434c544d;  // "MTLC"
constexpr std::uint16_t header_version = 1;
constexpr std::uint64_t max_root = (1U << 12) - 1;

// As it lies in memory and on the wire: little-endian, without gaps.
struct WireHeader {
  std::uint32_t magic = header_magic;
  std::uint16_t version = header_version;
  std::uint8_t kind = 0;
  std::uint8_t call = 0;
  std::uint32_t group = 0;
  std::uint32_t acknowledged = 0;
  std::uint64_t epoch = 0;
  std::uint64_t operation = 0;
  std::uint64_t shape = 0;  // from the lowest bit: 44 of bytes, 12 of the root, 4 of the element, 4 of the reduction
  std::uint32_t plan = 0;
  std::uint32_t chunk = 0;
  std::uint32_t step = 0;
  std::uint32_t offset = 0;
  std::uint32_t length = 0;
  std::uint32_t checksum = 0;
};
static_assert(sizeof(WireHeader) == collective_header_bytes);

[[noreturn]] void malformed(const std::string& what) {
  throw Error(ErrorCode::peer, "malformed frame header: " + what);
}

std::uint64_t pack(const OperationShape& shape) {
  return static_cast<std::uint64_t>(shape.bytes) | std::uint64_t{shape.root} << 44 |
         static_cast<std::uint64_t>(shape.element) << 56 | static_cast<std::uint64_t>(shape.reduction) << 60;
}

std::string_view name(CollectiveCall call) {
  constexpr std::array<std::string_view, collective_calls> names{
      "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "message", "barrier"};
  return names[static_cast<std::size_t>(call)];
}

constexpr auto crc32c_table = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t remainder = i;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ (remainder & 1 ? 0x82f63b78U : 0U);
    table[i] = remainder;
  }
  return table;
}();

#ifdef __x86_64__
[[gnu::target("sse4.2")]] std::uint32_t hardware_crc32c(std::uint64_t crc, std::span<const std::byte> bytes) {
  for (; bytes.size() >= 8; bytes = bytes.subspan(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    crc = _mm_crc32_u64(crc, word);
  }
  auto rest = static_cast<std::uint32_t>(crc);
  for (const std::byte byte : bytes) rest = _mm_crc32_u8(rest, static_cast<std::uint8_t>(byte));
  return rest;
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes) {
#ifdef __x86_64__
  static const bool in_hardware = __builtin_cpu_supports("sse4.2");
  if (in_hardware) return ~hardware_crc32c(~0U, bytes);
#endif
  std::uint32_t crc = ~0U;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ crc32c_table[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

std::string describe(const OperationShape& shape) {
  std::string text(name(shape.call));
  switch (shape.call) {
    case CollectiveCall::barrier: return text;
    case CollectiveCall::all_to_all: return text;
    case CollectiveCall::message: return fmt::format("a message of {} bytes", shape.bytes);
    case CollectiveCall::all_gather: return text + fmt::format(" of {} bytes", shape.bytes);
    case CollectiveCall::broadcast: return text + fmt::format(" of {} bytes from rank {}", shape.bytes, shape.root);
    case CollectiveCall::reduce: text += fmt::format(" to rank {}", shape.root); break;
    case CollectiveCall::all_reduce:
    case CollectiveCall::reduce_scatter: break;
  }
  return text + fmt::format(" of {} bytes {}, {}", shape.bytes, name(shape.element), name(shape.reduction));
}

void encode_header(const CollectiveFrame& frame, std::span<std::byte, collective_header_bytes> out) {
  MOTLEY_CHECK(frame.shape.bytes >= 0 && frame.shape.bytes <= largest_vector_bytes && frame.shape.root <= max_root);
  WireHeader header{.kind = static_cast<std::uint8_t>(frame.kind),
                    .call = static_cast<std::uint8_t>(frame.shape.call),
                    .group = frame.group,
                    .acknowledged = frame.acknowledged,
                    .epoch = frame.epoch,
                    .operation = frame.operation,
                    .shape = pack(frame.shape),
                    .plan = frame.shape.plan,
                    .chunk = frame.chunk,
                    .step = frame.step,
                    .offset = frame.offset,
                    .length = frame.length};
  std::memcpy(out.data(), &header, sizeof header);
  header.checksum = crc32c(out.first(offsetof(WireHeader, checksum)));
  std::memcpy(out.data(), &header, sizeof header);
}

CollectiveFrame decode_header(std::span<const std::byte, collective_header_bytes> bytes) {
  WireHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != header_magic) malformed(fmt::format("magic {:#x} instead of {:#x}", header.magic, header_magic));
  if (header.version != header_version)
    malformed(fmt::format("version {}, this program speaks {}", header.version, header_version));
  if (header.checksum != crc32c(bytes.first(offsetof(WireHeader, checksum)))) malformed("wrong checksum");
  if (header.kind > static_cast<std::uint8_t>(FrameKind::beat)) malformed(fmt::format("unknown kind {}", header.kind));
  if (header.call >= collective_calls) malformed(fmt::format("unknown operation {}", header.call));
  const auto element = static_cast<std::uint8_t>(header.shape >> 56 & 0xf);
  const auto reduction = static_cast<std::uint8_t>(header.shape >> 60);
  if (element >= collective_elements) malformed(fmt::format("unknown element type {}", element));
  if (reduction >= collective_reductions) malformed(fmt::format("unknown reduction {}", reduction));
  if (header.length > largest_payload_bytes)
    malformed(fmt::format("a payload of {} bytes, more than {}", header.length, largest_payload_bytes));
  return {.kind = static_cast<FrameKind>(header.kind),
          .group = header.group,
          .acknowledged = header.acknowledged,
          .epoch = header.epoch,
          .operation = header.operation,
          .shape = {.call = static_cast<CollectiveCall>(header.call),
                    .element = static_cast<CollectiveElement>(element),
                    .reduction = static_cast<CollectiveReduction>(reduction),
                    .root = static_cast<std::uint16_t>(header.shape >> 44 & max_root),
                    .bytes = static_cast<std::int64_t>(header.shape & static_cast<std::uint64_t>(largest_vector_bytes)),
                    .plan = header.plan},
          .chunk = header.chunk,
          .step = header.step,
          .offset = header.offset,
          .length = header.length};
}

std::uint32_t group_hash(std::string_view group) { return crc32c(std::as_bytes(std::span(group))); }

}  // namespace motley
