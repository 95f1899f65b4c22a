#include "motley/comm/byte_ring.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstring>
#include <ctime>

#include <fmt/format.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

// Sleeping sides look up this often, should a wake-up be lost with the process that owed it.
constexpr timespec longest_sleep{.tv_sec = 0, .tv_nsec = 100'000'000};
// A long write becomes visible in pieces, so that the reader copies while the writer does.
constexpr std::size_t publish_bytes = 256 << 10;

void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT, value, &longest_sleep, nullptr, 0);
}

void wake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Sleeps until `ready()`, while `word` keeps the value it had when it was not ready; returns the seconds that took. The
// order of the (sequentially consistent) accesses makes a lost wake-up impossible: we announce, then look; the other
// side moves the word, then looks for announcements.
template <class Ready>
double sleep_until(std::atomic<std::uint32_t>& word, std::atomic<std::uint32_t>& announcement, Ready ready) {
  if (ready()) return 0;
  const auto start = std::chrono::steady_clock::now();
  announcement.store(1);
  for (;;) {
    const std::uint32_t seen = word.load();
    if (ready()) break;
    sleep_while(word, seen);
  }
  announcement.store(0);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::uint32_t advance(std::uint32_t position, std::size_t bytes, std::size_t capacity) {
  return static_cast<std::uint32_t>((position + bytes) % (2 * capacity));
}

// Bytes from `behind` to `ahead`, which one of the two sides wrote and the other must not believe.
std::size_t distance(std::uint32_t behind, std::uint32_t ahead, std::size_t capacity) {
  const std::size_t bytes = (std::size_t{ahead} + 2 * capacity - behind) % (2 * capacity);
  if (ahead >= 2 * capacity || behind >= 2 * capacity || bytes > capacity)
    throw Error(ErrorCode::peer,
                fmt::format("corrupt channel: positions {} and {} in a ring of {} bytes", behind, ahead, capacity));
  return bytes;
}

}  // namespace

std::size_t RingWriter::room() const {
  return storage_.size() - distance(state_->read.load(), position_, storage_.size());
}

bool RingWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (room() == 0) {
      flush();
      waited_s_ += sleep_until(state_->read, state_->writer_waits,
                               [&] { return state_->reader_closed.load() != 0 || room() > 0; });
    }
    if (state_->reader_closed.load() != 0) return false;
    const std::size_t offset = position_ % storage_.size();
    const std::size_t piece = std::min({bytes.size(), room(), storage_.size() - offset, publish_bytes});
    std::memcpy(storage_.data() + offset, bytes.data(), piece);
    bytes = bytes.subspan(piece);
    position_ = advance(position_, piece, storage_.size());
    if (distance(published_, position_, storage_.size()) >= publish_bytes) flush();
  }
  return true;
}

void RingWriter::flush() {
  if (published_ == position_) return;
  published_ = position_;
  state_->written.store(position_);
  if (state_->reader_waits.load() != 0) wake(state_->written);
}

bool RingWriter::drained() const { return room() == storage_.size(); }

void RingWriter::close() {
  flush();
  state_->writer_closed.store(1);
  wake(state_->written);
}

std::size_t RingReader::available() const { return distance(position_, state_->written.load(), storage_.size()); }

std::span<const std::byte> RingReader::wait() {
  waited_s_ += sleep_until(state_->written, state_->reader_waits,
                           [&] { return available() > 0 || state_->writer_closed.load() != 0; });
  const std::size_t offset = position_ % storage_.size();
  return storage_.subspan(offset, std::min(available(), storage_.size() - offset));
}

void RingReader::consume(std::size_t bytes) {
  position_ = advance(position_, bytes, storage_.size());
  state_->read.store(position_);
  if (state_->writer_waits.load() != 0) wake(state_->read);
}

bool RingReader::read(std::span<std::byte> out) {
  while (!out.empty()) {
    auto piece = wait();
    if (piece.empty()) return false;
    piece = piece.first(std::min({piece.size(), out.size(), publish_bytes}));
    std::memcpy(out.data(), piece.data(), piece.size());
    consume(piece.size());
    out = out.subspan(piece.size());
  }
  return true;
}

void RingReader::close() {
  state_->reader_closed.store(1);
  wake(state_->read);
}

}  // namespace motley
