#include "motley/trainer/data/token_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <regex>
#include <string>
#include <string_view>

#include "motley/base/error.hpp"
#include "motley/base/files.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr std::uint32_t learned_bit = std::uint32_t{1} << 31;
constexpr std::string_view marked_magic = "MOTLEYT1";
constexpr std::size_t marked_header_bytes = 16;  // the magic, and the number of tokens
constexpr std::size_t pending_tokens = 1 << 16;
constexpr std::size_t most_npy_header_bytes = 4096;

template <class T>
T load(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// ---- .npy ----

struct NpyHeader {
  std::size_t bytes = 0;
  std::string type, shape;
};

NpyHeader read_npy_header(std::span<const std::byte> file, const std::string& name) {
  const auto refuse = [&](std::string_view what) {
    return input_error(fmt::format("{}: {}", name, what), "write it by numpy.save(), as a vector of token ids");
  };
  constexpr std::string_view magic("\x93NUMPY", 6);
  if (file.size() < 10 || !text_of(file).starts_with(magic)) throw refuse("this is not a .npy file");
  const int version = std::to_integer<int>(file[6]);
  if (version < 1 || version > 3) throw refuse(fmt::format("version {} of the format is not known", version));
  const std::size_t start = version == 1 ? 10 : 12;
  if (file.size() < start) throw refuse("the file ends inside its header");
  const std::size_t length = version == 1 ? load<std::uint16_t>(file, 8) : load<std::uint32_t>(file, 8);
  if (length > file.size() - start) throw refuse("the file ends inside its header");
  if (length > most_npy_header_bytes) throw refuse(fmt::format("a header of {} bytes is not one of a vector", length));
  const std::string header(text_of(file.subspan(start, length)));
  static const std::regex type(R"('descr'\s*:\s*'([^']*)')"), shape(R"('shape'\s*:\s*\(([^)]*)\))");
  std::smatch type_found, shape_found;
  if (!std::regex_search(header, type_found, type) || !std::regex_search(header, shape_found, shape))
    throw refuse("the header lacks `descr` or `shape`");
  return {start + length, type_found[1], shape_found[1]};
}

std::int64_t npy_length(const std::string& shape, const std::string& name) {
  static const std::regex vector(R"(\s*(\d{1,18}),\s*)");
  std::smatch found;
  if (!std::regex_match(shape, found, vector))
    throw input_error(fmt::format("{}: the shape must be that of a vector, found ({})", name, shape),
                      "save the array with .reshape(-1)");
  return std::stoll(found[1]);
}

// ---- Megatron's index ----

constexpr std::string_view index_magic("MMIDIDX\0\0", 9);
constexpr std::size_t index_header_bytes = 34;  // magic, version, type, and the numbers of sequences and documents

std::optional<TokenType> megatron_type(int code) {
  switch (code) {
    case 1: return TokenType::uint8;
    case 2: return TokenType::int8;
    case 3: return TokenType::int16;
    case 4: return TokenType::int32;
    case 5: return TokenType::int64;
    case 8: return TokenType::uint16;
    default: return std::nullopt;
  }
}

struct MegatronIndex {
  TokenType type;
  std::int64_t tokens;
};

MegatronIndex read_index(const fs::path& path, std::uint64_t bin_bytes) {
  const auto refuse = [&](std::string_view what) {
    return input_error(fmt::format("{}: {}", path.string(), what),
                       "copy both files again, or write them again by Megatron's tools/preprocess_data.py");
  };
  const auto mapped = map_data(path);
  const std::span<const std::byte> file = mapped->bytes();
  if (file.size() < index_header_bytes || !text_of(file).starts_with(index_magic))
    throw refuse("this is not an index of Megatron's (MMIDIDX)");
  if (const auto version = load<std::uint64_t>(file, 9); version != 1)
    throw refuse(fmt::format("version {} of the format is not known", version));
  const int code = std::to_integer<int>(file[17]);
  const auto type = megatron_type(code);
  if (!type) throw refuse(fmt::format("type code {} is not one of integers", code));
  const auto sequences = load<std::uint64_t>(file, 18), documents = load<std::uint64_t>(file, 26);
  constexpr std::size_t entry_bytes = sizeof(std::int32_t) + sizeof(std::int64_t);
  const std::size_t room = file.size() - index_header_bytes;
  if (sequences > room / entry_bytes || documents > (room - sequences * entry_bytes) / sizeof(std::int64_t))
    throw refuse(
        fmt::format("{} sequences and {} documents take more than its {} bytes", sequences, documents, file.size()));
  const std::size_t element = bytes_of_token(*type), pointers = index_header_bytes + sequences * sizeof(std::int32_t);
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < sequences; ++i) {
    const auto size = load<std::int32_t>(file, index_header_bytes + i * sizeof(std::int32_t));
    const auto pointer = load<std::int64_t>(file, pointers + i * sizeof(std::int64_t));
    if (size < 0 || pointer < 0 || static_cast<std::uint64_t>(pointer) != end)
      throw refuse(fmt::format("sequence {} of {} tokens begins at byte {}, expected at {}", i, size, pointer, end));
    end += static_cast<std::uint64_t>(size) * element;
  }
  if (end != bin_bytes)
    throw refuse(fmt::format("its sequences take {} bytes, but the .bin file has {}", end, bin_bytes));
  return {*type, static_cast<std::int64_t>(end / element)};
}

}  // namespace

