#include "motley/checkpoint/gguf.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"

namespace motley {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are read as they lie in memory");

// Those of ggml, whose numbers are the format's.
constexpr std::array<GgufType, 35> types = {{
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
    {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},    {42, "Q2_0", 64, 18},
}};

constexpr std::uint64_t max_gguf_dimensions = 4;
constexpr std::uint64_t max_name_bytes = 65535;
// What becomes some hundred bytes of memory, wherever a file spends one or a few on it.
constexpr std::uint64_t max_array_items = 1 << 22;  // of all arrays together: vocabularies have 2^18
constexpr std::uint64_t max_keys = 1 << 16;
constexpr std::uint64_t max_tensors = 1 << 20;
constexpr std::uint64_t max_parts = 1000;

// Types of metadata values, by their numbers in the format.
enum class Kind : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
constexpr std::uint32_t kinds = 13;

// Bytes that a value of this kind takes at least.
std::uint64_t least_bytes(Kind kind) {
  constexpr std::array<std::uint64_t, kinds> sizes = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
  return sizes.at(static_cast<std::size_t>(kind));
}

// Reads a header from front to back. `where` names what is being read, for messages.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, const std::filesystem::path& path) : bytes_(bytes), path_(path) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t left() const { return bytes_.size() - position_; }
  std::string where;

  [[noreturn]] void fail(const std::string& what, const char* hint = copy_again) const {
    throw input_error(fmt::format("{}: {}: {}", path_.string(), where, what), hint);
  }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  std::string text(std::uint64_t longest) {
    const auto length = number<std::uint64_t>();
    if (length > longest || length > left())
      fail(fmt::format("a string of {} bytes does not fit the {} bytes that are left", length, left()));
    const auto found = take(length);
    return {reinterpret_cast<const char*>(found.data()), found.size()};
  }

 private:
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > left())
      fail(fmt::format("the file ends at byte {}", bytes_.size()), "the file is cut off: copy or download it again");
    const auto found = bytes_.subspan(position_, count);
    position_ += count;
    return found;
  }

  std::span<const std::byte> bytes_;
  const std::filesystem::path& path_;
  std::uint64_t position_ = 0;
};

Kind read_kind(Cursor& cursor) {
  const auto number = cursor.number<std::uint32_t>();
  if (number >= kinds) cursor.fail(fmt::format("{} is not a type of metadata values", number));
  return static_cast<Kind>(number);
}

class MetadataReader {
 public:
  explicit MetadataReader(Cursor& cursor) : cursor_(cursor) {}

  Value read(Kind kind) {
    switch (kind) {
      case Kind::u8: return integer<std::uint8_t>();
      case Kind::i8: return integer<std::int8_t>();
      case Kind::u16: return integer<std::uint16_t>();
      case Kind::i16: return integer<std::int16_t>();
      case Kind::u32: return integer<std::uint32_t>();
      case Kind::i32: return integer<std::int32_t>();
      case Kind::i64: return integer<std::int64_t>();
      case Kind::u64: return read_u64();
      case Kind::f32: return static_cast<double>(cursor_.number<float>());
      case Kind::f64: return cursor_.number<double>();
      case Kind::boolean: return read_bool();
      case Kind::string: return cursor_.text(std::numeric_limits<std::uint64_t>::max());
      case Kind::array: return read_array();
    }
    MOTLEY_CHECK(false);
  }

 private:
  template <class T>
  Value integer() {
    return static_cast<std::int64_t>(cursor_.number<T>());
  }

  Value read_u64() {
    const auto value = cursor_.number<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      cursor_.fail(fmt::format("{} is too large", value));
    return static_cast<std::int64_t>(value);
  }

  Value read_bool() {
    const auto value = cursor_.number<std::uint8_t>();
    if (value > 1) cursor_.fail(fmt::format("a bool must be 0 or 1, found {}", value));
    return value == 1;
  }

  Value read_array() {
    const Kind kind = read_kind(cursor_);
    if (kind == Kind::array) cursor_.fail("arrays of arrays are not supported", "convert the model again");
    const auto count = cursor_.number<std::uint64_t>();
    if (count > cursor_.left() / least_bytes(kind))
      cursor_.fail(fmt::format("an array of {} values does not fit the {} bytes that are left", count, cursor_.left()));
    if (count > max_array_items - items_)
      cursor_.fail(fmt::format("an array of {} values: at most {} are read of all arrays", count, max_array_items));
    items_ += count;
    Value::Array values;
    values.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) values.push_back(read(kind));
    return values;
  }

  Cursor& cursor_;
  std::uint64_t items_ = 0;
};

