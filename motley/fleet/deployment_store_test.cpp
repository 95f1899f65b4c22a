#include "motley/fleet/deployment_store.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "motley/checkpoint/safetensors_test.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/stop_signals.hpp"
#include "motley/fleet/hand_agent_test.hpp"
#include "motley/fleet/state_folder_test.hpp"

namespace motley {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SavedDeployment some_deployment(const std::string& driver = "10.0.0.5:4701") {
  return {.authority = Authority::create("motley").save(),
          .key = "key",
          .coordinator = "10.0.0.5:4700",
          .driver = driver,
          .admission = {}};
}

TEST(FileStore, KeepsADeploymentUntilItHasEnded) {
  const StateFolder folder;
  {
    const auto store = store_of_port(8000);
    EXPECT_FALSE(store->read());
    store->keep(some_deployment());
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path / "motley/deployments/8000.json"));
  const auto again = store_of_port(8000);
  ASSERT_TRUE(again->read());
  EXPECT_EQ(again->read()->driver, "10.0.0.5:4701");
  EXPECT_TRUE(again->is_held());
  EXPECT_FALSE(again->is_shared());
  again->remove();
  EXPECT_FALSE(again->read());
}

TEST(FileStore, OneThatAnotherProcessHasKeepsNothing) {
  const StateFolder folder;
  const auto first = store_of_port(8000), second = store_of_port(8000), other = store_of_port(8001);
  first->keep(some_deployment());
  EXPECT_FALSE(second->read());
  second->keep(some_deployment("10.0.0.6:1"));
  second->remove();
  EXPECT_EQ(first->read()->driver, "10.0.0.5:4701");
  EXPECT_FALSE(other->read());
}

TEST(FileStore, AnyPortKeepsNothing) {
  const StateFolder folder;
  const auto store = store_of_port(0);
  store->keep(some_deployment());
  EXPECT_FALSE(store->read());
  EXPECT_FALSE(std::filesystem::exists(folder.path / "motley"));
}

TEST(FileStore, ARunHasOneByItsFolderHoweverItIsNamed) {
  const StateFolder folder;
  std::filesystem::create_directories(folder.path / "run");
  store_of_run(folder.path / "run")->keep(some_deployment());
  EXPECT_TRUE(store_of_run(folder.path / "other/../run")->read());
  EXPECT_FALSE(store_of_run(folder.path / "other")->read());
}

// What etcd would hold.
struct Record {
  std::mutex mutex;
  std::vector<std::string> texts;
  int kept = 0, opened = 0;
  bool away = false, taken = false;
};

class FakeLedger : public LedgerStore {
 public:
  explicit FakeLedger(Record& record) : record_(record) {
    const std::lock_guard lock(record_.mutex);
    ++record_.opened;
  }
  std::vector<std::string> read() override {
    const std::lock_guard lock(record_.mutex);
    return record_.texts;
  }
  void append(const std::vector<std::string>&) override { FAIL() << "one record is enough"; }
  void replace(const std::string& text) override {
    const std::lock_guard lock(record_.mutex);
    if (record_.away) throw Error(ErrorCode::environment, "no answer");
    record_.texts = {text};
  }
  void keep() override {
    const std::lock_guard lock(record_.mutex);
    ++record_.kept;
    if (record_.away) throw Error(ErrorCode::environment, "no answer");
    if (record_.taken) {
      record_.taken = false;
      throw StoreFenced("another coordinator has taken over");
    }
  }
  double hold_s() const override { return 0.003; }
  std::string name() const override { return "fake"; }

 private:
  Record& record_;
};

class SharedStoreTest : public ::testing::Test {
 protected:
  std::unique_ptr<DeploymentStore> open() {
    const auto open = [this] { return std::make_unique<FakeLedger>(record_); };
    return shared_store("etcd://here/a", open(), open,
                        [this](const std::string& what, const std::string& detail) { told_(what, detail); });
  }
  template <class Change>
  void change(const Change& change) {
    const std::lock_guard lock(record_.mutex);
    change(record_);
  }
  int times_kept() {
    const std::lock_guard lock(record_.mutex);
    return record_.kept;
  }
  int times_opened() {
    const std::lock_guard lock(record_.mutex);
    return record_.opened;
  }
  template <class Condition>
  bool becomes(const Condition& condition) {
    for (const Instant until = soon(); seconds_until(until) > 0;
         std::this_thread::sleep_for(std::chrono::milliseconds(1)))
      if (condition()) return true;
    return false;
  }

  Record record_;
  ToldLines told_;
};

TEST_F(SharedStoreTest, HoldsOneDeploymentForWhoeverReadsIt) {
  {
    const auto store = open();
    EXPECT_TRUE(store->is_shared());
    EXPECT_FALSE(store->read());
    store->keep(some_deployment());
  }
  const auto again = open();
  EXPECT_EQ(again->read()->driver, "10.0.0.5:4701");
  again->remove();
  EXPECT_THAT(record_.texts, ElementsAre(""));
  EXPECT_FALSE(again->read());
}

TEST_F(SharedStoreTest, WhatIsNoDeploymentIsRefused) {
  record_.texts = {"another's"};
  const auto store = open();
  EXPECT_THAT(refusal([&] { store->read(); }), HasSubstr("etcd://here/a does not hold a deployment"));
}

TEST_F(SharedStoreTest, IsHeldUntilAnotherDriverTakesItUp) {
  const StopSignals signals;
  const auto store = open();
  store->keep(some_deployment());
  ASSERT_TRUE(becomes([&] { return times_kept() > 2; }));
  EXPECT_TRUE(store->is_held());
  change([](Record& record) {
    record.texts = {to_text(some_deployment("10.0.0.6:1"))};
    record.taken = true;
  });
  ASSERT_TRUE(becomes([&] { return signals.count() == 1; }));  // the process is told
  EXPECT_FALSE(store->is_held());
  EXPECT_THROW(store->check_held(), StoreFenced);
}

// While it was away the lease ran out, and no other came.
TEST_F(SharedStoreTest, OneThatNobodyTookIsTakenAgain) {
  const auto store = open();
  store->keep(some_deployment());
  change([](Record& record) { record.taken = true; });
  ASSERT_TRUE(becomes([&] { return times_opened() == 2; }));
  store->keep(some_deployment("10.0.0.6:1"));
  EXPECT_TRUE(store->is_held());
  EXPECT_EQ(store->read()->driver, "10.0.0.6:1");
}

TEST_F(SharedStoreTest, ThatItIsAwayIsToldOnceAndEndsNothing) {
  const auto store = open();
  change([](Record& record) { record.away = true; });
  ASSERT_TRUE(becomes([&] { return times_kept() > 4; }));
  EXPECT_TRUE(store->is_held());
  EXPECT_THAT(told_.lines(), ElementsAre("store: is away, and the deployment goes on: no answer"));
  EXPECT_THROW(store->keep(some_deployment()), Error);
  store->remove();
  EXPECT_THAT(told_.lines(), Contains("store: still holds the deployment that has ended: no answer"));
}

}  // namespace
}  // namespace motley