std::size_t bytes_of_token(TokenType type) {
  switch (type) {
    case TokenType::uint8:
    case TokenType::int8: return 1;
    case TokenType::uint16:
    case TokenType::int16: return 2;
    case TokenType::int64: return 8;
    default: return 4;
  }
}

std::shared_ptr<MappedFile> map_data(const fs::path& path) {
  std::error_code failed;
  const char* const hint = "name a file of training data: .jsonl, .txt, .npy, or .bin with .idx";
  const fs::file_status status = fs::status(path, failed);
  if (!fs::exists(status)) throw input_error(fmt::format("{}: no such file", path.string()), hint);
  if (!fs::is_regular_file(status)) throw input_error(fmt::format("{} is not a file", path.string()), hint);
  if (::access(path.c_str(), R_OK) != 0) throw environment_error(fmt::format("cannot open {}", path.string()));
  return std::make_shared<MappedFile>(path);
}

TokenFile::TokenFile(std::shared_ptr<MappedFile> file, std::size_t header_bytes, TokenType type, std::int64_t size)
    : file_(std::move(file)), bytes_(file_->bytes().subspan(header_bytes)), type_(type), size_(size) {}

TokenFile TokenFile::open_npy(const fs::path& path) {
  auto file = map_data(path);
  const std::string name = path.string();
  const NpyHeader header = read_npy_header(file->bytes(), name);
  const auto type = header.type == "<u2"   ? std::optional(TokenType::uint16)
                    : header.type == "<u4" ? std::optional(TokenType::uint32)
                    : header.type == "<i8" ? std::optional(TokenType::int64)
                                           : std::nullopt;
  if (!type)
    throw input_error(
        fmt::format("{}: the type must be little-endian uint16, uint32 or int64, found \"{}\"", name, header.type),
        "save the array with .astype(numpy.uint32)");
  const std::int64_t size = npy_length(header.shape, name);
  const std::size_t bytes = file->bytes().size() - header.bytes;
  if (static_cast<std::uint64_t>(size) != bytes / bytes_of_token(*type) || bytes % bytes_of_token(*type) != 0)
    throw input_error(fmt::format("{}: {} tokens take {} bytes, but the file has {} after its header", name, size,
                                  static_cast<std::uint64_t>(size) * bytes_of_token(*type), bytes),
                      "the file is cut off: copy or write it again");
  return {std::move(file), header.bytes, *type, size};
}

TokenFile TokenFile::open_megatron(const fs::path& bin) {
  auto file = map_data(bin);
  fs::path index = bin;
  index.replace_extension(".idx");
  std::error_code ignored;
  if (!fs::exists(index, ignored))
    throw input_error(
        fmt::format("{}: {} is missing: it says of which type the tokens are", bin.string(), index.filename().string()),
        "copy the .idx file that was written with it to the same folder");
  const MegatronIndex read = read_index(index, file->bytes().size());
  return {std::move(file), 0, read.type, read.tokens};
}