struct Counts {
  std::uint64_t tensors = 0, keys = 0;
};

Counts read_counts(Cursor& cursor) {
  cursor.where = "header";
  if (cursor.left() < 4 || cursor.number<std::uint32_t>() != 0x46554747)
    cursor.fail("the file does not begin with \"GGUF\"", "give a GGUF file, or a folder with safetensors");
  const auto version = cursor.number<std::uint32_t>();
  if (version > 0 && (version & 0xffff) == 0)
    cursor.fail("the file is big-endian", "convert the model again for little-endian machines");
  if (version != 2 && version != 3)
    cursor.fail(fmt::format("version {} of the format is not supported", version), "supported: versions 2 and 3");
  Counts counts;
  counts.tensors = cursor.number<std::uint64_t>();
  counts.keys = cursor.number<std::uint64_t>();
  // The shortest record of a tensor has 8 + 4 + 4 + 8 bytes, the shortest of a key 8 + 4 + 1.
  if (counts.tensors > cursor.left() / 24 || counts.keys > cursor.left() / 13)
    cursor.fail(fmt::format("{} tensors and {} keys do not fit the {} bytes that are left", counts.tensors, counts.keys,
                            cursor.left()));
  if (counts.tensors > max_tensors || counts.keys > max_keys)
    cursor.fail(fmt::format("at most {} tensors and {} keys are read, found {} and {}", max_tensors, max_keys,
                            counts.tensors, counts.keys));
  return counts;
}

Value read_metadata(Cursor& cursor, std::uint64_t count) {
  Value::Object metadata;
  std::set<std::string> seen;
  MetadataReader reader(cursor);
  for (std::uint64_t i = 0; i < count; ++i) {
    cursor.where = fmt::format("key {} of {}", i + 1, count);
    std::string key = cursor.text(max_name_bytes);
    cursor.where = fmt::format("key \"{}\"", key);
    if (!seen.insert(key).second) cursor.fail("the key is given twice");
    Value value = reader.read(read_kind(cursor));
    metadata.emplace_back(std::move(key), std::move(value));
  }
  return metadata;
}

struct TensorRecord {
  std::string name;
  StoredTensor tensor;
  std::uint64_t offset = 0, bytes = 0;
};

TensorRecord read_record(Cursor& cursor, std::uint64_t alignment) {
  TensorRecord record;
  record.name = cursor.text(max_name_bytes);
  cursor.where = fmt::format("tensor \"{}\"", record.name);
  const auto dimensions = cursor.number<std::uint32_t>();
  if (dimensions > max_gguf_dimensions)
    cursor.fail(fmt::format("at most 4 dimensions are possible, found {}", dimensions));
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto size = cursor.number<std::uint64_t>();
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      cursor.fail(fmt::format("a size of {} is too large", size));
    record.tensor.shape.insert(record.tensor.shape.begin(), static_cast<std::int64_t>(size));  // the fastest is first
  }
  const auto id = cursor.number<std::uint32_t>();
  const GgufType* type = find_gguf_type(id);
  if (!type) cursor.fail(fmt::format("type {} is unknown", id), "the file is damaged, or newer than this motley");
  record.tensor.type = type->name;
  record.offset = cursor.number<std::uint64_t>();
  if (record.offset % alignment != 0)
    cursor.fail(fmt::format("the offset {} is not a multiple of the alignment {}", record.offset, alignment));
  const std::uint64_t row = record.tensor.shape.empty() ? 1 : static_cast<std::uint64_t>(record.tensor.shape.back());
  if (row % type->block_values != 0)
    cursor.fail(fmt::format("rows of {} values are not whole blocks of {} ({})", row, type->block_values, type->name));
  std::uint64_t blocks = row / type->block_values;
  for (std::size_t i = 0; i + 1 < record.tensor.shape.size(); ++i)
    if (__builtin_mul_overflow(blocks, static_cast<std::uint64_t>(record.tensor.shape[i]), &blocks))
      cursor.fail("the shape has too many elements");
  if (__builtin_mul_overflow(blocks, type->block_bytes, &record.bytes)) cursor.fail("the shape has too many elements");
  return record;
}

