#include "motley/checkpoint/safetensors_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <set>

#include "motley/base/error.hpp"
#include "motley/base/value.hpp"
#include "motley/checkpoint/safetensors.hpp"

namespace motley {
namespace {

constexpr std::size_t header_alignment = 8;

void write_slice(int descriptor, std::span<const std::byte> bytes, std::uint64_t offset,
                 const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw environment_error(fmt::format("cannot write {}", path.string()));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

// Takes the disk's space for the file at once, so that a full disk is found before hours of work.
void reserve(int descriptor, std::uint64_t bytes, const std::filesystem::path& path) {
  int failed = EINTR;
  while (failed == EINTR) failed = ::posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
  errno = failed;
  if (failed != 0) throw environment_error(fmt::format("cannot make {} {} bytes long", path.string(), bytes));
}

}  // namespace

SafetensorsLayout safetensors_layout(const std::vector<SafetensorsEntry>& entries) {
  SafetensorsLayout layout;
  std::vector<std::uint64_t> element_bytes;
  std::set<std::string_view> names;
  for (const SafetensorsEntry& entry : entries) {
    const auto element = safetensors_element_bytes(entry.type);
    MOTLEY_CHECK(element && names.insert(entry.name).second);
    std::uint64_t bytes = *element;
    for (const std::int64_t size : entry.shape) bytes *= static_cast<std::uint64_t>(size);
    layout.bytes.push_back(bytes);
    element_bytes.push_back(*element);
  }
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return element_bytes[i]; });

  Value::Object header = {{"__metadata__", Value::object({{"format", "pt"}})}};  // `transformers` asks for it
  layout.offsets.resize(entries.size());
  std::uint64_t end = 0;
  for (const std::size_t i : order) {
    Value shape = Value::array();
    for (const std::int64_t size : entries[i].shape) shape.push_back(size);
    const auto first = static_cast<std::int64_t>(end);
    layout.offsets[i] = end;
    end += layout.bytes[i];
    header.emplace_back(entries[i].name,
                        Value::object({{"dtype", entries[i].type},
                                       {"shape", std::move(shape)},
                                       {"data_offsets", Value::array({first, static_cast<std::int64_t>(end)})}}));
  }
  std::string text = to_json(Value(std::move(header)));
  text.append((header_alignment - text.size() % header_alignment) % header_alignment, ' ');
  for (std::size_t i = 0; i < header_alignment; ++i)
    layout.header += static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i) & 0xff);
  layout.header += text;
  for (std::uint64_t& offset : layout.offsets) offset += layout.header.size();
  layout.file_bytes = layout.header.size() + end;
  return layout;
}

void SafetensorsWriter::create(const std::filesystem::path& path, const SafetensorsLayout& layout) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor < 0) throw environment_error(fmt::format("cannot write {}", path.string()));
  try {
    reserve(descriptor, layout.file_bytes, path);
    write_slice(descriptor, std::as_bytes(std::span(layout.header)), 0, path);
  } catch (const Error&) {
    ::close(descriptor);
    ::unlink(path.c_str());
    throw;
  }
  ::close(descriptor);
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path, SafetensorsLayout layout)
    : path_(std::move(path)), layout_(std::move(layout)), descriptor_(::open(path_.c_str(), O_WRONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) throw environment_error(fmt::format("cannot write {}", path_.string()));
}

SafetensorsWriter::~SafetensorsWriter() { ::close(descriptor_); }

void SafetensorsWriter::write(std::size_t tensor, std::uint64_t first, std::span<const std::byte> bytes) const {
  MOTLEY_CHECK(first <= layout_.bytes.at(tensor) && bytes.size() <= layout_.bytes[tensor] - first);
  write_slice(descriptor_, bytes, layout_.offsets[tensor] + first, path_);
}

void SafetensorsWriter::sync() const {
  if (::fsync(descriptor_) != 0) throw environment_error(fmt::format("cannot write {}", path_.string()));
}

}  // namespace motley
