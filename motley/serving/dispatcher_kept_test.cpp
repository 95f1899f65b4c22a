// Requests go on in the keys and values that workers have kept over a change of plan.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "motley/serving/dispatcher.hpp"
#include "motley/serving/driver_fixture_test.hpp"
#include "motley/workers/block_tables.hpp"

namespace motley {
namespace {

using Tokens = std::vector<std::int32_t>;

// Devices that keep token ids where a worker keeps keys and values, and check that every stage finds what it needs.
class Devices {
 public:
  // As workers do: a worker that gets the layers that it had keeps their cache, in the blocks that both plans have room
  // for. Where slots have blocks under one plan alone it keeps nothing.
  void launch(std::shared_ptr<const ServePlan> plan, std::uint64_t epoch) {
    plan_ = std::move(plan);
    std::map<std::string, Device> next;
    for (const Stage& stage : plan_->stages)
      for (const std::string& device : stage.devices) {
        const auto before = devices_.find(device);
        const std::int64_t of_slot = slot_blocks(plan_->model.arch.kind(0), cache_room(stage), plan_->step);
        const bool stays =
            before != devices_.end() && before->second.layers == stage.layers && before->second.of_slot == of_slot;
        Device& now = next.emplace(device, stays ? std::move(before->second) : Device{stage.layers, of_slot, epoch})
                          .first->second;
        now.tables = BlockTables(stage.kv_tokens / plan_->step.block_tokens);
        std::erase_if(now.slots, [&](const auto& slot) { return slot.first >= stage.kv_tokens; });
      }
    devices_ = std::move(next);
  }
  void lose(const std::string& device) { devices_.erase(device); }

  CacheEpochs cache_epochs() const {
    CacheEpochs epochs;
    for (const Stage& stage : plan_->stages)
      for (const std::string& device : stage.devices)
        epochs[stage.id] = std::max(epochs[stage.id], devices_.at(device).epoch);
    return epochs;
  }

  StepResult run(const Step& step) {
    StepResult result{.step = step.step};
    const std::vector<Hop>& path = plan_->routes.at(step.route).path;
    std::int32_t stages = std::numeric_limits<std::int32_t>::max();
    for (auto& [name, device] : devices_) {
      Step gone{.gone = step.gone};
      device.tables.complete(gone);
    }
    for (const StepSequence& part : step.sequences) {
      const auto passed = part.stages == 0 ? static_cast<std::int32_t>(path.size()) : part.stages;
      EXPECT_LE(passed, stages) << "parts that go further come first";
      stages = passed;
      for (std::int32_t hop = 0; hop < passed; ++hop)
        for (const std::string& device : plan_->stage(path[static_cast<std::size_t>(hop)].stage).devices)
          pass(devices_.at(device), part);
      if (part.sampling) result.tokens.push_back({.sequence = part.sequence, .token = answer(part)});
    }
    return result;
  }

  // Prompt and answer of each sequence, as it was asked for.
  std::map<std::uint64_t, Tokens> known;

 private:
  struct Place {
    std::uint64_t sequence = 0;
    std::int64_t position = 0;
    bool operator==(const Place&) const = default;
  };
  struct Device {
    LayerRange layers;
    std::int64_t of_slot = 0;  // blocks
    std::uint64_t epoch = 0;
    std::map<std::int64_t, std::int32_t> slots = {};
    std::map<std::int64_t, Place> windows = {};  // where slots have blocks
    BlockTables tables = BlockTables(0);
  };

  void pass(Device& device, const StepSequence& told) const {
    Step step{.sequences = {told}};
    device.tables.complete(step);
    const StepSequence& part = step.sequences[0];
    const std::int64_t size = plan_->step.block_tokens;
    const auto slot = [&](std::int64_t position) {
      return part.blocks.at(static_cast<std::size_t>(position / size)) * size + position % size;
    };
    for (std::int64_t i = 0; i < part.count; ++i)
      device.slots[slot(part.position + i)] = part.tokens.at(static_cast<std::size_t>(i));
    if (device.of_slot > 0) pass_windows(device, part);
    const auto of = known.find(part.sequence);
    if (of == known.end()) return;  // a warm-up
    for (std::int64_t position = 0; position < part.position + part.count; ++position) {
      const auto found = device.slots.find(slot(position));
      ASSERT_TRUE(found != device.slots.end() && found->second == of->second.at(static_cast<std::size_t>(position)))
          << "sequence " << part.sequence << ": keys and values of token " << position << " are not there";
    }
  }

