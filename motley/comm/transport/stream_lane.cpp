#include "motley/comm/transport/stream_lane.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"

namespace motley {
namespace {

constexpr std::size_t buffer_bytes = collective_header_bytes + largest_payload_bytes + (64 << 10);
// Read beyond what is awaited: enough for a call to bring several small frames, little enough that a large one's
// payload is not copied on its way to its place.
constexpr std::size_t ahead_bytes = 4 << 10;
// What waits here rather than on another stream when this one is slow.
constexpr std::size_t backlog_bytes = 256 << 10;
// Taken without a word to the other side; well below the smallest window, so that it never waits for that word.
constexpr std::size_t unacknowledged_limit_bytes = 128 << 10;
// Of the window, kept for beats: two sides whose windows are full must still be able to acknowledge.
constexpr std::size_t reserve_bytes = 4096;

}  // namespace

StreamLane::StreamLane(std::size_t window_bytes) : ring_(window_bytes) {
  MOTLEY_CHECK(window_bytes >= 4 * unacknowledged_limit_bytes);
}

void StreamLane::adopt(ByteStream connection) {
  stream_ = std::move(connection);
  readable_ = writable_ = true;
  ending_ = false;
  // What had begun to arrive comes again, from its frame's beginning.
  begin_ = end_ = 0;
  in_frame_ = held_ = false;
  target_ = {};
  filled_ = 0;
  peer_preamble_left_ = preamble_.size();
  std::memset(preamble_.data(), 0, preamble_.size());
  std::memcpy(preamble_.data(), &taken_, sizeof taken_);
  preamble_left_ = preamble_.size();
  unacknowledged_bytes_ = 0;
  buffer_.resize(buffer_bytes);
}

void StreamLane::break_off() {
  cause_ = stream_.cause();
  stream_.close();
}

void StreamLane::on_event(std::uint32_t events) {
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) ending_ = true;
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) readable_ = true;
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) writable_ = true;
}

// ---- out ----

std::size_t StreamLane::room() const {
  if (!up() || peer_preamble_left_ > 0 || written_ - sent_ >= backlog_bytes) return 0;
  const std::size_t used = static_cast<std::size_t>(written_ - acknowledged_) + reserve_bytes;
  return ring_.size() - std::min(ring_.size(), used);
}

bool StreamLane::widen(std::size_t most_bytes) {
  if (!up() || peer_preamble_left_ > 0 || sent_ < written_ || 2 * ring_.size() > most_bytes) return false;
  std::vector<std::byte> wider(2 * ring_.size());
  for (std::uint64_t place = acknowledged_; place < written_;) {
    const auto from = static_cast<std::size_t>(place % ring_.size()),
               to = static_cast<std::size_t>(place % wider.size());
    const auto count =
        std::min<std::size_t>(written_ - place, ring_.size() - from);  // ends where the wider one may, too
    std::memcpy(wider.data() + to, ring_.data() + from, count);
    place += count;
  }
  ring_ = std::move(wider);
  return true;
}

void StreamLane::copy_in(std::span<const std::byte> bytes) {
  const auto offset = static_cast<std::size_t>(written_ % ring_.size());
  const std::size_t first = std::min(bytes.size(), ring_.size() - offset);
  if (first > 0) std::memcpy(ring_.data() + offset, bytes.data(), first);
  if (bytes.size() > first) std::memcpy(ring_.data(), bytes.data() + first, bytes.size() - first);
  written_ += bytes.size();
}

void StreamLane::send(CollectiveFrame frame, std::span<const std::byte> payload) {
  frame.acknowledged = taken_;
  unacknowledged_bytes_ = 0;
  CollectiveHeader header;
  encode_header(frame, header);
  if (written_ == acknowledged_ && preamble_left_ == 0)  // empty: begin where the memory is warm
    written_ = sent_ = acknowledged_ = round_up(written_, ring_.size());
  copy_in(header);
  copy_in(payload);
  constexpr std::array<std::byte, 8> padding{};
  copy_in(std::span(padding).first(wire_bytes(frame.length) - payload.size()));
  frame_ends_.push_back(written_);
  sent_total_ += static_cast<std::int64_t>(collective_header_bytes + payload.size());
}

std::span<const std::byte> StreamLane::unsent() const {
  const auto offset = static_cast<std::size_t>(sent_ % ring_.size());
  return std::span(ring_).subspan(offset, std::min<std::size_t>(ring_.size() - offset, written_ - sent_));
}

bool StreamLane::write_preamble() {
  const auto rest = std::span(preamble_).last(preamble_left_);
  const auto moved = stream_.write(rest);
  preamble_left_ -= moved.bytes;
  if (moved.state != ByteStream::State::open) stop_writing(moved.state);
  return moved.bytes > 0;
}

bool StreamLane::write() {
  bool any = false;
  acknowledge();
  while (up() && writable_ && preamble_left_ > 0) any = write_preamble() || any;
  // Where to go on is known when the other side has said what it has.
  while (up() && writable_ && peer_preamble_left_ == 0 && sent_ < written_) {
    const auto bytes = unsent();
    const auto moved = stream_.write(bytes);
    sent_ += moved.bytes;
    any = any || moved.bytes > 0;
    if (moved.state != ByteStream::State::open) stop_writing(moved.state);
  }
  return any;
}

