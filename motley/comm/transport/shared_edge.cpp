// Frames between two processes of one host, through two rings of memory that both map. The sender copies a frame in,
// the receiver works on it where it lies. Neither believes the other's half of the state.

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/comm/transport/edge.hpp"

namespace motley {
namespace {

constexpr std::uint64_t least_ring_bytes = shared_edge_ring_bytes, most_ring_bytes = 64 << 20;
constexpr std::size_t page_bytes = 4096;
constexpr int frames_per_poll = 2;
constexpr std::size_t most_cause_bytes = 1000;
constexpr std::uint32_t wants_frames = 1, wants_room = 2;

// Positions count bytes from the beginning and never wrap in practice (2^64).
struct RingHead {
  alignas(64) std::atomic<std::uint64_t> written{0};
  alignas(64) std::atomic<std::uint64_t> read{0};
  // What the side that writes `written` sleeps for, if it sleeps.
  alignas(64) std::atomic<std::uint32_t> asleep{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && 2 * sizeof(RingHead) <= page_bytes);
static_assert(collective_header_bytes == 64, "what has been written holds whole headers, and so does the ring's end");
static_assert(2 * (collective_header_bytes + largest_payload_bytes) <= least_ring_bytes);

constexpr std::size_t memory_bytes(std::uint64_t ring_bytes) { return page_bytes + 2 * ring_bytes; }

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

class SharedEdge : public Edge {
 public:
  SharedEdge(int peer, int side, std::byte* memory, std::uint64_t ring_bytes, FileDescriptor doorbell,
             FileDescriptor life)
      : peer_(peer), memory_(memory), ring_bytes_(ring_bytes), doorbell_(std::move(doorbell)), life_(std::move(life)) {
    auto* heads = reinterpret_cast<RingHead*>(memory);
    out_ = &heads[side];
    in_ = &heads[1 - side];
    out_bytes_ = memory + page_bytes + static_cast<std::size_t>(side) * ring_bytes;
    in_bytes_ = memory + page_bytes + static_cast<std::size_t>(1 - side) * ring_bytes;
    traffic_.kind = "shm";
    traffic_.buffer_bytes = static_cast<std::int64_t>(memory_bytes(ring_bytes) / 2);  // the peer counts the other half
  }
  ~SharedEdge() override { ::munmap(memory_, memory_bytes(ring_bytes_)); }

  bool send(const CollectiveFrame& frame, std::span<const std::byte> payload) override {
    if (!cause_.empty() || !lie_.empty()) return false;
    const std::uint64_t size = collective_header_bytes + rounded(payload.size());
    const std::uint64_t offset = written_ & (ring_bytes_ - 1);
    // A frame lies in one piece: what is left at the end is skipped.
    const std::uint64_t skipped = offset + size > ring_bytes_ ? ring_bytes_ - offset : 0;
    if (!has_room(skipped + size)) {
      refused_ = true;
      return false;
    }
    refused_ = false;
    if (skipped > 0) std::memset(out_bytes_ + offset, 0, sizeof(std::uint32_t));
    std::byte* start = out_bytes_ + ((written_ + skipped) & (ring_bytes_ - 1));
    encode_header(frame, std::span<std::byte, collective_header_bytes>(start, collective_header_bytes));
    if (!payload.empty()) std::memcpy(start + collective_header_bytes, payload.data(), payload.size());
    written_ += skipped + size;
    out_->written.store(written_);
    ring_if(wants_frames);
    traffic_.sent_bytes += static_cast<std::int64_t>(collective_header_bytes + payload.size());
    return true;
  }

