#include "motley/comm/state/state_manifest.hpp"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"
#include "motley/comm/net/wire.hpp"

namespace motley {
namespace {

constexpr std::uint32_t manifest_magic = 0x5453746D;  // "mtST"
constexpr std::uint16_t manifest_version = 1;
constexpr std::int64_t max_item_bytes = state_chunk_bytes * std::int64_t{max_state_chunks};

std::int64_t chunks_of(std::int64_t bytes) { return ceil_div(bytes, state_chunk_bytes); }

}  // namespace

StateDigest sha256(std::span<const std::byte> bytes) {
  StateDigest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.bytes.data());
  return digest;
}

std::string to_hex(const StateDigest& digest) { return fmt::format("{:02x}", fmt::join(digest.bytes, "")); }

std::int64_t StateManifest::bytes() const {
  return std::accumulate(items.begin(), items.end(), std::int64_t{0},
                         [](std::int64_t sum, const StateItem& item) { return sum + item.bytes; });
}

StateRange chunk_range(const StateItem& item, std::size_t index) {
  MOTLEY_CHECK(index < item.chunks.size());
  const auto first = static_cast<std::int64_t>(index) * state_chunk_bytes;
  return {first, std::min(first + state_chunk_bytes, item.bytes)};
}

StateManifest describe_state(StateRevision revision, std::span<const StateBuffer<const std::byte>> buffers) {
  StateManifest manifest{revision, {}};
  std::set<std::string_view> names;
  for (const auto& [name, bytes] : buffers) {
    if (name.empty() || name.size() > max_state_name_bytes)
      throw input_error(fmt::format("a part of the state has a name of {} bytes", name.size()),
                        "use a name of 1 to 4096 bytes");
    if (!names.insert(name).second)
      throw input_error(fmt::format("two parts of the state are called \"{}\"", name), "give every part its own name");
    StateItem item{name, static_cast<std::int64_t>(bytes.size()), {}};
    item.chunks.resize(static_cast<std::size_t>(chunks_of(item.bytes)));
    for (std::size_t i = 0; i < item.chunks.size(); ++i) {
      const auto [first, last] = chunk_range(item, i);
      item.chunks[i] = sha256(bytes.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first)));
    }
    manifest.items.push_back(std::move(item));
  }
  return manifest;
}

std::string encode_manifest(const StateManifest& manifest) {
  std::string text;
  WireWriter wire(text);
  wire(manifest_magic);
  wire(manifest_version);
  wire(manifest);
  if (text.size() > max_manifest_bytes)
    throw Error(ErrorCode::limit,
                fmt::format("the manifest of the state has {} bytes, more than {}", text.size(), max_manifest_bytes));
  return text;
}

StateManifest decode_manifest(std::string_view bytes) {
  WireReader wire(bytes);
  std::uint32_t magic = 0;
  std::uint16_t version = 0;
  wire(magic);
  wire(version);
  if (magic != manifest_magic) wire.malformed("no manifest of a state");
  if (version != manifest_version)
    wire.malformed(fmt::format("a manifest of version {}, not {}", version, manifest_version));
  StateManifest manifest;
  wire(manifest);
  wire.finish();
  std::set<std::string_view> names;
  for (const auto& item : manifest.items) {
    if (item.name.empty() || !names.insert(item.name).second) wire.malformed("a name that is empty or listed twice");
    if (item.bytes < 0 || item.bytes > max_item_bytes ||
        chunks_of(item.bytes) != static_cast<std::int64_t>(item.chunks.size()))
      wire.malformed(fmt::format("{} chunks for {} bytes", item.chunks.size(), item.bytes));
  }
  return manifest;
}

StateDigest digest(const StateManifest& manifest) {
  const std::string text = encode_manifest(manifest);
  return sha256(std::as_bytes(std::span(text)));
}

}  // namespace motley
