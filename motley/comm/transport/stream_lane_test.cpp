#include "motley/comm/transport/stream_lane.hpp"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace motley {
namespace {

std::vector<std::byte> counted(std::size_t bytes) {
  std::vector<std::byte> payload(bytes);
  for (std::size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i * 7 + bytes);
  return payload;
}

// Gives every frame of `placed` bytes and more a place of its own.
class Taker : public FrameSink {
 public:
  std::span<std::byte> place(int, const CollectiveFrame& frame) noexcept override {
    if (frame.length < placed) return {};
    own.resize(frame.length);
    return own;
  }
  Verdict on_frame(int, const CollectiveFrame&, std::span<const std::byte> payload) noexcept override {
    in_place.push_back(!own.empty() && payload.data() == own.data());
    payloads.emplace_back(payload.begin(), payload.end());
    return Verdict::taken;
  }
  void on_lost(int, const std::string&) noexcept override {}

  std::size_t placed = largest_payload_bytes + 1;
  std::vector<std::byte> own;
  std::vector<std::vector<std::byte>> payloads;
  std::vector<bool> in_place;
};

// Both ends of a stream, up to their preambles.
class StreamLaneTest : public testing::Test {
 protected:
  StreamLaneTest() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    from.adopt(ByteStream(FileDescriptor(ends[0])));
    to.adopt(ByteStream(FileDescriptor(ends[1])));
    for (StreamLane* lane : {&from, &to}) lane->write();
    for (StreamLane* lane : {&from, &to}) lane->read(0, taker, 1);
    EXPECT_GT(from.room(), 0U);
  }

  void send(const std::vector<std::byte>& payload) {
    from.send({.length = static_cast<std::uint32_t>(payload.size())}, payload);
    from.write();
  }
  // As often as it takes until nothing comes any more.
  void receive() {
    do to.on_event(EPOLLIN);
    while (to.read(0, taker, 4));
  }

  StreamLane from{1 << 20}, to{1 << 20};
  Taker taker;
};

// All of it is there before the first byte is read: it must not come by way of the lane's own memory for that.
TEST_F(StreamLaneTest, WhatHasAPlaceIsReadThere) {
  taker.placed = 64 << 10;
  const auto payload = counted(64 << 10);
  send(payload);
  receive();
  ASSERT_EQ(taker.payloads.size(), 1U);
  EXPECT_EQ(taker.payloads[0], payload);
  EXPECT_TRUE(taker.in_place[0]);
}

TEST_F(StreamLaneTest, FramesOfAnySizesComeWholeAndInOrder) {
  taker.placed = 20'000;
  std::vector<std::vector<std::byte>> sent;
  for (const std::size_t bytes : {0, 13, 8, 4096, 4095, 70'000, 1, 65'536, 3, 20'000, 24'000, 4033, 30'001, 2}) {
    sent.push_back(counted(bytes));
    send(sent.back());
    if (bytes == 70'000 || bytes == 65'536) receive();
  }
  receive();
  EXPECT_EQ(taker.payloads, sent);
  for (std::size_t i = 0; i < sent.size(); ++i)  // padding would stand between an odd payload and the next header
    EXPECT_EQ(taker.in_place[i], sent[i].size() >= taker.placed && sent[i].size() % 8 == 0) << sent[i].size();
}

}  // namespace
}  // namespace motley
