#include "motley/comm/net/message_stream.hpp"

#include <poll.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

static_assert(std::endian::native == std::endian::little);
using FrameLength = std::uint32_t;

constexpr std::size_t tls_record_bytes = std::size_t{16} << 10;
constexpr std::size_t shortest_read_bytes = std::size_t{16} << 10, longest_read_bytes = std::size_t{64} << 10;

}  // namespace

std::span<std::byte> FrameReader::space(std::size_t bytes) {
  if (start_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + start_, end_ - start_);
    end_ -= start_;
    start_ = 0;
  }
  if (buffer_.size() < end_ + bytes) buffer_.resize(end_ + bytes);
  return std::span(buffer_).subspan(end_, bytes);
}

std::optional<std::size_t> FrameReader::announced() const {
  FrameLength length = 0;
  if (end_ - start_ < sizeof length) return std::nullopt;
  std::memcpy(&length, buffer_.data() + start_, sizeof length);
  return length;
}

bool FrameReader::ready() const {
  const auto length = announced();
  return length && (*length > largest_bytes_ || sizeof(FrameLength) + *length <= end_ - start_);
}

std::size_t FrameReader::missing() const {
  const std::size_t have = end_ - start_;
  const auto length = announced();
  if (!length) return sizeof(FrameLength) - have;
  if (*length > largest_bytes_)
    throw Error(ErrorCode::peer,
                fmt::format("malformed message: a length of {} bytes, more than {}", *length, largest_bytes_));
  return sizeof(FrameLength) + *length - std::min(have, sizeof(FrameLength) + *length);
}

std::optional<std::string_view> FrameReader::next() {
  if (missing() > 0) return std::nullopt;
  const std::size_t length = *announced(), start = start_ + sizeof(FrameLength);
  start_ = start + length;
  return std::string_view(reinterpret_cast<const char*>(buffer_.data()) + start, length);
}

void FrameWriter::push(std::string_view head, std::span<const std::byte> body, std::shared_ptr<const void> owner) {
  const std::size_t size = head.size() + body.size();
  if (size > std::min<std::size_t>(largest_bytes_, std::numeric_limits<FrameLength>::max()))
    throw Error(ErrorCode::limit, fmt::format("a message would have {} bytes, more than {}", size, largest_bytes_));
  const auto length = static_cast<FrameLength>(size);
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  text += head;
  queued_bytes_ += text.size() + body.size();
  messages_.push_back({std::move(text), body, std::move(owner)});
}

std::span<const std::byte> FrameWriter::next() const {
  if (messages_.empty()) return {};
  const Outgoing& first = messages_.front();
  return first.sent < first.head.size() ? std::as_bytes(std::span(first.head)).subspan(first.sent)
                                        : first.body.subspan(first.sent - first.head.size());
}

void FrameWriter::sent(std::size_t bytes) {
  Outgoing& first = messages_.front();
  first.sent += bytes;
  if (first.sent < first.head.size() + first.body.size()) return;
  queued_bytes_ -= first.sent;
  messages_.pop_front();
}

void MessageStream::queue(std::string_view head, std::span<const std::byte> body, std::shared_ptr<const void> owner) {
  if (!lost()) writer_.push(head, body, std::move(owner));
}

void MessageStream::send(std::string_view message) {
  queue(message);
  flush();
}

std::size_t MessageStream::flush(std::size_t most_bytes) {
  std::size_t total = 0;
  while (!writer_.empty() && total < most_bytes) {
    auto offered = writer_.next();
    // TLS must be offered again what it did not take: one record at most.
    const std::size_t least = std::min(refused_bytes_, tls_record_bytes);
    offered = offered.first(std::min(offered.size(), std::max(most_bytes - total, least)));
    const ByteStream::Moved moved = stream_.write(offered);
    if (moved.state == ByteStream::State::closed) {
      broken_ = true;
      cause_ = stream_.cause();
      writer_.clear();
      break;
    }
    refused_bytes_ = moved.state == ByteStream::State::blocked ? offered.size() : 0;
    if (refused_bytes_ > 0) break;
    writer_.sent(moved.bytes);
    total += moved.bytes;
  }
  return total;
}

std::optional<std::string_view> MessageStream::receive(std::size_t most_bytes) {
  for (;;) {
    if (auto message = reader_.next()) return message;
    if (ended_ || most_bytes == 0) return std::nullopt;
    // Little beyond the end of a long message: what follows it is moved to the front.
    const std::size_t wanted = std::clamp(reader_.missing(), shortest_read_bytes, longest_read_bytes);
    const ByteStream::Moved moved = stream_.read(reader_.space(std::min(wanted, most_bytes)));
    reader_.arrived(moved.bytes);
    received_bytes_ += moved.bytes;
    most_bytes -= moved.bytes;
    if (moved.state == ByteStream::State::open) continue;
    if (moved.state == ByteStream::State::blocked && !broken_) return std::nullopt;
    ended_ = true;
    if (!broken_) cause_ = stream_.cause();
    writer_.clear();
    if (reader_.inside_message())
      throw Error(ErrorCode::peer, fmt::format("the connection ended inside a message: {}", cause()));
  }
}

short MessageStream::events() const { return static_cast<short>(POLLIN | (flushed() ? 0 : POLLOUT)); }

void MessageStream::close() {
  stream_.close();
  writer_.clear();
  ended_ = true;
}

std::optional<std::string_view> ReadingTurn::next() {
  const std::uint64_t before = stream_.received_bytes();
  auto message = stream_.receive(left_bytes_);
  left_bytes_ -= std::min<std::uint64_t>(left_bytes_, stream_.received_bytes() - before);
  return message;
}

void BlockingMessageStream::send(std::string_view message, Instant until) {
  std::unique_lock lock(mutex_);
  stream_.send(message);
  while (!stream_.flushed()) {
    lock.unlock();
    if (!wait_for(stream_.descriptor(), POLLOUT, until)) throw Error(ErrorCode::peer, "no room to send in time");
    lock.lock();
    stream_.flush();
  }
  if (stream_.lost()) throw Error(ErrorCode::peer, fmt::format("the connection is lost: {}", stream_.cause()));
}

std::optional<std::string_view> BlockingMessageStream::receive(Instant until) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (auto message = stream_.receive()) return message;
    if (stream_.ended()) return std::nullopt;
    lock.unlock();
    if (!wait_for(stream_.descriptor(), POLLIN, until)) throw Error(ErrorCode::peer, "no answer in time");
    lock.lock();
  }
}

}  // namespace motley
