// Fetching from a driver and members that a test plays, over loopback.
#include "motley/agent/weights_fetch.hpp"

#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <optional>

#include "motley/agent/chunk_service.hpp"
#include "motley/base/error.hpp"
#include "motley/checkpoint/large_model_test.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/workers/control_listener.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

const RelayAccess secret_access{.key = "secret", .identity = {}};

// A driver or a member that serves chunks as a test wants it.
class ChunkServer {
 public:
  explicit ChunkServer(
      ChunkService::Read read, std::function<std::string()> objection = [] { return std::string(); })
      : service_(std::move(read), 4),
        listener_(std::make_unique<ControlListener>(
            "127.0.0.1:0", secret_access,
            std::map<std::string, ControlService>{
                {weights_service,
                 {.admit = [objection = std::move(objection)](const LinkHello&,
                                                              const std::string&) { return objection(); },
                  .take = [this](const LinkHello&,
                                 ByteStream stream) { service_.serve(std::move(stream), [] { return true; }); }}}})) {}
  ~ChunkServer() { service_.close(); }
  ChunkServer(const ChunkServer&) = delete;
  ChunkServer& operator=(const ChunkServer&) = delete;

  std::string address() const { return listener_->address(); }
  void close() { service_.close(); }

 private:
  ChunkService service_;
  std::unique_ptr<ControlListener> listener_;
};

class WeightsFetchTest : public LargeModelTest {
 protected:
  WeightsFetchTest() {
    change_byte(write_large(), chunk_bytes);
    manifest_ = make_manifest(folder);
  }
  ~WeightsFetchTest() override { over_ = true; }

  std::vector<std::byte> bytes_of(const ChunkId& id) const {
    return read_chunk(folder, manifest_.files[id.file], id.chunk);
  }
  std::vector<std::byte> wait_for_the_end() const {
    while (!over_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return {};
  }
  ChunkService::Read all() const {
    return [this](const ChunkId& id) { return bytes_of(id); };
  }
  // All, once this member is not asked any more.
  ChunkService::Read all_without(const std::string& member) const {
    return [this, member](const ChunkId& id) {
      while (!over_ && sources_->usable(member)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      return bytes_of(id);
    };
  }
  ChunkService::Read nothing() const {
    return [](const ChunkId&) { return std::vector<std::byte>(); };
  }
  WeightsSource holds_all(const std::string& name, const ChunkServer& server) const {
    return {name, server.address(), whole_model(manifest_)};
  }

  std::unique_ptr<WeightsFetch> start(const std::string& driver, const std::vector<WeightsSource>& members) {
    cache_ = std::make_shared<ChunkCache>(folder / "cache", manifest_);
    sources_ = std::make_shared<KnownSources>(driver);
    sources_->set_manifest(manifest_);
    sources_->set(members);
    return std::make_unique<WeightsFetch>(cache_, all_chunks(manifest_), sources_, "attic", secret_access, wake_);
  }
  // What fetching all chunks comes to.
  FetchProgress fetch(const ChunkServer& driver, const std::vector<WeightsSource>& members) {
    return result_of(*start(driver.address(), members));
  }
  FetchProgress result_of(const WeightsFetch& fetch) {
    FetchProgress progress;
    for (const Instant until = soon(); seconds_until(until) > 0 && !progress.done && progress.failure.empty();
         std::this_thread::sleep_for(std::chrono::milliseconds(2)))
      progress = fetch.progress();
    over_ = true;
    return progress;
  }

  ModelManifest manifest_;
  std::atomic<bool> over_ = false;
  const Wakeup wake_;
  std::shared_ptr<ChunkCache> cache_;
  std::shared_ptr<KnownSources> sources_;
};

TEST_F(WeightsFetchTest, EachSourceGivesWhatItCan) {
  const ChunkServer driver([this](const ChunkId& id) {
    wait_for_the_end();
    return bytes_of(id);
  });
  const ChunkServer box(all());
  const FetchProgress progress = fetch(driver, {holds_all("box", box)});
  EXPECT_TRUE(progress.done) << progress.failure;
  EXPECT_EQ(progress.from, (std::map<std::string, std::uint64_t>{{"box", large_bytes}}))
      << "also the chunk that the driver was asked for first";
  EXPECT_TRUE(sources_->take_news().empty());
  EXPECT_EQ(make_manifest(cache_->model()), manifest_);
}

TEST_F(WeightsFetchTest, TheDriverIsAskedForWhatNoMemberHolds) {
  std::mutex mutex;
  std::set<std::uint32_t> asked;
  const ChunkServer driver([&](const ChunkId& id) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(!asked.empty() || id.chunk == 2) << "comes first";
    asked.insert(id.chunk);
    return bytes_of(id);
  });
  const ChunkServer box(all());
  EXPECT_TRUE(fetch(driver, {{"box", box.address(), {{0, 0, 2}}}}).done);
  EXPECT_TRUE(asked.contains(2));
}

TEST_F(WeightsFetchTest, WrongBytesDropAMemberByName) {
  const ChunkServer driver(all_without("box"));
  const ChunkServer box([this](const ChunkId& id) {
    std::vector<std::byte> bytes = bytes_of(id);
    bytes.back() ^= std::byte{1};
    return bytes;
  });
  const FetchProgress progress = fetch(driver, {holds_all("box", box)});
  EXPECT_TRUE(progress.done) << progress.failure;
  EXPECT_EQ(progress.from, (std::map<std::string, std::uint64_t>{{"", large_bytes}}));
  const std::vector<BadSource> bad = sources_->take_news();
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].name, "box");
  EXPECT_THAT(bad[0].cause, HasSubstr("of model.safetensors came damaged"));
  EXPECT_FALSE(sources_->usable("box"));
  sources_->set({holds_all("box", box)});
  EXPECT_FALSE(sources_->usable("box")) << "for good";
  EXPECT_EQ(make_manifest(cache_->model()), manifest_);
}

