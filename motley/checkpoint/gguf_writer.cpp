#include "motley/checkpoint/gguf_writer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/rounding.hpp"
#include "motley/checkpoint/gguf.hpp"

namespace motley {
namespace {

constexpr std::uint64_t alignment = 32;  // the format's default

std::uint64_t padded(std::uint64_t bytes) { return round_up(bytes, alignment); }

// Numbers of the format's value types.
enum Stored : std::uint32_t { stored_u32 = 4, stored_i32, stored_f32, stored_bool, stored_text, stored_array };

template <class T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void put_text(std::string& to, std::string_view value) {
  put<std::uint64_t>(to, value.size());
  to += value;
}

template <class T>
void put_array(std::string& to, std::uint32_t kind, const std::vector<T>& values) {
  put(to, kind);
  put<std::uint64_t>(to, values.size());
  to.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// A file that takes its name only once it is whole.
class NewFile {
 public:
  explicit NewFile(const std::filesystem::path& path)
      : path_(path),
        temporary_(path.string() + fmt::format(".{}.tmp", ::getpid())),
        file_(temporary_, std::ios::binary) {
    check("cannot be written");
  }
  ~NewFile() {
    if (!done_) ::unlink(temporary_.c_str());
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void write(std::span<const std::byte> bytes) {
    file_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    check("writing failed");
    written_ += bytes.size();
  }
  void write(std::string_view bytes) { write(std::as_bytes(std::span(bytes))); }
  void pad() { write(std::string(padded(written_) - written_, '\0')); }
  std::uint64_t written() const { return written_; }

  void finish() {
    file_.close();
    check("writing failed");
    sync_to_disk(temporary_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) give_up("cannot be replaced");
    done_ = true;
    sync_folder_of(path_);
  }

 private:
  void check(std::string_view what) {
    if (!file_) give_up(what);
  }
  [[noreturn]] void give_up(std::string_view what) {
    throw Error(ErrorCode::environment, fmt::format("{}: {} ({})", path_.string(), what, std::strerror(errno)),
                "check that the folder exists, that it is writable, and that the disk has space");
  }

  std::filesystem::path path_, temporary_;
  std::ofstream file_;
  std::uint64_t written_ = 0;
  bool done_ = false;
};

}  // namespace

void GgufWriter::key(std::string_view name, std::uint32_t kind) {
  put_text(metadata_, name);
  put(metadata_, kind);
  ++keys_;
}

void GgufWriter::set_u32(std::string_view name, std::uint32_t value) {
  key(name, stored_u32);
  put(metadata_, value);
}

void GgufWriter::set_f32(std::string_view name, float value) {
  key(name, stored_f32);
  put(metadata_, value);
}

void GgufWriter::set_bool(std::string_view name, bool value) {
  key(name, stored_bool);
  put<std::uint8_t>(metadata_, value ? 1 : 0);
}

void GgufWriter::set_text(std::string_view name, std::string_view value) {
  key(name, stored_text);
  put_text(metadata_, value);
}

void GgufWriter::set_texts(std::string_view name, const std::vector<std::string>& values) {
  key(name, stored_array);
  put<std::uint32_t>(metadata_, stored_text);
  put<std::uint64_t>(metadata_, values.size());
  for (const std::string& value : values) put_text(metadata_, value);
}

void GgufWriter::set_i32s(std::string_view name, const std::vector<std::int32_t>& values) {
  key(name, stored_array);
  put_array(metadata_, stored_i32, values);
}

void GgufWriter::set_bools(std::string_view name, const std::vector<bool>& values) {
  key(name, stored_array);
  put_array(metadata_, stored_bool, std::vector<std::uint8_t>(values.begin(), values.end()));
}

void GgufWriter::set_f32s(std::string_view name, const std::vector<float>& values) {
  key(name, stored_array);
  put_array(metadata_, stored_f32, values);
}

void GgufWriter::add_tensor(std::string_view name, std::string_view type, const std::vector<std::int64_t>& shape) {
  const GgufType* stored = find_gguf_type(type);
  MOTLEY_CHECK(stored && !shape.empty());
  std::uint64_t values = 1;
  for (const std::int64_t size : shape) values *= static_cast<std::uint64_t>(size);
  MOTLEY_CHECK(static_cast<std::uint64_t>(shape.back()) % stored->block_values == 0);
  put_text(tensors_, name);
  put(tensors_, static_cast<std::uint32_t>(shape.size()));
  for (auto size = shape.rbegin(); size != shape.rend(); ++size) put(tensors_, static_cast<std::uint64_t>(*size));
  put(tensors_, stored->id);
  put(tensors_, end_);
  sizes_.push_back(values / stored->block_values * stored->block_bytes);
  end_ = padded(end_ + sizes_.back());
}

void GgufWriter::write(const std::filesystem::path& path,
                       const std::function<void(std::int64_t tensor, const Sink&)>& bytes_of) {
  constexpr std::uint32_t version = 3;
  std::string header = "GGUF";
  put(header, version);
  put<std::uint64_t>(header, sizes_.size());
  put(header, keys_);
  NewFile file(path);
  file.write(header);
  file.write(metadata_);
  file.write(tensors_);
  file.pad();
  for (std::size_t i = 0; i < sizes_.size(); ++i) {
    const std::uint64_t before = file.written();
    bytes_of(static_cast<std::int64_t>(i), [&](std::span<const std::byte> bytes) { file.write(bytes); });
    MOTLEY_CHECK(file.written() - before == sizes_[i]);
    file.pad();
  }
  file.finish();
}

}  // namespace motley
