#include "motley/comm/channel.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "motley/base/environment_error.hpp"
#include "motley/comm/byte_ring.hpp"
#include "motley/comm/file_descriptor.hpp"
#include "motley/comm/frame.hpp"

namespace motley {
namespace {

constexpr std::int64_t min_window_bytes = 64 << 10;
constexpr std::int64_t max_window_bytes = 64 << 20;
constexpr std::int64_t page_bytes = 4096;

// Two of the largest frames.
std::int64_t window_for(std::int64_t largest_frame_bytes) {
  const std::int64_t frame = std::clamp<std::int64_t>(largest_frame_bytes, 0, max_window_bytes) + frame_header_bytes;
  const std::int64_t window = std::clamp(2 * frame, min_window_bytes, max_window_bytes);
  return (window + page_bytes - 1) / page_bytes * page_bytes;
}

// Frames over a stream of bytes.
class StreamChannel : public Channel {
 public:
  explicit StreamChannel(std::string peer_name) : peer_(std::move(peer_name)) {}

  void send(const FrameTag& tag, std::span<const std::byte> payload) final {
    MOTLEY_CHECK(tag.bytes() == static_cast<std::int64_t>(payload.size()));
    if (!write(encode_frame_header(tag), payload)) gone();
    sent_bytes_ += static_cast<std::int64_t>(frame_header_bytes + payload.size());
  }

  void receive(const FrameTag& expected, std::span<std::byte> payload) final {
    MOTLEY_CHECK(expected.bytes() == static_cast<std::int64_t>(payload.size()));
    FrameHeader header;
    if (!read(header)) gone();
    FrameTag tag;
    try {
      tag = decode_frame_header(header);
    } catch (Error& error) {
      error.prepend_context("from " + peer_);
      throw;
    }
    if (tag != expected)
      throw Error(ErrorCode::peer, fmt::format("{} sent another frame than expected: [{}] instead of [{}]", peer_,
                                               describe(tag), describe(expected)));
    if (!read(payload)) gone();
  }

  std::int64_t sent_bytes() const final { return sent_bytes_; }

 protected:
  // False: the other side is gone.
  virtual bool write(std::span<const std::byte> header, std::span<const std::byte> payload) = 0;
  virtual bool read(std::span<std::byte> out) = 0;

 private:
  [[noreturn]] void gone() const { throw Error(ErrorCode::peer, fmt::format("the connection to {} ended", peer_)); }

  std::string peer_;
  std::int64_t sent_bytes_ = 0;
};

// ---- shared memory ----

// The first page of the file; the rings' bytes follow.
struct SharedState {
  std::uint64_t magic;
  std::int64_t window_bytes;
  RingState rings[2];
};
static_assert(sizeof(SharedState) <= page_bytes);
constexpr std::uint64_t shared_magic = 0x3130646d796c746d;  // "mtlymd01"

class Mapping {
 public:
  Mapping(int descriptor, std::size_t size) : size_(size) {
    void* start = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (start == MAP_FAILED) throw environment_error(fmt::format("cannot map {} bytes of shared memory", size));
    start_ = static_cast<std::byte*>(start);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(start_, size_); }
  SharedState& state() const { return *reinterpret_cast<SharedState*>(start_); }
  std::span<std::byte> storage(int ring, std::int64_t window_bytes) const {
    return {start_ + page_bytes + ring * window_bytes, static_cast<std::size_t>(window_bytes)};
  }

 private:
  std::byte* start_ = nullptr;
  std::size_t size_;
};

class SharedMemoryChannel final : public StreamChannel {
 public:
  SharedMemoryChannel(int descriptor, std::int64_t window_bytes, int side, std::string peer_name)
      : StreamChannel(std::move(peer_name)),
        mapping_(descriptor, static_cast<std::size_t>(page_bytes + 2 * window_bytes)),
        window_bytes_(window_bytes),
        writer_(mapping_.state().rings[side], mapping_.storage(side, window_bytes)),
        reader_(mapping_.state().rings[1 - side], mapping_.storage(1 - side, window_bytes)) {}
  ~SharedMemoryChannel() override {
    writer_.close();
    reader_.close();
  }

