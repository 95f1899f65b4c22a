// Memory shared with a peer that writes nonsense into it: the peer is lost, by name of the cause, and nothing is read
// or written outside the rings.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/comm/transport/edge.hpp"

namespace motley {
namespace {

constexpr std::size_t page_bytes = 4096, ring_bytes = shared_edge_ring_bytes;

// One side as it should be; the other's half of the memory is the test's to write.
class HalfAPair : public FrameSink {
 public:
  HalfAPair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    other_ = FileDescriptor(ends[1]);
    edge = open_shared_edge(1, 0, memory_, FileDescriptor(::eventfd(0, EFD_NONBLOCK)), FileDescriptor(ends[0]),
                            epoll_.get());
    start_ = static_cast<std::byte*>(
        ::mmap(nullptr, page_bytes + 2 * ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0));
    EXPECT_NE(start_, MAP_FAILED);
  }
  ~HalfAPair() override { ::munmap(start_, page_bytes + 2 * ring_bytes); }
  HalfAPair(const HalfAPair&) = delete;
  HalfAPair& operator=(const HalfAPair&) = delete;

  // How much the peer has written, and of ours has read.
  void say_written(std::uint64_t bytes) { std::memcpy(start_ + 192, &bytes, sizeof bytes); }
  void say_read(std::uint64_t bytes) { std::memcpy(start_ + 64, &bytes, sizeof bytes); }
  void write(std::size_t at, const CollectiveFrame& frame) {
    std::byte* place = start_ + page_bytes + ring_bytes + at;
    encode_header(frame, std::span<std::byte, collective_header_bytes>(place, collective_header_bytes));
  }
  std::string told() {
    edge->poll(*this, 0);
    return lost;
  }

  Verdict on_frame(int, const CollectiveFrame&, std::span<const std::byte>) noexcept override {
    ++frames;
    return Verdict::taken;
  }
  void on_lost(int peer, const std::string& cause) noexcept override {
    EXPECT_EQ(peer, 1);
    lost = cause;
  }

  std::unique_ptr<Edge> edge;
  std::string lost = "none";
  int frames = 0;

 private:
  FileDescriptor memory_ = make_shared_edge_memory(ring_bytes);
  FileDescriptor epoll_{::epoll_create1(0)};
  FileDescriptor other_;
  std::byte* start_ = nullptr;
};

TEST(SharedEdge, TakesWhatIsWritten) {
  HalfAPair pair;
  pair.write(0, {.length = 100});
  pair.say_written(64 + 128);
  EXPECT_EQ(pair.told(), "none");
  EXPECT_EQ(pair.frames, 1);
}

TEST(SharedEdge, APeerThatLiesAboutWhatItWroteIsLost) {
  const auto told = [](const auto& lie) {
    HalfAPair pair;
    lie(pair);
    const std::string cause = pair.told();
    EXPECT_EQ(pair.frames, 0);
    pair.lost.clear();
    EXPECT_EQ(pair.told(), cause) << "the next operation hears it, too";
    EXPECT_FALSE(pair.edge->looks_ready()) << "a thread that waits would not sleep";
    EXPECT_FALSE(pair.edge->send({}, {}));
    return cause;
  };
  EXPECT_EQ(told([](HalfAPair& pair) { pair.say_written(32); }), "corrupt memory: 32 written of 0 read");
  EXPECT_EQ(told([](HalfAPair& pair) { pair.say_written(ring_bytes + 64); }),
            "corrupt memory: 1048640 written of 0 read");
  EXPECT_EQ(told([](HalfAPair& pair) { pair.say_written(64); }), "corrupt memory: nothing after a gap");
  EXPECT_EQ(told([](HalfAPair& pair) {
              pair.write(0, {.length = 1000});
              pair.say_written(64);
            }),
            "corrupt memory: a frame of 1088 bytes in 64");
}

TEST(SharedEdge, APeerThatLiesAboutWhatItReadIsLost) {
  for (const std::uint64_t lie : {std::uint64_t{1} << 40, std::uint64_t{64}}) {
    HalfAPair pair;
    const std::vector<std::byte> payload(largest_payload_bytes);
    while (pair.edge->send({.length = largest_payload_bytes}, payload)) {
    }
    if (lie == 64) {  // less than it had read before
      pair.say_read(128 + largest_payload_bytes);
      while (pair.edge->send({.length = largest_payload_bytes}, payload)) {
      }
    }
    EXPECT_EQ(pair.told(), "none") << "it is only slow";
    pair.say_read(lie);
    EXPECT_FALSE(pair.edge->send({.length = largest_payload_bytes}, payload));
    EXPECT_TRUE(pair.told().starts_with("corrupt memory: " + std::to_string(lie) + " read of ")) << pair.lost;
    EXPECT_FALSE(pair.edge->send({}, {}));
  }
}

}  // namespace
}  // namespace motley