std::uint64_t read_alignment(const Value& metadata, const Cursor& cursor) {
  constexpr std::int64_t usual = 32, largest = 1 << 20;
  const Value* stated = metadata.find("general.alignment");
  if (!stated) return usual;
  if (!stated->is_integer() || stated->as_integer() < 1 || stated->as_integer() > largest ||
      !std::has_single_bit(static_cast<std::uint64_t>(stated->as_integer())))
    cursor.fail("general.alignment must be a power of two up to 1048576");
  return static_cast<std::uint64_t>(stated->as_integer());
}

// A non-negative integer of the metadata; 0 where the key is absent.
std::uint64_t count_of(const GgufFile& file, std::string_view key) {
  const Value* value = file.metadata().find(key);
  if (!value) return 0;
  if (!value->is_integer() || value->as_integer() < 0)
    throw input_error(fmt::format("{}: key \"{}\" must be a non-negative integer", file.path().string(), key),
                      copy_again);
  return static_cast<std::uint64_t>(value->as_integer());
}

}  // namespace

std::span<const GgufType> gguf_types() { return types; }

const GgufType* find_gguf_type(std::uint32_t id) {
  for (const GgufType& type : types)
    if (type.id == id) return &type;
  return nullptr;
}

const GgufType* find_gguf_type(std::string_view name) {
  for (const GgufType& type : types)
    if (type.name == name) return &type;
  return nullptr;
}

GgufFile::GgufFile(const std::filesystem::path& path) : path_(path), mapping_(std::make_shared<MappedFile>(path)) {
  const std::span<const std::byte> bytes = mapping_->bytes();
  Cursor cursor(bytes, path_);
  const Counts counts = read_counts(cursor);
  metadata_ = read_metadata(cursor, counts.keys);
  const std::uint64_t alignment = read_alignment(metadata_, cursor);
  std::vector<TensorRecord> records;
  for (std::uint64_t i = 0; i < counts.tensors; ++i) {
    cursor.where = fmt::format("tensor {} of {}", i + 1, counts.tensors);
    records.push_back(read_record(cursor, alignment));
  }
  header_ = bytes.first(cursor.position());
  const std::uint64_t data = round_up(cursor.position(), alignment);
  const std::uint64_t room = data < bytes.size() ? bytes.size() - data : 0;
  for (TensorRecord& record : records) {
    cursor.where = fmt::format("tensor \"{}\"", record.name);
    if (record.offset > room || record.bytes > room - record.offset)
      cursor.fail(
          fmt::format("{} bytes from {} on reach beyond the {} bytes of data", record.bytes, record.offset, room),
          "the file is cut off: copy or download it again");
    record.tensor.offset = data + record.offset;
    if (record.bytes > 0) record.tensor.bytes = bytes.subspan(data + record.offset, record.bytes);
    if (!tensors_.emplace(record.name, std::move(record.tensor)).second) cursor.fail("the name is given twice");
  }
  check_no_overlap(tensors_, path_);
}

bool is_gguf(const std::filesystem::path& path) { return path.extension() == ".gguf"; }

std::vector<std::unique_ptr<GgufFile>> open_gguf(const std::filesystem::path& path) {
  std::vector<std::unique_ptr<GgufFile>> parts;
  parts.push_back(std::make_unique<GgufFile>(path));
  const std::uint64_t count = count_of(*parts.front(), "split.count");
  if (count <= 1) return parts;
  const std::string ending = fmt::format("-of-{:05}.gguf", count), name = path.filename().string();
  if (count > max_parts || !name.ends_with("-00001" + ending) || count_of(*parts.front(), "split.no") != 0)
    throw input_error(
        fmt::format("{}: this is a part of a model of {} files, and not the first by its name", path.string(), count),
        fmt::format("give the first part, whose name ends with -00001{}", ending));
  const std::string stem = name.substr(0, name.size() - 6 - ending.size());
  std::uint64_t tensors = parts.front()->tensors().size();
  for (std::uint64_t i = 1; i < count; ++i) {
    parts.push_back(std::make_unique<GgufFile>(path.parent_path() / fmt::format("{}-{:05}{}", stem, i + 1, ending)));
    if (count_of(*parts.back(), "split.count") != count || count_of(*parts.back(), "split.no") != i)
      throw input_error(fmt::format("{} is not part {} of {}", parts.back()->path().string(), i + 1, count),
                        "keep the parts of one model together, under their names");
    tensors += parts.back()->tensors().size();
  }
  if (const std::uint64_t all = count_of(*parts.front(), "split.tensors.count"); all != 0 && all != tensors)
    throw input_error(fmt::format("{}: the parts hold {} tensors, not {}", path.string(), tensors, all), copy_again);
  return parts;
}

}  // namespace motley
