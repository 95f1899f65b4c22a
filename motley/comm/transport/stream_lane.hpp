// One of the streams between two members: frames in order, kept until the other side has acknowledged them, so that a
// broken connection can be replaced by another and nothing is lost or doubled.
//
// On a new connection both sides first say how many frames they have taken on this stream so far; each goes on after
// those. From then on every header carries that number, and a side that has nothing to send for long sends a beat.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "motley/comm/net/byte_stream.hpp"
#include "motley/comm/transport/collective_frame.hpp"
#include "motley/comm/transport/transport.hpp"

namespace motley {

class StreamLane {
 public:
  // May be ahead of the other side's word by `window_bytes`.
  explicit StreamLane(std::size_t window_bytes);

  void adopt(ByteStream connection);
  bool up() const { return stream_.open(); }
  // Another connection is needed: there is none, or it is known to end, and what comes before the end stands behind a
  // frame that waits for its turn.
  bool ended() const { return !up() || (ending_ && held_); }
  int descriptor() const { return stream_.descriptor(); }
  FileDescriptor release() { return stream_.take_socket(); }
  bool encrypted() const { return stream_.encrypted(); }
  // Why the connection broke last.
  const std::string& cause() const { return cause_; }

  // Bytes that may still be taken now; frames go where there is most room.
  std::size_t room() const;
  // Twice the window, where the other side's word is all that a frame waits for, and not the kernel; false where not.
  bool widen(std::size_t most_bytes);
  std::size_t memory_bytes() const { return ring_.size() + buffer_.size(); }
  void send(CollectiveFrame frame, std::span<const std::byte> payload);
  // Moves bytes out; true if any moved.
  bool write();
  // Moves bytes in and hands over what is complete, up to `frames`. Throws a peer error on what no member sends.
  bool read(int peer, FrameSink& sink, int frames);
  bool flushed() const { return sent_ == written_ && preamble_left_ == 0; }
  // There may be something to read that no event will announce.
  bool looks_ready() const { return up() && readable_ && !held_; }

  void on_event(std::uint32_t events);
  std::int64_t acknowledged_bytes() const { return acknowledged_total_; }
  std::int64_t received_bytes() const { return received_; }
  std::int64_t sent_bytes() const { return sent_total_; }

 private:
  void break_off();
  void stop_writing(ByteStream::State state);
  bool write_preamble();
  bool read_preamble();
  void believe(std::uint32_t taken);
  bool fill();
  bool begin_frame(FrameSink& sink, int peer);
  bool finish_frame(FrameSink& sink, int peer);
  void acknowledge();
  void copy_in(std::span<const std::byte> bytes);
  std::span<const std::byte> unsent() const;
  std::size_t wire_bytes(std::uint32_t length) const { return (std::size_t{length} + 7) / 8 * 8; }

  ByteStream stream_;
  std::string cause_;
  bool readable_ = false, writable_ = false;
  bool ending_ = false;  // the other side sends no more, or the connection is broken: reading comes to its end

  // Out: a ring of what is not acknowledged. Positions count from the beginning.
  std::vector<std::byte> ring_;
  std::uint64_t acknowledged_ = 0, sent_ = 0, written_ = 0;
  std::deque<std::uint64_t> frame_ends_;  // of those frames
  std::uint32_t frames_acknowledged_ = 0;
  std::array<std::byte, 8> preamble_{};
  std::size_t preamble_left_ = 0;  // of ours, to be written

  // In: bytes that no frame has used yet, and the frame under way.
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::size_t peer_preamble_left_ = 0;  // of the other side's preamble
  bool in_frame_ = false, held_ = false;
  CollectiveFrame frame_;
  std::span<std::byte> target_;           // where the payload goes directly; empty: it stays in the buffer
  std::size_t filled_ = 0;                // of the target
  std::uint32_t taken_ = 0;               // frames
  std::size_t unacknowledged_bytes_ = 0;  // taken since we last said so
  std::int64_t received_ = 0, sent_total_ = 0, acknowledged_total_ = 0;
};

}  // namespace motley
