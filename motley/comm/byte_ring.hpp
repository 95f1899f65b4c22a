// A stream of bytes from one writer to one reader through memory that both see: threads of one process, or processes
// that map the same file. Waiting sleeps in the kernel (futex), so that a waiter costs no processor time.
//
// Neither side trusts the other's half of the state: a position out of range is a peer error, never an access out of
// bounds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace motley {

// Lives in the shared memory; all zero is an empty, open ring. Positions count bytes modulo twice the capacity, so that
// a full ring differs from an empty one; they are also the words that waiters sleep on.
struct RingState {
  alignas(64) std::atomic<std::uint32_t> written{0};
  std::atomic<std::uint32_t> reader_waits{0};
  std::atomic<std::uint32_t> writer_closed{0};
  alignas(64) std::atomic<std::uint32_t> read{0};
  std::atomic<std::uint32_t> writer_waits{0};
  std::atomic<std::uint32_t> reader_closed{0};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

class RingWriter {
 public:
  RingWriter(RingState& state, std::span<std::byte> storage) : state_(&state), storage_(storage) {}

  // Copies all bytes, waiting for room as often as needed. False: the reader has closed. The tail becomes visible by
  // flush().
  bool write(std::span<const std::byte> bytes);
  void flush();
  // True when the reader has taken everything.
  bool drained() const;
  void close();
  double waited_s() const { return waited_s_; }

 private:
  std::size_t room() const;

  RingState* state_;
  std::span<std::byte> storage_;
  std::uint32_t position_ = 0;  // ours, whatever the shared memory says
  std::uint32_t published_ = 0;
  double waited_s_ = 0;
};

class RingReader {
 public:
  RingReader(RingState& state, std::span<const std::byte> storage) : state_(&state), storage_(storage) {}

  // Waits for bytes; returns those that lie in one piece. Empty: the writer has closed and everything is read.
  std::span<const std::byte> wait();
  void consume(std::size_t bytes);
  // Fills `out`. False: the stream ended before.
  bool read(std::span<std::byte> out);
  void close();
  double waited_s() const { return waited_s_; }

 private:
  std::size_t available() const;

  RingState* state_;
  std::span<const std::byte> storage_;
  std::uint32_t position_ = 0;
  double waited_s_ = 0;
};

}  // namespace motley
