// What a group's state consists of, by content: names, sizes, and a SHA-256 per chunk. Who holds a manifest's digest
// (from the coordinator) can take the manifest and every chunk from peers that it does not trust.
//
//   tensors of equal content ──describe_state()──▶ equal manifest ──digest()──▶ one value to agree on
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/bounded.hpp"

namespace motley {

constexpr std::int64_t state_chunk_bytes = std::int64_t{4} << 20;
constexpr std::size_t max_state_name_bytes = 4096;
constexpr std::size_t max_state_items = std::size_t{1} << 20;
constexpr std::size_t max_state_chunks = std::size_t{1} << 21;  // of one item: 8 TiB
constexpr std::size_t max_manifest_bytes = std::size_t{64} << 20;

struct StateDigest {
  std::array<std::uint8_t, 32> bytes = {};
  auto operator<=>(const StateDigest&) const = default;
};
constexpr std::size_t state_digest_bytes = sizeof(StateDigest::bytes);
StateDigest sha256(std::span<const std::byte> bytes);
std::string to_hex(const StateDigest& digest);

// When the state was as it is: after `step` steps, the last of them committed in `epoch`.
struct StateRevision {
  std::uint64_t epoch = 0;
  std::uint64_t step = 0;
  auto operator<=>(const StateRevision&) const = default;
};

// A named run of bytes (a tensor, a file), cut into chunks of state_chunk_bytes, the last one shorter.
struct StateItem {
  BoundedText<max_state_name_bytes> name;
  std::int64_t bytes = 0;
  BoundedList<StateDigest, max_state_chunks> chunks = {};
  bool operator==(const StateItem&) const = default;
};

struct StateManifest {
  StateRevision revision;
  BoundedList<StateItem, max_state_items> items;
  bool operator==(const StateManifest&) const = default;
  std::int64_t bytes() const;
};

// Where the bytes of an item lie; `Byte` is std::byte or const std::byte.
template <class Byte>
struct StateBuffer {
  std::string name;
  std::span<Byte> bytes;
};

// Throws an input error where two names are equal, or one is empty or longer than 4096 bytes.
StateManifest describe_state(StateRevision revision, std::span<const StateBuffer<const std::byte>> buffers);

// A binary form that depends on the content alone. Decoding throws a peer error on anything that is not a manifest:
// lengths beyond what is there, a number of chunks that is not the size's, names twice.
std::string encode_manifest(const StateManifest& manifest);
StateManifest decode_manifest(std::string_view bytes);
StateDigest digest(const StateManifest& manifest);

// Bytes [first, last) of an item that chunk `index` covers.
struct StateRange {
  std::int64_t first = 0, last = 0;
  bool operator==(const StateRange&) const = default;
};
StateRange chunk_range(const StateItem& item, std::size_t index);

// A manifest and the bytes it describes, that stay what they are for as long as `owner` lives.
struct StateSnapshot {
  StateManifest manifest;
  std::vector<std::span<const std::byte>> items;  // as in the manifest
  std::shared_ptr<const void> owner;              // shared by those who still send from it; may be empty
};

}  // namespace motley
