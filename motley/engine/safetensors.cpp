#include "motley/engine/safetensors.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "motley/base/value.hpp"

namespace motley {
namespace {

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t max_header_bytes = 100'000'000;
constexpr std::int64_t max_dimensions = 8;

constexpr const char* copy_again = "the file is damaged: copy or download it again";

// Bits of one element; empty for a type that this reader does not know.
std::optional<std::uint64_t> element_bytes(std::string_view type) {
  static const std::map<std::string_view, std::uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto found = sizes.find(type);
  return found == sizes.end() ? std::nullopt : std::optional(found->second);
}

std::optional<at::ScalarType> scalar_type(std::string_view type) {
  if (type == "F32") return at::kFloat;
  if (type == "BF16") return at::kBFloat16;
  if (type == "F16") return at::kHalf;
  return std::nullopt;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

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
      throw input_error(fmt::format("{}: shape {} is impossibly large", where, shape_text(shape)), copy_again);
  return bytes;
}

StoredTensor read_entry(const Value& entry, std::span<const std::byte> data, const std::string& where) {
  const Value* type = entry.find("dtype");
  if (!type || !type->is_string()) throw input_error(fmt::format("{}: `dtype` is missing", where), copy_again);
  StoredTensor tensor{type->as_string(), read_sizes(entry, "shape", where), {}};
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
        fmt::format("{}: its bytes end at {}, but the file holds {} after the header", where, end, data.size()),
        "the file is cut off: copy or download it again");
  if (const auto element = element_bytes(tensor.type)) {
    const std::uint64_t promised = bytes_of_shape(tensor.shape, *element, where);
    if (promised != end - begin)
      throw input_error(fmt::format("{}: {} elements of shape {} take {} bytes, but its range holds {}", where,
                                    tensor.type, shape_text(tensor.shape), promised, end - begin),
                        copy_again);
  }
  tensor.bytes = data.subspan(begin, end - begin);
  return tensor;
}

void check_no_overlap(const std::map<std::string, StoredTensor>& tensors, const std::filesystem::path& path) {
  std::vector<std::pair<std::span<const std::byte>, std::string_view>> ranges;
  for (const auto& [name, tensor] : tensors)
    if (!tensor.bytes.empty()) ranges.emplace_back(tensor.bytes, name);
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.first.data() < b.first.data(); });
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i - 1].first.data() + ranges[i - 1].first.size() > ranges[i].first.data())
      throw input_error(
          fmt::format("{}: the bytes of {} and {} overlap", path.string(), ranges[i - 1].second, ranges[i].second),
          copy_again);
}

std::string_view header_text(std::span<const std::byte> file, const std::filesystem::path& path) {
  if (file.size() < length_bytes)
    throw input_error(fmt::format("{}: {} bytes are too few for a safetensors file", path.string(), file.size()),
                      copy_again);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) length |= static_cast<std::uint64_t>(file[i]) << (8 * i);
  if (length > max_header_bytes || length > file.size() - length_bytes)
    throw input_error(
        fmt::format("{}: a header of {} bytes cannot be in a file of {}", path.string(), length, file.size()),
        "the file is cut off, or is no safetensors file");
  return {reinterpret_cast<const char*>(file.data()) + length_bytes, static_cast<std::size_t>(length)};
}

Value parse_header(std::string_view text, const std::filesystem::path& path) {
  try {
    return parse_json(text, path.string() + " (header)");
  } catch (const Error& error) {
    throw input_error(error.what(), copy_again);
  }
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    throw input_error(fmt::format("cannot open {}: {}", path.string(), std::strerror(errno)),
                      "a model folder holds config.json and model.safetensors");
  struct stat status {};
  const bool is_file = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size_ = is_file ? static_cast<std::size_t>(status.st_size) : 0;
  void* mapping = size_ > 0 ? ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0) : nullptr;
  const int cause = errno;
  ::close(descriptor);
  if (!is_file)
    throw input_error(fmt::format("{} is not a file", path.string()),
                      "a model folder holds config.json and model.safetensors");
  if (mapping == MAP_FAILED)
    throw Error(ErrorCode::environment, fmt::format("cannot map {}: {}", path.string(), std::strerror(cause)));
  data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), mapping_(std::make_shared<MappedFile>(path)) {
  const std::string_view text = header_text(mapping_->bytes(), path_);
  const Value header = parse_header(text, path_);
  if (!header.is_object())
    throw input_error(fmt::format("{}: the header is no JSON object", path_.string()), copy_again);
  const std::span<const std::byte> data = mapping_->bytes().subspan(length_bytes + text.size());
  for (const auto& [name, entry] : header.as_object())
    if (name != "__metadata__")
      tensors_.emplace(name, read_entry(entry, data, fmt::format("{}: {}", path_.string(), name)));
  check_no_overlap(tensors_, path_);
}