  // By the connection whose end means this process's: the ring may be full of frames that wait for others.
  void revoke(const CollectiveFrame& frame, const std::string& cause) override {
    std::vector<std::byte> word(collective_header_bytes + cause.size());
    encode_header(frame, std::span(word).first<collective_header_bytes>());
    std::memcpy(word.data() + collective_header_bytes, cause.data(), cause.size());
    ::send(life_.get(), word.data(), word.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  bool poll(FrameSink& sink, double) override {
    if (!cause_.empty()) {
      sink.on_lost(peer_, cause_);  // to every operation that asks
      return false;
    }
    bool moved = false;
    try {
      if (!lie_.empty()) throw Error(ErrorCode::peer, lie_);
      moved = spoken_ && listen(sink);
      for (int i = 0; i < frames_per_poll && take(sink); ++i) moved = true;
    } catch (const Error& error) {
      cause_ = error.what();
    }
    // What a peer wrote before its end still counts.
    if (!moved && ended_ && cause_.empty() && in_->written.load(std::memory_order_acquire) == read_)
      cause_ = "its process has closed the connection";
    if (!cause_.empty()) sink.on_lost(peer_, cause_);
    return moved;
  }

  bool looks_ready() const override {
    return cause_.empty() &&
           (spoken_ || in_->written.load() != held_at_ || (refused_ && out_->read.load() != room_seen_));
  }
  void fall_asleep() override { out_->asleep.store(wants_frames | (refused_ ? wants_room : 0)); }
  void wake_up() override { out_->asleep.store(0, std::memory_order_relaxed); }
  bool flushed() const override { return true; }
  void on_event(std::uint32_t, std::uint32_t events) override {
    if ((events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR | EPOLLIN)) != 0) spoken_ = true;
  }

 private:
  // What the peer says on the other connection: that it has given up, or, by closing it, that it is gone.
  bool listen(FrameSink& sink) {
    spoken_ = false;
    std::array<std::byte, collective_header_bytes + most_cause_bytes> word;
    const ssize_t got = ::recv(life_.get(), word.data(), word.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) ended_ = true;
    if (got < static_cast<ssize_t>(collective_header_bytes)) return false;
    spoken_ = true;  // there may be more
    const CollectiveFrame frame = decode_header(std::span(word).first<collective_header_bytes>());
    const auto cause =
        std::span(word).subspan(collective_header_bytes, static_cast<std::size_t>(got) - collective_header_bytes);
    if (frame.kind == FrameKind::revoke) sink.on_frame(peer_, frame, cause);
    return true;
  }

  bool has_room(std::uint64_t bytes) {
    if (ring_bytes_ - (written_ - room_seen_) >= bytes) return true;
    const std::uint64_t read = out_->read.load(std::memory_order_acquire);
    if (read > written_ || read < room_seen_) {
      lie_ = fmt::format("corrupt memory: {} read of {} written", read, written_);
      return false;
    }
    room_seen_ = read;
    return ring_bytes_ - (written_ - room_seen_) >= bytes;
  }

  // Wakes the peer if it sleeps for this. The (sequentially consistent) order of accesses makes a lost wake-up
  // impossible: we publish, then look; a side that falls asleep announces it, then looks.
  void ring_if(std::uint32_t reason) {
    if ((in_->asleep.load() & reason) == 0) return;
    if ((in_->asleep.exchange(0) & reason) == 0) return;
    try {
      doorbell_.notify();
    } catch (const Error& error) {
      lie_ = error.what();  // the peer passed something else in its place
    }
  }

  bool take(FrameSink& sink) {
    const std::uint64_t written = in_->written.load(std::memory_order_acquire);
    if (written == read_) {
      held_at_ = written;
      return false;
    }
    const std::uint64_t available = written - read_;
    if (available > ring_bytes_ || available % 64 != 0)
      throw Error(ErrorCode::peer, fmt::format("corrupt memory: {} written of {} read", written, read_));
    const std::uint64_t offset = read_ & (ring_bytes_ - 1);
    const std::byte* start = in_bytes_ + offset;
    std::uint32_t magic = 0;
    std::memcpy(&magic, start, sizeof magic);
    if (magic == 0) {
      if (available < ring_bytes_ - offset) throw Error(ErrorCode::peer, "corrupt memory: nothing after a gap");
      return consume(ring_bytes_ - offset);
    }
    const CollectiveFrame frame =
        decode_header(std::span<const std::byte, collective_header_bytes>(start, collective_header_bytes));
    const std::uint64_t size = collective_header_bytes + rounded(frame.length);
    if (size > available || offset + size > ring_bytes_)
      throw Error(ErrorCode::peer, fmt::format("corrupt memory: a frame of {} bytes in {}", size, available));
    if (sink.on_frame(peer_, frame, {start + collective_header_bytes, frame.length}) == FrameSink::Verdict::later) {
      held_at_ = written;
      return false;
    }
    traffic_.received_bytes += static_cast<std::int64_t>(collective_header_bytes + frame.length);
    return consume(size);
  }

  bool consume(std::uint64_t bytes) {
    read_ += bytes;
    held_at_ = read_;
    in_->read.store(read_);
    ring_if(wants_room);
    return true;
  }

  int peer_;
  std::byte* memory_;
  std::uint64_t ring_bytes_;  // a power of two
  Wakeup doorbell_;
  FileDescriptor life_;
  RingHead* out_;
  RingHead* in_;
  std::byte* out_bytes_;
  std::byte* in_bytes_;
  std::uint64_t written_ = 0;  // ours, whatever the shared memory says; so are all below
  std::uint64_t read_ = 0;
  std::uint64_t room_seen_ = 0;  // what the peer had read when we last looked
  std::uint64_t held_at_ = 0;    // what the peer had written when poll() last left off
  bool refused_ = false;         // send() found no room
  bool spoken_ = false;          // there is something on the other connection
  bool ended_ = false;
  std::string lie_;  // what was found wrong; poll() tells
  std::string cause_;
};

}  // namespace

void watch(int epoll, int descriptor, int peer, std::uint32_t part) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
  event.data.u64 = static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32 | part;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) != 0) throw environment_error("cannot watch a descriptor");
}

FileDescriptor make_shared_edge_memory(std::int64_t window_bytes) {
  const std::uint64_t ring_bytes =
      std::bit_ceil(std::clamp(static_cast<std::uint64_t>(window_bytes), least_ring_bytes, most_ring_bytes));
  FileDescriptor file(::memfd_create("motley-edge", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Sealed in size: a file that shrinks under a mapping kills a process that touches it.
  if (!file || ::ftruncate(file.get(), static_cast<off_t>(memory_bytes(ring_bytes))) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw environment_error("cannot create shared memory");
  return file;
}

std::unique_ptr<Edge> open_shared_edge(int peer, int side, const FileDescriptor& memory, FileDescriptor doorbell,
                                       FileDescriptor life, int epoll) {
  struct stat status {};
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  const bool readable = ::fstat(memory.get(), &status) == 0;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const std::uint64_t ring_bytes = size < page_bytes ? 0 : (size - page_bytes) / 2;
  if (!readable || !std::has_single_bit(ring_bytes) || ring_bytes < least_ring_bytes || ring_bytes > most_ring_bytes ||
      size != memory_bytes(ring_bytes) || seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    throw Error(ErrorCode::peer,
                fmt::format("rank {} offers memory of {} bytes, sealed {}", peer, status.st_size, seals));
  void* start = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (start == MAP_FAILED)
    throw Error(ErrorCode::environment, fmt::format("cannot map {} bytes of shared memory", size));
  watch(epoll, life.get(), peer, 0);
  return std::make_unique<SharedEdge>(peer, side, static_cast<std::byte*>(start), ring_bytes, std::move(doorbell),
                                      std::move(life));
}

}  // namespace motley
