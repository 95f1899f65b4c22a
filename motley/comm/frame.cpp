#include "motley/comm/frame.hpp"

#include <cstring>

#ifdef __x86_64__
#include <nmmintrin.h>
#endif

#include "motley/comm/wire.hpp"

namespace motley {
namespace {

constexpr std::uint32_t frame_magic = 0x594c544d;  // "MTLY"
constexpr std::uint16_t frame_version = 1;
constexpr std::int64_t max_extent = std::int64_t{1} << 40;  // of rows and of columns
constexpr std::int64_t max_payload_bytes = std::int64_t{1} << 44;

constexpr std::int64_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::fp32: return 4;
    case ElementType::bf16: return 2;
    case ElementType::bytes: return 1;
  }
  return 1;
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

[[noreturn]] void malformed(const std::string& what) {
  throw Error(ErrorCode::peer, "malformed frame header: " + what);
}

}  // namespace

std::int64_t FrameTag::bytes() const { return rows * columns * element_bytes(type); }

std::uint32_t crc32c(std::span<const std::byte> bytes) {
#ifdef __x86_64__
  static const bool in_hardware = __builtin_cpu_supports("sse4.2");
  if (in_hardware) return ~hardware_crc32c(~0U, bytes);
#endif
  std::uint32_t crc = ~0U;
  for (const std::byte byte : bytes) crc = (crc >> 8) ^ crc32c_table[(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  return ~crc;
}

FrameHeader encode_frame_header(const FrameTag& tag) {
  std::string bytes;
  bytes.reserve(frame_header_bytes);
  WireWriter wire(bytes);
  wire(frame_magic);
  wire(frame_version);
  wire(static_cast<std::uint8_t>(tag.type));
  wire(static_cast<std::uint8_t>(tag.layout));
  wire(tag.epoch);
  wire(tag.step);
  wire(tag.sequence_number);
  wire(tag.row_first);
  wire(tag.rows);
  wire(tag.columns);
  wire(tag.bytes());
  wire(crc32c(std::as_bytes(std::span(bytes))));
  MOTLEY_CHECK(bytes.size() == frame_header_bytes);
  FrameHeader header;
  std::memcpy(header.data(), bytes.data(), header.size());
  return header;
}

FrameTag decode_frame_header(std::span<const std::byte, frame_header_bytes> header) {
  WireReader wire({reinterpret_cast<const char*>(header.data()), header.size()});
  std::uint32_t magic = 0, crc = 0;
  std::uint16_t version = 0;
  std::uint8_t type = 0, layout = 0;
  std::int64_t payload_bytes = 0;
  FrameTag tag;
  wire(magic);
  wire(version);
  wire(type);
  wire(layout);
  wire(tag.epoch);
  wire(tag.step);
  wire(tag.sequence_number);
  wire(tag.row_first);
  wire(tag.rows);
  wire(tag.columns);
  wire(payload_bytes);
  wire(crc);
  if (magic != frame_magic) malformed(fmt::format("magic {:#x} instead of {:#x}", magic, frame_magic));
  if (version != frame_version) malformed(fmt::format("version {}, this program speaks {}", version, frame_version));
  if (crc != crc32c(header.first(frame_header_bytes - sizeof crc))) malformed("wrong checksum");
  if (type > static_cast<std::uint8_t>(ElementType::bytes)) malformed(fmt::format("unknown element type {}", type));
  if (layout > static_cast<std::uint8_t>(Layout::partial)) malformed(fmt::format("unknown layout {}", layout));
  for (const std::int64_t extent : {tag.row_first, tag.rows, tag.columns})
    if (extent < 0 || extent > max_extent) malformed(fmt::format("an extent of {}", extent));
  tag.type = static_cast<ElementType>(type);
  tag.layout = static_cast<Layout>(layout);
  if (tag.columns > 0 && tag.rows > max_payload_bytes / 4 / tag.columns)
    malformed(fmt::format("a shape of {} x {}", tag.rows, tag.columns));
  if (payload_bytes != tag.bytes()) malformed(fmt::format("{} bytes for a shape of {}", payload_bytes, tag.bytes()));
  return tag;
}

std::string describe(const FrameTag& tag) {
  constexpr std::array types{"fp32", "bf16", "bytes"};
  constexpr std::array layouts{"replicated", "token slice", "partial"};
  return fmt::format("epoch {} step {} frame {}: rows [{}, {}) x {} {}, {}", tag.epoch, tag.step, tag.sequence_number,
                     tag.row_first, tag.row_first + tag.rows, tag.columns, types.at(static_cast<std::size_t>(tag.type)),
                     layouts.at(static_cast<std::size_t>(tag.layout)));
}

}  // namespace motley