TEST_F(WeightsFetchTest, WhatAMemberDoesNotFinishComesFromAnother) {
  const ChunkServer driver(all_without("box"));
  std::atomic<ChunkServer*> box = nullptr;
  ChunkServer dying([&](const ChunkId& id) {
    box.load()->close();  // in the middle of an answer
    return bytes_of(id);
  });
  box = &dying;
  const FetchProgress progress = fetch(driver, {holds_all("box", dying)});
  EXPECT_TRUE(progress.done) << progress.failure;
  EXPECT_EQ(progress.bytes, large_bytes);
  EXPECT_FALSE(sources_->usable("box")) << "for a while";
}

TEST_F(WeightsFetchTest, AMemberThatIsGoneOrHangsHoldsNothingUp) {
  const ChunkServer driver(all_without("gone"));
  std::string nowhere;
  {
    const ChunkServer gone(all());
    nowhere = gone.address();
  }
  const ChunkServer hung([this](const ChunkId&) { return wait_for_the_end(); });
  const FetchProgress progress = fetch(driver, {{"gone", nowhere, whole_model(manifest_)}, holds_all("hung", hung)});
  EXPECT_TRUE(progress.done) << progress.failure;
  EXPECT_EQ(progress.from, (std::map<std::string, std::uint64_t>{{"", large_bytes}}));
  const std::vector<BadSource> bad = sources_->take_news();
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_THAT(bad[0].cause, HasSubstr("gone at " + nowhere + " does not answer"));
}

TEST_F(WeightsFetchTest, AMemberThatHasLostAChunkGivesTheOthers) {
  const ChunkServer driver(
      [this](const ChunkId& id) { return id.chunk == 1 ? bytes_of(id) : std::vector<std::byte>(); });
  const ChunkServer box([this](const ChunkId& id) { return id.chunk == 1 ? std::vector<std::byte>() : bytes_of(id); });
  const FetchProgress progress = fetch(driver, {holds_all("box", box)});
  EXPECT_TRUE(progress.done) << progress.failure;
  EXPECT_EQ(progress.from.at(""), chunk_bytes);
  EXPECT_TRUE(sources_->usable("box"));
}

