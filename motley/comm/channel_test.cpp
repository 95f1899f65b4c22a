#include "motley/comm/channel.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <random>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/byte_ring.hpp"
#include "motley/comm/frame.hpp"

namespace motley {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

FrameTag tag_of(std::size_t bytes, std::uint32_t sequence_number = 0) {
  return {.epoch = 3,
          .step = 14,
          .sequence_number = sequence_number,
          .type = ElementType::bytes,
          .rows = 1,
          .columns = static_cast<std::int64_t>(bytes)};
}

std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
  std::minstd_rand random(seed + 1);
  std::vector<std::byte> data(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random() >> 8);
  return data;
}

// Code and text of the error that `act` ends with.
std::string peer_error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return (error.code() == ErrorCode::peer ? "peer: " : "other: ") + std::string(error.what());
  }
  return "none";
}

TEST(Frame, ChecksumIsCastagnolis) {
  const std::string text = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(text))), 0xe3069283U);
}

TEST(Frame, HeadersComeBackAndNoChangedBitPasses) {
  const FrameTag tag{.epoch = 1,
                     .step = 1ULL << 40,
                     .sequence_number = 9,
                     .type = ElementType::bf16,
                     .layout = Layout::partial,
                     .row_first = 5,
                     .rows = 7,
                     .columns = 4096};
  FrameHeader header = encode_frame_header(tag);
  EXPECT_EQ(decode_frame_header(header), tag);
  for (std::size_t bit = 0; bit < header.size() * 8; ++bit) {
    header[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(peer_error_of([&] { decode_frame_header(header); }).substr(0, 29), "peer: malformed frame header:")
        << bit;
    header[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

TEST(Frame, HeadersThatLieAreRefusedEvenWithARightChecksum) {
  // Overwrites one field of a good header of 2 x 3 fp32, at its offset.
  const auto refused = [](std::size_t offset, auto value) {
    FrameHeader header = encode_frame_header({.rows = 2, .columns = 3});
    std::memcpy(header.data() + offset, &value, sizeof value);
    const std::uint32_t checksum = crc32c(std::span(header).first(60));
    std::memcpy(header.data() + 60, &checksum, sizeof checksum);
    return peer_error_of([&] { decode_frame_header(header); });
  };
  constexpr std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_EQ(refused(36, std::int64_t{2}), "none");
  EXPECT_EQ(refused(4, std::uint16_t{2}), "peer: malformed frame header: version 2, this program speaks 1");
  EXPECT_EQ(refused(6, std::uint8_t{3}), "peer: malformed frame header: unknown element type 3");
  EXPECT_EQ(refused(7, std::uint8_t{3}), "peer: malformed frame header: unknown layout 3");
  EXPECT_EQ(refused(28, std::int64_t{-8}), "peer: malformed frame header: an extent of -8");
  EXPECT_EQ(refused(36, std::int64_t{-1}), "peer: malformed frame header: an extent of -1");
  EXPECT_EQ(refused(36, huge * 2), "peer: malformed frame header: an extent of 2199023255552");
  EXPECT_EQ(refused(44, huge), "peer: malformed frame header: 24 bytes for a shape of 8796093022208");
  EXPECT_EQ(refused(52, std::int64_t{25}), "peer: malformed frame header: 25 bytes for a shape of 24");
  // Rows times columns that overflow.
  FrameHeader header = encode_frame_header({.rows = 2, .columns = 3});
  std::memcpy(header.data() + 36, &huge, sizeof huge);
  std::memcpy(header.data() + 44, &huge, sizeof huge);
  const std::uint32_t checksum = crc32c(std::span(header).first(60));
  std::memcpy(header.data() + 60, &checksum, sizeof checksum);
  EXPECT_EQ(peer_error_of([&] { decode_frame_header(header); }),
            "peer: malformed frame header: a shape of 1099511627776 x 1099511627776");
}

TEST(Ring, PositionsOutOfRangeAreErrorsNotAccesses) {
  RingState state;
  std::vector<std::byte> storage(64);
  RingReader reader(state, storage);
  for (const std::uint32_t position : {65U, 127U, 128U, 0xffffffffU}) {
    state.written = position;
    EXPECT_EQ(peer_error_of([&] { reader.wait(); }).substr(0, 21), "peer: corrupt channel");
  }
  RingWriter writer(state, storage);
  for (const std::uint32_t position : {1U, 63U, 128U, 0xffffffffU}) {
    state.read = position;
    EXPECT_EQ(peer_error_of([&] { writer.write(storage); }).substr(0, 21), "peer: corrupt channel") << position;
  }
}

class Channels : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr std::int64_t largest_frame = 256 << 10;

  Channels() { connect(); }
  void connect() {
    const DescriptorPair pair = GetParam() == "shm" ? make_shared_memory_pair(largest_frame) : make_tcp_pair();
    for (const int descriptor : pair.descriptors) EXPECT_EQ(::fcntl(descriptor, F_GETFD), FD_CLOEXEC);
    left = open_channel(GetParam(), pair.descriptors[0], 0, largest_frame, "box/1");
    right = open_channel(GetParam(), pair.descriptors[1], 1, largest_frame, "box/0");
  }
  std::unique_ptr<Channel> left, right;
};
INSTANTIATE_TEST_SUITE_P(Kinds, Channels, ::testing::Values("shm", "tcp"), [](const auto& test) { return test.param; });

TEST_P(Channels, FramesOfAllSizesArriveInOrderBothWays) {
  const std::vector<std::size_t> sizes{0, 1, 63, 64, 65, 4096, 100'000, 262'144, 3, 1'000'000, 5'000'003};
  const auto play = [&](Channel& channel, unsigned mine, unsigned theirs) {
    for (std::uint32_t i = 0; i < sizes.size(); ++i) {
      std::vector<std::byte> received(sizes[i]);
      if (mine == 0) channel.send(tag_of(sizes[i], i), pattern(sizes[i], mine + i));
      channel.receive(tag_of(sizes[i], i), received);
      EXPECT_EQ(received, pattern(sizes[i], theirs + i));
      if (mine != 0) channel.send(tag_of(sizes[i], i), pattern(sizes[i], mine + i));
    }
  };
  std::thread other([&] { play(*right, 100, 0); });
  play(*left, 0, 100);
  other.join();
  EXPECT_EQ(left->sent_bytes(), right->sent_bytes());
}

TEST_P(Channels, TwoLargestFramesWaitForNobody) {
  const auto data = pattern(largest_frame, 1);
  for (int round = 0; round < 5; ++round) {
    // One thread plays both sides: it would hang if a send waited.
    for (Channel* channel : {left.get(), right.get()})
      for (int i = 0; i < 2; ++i) channel->send(tag_of(data.size()), data);
    for (Channel* channel : {left.get(), right.get()})
      for (int i = 0; i < 2; ++i) {
        std::vector<std::byte> received(data.size());
        channel->receive(tag_of(data.size()), received);
        EXPECT_EQ(received, data);
      }
  }
}

TEST_P(Channels, AnotherFrameThanExpectedIsAPeerErrorThatTellsBoth) {
  const auto data = pattern(8, 0);
  std::vector<std::byte> received(8);
  left->send(tag_of(8, 5), data);
  EXPECT_EQ(peer_error_of([&] { right->receive(tag_of(8, 6), received); }),
            "peer: box/0 sent another frame than expected: [epoch 3 step 14 frame 5: rows [0, 1) x 8 bytes, "
            "replicated] instead of "
            "[epoch 3 step 14 frame 6: rows [0, 1) x 8 bytes, replicated]");
}

TEST_P(Channels, LayoutTypeEpochAndShapeAreAsserted) {
  const FrameTag expected = tag_of(8);
  std::vector<FrameTag> wrong(5, expected);
  wrong[0].layout = Layout::partial;
  wrong[1] = {.epoch = 3, .step = 14, .type = ElementType::bf16, .rows = 1, .columns = 4};
  wrong[2].epoch = 2;
  wrong[3].rows = 2;
  wrong[3].columns = 4;
  wrong[4].row_first = 1;
  std::vector<std::byte> payload(8);
  for (const FrameTag& tag : wrong) {
    connect();
    left->send(tag, payload);
    EXPECT_EQ(peer_error_of([&] { right->receive(expected, payload); }).substr(0, 46),
              "peer: box/0 sent another frame than expected: ");
  }
}

TEST_P(Channels, APeerThatLeavesWakesTheWaiterAndLeavesItsFramesBehind) {
  const auto data = pattern(1000, 0);
  std::vector<std::byte> received(1000);
  left->send(tag_of(1000), data);
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    left.reset();
  });
  right->receive(tag_of(1000), received);
  EXPECT_EQ(received, data);
  const auto start = Clock::now();
  EXPECT_EQ(peer_error_of([&] { right->receive(tag_of(1000), received); }), "peer: the connection to box/0 ended");
  EXPECT_LT(since(start), 1);
  EXPECT_GT(right->waited_s(), 0.01);
  leaving.join();
  // A sender hears of it too, at the latest when nobody takes its bytes.
  EXPECT_EQ(peer_error_of([&] {
              for (int i = 0; i < 100; ++i) right->send(tag_of(1000), data);
            }),
            "peer: the connection to box/0 ended");
}

TEST_P(Channels, WaitingCostsNoProcessorTime) {
  const auto processor_s = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  };
  double used = 1;
  std::thread waiter([&] {
    std::vector<std::byte> received(8);
    const double before = processor_s();
    right->receive(tag_of(8), received);
    used = processor_s() - before;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  left->send(tag_of(8), pattern(8, 0));
  waiter.join();
  EXPECT_LT(used, 0.02);
  EXPECT_GT(right->waited_s(), 0.4);
}

TEST_P(Channels, WorkAcrossProcesses) {
  left.reset();  // their threads would not survive the fork
  right.reset();
  const DescriptorPair pair = GetParam() == "shm" ? make_shared_memory_pair(largest_frame) : make_tcp_pair();
  const auto data = pattern(700'000, 3);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pair.descriptors[0]);
    auto channel = open_channel(GetParam(), pair.descriptors[1], 1, largest_frame, "box/0");
    std::vector<std::byte> received(data.size());
    for (int i = 0; i < 20; ++i) {
      channel->receive(tag_of(data.size()), received);
      channel->send(tag_of(data.size()), received);
    }
    channel.reset();
    ::_exit(0);
  }
  ::close(pair.descriptors[1]);
  const auto channel = open_channel(GetParam(), pair.descriptors[0], 0, largest_frame, "box/1");
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> received(data.size());
    channel->send(tag_of(data.size()), data);
    channel->receive(tag_of(data.size()), received);
    EXPECT_EQ(received, data);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(TcpChannel, TruncatedAndCorruptFramesArePeerErrors) {
  std::mt19937 random(11);
  const FrameHeader good = encode_frame_header(tag_of(32));
  for (int round = 0; round < 200; ++round) {
    const DescriptorPair pair = make_tcp_pair();
    auto channel = open_channel("tcp", pair.descriptors[1], 1, 1 << 10, "box/0");
    std::vector<std::byte> bytes(good.begin(), good.end());
    bytes.resize(good.size() + 32);
    if (round % 2 == 0)
      bytes.resize(random() % bytes.size());
    else
      bytes[random() % good.size()] ^= static_cast<std::byte>(1 + random() % 255);
    ASSERT_EQ(::send(pair.descriptors[0], bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    ::close(pair.descriptors[0]);
    std::vector<std::byte> payload(32);
    EXPECT_EQ(peer_error_of([&] { channel->receive(tag_of(32), payload); }).substr(0, 5), "peer:");
  }
}

TEST(OpenChannel, RefusesWhatIsNoChannel) {
  const auto refused = [](const std::string& kind, int descriptor, int side) {
    return peer_error_of([&] { open_channel(kind, descriptor, side, 1024, "box/1"); }).substr(0, 5);
  };
  EXPECT_EQ(refused("shm", -1, 0), "peer:");
  EXPECT_EQ(refused("tcp", -1, 0), "peer:");
  EXPECT_EQ(refused("shm", ::open("/dev/zero", O_RDWR | O_CLOEXEC), 0), "peer:");
  EXPECT_EQ(refused("tcp", ::open("/dev/zero", O_RDWR | O_CLOEXEC), 0), "peer:");
  const DescriptorPair pair = make_shared_memory_pair(1024);
  EXPECT_EQ(refused("pigeon", pair.descriptors[0], 0), "peer:");
  EXPECT_EQ(refused("shm", pair.descriptors[1], 2), "peer:");
}

}  // namespace
}  // namespace motley
