#include "motley/checkpoint/safetensors.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/base/foreign.hpp"
#include "motley/base/value.hpp"

namespace motley {
namespace {

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t max_header_bytes = 100'000'000;
constexpr std::size_t max_header_values = std::size_t{1} << 22;  // a tensor has seven
constexpr std::int64_t max_dimensions = 8;

// A list of non-negative integers of a header's entry.
std::vector<std::int64_t> read_sizes(const Value& entry, std::string_view key, std::string_view where) {
  const Value* list = entry.find(key);
  if (!list || !list->is_array()) throw input_error(fmt::format("{}: `{}` must be a list", where, key), copy_again);
  std::vector<std::int64_t> sizes;
  for (const Value& item : list->as_array()) {
    if (!item.is_integer() || item.as_integer() < 0)
      throw input_error(fmt::format("{}: `{}` must hold non-negative integers", where, key), copy_again);
    sizes.push_back(item.as_integer());
  }
  return sizes;
}

// Bytes of a tensor of this shape; an error where the product leaves 64 bits.
std::uint64_t bytes_of_shape(const std::vector<std::int64_t>& shape, std::uint64_t element, std::string_view where) {
  std::uint64_t bytes = element;
  for (const std::int64_t size : shape)
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes))
      throw input_error(fmt::format("{}: shape {} has too many elements", where, shape_text(shape)), copy_again);
  return bytes;
}

StoredTensor read_entry(const Value& entry, std::span<const std::byte> data, const std::string& where) {
  const Value* type = entry.find("dtype");
  if (!type || !type->is_string()) throw input_error(fmt::format("{}: `dtype` is missing", where), copy_again);
  StoredTensor tensor{type->as_string(), read_sizes(entry, "shape", where), {}, 0};
  if (std::ssize(tensor.shape) > max_dimensions)
    throw input_error(
        fmt::format("{}: {} dimensions, at most {} are possible", where, tensor.shape.size(), max_dimensions),
        copy_again);
  const std::vector<std::int64_t> range = read_sizes(entry, "data_offsets", where);
  if (range.size() != 2 || range[0] > range[1])
    throw input_error(fmt::format("{}: `data_offsets` must be [begin, end]", where), copy_again);
  const auto begin = static_cast<std::uint64_t>(range[0]), end = static_cast<std::uint64_t>(range[1]);
  if (end > data.size())
    throw input_error(
        fmt::format("{}: its bytes end at {}, but the file has {} after the header", where, end, data.size()),
        "the file is cut off: copy or download it again");
  if (const auto element = safetensors_element_bytes(tensor.type)) {
    const std::uint64_t promised = bytes_of_shape(tensor.shape, *element, where);
    if (promised != end - begin)
      throw input_error(fmt::format("{}: {} elements of shape {} take {} bytes, but its range has {}", where,
                                    tensor.type, shape_text(tensor.shape), promised, end - begin),
                        copy_again);
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

std::string_view header_text(std::span<const std::byte> file, const std::filesystem::path& path) {
  if (file.size() < length_bytes)
    throw input_error(
        fmt::format("{}: a safetensors file must have at least 8 bytes, found {}", path.string(), file.size()),
        copy_again);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= static_cast<std::uint64_t>(file[i]) << (8 * i);
  if (length > max_header_bytes || length > file.size() - length_bytes)
    throw input_error(
        fmt::format("{}: the header of {} bytes is longer than the file of {}", path.string(), length, file.size()),
        "the file is cut off, or is not a safetensors file");
  return {reinterpret_cast<const char*>(file.data()) + length_bytes, static_cast<std::size_t>(length)};
}

Value parse_header(std::string_view text, const std::filesystem::path& path) {
  try {
    return parse_json_within(text, path.string() + " (header)", max_header_values);
  } catch (const Error& error) {
    throw input_error(error.what(), copy_again);
  }
}

}  // namespace

std::optional<std::uint64_t> safetensors_element_bytes(std::string_view type) {
  static const std::map<std::string_view, std::uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto found = sizes.find(type);
  return found == sizes.end() ? std::nullopt : std::optional(found->second);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), mapping_(std::make_shared<MappedFile>(path)) {
  const std::string_view text = header_text(mapping_->bytes(), path_);
  header_ = std::as_bytes(std::span(text));
  const Value header = parse_header(text, path_);
  if (!header.is_object())
    throw input_error(fmt::format("{}: the header must be a JSON object", path_.string()), copy_again);
  const std::span<const std::byte> data = mapping_->bytes().subspan(length_bytes + text.size());
  for (const auto& [name, entry] : header.as_object())
    if (name != "__metadata__")
      tensors_.emplace(name, read_entry(entry, data, fmt::format("{}: {}", path_.string(), name)));
  for (auto& [name, tensor] : tensors_)
    tensor.offset = static_cast<std::uint64_t>(tensor.bytes.data() - mapping_->bytes().data());
  check_no_overlap(tensors_, path_);
}

}  // namespace motley
