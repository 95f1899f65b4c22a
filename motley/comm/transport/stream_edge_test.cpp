// A connection that breaks behind a frame that has to wait: reading cannot find the end then, and must not have to.
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <optional>
#include <vector>

#include "motley/comm/transport/edge.hpp"
#include "motley/comm/transport/stream_lane.hpp"

namespace motley {
namespace {

std::array<FileDescriptor, 2> socket_pair() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

class HoldingSink : public FrameSink {
 public:
  Verdict on_frame(int, const CollectiveFrame& frame, std::span<const std::byte>) noexcept override {
    if (waits) return Verdict::later;
    taken.push_back(frame.operation);
    return Verdict::taken;
  }
  void on_lost(int, const std::string& cause) noexcept override { lost = cause; }

  bool waits = false;
  std::vector<std::uint64_t> taken;
  std::optional<std::string> lost;
};

// The edge, and the peer's end of its one stream.
class StreamEdgeTest : public testing::Test {
 protected:
  StreamEdgeTest() { connect(); }

  void connect() {
    auto [ours, theirs] = socket_pair();
    edge->adopt(0, ByteStream(std::move(ours)));
    peer.adopt(ByteStream(std::move(theirs)));
    exchange();
  }

  void exchange() {
    for (int i = 0; i < 4; ++i) {
      std::array<epoll_event, 8> events;
      const int count = ::epoll_wait(epoll.get(), events.data(), static_cast<int>(events.size()), 0);
      for (int k = 0; k < count; ++k) edge->on_event(0, events[static_cast<std::size_t>(k)].events);
      edge->poll(sink, now_s);
      if (!peer.up()) continue;
      peer.on_event(EPOLLIN | EPOLLOUT);
      peer.write();
      if (!deaf) peer.read(0, peers_sink, 4);
    }
  }

  void peer_sends(std::uint64_t operation) { peer.send({.operation = operation}, {}); }
  void send(std::uint64_t operation) { EXPECT_TRUE(edge->send({.operation = operation}, {})); }
  void cut() { peer.release(); }
  // The connection ends behind frames that wait here, and one is still to be sent.
  void break_behind(const std::vector<std::uint64_t>& operations) {
    sink.waits = true;
    for (const std::uint64_t operation : operations) peer_sends(operation);
    exchange();
    cut();
    send(1);
    exchange();
  }

  FileDescriptor epoll{::epoll_create1(0)};
  double now_s = 100;
  std::vector<LinkPurpose> dialled;
  std::vector<std::string> told;
  std::unique_ptr<StreamEdge> edge =
      open_stream_edge({.dials = true,
                        .patience_s = 5,
                        .epoll = epoll.get(),
                        .dial = [this](LinkPurpose purpose, std::uint16_t) { dialled.push_back(purpose); },
                        .revoke = [this](const std::string& cause) { told.push_back(cause); }});
  StreamLane peer{1 << 20};
  bool deaf = false;  // the peer, for now
  HoldingSink sink, peers_sink;
};

TEST_F(StreamEdgeTest, AnotherConnectionComesWhileAFrameWaits) {
  break_behind({7});
  EXPECT_EQ(dialled, std::vector{LinkPurpose::stream});
  EXPECT_FALSE(edge->flushed());
  connect();
  EXPECT_TRUE(edge->flushed());
  EXPECT_EQ(peers_sink.taken, std::vector<std::uint64_t>{1});
  sink.waits = false;
  exchange();
  EXPECT_EQ(sink.taken, std::vector<std::uint64_t>{7});
  EXPECT_EQ(edge->traffic().reconnects, 1);
  EXPECT_FALSE(sink.lost);
}

// Others may wait for what the peer does not get here: that a frame waits must not keep it from being sent again.
TEST_F(StreamEdgeTest, AnotherConnectionComesThoughNothingIsToBeSent) {
  deaf = sink.waits = true;
  peer_sends(7);
  send(1);  // gets lost on the way
  exchange();
  cut();
  exchange();
  EXPECT_TRUE(edge->flushed());
  EXPECT_EQ(dialled, std::vector{LinkPurpose::stream});
  deaf = false;
  connect();
  EXPECT_EQ(peers_sink.taken, std::vector<std::uint64_t>{1});
}

// A peer that has finished and left: no rank waits for what it does not want, and what it sent counts.
TEST_F(StreamEdgeTest, WhatCameBeforeThePeerLeftIsTaken) {
  break_behind({7, 8});
  EXPECT_FALSE(edge->flushed());
  edge->refused(0, "epoch 3 is over here");
  exchange();
  EXPECT_TRUE(edge->flushed());
  EXPECT_FALSE(sink.lost);
  sink.waits = false;
  exchange();
  EXPECT_EQ(sink.taken, (std::vector<std::uint64_t>{7, 8}));
  EXPECT_EQ(sink.lost, "epoch 3 is over here");
}

TEST_F(StreamEdgeTest, PatienceEndsThoughAFrameWaits) {
  break_behind({7});
  now_s += 4.9;
  exchange();
  EXPECT_FALSE(edge->flushed());
  now_s += 0.2;
  exchange();
  EXPECT_TRUE(edge->flushed());
  EXPECT_FALSE(sink.lost);
  sink.waits = false;
  exchange();
  EXPECT_EQ(sink.taken, std::vector<std::uint64_t>{7});
  ASSERT_TRUE(sink.lost);
  EXPECT_NE(sink.lost->find("did not come back within 5 s"), std::string::npos) << *sink.lost;
}

// It may live, and see nothing wrong.
TEST_F(StreamEdgeTest, WhoIsLostIsToldOfTheRevocation) {
  cut();
  exchange();
  edge->refused(0, "no process there");
  exchange();
  ASSERT_TRUE(sink.lost);
  edge->revoke({.kind = FrameKind::revoke}, "rank 0 gives up");
  EXPECT_EQ(told, std::vector<std::string>{"rank 0 gives up"});
}

}  // namespace
}  // namespace motley