Checkpoint::Checkpoint(std::filesystem::path folder) : folder_(std::move(folder)) {
  const auto index_path = folder_ / "model.safetensors.index.json";
  std::error_code ignored;
  if (!std::filesystem::exists(index_path, ignored)) {
    auto file = std::make_unique<SafetensorsFile>(folder_ / "model.safetensors");
    for (const auto& [name, tensor] : file->tensors()) file_of_.emplace(name, "model.safetensors");
    files_.emplace("model.safetensors", std::move(file));
    return;
  }
  const Value index = read_document(index_path);
  const Value* weight_map = index.find("weight_map");
  if (!weight_map || !weight_map->is_object())
    throw input_error(fmt::format("{}: `weight_map` is missing", index_path.string()), copy_again);
  for (const auto& [name, file_name] : weight_map->as_object()) {
    const std::string file = file_name.is_string() ? file_name.as_string() : "";
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..")
      throw input_error(
          fmt::format("{}: {} must be in a file of the same folder, not in \"{}\"", index_path.string(), name, file),
          "all files of a model stand beside its config.json");
    if (!files_.contains(file)) files_.emplace(file, std::make_unique<SafetensorsFile>(folder_ / file));
    if (!files_.at(file)->tensors().contains(name))
      throw input_error(fmt::format("{} promises {} in {}, which does not hold it", index_path.string(), name, file),
                        copy_again);
    file_of_.emplace(name, file);
  }
}

Checkpoint::Found Checkpoint::find(const TensorSpec& tensor) const {
  constexpr std::string_view prefix = "model.";
  const std::string other =
      tensor.name.starts_with(prefix) ? tensor.name.substr(prefix.size()) : std::string(prefix) + tensor.name;
  auto entry = file_of_.find(tensor.name);
  if (entry == file_of_.end()) entry = file_of_.find(other);
  if (entry == file_of_.end()) {
    std::vector<std::string> names;
    for (const auto& [name, file] : file_of_) names.push_back(name);
    const std::string near = closest(tensor.name, names);
    throw input_error(fmt::format("config.json promises {}, the safetensors files of {} do not hold it", tensor.name,
                                  folder_.string()),
                      near.empty()
                          ? "config.json and weights must come from the same model"
                          : fmt::format("they hold {}; config.json and weights must come from the same model", near));
  }
  const SafetensorsFile& file = *files_.at(entry->second);
  return {&file, &file.tensors().at(entry->first)};
}

void Checkpoint::read(const TensorSpec& tensor, const Slice& slice, at::Tensor to) const {
  const auto [file, stored] = find(tensor);
  if (stored->shape != tensor.shape)
    throw input_error(fmt::format("config.json promises {} {}, {} holds {}", tensor.name, shape_text(tensor.shape),
                                  file->path().string(), shape_text(stored->shape)),
                      "config.json and weights must come from the same model");
  const auto type = scalar_type(stored->type);
  if (!type)
    throw input_error(fmt::format("{}: {} is of type {}", file->path().string(), tensor.name, stored->type),
                      "supported: F32, BF16, F16");
  const std::int64_t width = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  MOTLEY_CHECK(slice.rows.last <= tensor.shape.at(0) && slice.columns.last <= width);
  const auto element = static_cast<std::int64_t>(at::elementSize(*type));
  const std::byte* first = stored->bytes.data() + (slice.rows.first * width + slice.columns.first) * element;
  const at::Tensor from = at::from_blob(const_cast<std::byte*>(first), {slice.rows.size(), slice.columns.size()},
                                        {width, 1}, at::TensorOptions(*type));
  to.view({slice.rows.size(), slice.columns.size()}).copy_(from);
}

}  // namespace motley
