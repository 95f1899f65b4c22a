#include "motley/comm/membership/control_stream.hpp"

#include <poll.h>

#include <array>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {

short ControlStream::events() const { return static_cast<short>(POLLIN | (flushed() ? 0 : POLLOUT)); }

void ControlStream::send(const ControlMessage& message) {
  const std::string bytes = encode_control(message);
  const auto length = static_cast<std::uint32_t>(bytes.size());
  if (flushed()) {
    outbox_.clear();
    written_ = 0;
  }
  outbox_.append(reinterpret_cast<const char*>(&length), sizeof length);
  outbox_ += bytes;
  flush();
}

void ControlStream::flush() {
  while (!flushed()) {
    const auto rest = std::as_bytes(std::span(outbox_)).subspan(written_);
    const ByteStream::Moved moved = stream_.write(rest);
    written_ += moved.bytes;
    if (moved.state == ByteStream::State::closed)
      throw Error(ErrorCode::peer, fmt::format("the control connection is lost: {}", stream_.cause()));
    if (moved.state == ByteStream::State::blocked) return;
  }
}

std::vector<ControlMessage> ControlStream::receive(std::size_t largest_bytes) {
  bool closed = false;
  std::array<std::byte, 16384> piece;
  // A sender that never pauses must not keep the reader for ever.
  while (inbox_.size() < largest_bytes + sizeof(std::uint32_t)) {
    const ByteStream::Moved moved = stream_.read(piece);
    inbox_.append(reinterpret_cast<const char*>(piece.data()), moved.bytes);
    closed = moved.state == ByteStream::State::closed;
    if (moved.state != ByteStream::State::open) break;
  }
  std::vector<ControlMessage> messages;
  std::size_t place = 0;
  while (inbox_.size() - place >= sizeof(std::uint32_t)) {
    std::uint32_t length = 0;
    std::memcpy(&length, inbox_.data() + place, sizeof length);
    if (length > largest_bytes)
      throw Error(ErrorCode::peer,
                  fmt::format("malformed message: a length of {} bytes, more than {}", length, largest_bytes));
    if (inbox_.size() - place - sizeof length < length) break;
    messages.push_back(decode_control(std::string_view(inbox_).substr(place + sizeof length, length)));
    place += sizeof length + length;
  }
  inbox_.erase(0, place);
  if (closed && messages.empty())
    throw Error(ErrorCode::peer, fmt::format("the control connection is lost: {}", stream_.cause()));
  return messages;
}

}  // namespace motley