  std::int64_t window_bytes() const override { return window_bytes_; }
  double waited_s() const override { return writer_.waited_s() + reader_.waited_s(); }

 private:
  bool write(std::span<const std::byte> header, std::span<const std::byte> payload) override {
    if (!writer_.write(header) || !writer_.write(payload)) return false;
    writer_.flush();
    return true;
  }
  bool read(std::span<std::byte> out) override { return reader_.read(out); }

  Mapping mapping_;
  std::int64_t window_bytes_;
  RingWriter writer_;
  RingReader reader_;
};

std::unique_ptr<Channel> open_shared_memory(const FileDescriptor& file, int side, std::string peer_name) {
  struct stat status {};
  std::int64_t preamble[2]{};
  const bool readable =
      ::fstat(file.get(), &status) == 0 && ::pread(file.get(), preamble, sizeof preamble, 0) == sizeof preamble;
  const std::int64_t window = preamble[1];
  if (!readable || static_cast<std::uint64_t>(preamble[0]) != shared_magic || window < min_window_bytes ||
      window > max_window_bytes || status.st_size != page_bytes + 2 * window)
    throw Error(ErrorCode::peer, fmt::format("descriptor {} is no shared memory channel to {}", file.get(), peer_name));
  return std::make_unique<SharedMemoryChannel>(file.get(), window, side, std::move(peer_name));
}

// ---- TCP ----

// What the socket does not take at once waits in a ring in memory, from which a thread of its own sends: two sides that
// send large frames to each other both get on to receiving them.
class TcpChannel final : public StreamChannel {
 public:
  TcpChannel(FileDescriptor socket, std::int64_t window_bytes, std::string peer_name)
      : StreamChannel(std::move(peer_name)),
        socket_(std::move(socket)),
        window_bytes_(window_bytes),
        storage_(std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(window_bytes))),
        writer_(state_, {storage_.get(), static_cast<std::size_t>(window_bytes)}),
        queued_(state_, {storage_.get(), static_cast<std::size_t>(window_bytes)}),
        sender_([this] { send_queued(); }) {}
  // What is queued is still sent as long as the other side takes it.
  ~TcpChannel() override {
    writer_.close();
    sender_.join();
  }

  std::int64_t window_bytes() const override { return window_bytes_; }
  double waited_s() const override { return waited_s_ + writer_.waited_s(); }

 private:
  bool write(std::span<const std::byte> header, std::span<const std::byte> payload) override {
    if (writer_.drained()) {  // then the sender thread has nothing to do, and the socket is ours
      std::size_t sent = 0;
      if (!send_now(header, payload, sent)) return false;
      const std::size_t of_header = std::min(sent, header.size());
      header = header.subspan(of_header);
      payload = payload.subspan(sent - of_header);
    }
    if (!writer_.write(header) || !writer_.write(payload)) return false;
    writer_.flush();
    return true;
  }

  // Sends what the socket takes without waiting. False: the connection is broken.
  bool send_now(std::span<const std::byte> first, std::span<const std::byte> second, std::size_t& sent) {
    std::array<iovec, 2> parts{iovec{const_cast<std::byte*>(first.data()), first.size()},
                               iovec{const_cast<std::byte*>(second.data()), second.size()}};
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    const ssize_t result = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result < 0) return errno == EAGAIN || errno == EINTR;
    sent = static_cast<std::size_t>(result);
    return true;
  }

  void send_queued() {
    for (;;) {
      const auto bytes = queued_.wait();
      if (bytes.empty()) break;
      constexpr int patience_ms = 100;
      pollfd writable{socket_.get(), POLLOUT, 0};
      if (::poll(&writable, 1, patience_ms) == 0 && state_.writer_closed.load() != 0) break;
      std::size_t sent = 0;
      if (!send_now(bytes, {}, sent)) break;
      if (sent > 0) queued_.consume(sent);
    }
    queued_.close();
  }