// It may hear from the driver about this machine later than this machine about it.
TEST_F(WeightsFetchTest, AMemberThatRefusesIsAskedAgain) {
  const ChunkServer driver([this](const ChunkId&) { return wait_for_the_end(); });
  std::atomic<int> calls = 0;
  const ChunkServer box(all(), [&] { return ++calls < 3 ? std::string("not yet") : std::string(); });
  const FetchProgress progress = fetch(driver, {holds_all("box", box)});
  EXPECT_TRUE(progress.done) << progress.failure;
  EXPECT_EQ(progress.from.at("box"), large_bytes);
  EXPECT_TRUE(sources_->take_news().empty());
}

TEST_F(WeightsFetchTest, AMemberThatIsNamedLaterIsAskedForWhatIsLate) {
  std::atomic<bool> asked = false;
  const ChunkServer driver([&](const ChunkId&) {
    asked = true;
    return wait_for_the_end();
  });
  const auto fetch = start(driver.address(), {});
  for (const Instant until = soon(); !asked && seconds_until(until) > 0;) std::this_thread::yield();
  const ChunkServer box(all());
  sources_->set({holds_all("box", box)});
  const FetchProgress progress = result_of(*fetch);
  EXPECT_TRUE(progress.done) << progress.failure;
  EXPECT_EQ(progress.from.at("box"), large_bytes);
}

TEST_F(WeightsFetchTest, AMemberThatIsLostIsHungUpOn) {
  const ChunkServer driver([this](const ChunkId&) { return wait_for_the_end(); });
  std::atomic<bool> asked = false;
  const ChunkServer box([&](const ChunkId&) {
    asked = true;
    return wait_for_the_end();
  });
  const auto fetch = start(driver.address(), {holds_all("box", box)});
  for (const Instant until = soon(); !asked && seconds_until(until) > 0;) std::this_thread::yield();
  sources_->set({});
  std::vector<BadSource> bad;
  for (const Instant until = soon(); bad.empty() && seconds_until(until) > 0;) bad = sources_->take_news();
  over_ = true;
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0].name, "box");
}

TEST_F(WeightsFetchTest, ToStopDoesNotWaitForOneThatDoesNotAnswer) {
  std::optional<ListeningSocket> silent = listen_tcp("127.0.0.1:0");
  const auto fetch = start(silent->address, {});
  pollfd calls{silent->socket.get(), POLLIN, 0};
  ASSERT_EQ(::poll(&calls, 1, poll_timeout_ms(soon())), 1);
  fetch->stop();
  EXPECT_FALSE(fetch->ended());
  silent.reset();  // and its connections are reset
  for (const Instant until = soon(); !fetch->ended(); std::this_thread::sleep_for(std::chrono::milliseconds(2)))
    ASSERT_GT(seconds_until(until), 0);
  EXPECT_FALSE(fetch->progress().done);
  EXPECT_EQ(fetch->progress().failure, "");
}

TEST_F(WeightsFetchTest, FailsWhereNoSourceHasAChunk) {
  const ChunkServer driver(nothing()), box(nothing());
  const FetchProgress progress = fetch(driver, {holds_all("box", box)});
  EXPECT_FALSE(progress.done);
  EXPECT_THAT(progress.failure, HasSubstr("of model.safetensors came damaged"));
}

TEST_F(WeightsFetchTest, ChunksThatTheModelDoesNotHaveAreNotBelieved) {
  KnownSources sources("127.0.0.1:1");
  sources.set_manifest(manifest_);
  for (const ChunkRange& range :
       {ChunkRange{0, 0, 4}, {0, 2, 2}, {0, 2, 1}, {1, 0, 1}, {0, 0xffffffff, 0}, {0, 0, 0xffffffff}})
    EXPECT_THROW(sources.set({{"box", "127.0.0.1:2", {range}}}), Error);
  sources.set({{"box", "127.0.0.1:2", {{0, 1, 3}}}, {"bare", "", {}}});
  EXPECT_TRUE(sources.names("bare"));
  EXPECT_FALSE(sources.names("eve"));
  const auto all = sources.all();
  ASSERT_EQ(all->size(), 2u);
  EXPECT_FALSE((*all)[1].has({0, 0}));
  EXPECT_TRUE((*all)[1].has({0, 2}));
}

}  // namespace
}  // namespace motley
