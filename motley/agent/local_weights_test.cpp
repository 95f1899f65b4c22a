// What an agent holds of the model, and what it sends to members that a test plays, over loopback.
#include "motley/agent/local_weights.hpp"

#include <gmock/gmock.h>

#include "motley/base/error.hpp"
#include "motley/checkpoint/large_model_test.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/message_stream.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

const RelayAccess group_access{.key = "secret", .identity = {}};

class LocalWeightsTest : public LargeModelTest {
 protected:
  LocalWeightsTest() {
    change_byte(write_large(), chunk_bytes);
    manifest_ = make_manifest(folder);
    options_.name = "box";
    options_.driver = "127.0.0.1:1";
    options_.cache = folder / "cache";
  }
  LocalWeights& begin() {
    weights_.emplace(options_, wake_);
    weights_->listen("127.0.0.1:0", group_access);
    weights_->set_manifest(manifest_, [] {});
    return *weights_;
  }
  void put(const ChunkId& id) {
    ChunkCache(options_.cache / "weights", manifest_).put(id, read_chunk(folder, manifest_.files[id.file], id.chunk));
  }
  ByteStream call(const std::string& from, const RelayAccess& access = group_access) const {
    LinkHello hello;
    hello.group = weights_service;
    hello.from_id = from;
    return call_service(weights_->address(), hello, access, soon(), "box");
  }
  // Empty: it is served.
  std::string refusal_of(const std::string& from, const RelayAccess& access = group_access) const {
    try {
      call(from, access);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }
  // None: it has hung up.
  static std::optional<std::size_t> answer_bytes(ByteStream connection, const std::string& request) {
    try {
      BlockingMessageStream stream(std::move(connection), chunk_bytes);
      stream.send(request, soon());
      const auto bytes = stream.receive(soon());
      return bytes ? std::optional(bytes->size()) : std::nullopt;
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  std::vector<AgentMessage> next_news() {
    for (const Instant until = soon(); seconds_until(until) > 0;
         std::this_thread::sleep_for(std::chrono::milliseconds(2)))
      if (auto news = weights_->news(); !news.empty()) return news;
    return {};
  }

  ModelManifest manifest_;
  LocalWeightsOptions options_;
  const Wakeup wake_;
  std::optional<LocalWeights> weights_;
};

TEST_F(LocalWeightsTest, OnlyMembersThatTheDriverHasNamedAreServed) {
  put({0, 2});
  begin();
  EXPECT_THAT(refusal_of("attic"), HasSubstr("refuses: the driver has not named this machine"));
  weights_->set_sources({{"attic", "", {}}});
  EXPECT_EQ(refusal_of("attic"), "");
  EXPECT_NE(refusal_of("attic", {.key = "guessed", .identity = {}}), "");
  EXPECT_THAT(refusal_of("eve"), HasSubstr("the driver has not named this machine"));
  weights_->set_sources({});
  EXPECT_THAT(refusal_of("attic"), HasSubstr("the driver has not named this machine")) << "any more";
}

TEST_F(LocalWeightsTest, WhatIsNotHereIsAnsweredWithNothingAndNonsenseByHangingUp) {
  put({0, 2});
  begin();
  weights_->set_sources({{"attic", "", {}}});
  EXPECT_EQ(answer_bytes(call("attic"), encode_request({{0, 2}})), chunk_bytes / 2);
  EXPECT_EQ(answer_bytes(call("attic"), encode_request({{0, 1}})), 0u);
  for (const std::string& request : {encode_request({{0, 3}}), encode_request({{1, 0}}), std::string("nonsense"),
                                     std::string(max_chunk_request_bytes + 1, 'x')})
    EXPECT_EQ(answer_bytes(call("attic"), request), std::nullopt);
}

TEST_F(LocalWeightsTest, AsManyCallersAsItServesAtOnceAndNoMore) {
  put({0, 2});
  begin();
  weights_->set_sources({{"attic", "", {}}});
  std::vector<ByteStream> callers;
  std::string refusal;
  for (const Instant until = soon(); refusal.empty() && seconds_until(until) > 0;) try {
      callers.push_back(call("attic"));
    } catch (const Error& error) {
      refusal = error.what();
    }
  EXPECT_THAT(refusal, HasSubstr("16 others fetch weights from here"));
}

TEST_F(LocalWeightsTest, TheDriverIsToldWhatIsHeldOnceItHasSaidWhatIsServed) {
  put({0, 0});
  put({0, 1});
  LocalWeights& weights = begin();
  EXPECT_EQ(next_news(), std::vector<AgentMessage>{(HeldChunks{{{0, 0, 2}}})});
  weights.forget_told();
  EXPECT_TRUE(weights.news().empty());
  weights.set_manifest(manifest_, [] {});
  EXPECT_EQ(next_news(), std::vector<AgentMessage>{(HeldChunks{{{0, 0, 2}}})});
}

TEST_F(LocalWeightsTest, ItsOwnCopyIsServedAndHeldWhole) {
  options_.model = folder;
  LocalWeights& weights = begin();
  EXPECT_TRUE(weights.has_own());
  EXPECT_EQ(weights.model(), folder);
  EXPECT_EQ(next_news(), std::vector<AgentMessage>{(HeldChunks{{{0, 0, 3}}})});
  weights.set_sources({{"attic", "", {}}});
  EXPECT_EQ(answer_bytes(call("attic"), encode_request({{0, 1}})), chunk_bytes);
  std::filesystem::resize_file(folder / "model.safetensors", chunk_bytes);
  EXPECT_EQ(answer_bytes(call("attic"), encode_request({{0, 1}})), 0u) << "it has been cut";
}

TEST_F(LocalWeightsTest, AFetchThatIsLetGoOfEnds) {
  std::optional<ListeningSocket> silent = listen_tcp("127.0.0.1:0");
  options_.driver = silent->address;
  LocalWeights& weights = begin();
  std::shared_ptr<WeightsFetch> fetch = weights.fetch({{0, 0}}, group_access);
  const std::weak_ptr<WeightsFetch> watched = fetch;
  weights.news();
  EXPECT_FALSE(watched.expired());
  fetch.reset();
  weights.news();
  silent.reset();  // and its connections are reset
  for (const Instant until = soon(); !watched.expired() && seconds_until(until) > 0;
       std::this_thread::sleep_for(std::chrono::milliseconds(2)))
    weights.news();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace motley