  bool read(std::span<std::byte> out) override {
    while (!out.empty()) {
      ssize_t received = ::recv(socket_.get(), out.data(), out.size(), MSG_DONTWAIT);
      if (received < 0 && errno == EAGAIN) {
        const auto start = std::chrono::steady_clock::now();
        received = ::recv(socket_.get(), out.data(), out.size(), 0);
        waited_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
      if (received < 0 && errno == EINTR) continue;
      if (received <= 0) return false;
      out = out.subspan(static_cast<std::size_t>(received));
    }
    return true;
  }

  FileDescriptor socket_;
  std::int64_t window_bytes_;
  double waited_s_ = 0;
  RingState state_;
  std::unique_ptr<std::byte[]> storage_;
  RingWriter writer_;  // of the executor
  RingReader queued_;  // of the sender thread
  std::thread sender_;
};

std::unique_ptr<Channel> open_tcp(FileDescriptor socket, std::int64_t largest_frame_bytes, std::string peer_name) {
  const int on = 1;
  if (::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
    throw Error(ErrorCode::peer, fmt::format("descriptor {} is no TCP connection to {}", socket.get(), peer_name));
  return std::make_unique<TcpChannel>(std::move(socket), window_for(largest_frame_bytes), std::move(peer_name));
}

sockaddr_in local_address(int socket, int (*which)(int, sockaddr*, socklen_t*)) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (which(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw environment_error("cannot ask a socket for its address");
  return address;
}

}  // namespace

DescriptorPair make_shared_memory_pair(std::int64_t largest_frame_bytes) {
  const std::int64_t window = window_for(largest_frame_bytes);
  FileDescriptor file(::memfd_create("motley-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0) throw environment_error("cannot make shared memory");
  const std::uint64_t preamble[2]{shared_magic, static_cast<std::uint64_t>(window)};
  // Sealed in size: a file that shrinks under a mapping kills whoever touches it.
  if (::ftruncate(file.get(), page_bytes + 2 * window) != 0 ||
      ::pwrite(file.get(), preamble, sizeof preamble, 0) != sizeof preamble ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw environment_error(fmt::format("cannot set up {} bytes of shared memory", 2 * window));
  FileDescriptor other(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  if (other.get() < 0) throw environment_error("cannot duplicate a descriptor");
  return {{file.release(), other.release()}};
}

DescriptorPair make_tcp_pair() {
  const auto new_socket = [] { return FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); };
  const FileDescriptor listener = new_socket();
  FileDescriptor near = new_socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (listener.get() < 0 || near.get() < 0 ||
      ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener.get(), 4) != 0)
    throw environment_error("cannot listen on the loopback interface");
  address = local_address(listener.get(), ::getsockname);
  if (::connect(near.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw environment_error("cannot connect over the loopback interface");
  const in_port_t ours = local_address(near.get(), ::getsockname).sin_port;
  for (;;) {
    FileDescriptor far(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (far.get() < 0) throw environment_error("cannot accept over the loopback interface");
    // Any process of this machine might have connected in between.
    if (local_address(far.get(), ::getpeername).sin_port == ours) return {{near.release(), far.release()}};
  }
}

std::unique_ptr<Channel> open_channel(const std::string& kind, int descriptor, int side,
                                      std::int64_t largest_frame_bytes, std::string peer_name) {
  FileDescriptor owned(descriptor);
  if (side != 0 && side != 1)
    throw Error(ErrorCode::peer, fmt::format("a channel to {} has no side {}", peer_name, side));
  if (kind == "shm") return open_shared_memory(owned, side, std::move(peer_name));
  if (kind == "tcp") return open_tcp(std::move(owned), largest_frame_bytes, std::move(peer_name));
  throw Error(ErrorCode::peer, fmt::format("unknown kind of channel \"{}\" to {}", kind, peer_name), "known: shm, tcp");
}

}  // namespace motley
