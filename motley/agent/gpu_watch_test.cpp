// The watch over GPUs, with a stand-in for the library of NVIDIA's driver.
#include "motley/agent/gpu_watch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <functional>

#include "motley/agent/gpu_state_test.hpp"
#include "motley/base/clock.hpp"
#include "motley/comm/net/deadline_test.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class GpuWatchTest : public ::testing::Test {
 protected:
  void start(std::vector<WatchedGpu> gpus = {{"box/0", "GPU-0"}, {"box/1", "GPU-1"}}, double poll_s = 0.02) {
    watch_.emplace(GpuWatchOptions{.gpus = std::move(gpus), .library = MOTLEY_NVML_STUB, .poll_s = poll_s}, wake_);
  }
  // The next changes; empty: none came in time.
  std::vector<std::pair<std::string, std::string>> changes() {
    std::vector<std::pair<std::string, std::string>> all;
    until([&] { return !(all = watch_->changes()).empty(); });
    return all;
  }
  std::optional<std::string> released(const std::string& device) {
    std::optional<std::string> not_come;
    until([&] { return (not_come = watch_->released(device)).has_value(); });
    return not_come;
  }
  void until(const std::function<bool()>& is_so) const {
    for (const Instant deadline = soon(); !is_so() && seconds_until(deadline) > 0;) {
      pollfd waiting{wake_.descriptor(), POLLIN, 0};
      ::poll(&waiting, 1, 10);
      wake_.clear();
    }
  }

  GpuStateFile state_{2};
  const Wakeup wake_;
  std::optional<GpuWatch> watch_;
};

TEST_F(GpuWatchTest, WithoutGpusNothingIsOpened) {
  watch_.emplace(GpuWatchOptions{.library = "no such library"}, wake_);
  watch_->await_release("box/0", {1});
  EXPECT_EQ(watch_->released("box/0"), "");
  EXPECT_THAT(watch_->objections(), IsEmpty());
}

TEST_F(GpuWatchTest, AMissingLibraryIsSaidAndNothingWaits) {
  watch_.emplace(GpuWatchOptions{.gpus = {{"box/0", "GPU-0"}}, .library = "no such library"}, wake_);
  watch_->await_release("box/0", {1});
  EXPECT_EQ(released("box/0"), "");
  std::vector<std::string> objections;
  until([&] { return !(objections = watch_->objections()).empty(); });
  EXPECT_THAT(objections, ElementsAre(HasSubstr("GPUs are not watched: cannot open no such library")));
}

TEST_F(GpuWatchTest, AGpuThatTheLibraryDoesNotKnowIsSaid) {
  start({{"box/0", "GPU-7"}, {"box/1", "GPU-1"}});
  std::vector<std::string> objections;
  until([&] { return !(objections = watch_->objections()).empty(); });
  EXPECT_THAT(objections,
              ElementsAre(HasSubstr("box/0 is not watched: NVIDIA's management library does not find GPU-7")));
  state_.set(1, "recovery_action", 1);
  EXPECT_THAT(changes(), ElementsAre(Pair("box/1", HasSubstr("recovery action 1"))));
}

TEST_F(GpuWatchTest, TellsOfAResetUntilItIsDone) {
  start();
  state_.set(1, "recovery_action", 4);
  EXPECT_THAT(changes(), ElementsAre(Pair("box/1", HasSubstr("asks for a reset of the GPU (recovery action 4)"))));
  state_.set(1, "recovery_action", 0);
  EXPECT_THAT(changes(), ElementsAre(Pair("box/1", "")));
}

TEST_F(GpuWatchTest, AGpuThatIsLostStaysLost) {
  start();
  state_.set(0, "error", 15);
  EXPECT_THAT(changes(), ElementsAre(Pair("box/0", HasSubstr("has lost the GPU"))));
  state_.set(0, "error", 0).set(1, "error", 16);
  EXPECT_THAT(changes(), ElementsAre(Pair("box/1", HasSubstr("asks for a reset"))));
  EXPECT_THAT(watch_->changes(), IsEmpty());
}

// Looks would come too late: the events are what is heard.
TEST_F(GpuWatchTest, HearsEvents) {
  start({{"box/0", "GPU-0"}, {"box/1", "GPU-1"}}, 3600);
  state_.set(1, "events", Value::array({Value::array({8, 13}), Value::array({8, 48})}));
  EXPECT_THAT(changes(), ElementsAre(Pair("box/1", HasSubstr("Xid 48"))));
  state_.set(0, "recovery_action", 2).set(0, "events", Value::array({Value::array({0x8000, 2})}));
  EXPECT_THAT(changes(), ElementsAre(Pair("box/0", HasSubstr("asks for a restart of the machine"))));
}

TEST_F(GpuWatchTest, LooksWhereThereAreNoEvents) {
  state_.set_events(false);
  start();
  state_.set(1, "error", 15);
  EXPECT_THAT(changes(), ElementsAre(Pair("box/1", HasSubstr("has lost the GPU"))));
}

TEST_F(GpuWatchTest, LooksSoonWhenItIsAskedTo) {
  for (const bool events : {true, false}) {
    state_.set_events(events);
    start({{"box/0", "GPU-0"}}, 3600);
    watch_->await_release("box/0", {});
    EXPECT_EQ(released("box/0"), "") << "the first look is over";
    state_.set(0, "recovery_action", 1);
    watch_->look_soon();
    EXPECT_THAT(changes(), ElementsAre(Pair("box/0", HasSubstr("recovery action 1")))) << events;
    state_.set(0, "recovery_action", Value());
  }
}

TEST_F(GpuWatchTest, WaitsUntilProcessesHaveGivenTheirMemoryBack) {
  for (const bool events : {true, false}) {
    state_.set_events(events);
    state_.set(0, "processes", Value::array({4711, 9})).set(0, "free_bytes", 1 << 20);
    start();
    watch_->await_release("box/0", {4711});
    watch_->await_release("box/1", {});
    EXPECT_EQ(released("box/1"), "");
    EXPECT_FALSE(watch_->released("box/0")) << events;
    state_.set(0, "processes", Value::array({9})).set(0, "free_bytes", std::int64_t{20} << 30);
    EXPECT_EQ(released("box/0"), "") << events;
  }
}

}  // namespace
}  // namespace motley
