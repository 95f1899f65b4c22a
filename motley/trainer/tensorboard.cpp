#include "motley/trainer/tensorboard.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <span>
#include <string>

#include "motley/base/error.hpp"
#include "motley/comm/transport/collective_frame.hpp"

namespace motley {
namespace {

// ---- protocol buffers: fields of tensorflow/core/util/event.proto and framework/summary.proto ----

enum WireType : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <class T>
void put_fixed(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  const auto raw = std::bit_cast<std::array<char, sizeof(T)>>(value);
  out.append(raw.data(), raw.size());
}

void put_key(std::string& out, unsigned field, WireType type) { put_varint(out, (field << 3U) | type); }

void put_bytes(std::string& out, unsigned field, std::string_view value) {
  put_key(out, field, bytes);
  put_varint(out, value.size());
  out += value;
}

std::string new_event() {
  std::string event;
  put_key(event, 1, fixed64);  // wall_time
  put_fixed(event, std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  return event;
}

void put_step(std::string& event, std::int64_t step) {
  put_key(event, 2, varint);
  put_varint(event, static_cast<std::uint64_t>(step));
}

std::string scalar_value(const TensorBoardFile::Scalar& scalar) {
  std::string value;
  put_bytes(value, 1, scalar.name);  // tag
  put_key(value, 2, fixed32);        // simple_value
  put_fixed(value, static_cast<float>(scalar.value));
  return value;
}

// ---- TFRecord: length, its checksum, data, its checksum ----

std::uint32_t masked_checksum(std::string_view of) {
  return std::rotr(crc32c(std::as_bytes(std::span(of))), 15) + 0xa282ead8U;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

}  // namespace

TensorBoardFile::TensorBoardFile(const std::filesystem::path& folder, std::int64_t first_step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  path_ = folder / fmt::format("events.out.tfevents.{}.{}.{}",
                               std::chrono::duration_cast<std::chrono::seconds>(now).count(), host_name(), ::getpid());
  std::error_code ignored;
  std::filesystem::create_directories(folder, ignored);
  file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file_) throw environment_error("cannot write " + path_.string());
  std::string version = new_event();
  put_bytes(version, 3, "brain.Event:2");  // file_version
  write_record(version);
  std::string start = new_event(), session;
  put_step(start, first_step);
  put_key(session, 1, varint);  // status
  put_varint(session, 1);       // START
  put_bytes(start, 7, session);
  write_record(start);
}

void TensorBoardFile::add(std::int64_t step, const std::vector<Scalar>& scalars) const {
  std::string event = new_event(), summary;
  put_step(event, step);
  for (const Scalar& scalar : scalars) put_bytes(summary, 1, scalar_value(scalar));
  put_bytes(event, 5, summary);
  write_record(event);
}

void TensorBoardFile::write_record(std::string_view event) const {
  std::string record;
  put_fixed(record, static_cast<std::uint64_t>(event.size()));
  put_fixed(record, masked_checksum(record));
  record += event;
  put_fixed(record, masked_checksum(event));
  if (::write(file_.get(), record.data(), record.size()) != std::ssize(record))
    throw environment_error("cannot write " + path_.string());
}

}  // namespace motley