  // What the first token of a part looks back on is still there, and of the part the last blocks stay.
  void pass_windows(Device& device, const StepSequence& part) const {
    const std::int64_t size = plan_->step.block_tokens, window = plan_->model.arch.kind(0).window;
    const auto place = [&](std::int64_t position) {
      return part.slot * device.of_slot * size + position % (device.of_slot * size);
    };
    for (std::int64_t position = std::max<std::int64_t>(0, part.position - window + 1); position < part.position;
         ++position) {
      const auto found = device.windows.find(place(position));
      ASSERT_TRUE(found != device.windows.end() && found->second == (Place{part.sequence, position}))
          << "sequence " << part.sequence << ": token " << position << " is not in its slot";
    }
    for (std::int64_t position = part.position; position < part.position + part.count; ++position)
      device.windows[place(position)] = {part.sequence, position};
  }

  std::int32_t answer(const StepSequence& part) {
    const auto of = known.find(part.sequence);
    if (of == known.end()) return 7;
    std::int32_t sum = 1;
    for (const std::int32_t token : of->second) sum = (sum * 31 + token) % 2000;
    of->second.push_back(sum + 5);
    return sum + 5;
  }

  std::shared_ptr<const ServePlan> plan_;
  std::map<std::string, Device> devices_;
};

class DispatcherKept : public testing::Test {
 protected:
  DispatcherKept() { devices_.launch(plan_, 1); }

  std::uint64_t add(const Tokens& prompt, std::int64_t tokens) {
    const std::uint64_t id = dispatcher_->add(ask(prompt, tokens));
    devices_.known[id] = prompt;
    return id;
  }
  // Runs this many steps, or until nothing is left; those that are under way together are answered in their order.
  void run(int steps = 10000) {
    for (int done = 0; done < steps; ++done) {
      while (auto step = dispatcher_->next()) under_way_.push_back(std::move(*step));
      if (under_way_.empty()) return;
      take(dispatcher_->complete(devices_.run(under_way_.front())));
      under_way_.pop_front();
    }
  }
  void take(const std::vector<GenerateEvent>& events) {
    for (const GenerateEvent& event : events)
      if (event.finished) finished_[event.request] = *event.finished;
  }
  // Nothing of it serves yet.
  void launch(std::shared_ptr<const ServePlan> plan) {
    plan_ = std::move(plan);
    under_way_.clear();
    dispatcher_->change_plan(plan_, ++epoch_);
    devices_.launch(plan_, epoch_);
  }
  void adopt() {
    dispatcher_->adopt(devices_.cache_epochs());
    dispatcher_->warm_up();
  }
  void change(std::shared_ptr<const ServePlan> plan) {
    launch(std::move(plan));
    adopt();
    while (!dispatcher_->warm()) run(1);
    take(dispatcher_->resume());
  }
  std::map<std::string, std::int64_t> replayed() const {
    DriverStatus status;
    dispatcher_->describe(status);
    return status.replayed_tokens;
  }