// What the other side sent before it closed is still to be read; reading finds the end.
void StreamLane::stop_writing(ByteStream::State state) {
  writable_ = false;
  if (state == ByteStream::State::closed) readable_ = ending_ = true;
}

// The other side has taken that many frames in all. A frame that is sent again says what was true at first.
void StreamLane::believe(std::uint32_t taken) {
  const auto more = static_cast<std::int32_t>(taken - frames_acknowledged_);
  if (more <= 0) return;
  if (static_cast<std::size_t>(more) > frame_ends_.size())
    throw Error(ErrorCode::peer, fmt::format("acknowledges {} frames of {} sent", more, frame_ends_.size()));
  for (std::int32_t i = 0; i < more; ++i) {
    acknowledged_total_ += static_cast<std::int64_t>(frame_ends_.front() - acknowledged_);
    acknowledged_ = frame_ends_.front();
    frame_ends_.pop_front();
  }
  frames_acknowledged_ = taken;
}

// ---- in ----

bool StreamLane::read_preamble() {
  std::array<std::byte, 8> preamble{};
  if (end_ - begin_ < preamble.size()) return false;
  std::memcpy(preamble.data(), buffer_.data() + begin_, preamble.size());
  begin_ += preamble.size();
  peer_preamble_left_ = 0;
  std::uint32_t taken = 0;
  std::memcpy(&taken, preamble.data(), sizeof taken);
  believe(taken);
  sent_ = acknowledged_;
  return true;
}

// Brings bytes from the connection; false where there are none now.
bool StreamLane::fill() {
  if (!readable_ || !up()) return false;
  const std::size_t want = in_frame_ ? wire_bytes(frame_.length) : collective_header_bytes;
  if (begin_ == end_) begin_ = end_ = 0;
  if (target_.empty() && begin_ + want > buffer_.size()) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const auto direct = target_.empty() ? std::span<std::byte>{} : target_.subspan(filled_);
  const std::size_t lacking = target_.empty() ? want - std::min(want, end_ - begin_) : 0;
  const std::size_t space = buffer_.size() - end_;
  const auto behind = std::span(buffer_).subspan(end_, std::min(space, lacking + ahead_bytes));
  const auto moved = direct.empty() ? stream_.read(behind) : stream_.read(direct, behind);
  const std::size_t to_target = std::min(moved.bytes, direct.size());
  filled_ += to_target;
  end_ += moved.bytes - to_target;
  if (moved.state == ByteStream::State::closed) break_off();
  if (moved.state == ByteStream::State::blocked) readable_ = false;
  return moved.bytes > 0;
}

// A header is there: what does it announce, and where does its payload go?
bool StreamLane::begin_frame(FrameSink& sink, int peer) {
  if (end_ - begin_ < collective_header_bytes) return false;
  frame_ = decode_header(
      std::span<const std::byte, collective_header_bytes>(buffer_.data() + begin_, collective_header_bytes));
  begin_ += collective_header_bytes;
  believe(frame_.acknowledged);
  in_frame_ = true;
  target_ = {};
  filled_ = 0;
  // Padding would stand between the payload and the next header.
  if (frame_.kind != FrameKind::data || frame_.length != wire_bytes(frame_.length)) return true;
  const std::size_t there = std::min<std::size_t>(end_ - begin_, frame_.length);
  if (there == frame_.length) return true;
  target_ = sink.place(peer, frame_);
  if (target_.empty()) return true;
  std::memcpy(target_.data(), buffer_.data() + begin_, there);
  begin_ += there;
  filled_ = there;
  return true;
}

// Hands the frame over if all of it is there and wanted.
bool StreamLane::finish_frame(FrameSink& sink, int peer) {
  const std::size_t wire = target_.empty() ? wire_bytes(frame_.length) : 0;
  if (target_.empty() ? end_ - begin_ < wire : filled_ < target_.size()) return false;
  const std::span<const std::byte> payload =
      target_.empty() ? std::span<const std::byte>(buffer_).subspan(begin_, frame_.length) : target_;
  if (frame_.kind != FrameKind::beat && sink.on_frame(peer, frame_, payload) == FrameSink::Verdict::later) {
    held_ = true;
    return false;
  }
  held_ = false;
  begin_ += wire;
  in_frame_ = false;
  target_ = {};
  ++taken_;
  received_ += static_cast<std::int64_t>(collective_header_bytes + frame_.length);
  if (frame_.kind != FrameKind::beat) unacknowledged_bytes_ += collective_header_bytes + frame_.length;
  return true;
}

void StreamLane::acknowledge() {
  if (unacknowledged_bytes_ < unacknowledged_limit_bytes || !up() || peer_preamble_left_ > 0) return;
  if (ring_.size() - (written_ - acknowledged_) < collective_header_bytes) return;
  send({.kind = FrameKind::beat}, {});
}

bool StreamLane::read(int peer, FrameSink& sink, int frames) {
  bool any = false;
  for (;;) {
    if (peer_preamble_left_ > 0) {
      if (!read_preamble() && !fill()) return any;
      any = true;
    } else if (!in_frame_) {
      if (frames == 0) return any;
      if (!begin_frame(sink, peer) && !fill()) return any;
    } else if (finish_frame(sink, peer)) {
      any = true;
      --frames;
    } else if (held_ || !fill()) {
      return any;
    } else {
      any = true;
    }
  }
  return any;
}

}  // namespace motley