TokenFile TokenFile::open_marked(const fs::path& path) {
  auto file = map_data(path);
  const std::span<const std::byte> bytes = file->bytes();
  if (bytes.size() < marked_header_bytes || !text_of(bytes).starts_with(marked_magic) ||
      load<std::uint64_t>(bytes, marked_magic.size()) != (bytes.size() - marked_header_bytes) / sizeof(std::uint32_t))
    throw input_error(fmt::format("{}: the tokens that were kept are damaged", path.string()), "remove the file");
  const auto size = load<std::uint64_t>(bytes, marked_magic.size());
  return {std::move(file), marked_header_bytes, TokenType::marked, static_cast<std::int64_t>(size)};
}

Tokens TokenFile::read(std::int64_t first, std::int64_t count) const {
  MOTLEY_CHECK(first >= 0 && count >= 0 && first <= size_ - count);
  Tokens tokens{{}, std::vector<bool>(static_cast<std::size_t>(count), true)};
  tokens.ids.reserve(static_cast<std::size_t>(count));
  const auto copy = [&]<class T>(T) {
    for (std::int64_t i = first; i < first + count; ++i)
      tokens.ids.push_back(static_cast<std::int64_t>(load<T>(bytes_, static_cast<std::size_t>(i) * sizeof(T))));
  };
  switch (type_) {
    case TokenType::uint8: copy(std::uint8_t{}); break;
    case TokenType::int8: copy(std::int8_t{}); break;
    case TokenType::uint16: copy(std::uint16_t{}); break;
    case TokenType::int16: copy(std::int16_t{}); break;
    case TokenType::uint32: copy(std::uint32_t{}); break;
    case TokenType::int32: copy(std::int32_t{}); break;
    case TokenType::int64: copy(std::int64_t{}); break;
    case TokenType::marked:
      copy(std::uint32_t{});
      for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
        tokens.learned[i] = (tokens.ids[i] & learned_bit) != 0;
        tokens.ids[i] &= learned_bit - 1;
      }
  }
  return tokens;
}

MarkedTokenWriter::MarkedTokenWriter(const fs::path& folder) {
  std::string pattern = folder / "tokens-XXXXXX.tmp";
  descriptor_ = ::mkostemps(pattern.data(), 4, O_CLOEXEC);
  if (descriptor_ < 0) throw environment_error(fmt::format("cannot keep tokens in {}", folder.string()));
  temporary_ = pattern;
  pending_.reserve(pending_tokens);
  if (::lseek(descriptor_, marked_header_bytes, SEEK_SET) < 0)
    throw environment_error(fmt::format("cannot write {}", temporary_.string()));
}

MarkedTokenWriter::~MarkedTokenWriter() {
  ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void MarkedTokenWriter::add(std::int32_t token, bool learned) {
  MOTLEY_CHECK(token >= 0);
  pending_.push_back(static_cast<std::uint32_t>(token) | (learned ? learned_bit : 0));
  if (pending_.size() == pending_tokens) flush();
}

void MarkedTokenWriter::flush() {
  std::span<const std::byte> bytes = std::as_bytes(std::span(pending_));
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw environment_error(fmt::format("cannot write {}", temporary_.string()));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  written_ += pending_.size();
  pending_.clear();
}

void MarkedTokenWriter::complete() {
  flush();
  std::array<char, marked_header_bytes> header{};
  std::memcpy(header.data(), marked_magic.data(), marked_magic.size());
  std::memcpy(header.data() + marked_magic.size(), &written_, sizeof written_);
  if (::pwrite(descriptor_, header.data(), header.size(), 0) != std::ssize(header) || ::fsync(descriptor_) != 0 ||
      ::fchmod(descriptor_, 0644) != 0)
    throw environment_error(fmt::format("cannot write {}", temporary_.string()));
}

void MarkedTokenWriter::finish(const fs::path& path) {
  complete();
  if (::rename(temporary_.c_str(), path.c_str()) != 0)
    throw environment_error(fmt::format("cannot write {}", path.string()));
  temporary_.clear();
  sync_folder_of(path);
}

TokenFile MarkedTokenWriter::finish_unnamed() {
  complete();
  TokenFile tokens = TokenFile::open_marked(temporary_);
  ::unlink(temporary_.c_str());
  temporary_.clear();
  return tokens;
}

}  // namespace motley