  std::shared_ptr<const ServePlan> plan_ = std::make_shared<const ServePlan>(toy_plan({{1, 1, 1}}));
  std::uint64_t epoch_ = 1;
  std::optional<Dispatcher> dispatcher_{std::in_place, plan_, 1, 100};
  std::deque<Step> under_way_;
  Devices devices_;
  std::map<std::uint64_t, FinishReason> finished_;
};

TEST_F(DispatcherKept, ReplayEndsAtTheStageThatWasLost) {
  add(Tokens(20, 3), 30);
  run(6);  // 20 tokens, and 5 of the answer
  for (std::size_t lost = 0; lost < 3; ++lost) {
    const auto before = replayed();
    const std::int64_t known = std::ssize(devices_.known[1]);
    devices_.lose(plan_->stages[lost].devices[0]);
    change(plan_);
    run(3);
    auto after = replayed();
    for (std::size_t stage = 0; stage < 3; ++stage) {
      const std::string& id = plan_->stages[stage].id;
      EXPECT_EQ(after[id] - (before.contains(id) ? before.at(id) : 0), stage <= lost ? known - 1 : 0)
          << id << " after the loss of " << lost;
    }
  }
  run();
  EXPECT_EQ(finished_.at(1), FinishReason::length);
  EXPECT_EQ(devices_.known[1].size(), 50u);
}

TEST_F(DispatcherKept, NothingIsReplayedWhereEverybodyStays) {
  add({1, 2, 3}, 30);
  run(9);
  change(plan_);
  run();
  EXPECT_TRUE(replayed().empty());
  EXPECT_EQ(finished_.at(1), FinishReason::length);
}

// A step that was under way has written to some stages only.
TEST_F(DispatcherKept, AStepUnderWayIsComputedAgain) {
  add({1, 2, 3}, 30);
  run(4);
  ASSERT_TRUE(dispatcher_->next());
  change(plan_);
  run();
  EXPECT_EQ(devices_.known[1].size(), 33u);
  EXPECT_EQ(finished_.at(1), FinishReason::length);
}

// A plan that never served has changed nothing of what requests have, but for what it has no room for.
TEST_F(DispatcherKept, APlanThatIsGivenUpBeforeItServes) {
  add(Tokens(20, 3), 60);
  run(5);
  launch(plan_);
  change(plan_);
  EXPECT_TRUE(replayed().empty());
  launch(std::make_shared<const ServePlan>(toy_plan({{1, 1, 1}}, 16)));  // one block: its second is lost
  change(std::make_shared<const ServePlan>(toy_plan({{1, 1, 1}})));
  run();
  EXPECT_GT(replayed().at("r0/s2"), 0);
  EXPECT_EQ(devices_.known[1].size(), 80u);
}

// The warm-up of such a plan writes where it likes.
TEST_F(DispatcherKept, APlanThatIsGivenUpWhileItWarmsUp) {
  add(Tokens(20, 3), 60);
  run(5);
  devices_.lose("box/2");
  launch(plan_);
  adopt();
  run(1);
  change(plan_);
  run();
  EXPECT_EQ(finished_.at(1), FinishReason::length);
  EXPECT_EQ(devices_.known[1].size(), 80u);
}

TEST_F(DispatcherKept, ABlockStaysFreeForOthers) {
  change(std::make_shared<const ServePlan>(toy_plan({{1, 1, 1}}, 64)));
  add(Tokens(40, 3), 20);  // four blocks with its answer
  run(10);
  change(plan_);
  change(std::make_shared<const ServePlan>(toy_plan({{1, 1, 1}}, 64)));
  run();
  EXPECT_EQ(finished_.at(1), FinishReason::length);
}

TEST_F(DispatcherKept, PromptsThatAreToBeScoredStartAgain) {
  GenerateRequest request = ask(Tokens(100, 3), 10);
  request.prompt_logprobs = 0;
  const std::uint64_t id = dispatcher_->add(request);
  const auto step = dispatcher_->next();
  ASSERT_TRUE(step && step->sequences.at(0).count < 100);
  launch(plan_);
  adopt();
  DriverStatus status;
  dispatcher_->describe(status);
  EXPECT_EQ(status.held, 1) << id;
}

// Ids of blocks of two routes may be the same: of those that share a cache now, one keeps its place.
TEST_F(DispatcherKept, RoutesThatBecomeOne) {
  const ServePlan two = toy_plan({{1, 1}, {1, 1}});
  change(std::make_shared<const ServePlan>(two));
  std::vector<std::uint64_t> ids;
  for (std::int32_t i = 0; i < 6; ++i) ids.push_back(add({i, 2, 3}, 40));
  run(30);
  ServePlan one = two;  // the first half of one, the second of the other
  one.stages.erase(one.stages.begin() + 1, one.stages.begin() + 3);
  one.routes.pop_back();
  one.routes[0].path[1].stage = one.stages[1].id;
  one.unused = {{"box/1", "left out"}, {"box/2", "left out"}};
  change(std::make_shared<const ServePlan>(one));
  run();
  for (const std::uint64_t id : ids) EXPECT_EQ(devices_.known[id].size(), 43u);
}

// Where slots have blocks of a window, a chunk of a prompt that was under way may have taken the place of what the
// tokens before it looked back on.
TEST_F(DispatcherKept, APromptUnderWayLosesWhatLiesBehindItsWindow) {
  ServePlan windowed = toy_plan({{1, 1, 1}});
  windowed.model.arch.kinds.front().window = 17;
  for (Stage& stage : windowed.stages) stage.kv_sequences = 4;
  plan_ = std::make_shared<const ServePlan>(windowed);
  dispatcher_.emplace(plan_, 1, 100, fixed_steps);
  devices_.launch(plan_, 1);
  add(Tokens(200, 3), 30);
  run(2);
  const auto lost = dispatcher_->next();
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->sequences.at(0).position, 128);
  devices_.run(*lost);
  change(plan_);
  run();
  EXPECT_EQ(replayed().at("r0/s0"), 128) << "the steps that were answered";
  EXPECT_EQ(finished_.at(1), FinishReason::length);
  EXPECT_EQ(devices_.known[1].size(), 230u);
}

// Whatever happens in whatever order: every stage finds the keys and values that it needs, and every request ends.
TEST_F(DispatcherKept, RandomLossesAndChanges) {
  std::vector<std::shared_ptr<const ServePlan>> without_windows, with_windows;
  for (const std::int64_t kv_tokens : {96, 160, 1024})
    for (const auto& routes : {std::vector<std::vector<int>>{{1, 1, 1}}, {{1, 2}}, {{1, 1}, {1}}, {{1, 1}, {1, 1}}}) {
      ServePlan plan = toy_plan(routes, kv_tokens);
      without_windows.push_back(std::make_shared<const ServePlan>(plan));
      plan.model.arch.kinds.front().window = 17;
      for (const std::int64_t sequences : {3, 8, 0}) {
        for (Stage& stage : plan.stages) stage.kv_sequences = sequences;
        with_windows.push_back(std::make_shared<const ServePlan>(plan));
      }
    }
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const std::vector<std::shared_ptr<const ServePlan>>& plans = seed % 3 == 0 ? without_windows : with_windows;
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t count) { return random() % count; };
    devices_ = Devices();
    finished_.clear();
    plan_ = plans[below(plans.size())];
    epoch_ = 1;
    dispatcher_.emplace(plan_, static_cast<std::int64_t>(1 + below(3)), 100);
    under_way_.clear();
    devices_.launch(plan_, 1);
    for (int event = 0; event < 60; ++event) {
      switch (below(4)) {
        case 0:
          add(Tokens(1 + below(40), static_cast<std::int32_t>(below(seed % 2 == 0 ? 3 : 1000))),
              1 + static_cast<std::int64_t>(below(40)));
          break;
        case 1: run(static_cast<int>(below(12))); break;
        case 2:
          while (below(3) > 0)
            if (!dispatcher_->next()) break;  // under way, and lost with the change
          for (const std::string& device : worker_devices(*plan_))
            if (below(4) == 0) devices_.lose(device);
          if (below(3) == 0) launch(plans[below(plans.size())]);
          if (below(3) == 0) launch(plan_), adopt(), run(static_cast<int>(below(3)));
          change(below(2) == 0 ? plan_ : plans[below(plans.size())]);
          break;
        default: dispatcher_->cancel(1 + below(1 + devices_.known.size()));
      }
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
    }
    run();
    ASSERT_TRUE(dispatcher_->idle()) << "seed " << seed;
    for (const auto& [id, reason] : finished_) ASSERT_NE(reason, FinishReason::failed) << "seed " << seed;
  }
}

}  // namespace
}  // namespace motley
