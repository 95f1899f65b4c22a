// The header that stands before every payload on a channel.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "motley/comm/channel.hpp"

namespace motley {

// magic, version, tag, payload length, and a CRC32C of all that.
constexpr std::size_t frame_header_bytes = 64;
using FrameHeader = std::array<std::byte, frame_header_bytes>;

FrameHeader encode_frame_header(const FrameTag& tag);

// Throws a peer error where the header is not one of ours: wrong magic, version or checksum, a type or layout that does
// not exist, a negative or monstrous shape, a length that is not the shape's.
FrameTag decode_frame_header(std::span<const std::byte, frame_header_bytes> header);

// "epoch 1 step 7 frame 2: rows [0, 3) x 64 bf16, token slice": for messages.
std::string describe(const FrameTag& tag);

// Castagnoli's polynomial, as in iSCSI (RFC 3720).
std::uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace motley
