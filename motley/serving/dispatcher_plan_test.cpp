// Requests outlive the plan that they run under.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/serving/dispatcher.hpp"
#include "motley/serving/driver_fixture_test.hpp"

namespace motley {
namespace {

using Tokens = std::vector<std::int32_t>;

std::shared_ptr<const ServePlan> plan_of(const std::vector<std::vector<int>>& routes, std::int64_t kv_tokens = 1024) {
  return std::make_shared<const ServePlan>(toy_plan(routes, kv_tokens));
}

// A model that answers the sum of what it has been given, whatever the plan.
class ToyModel {
 public:
  StepResult run(const Step& step) {
    StepResult result{.step = step.step, .compute_s = 0, .wait_s = 0, .tokens = {}};
    for (const StepSequence& sequence : step.sequences) {
      Tokens& known = computed_[sequence.sequence];
      known.resize(static_cast<std::size_t>(sequence.position));  // throws nothing away that it should still have
      known.insert(known.end(), sequence.tokens.begin(), sequence.tokens.end());
      if (!sequence.sampling) continue;
      std::int32_t sum = 1;
      for (const std::int32_t token : known) sum = (sum * 31 + token) % 2000;
      result.tokens.push_back({.sequence = sequence.sequence, .token = sum + 5, .logprob = 0, .top = {}});
    }
    return result;
  }
  void forget() { computed_.clear(); }

 private:
  std::map<std::uint64_t, Tokens> computed_;
};

// Runs `steps` steps, or all of them; returns how many there were.
int run(Dispatcher& dispatcher, ToyModel& model, std::map<std::uint64_t, Tokens>& tokens, int steps = 10000) {
  int done = 0;
  for (; done < steps; ++done) {
    const auto step = dispatcher.next();
    if (!step) break;
    for (const GenerateEvent& event : dispatcher.complete(model.run(*step)))
      if (event.token) tokens[event.request].push_back(event.token->token);
  }
  return done;
}

void change(Dispatcher& dispatcher, ToyModel& model, std::shared_ptr<const ServePlan> plan) {
  dispatcher.change_plan(std::move(plan), 2);
  model.forget();
  dispatcher.warm_up();
  std::map<std::uint64_t, Tokens> of_warm_ups;
  EXPECT_FALSE(dispatcher.warm());
  run(dispatcher, model, of_warm_ups);
  EXPECT_TRUE(dispatcher.warm());
}

TEST(DispatcherPlan, AnswersAreThoseOfAnUndisturbedRun) {
  const auto answers = [](int steps_before) {
    Dispatcher dispatcher(plan_of({{1, 1, 1}}), 1, 10);
    ToyModel model;
    std::map<std::uint64_t, Tokens> tokens;
    for (std::int32_t i = 0; i < 5; ++i) dispatcher.add(ask({10 + i, 20, 30 + i}, 4 + 3 * i));
    run(dispatcher, model, tokens, steps_before);
    if (steps_before % 2 == 1) dispatcher.next();  // a step under way, which is forgotten
    change(dispatcher, model, plan_of({{1}}, 64));
    EXPECT_TRUE(dispatcher.resume().empty());
    run(dispatcher, model, tokens);
    EXPECT_TRUE(dispatcher.idle());
    std::vector<Tokens> in_order;
    for (const auto& [id, of_request] : tokens) in_order.push_back(of_request);
    return in_order;
  };
  const auto expected = answers(0);
  ASSERT_EQ(expected.size(), 5u);
  EXPECT_EQ(expected[4].size(), 16u);
  for (int steps = 1; steps < 12; ++steps) EXPECT_EQ(answers(steps), expected) << steps;
}

TEST(DispatcherPlan, AReplayedRequestIsComputedFromItsFirstTokenOn) {
  Dispatcher dispatcher(plan_of({{1, 1}}), 1, 10);
  ToyModel model;
  std::map<std::uint64_t, Tokens> tokens;
  GenerateRequest request = ask({11, 12, 13}, 8);
  request.sampling.temperature = 0.5f;
  request.sampling.seed = 42;
  request.sampling.presence_penalty = 1;
  request.min_new_tokens = 6;
  request.stop_tokens = {9};
  request.ignore_eos = false;
  const std::uint64_t id = dispatcher.add(request);
  run(dispatcher, model, tokens, 3);
  change(dispatcher, model, plan_of({{2}}));
  dispatcher.resume();
  const auto step = dispatcher.next();
  ASSERT_TRUE(step);
  const StepSequence& sequence = step->sequences.at(0);
  EXPECT_EQ(sequence.sequence, id);
  EXPECT_EQ(sequence.position, 0);
  Tokens known{11, 12, 13};
  known.insert(known.end(), tokens[id].begin(), tokens[id].end());
  EXPECT_EQ(sequence.tokens, known);
  // The sampler draws by seed and position, so it goes on where it was.
  EXPECT_EQ(sequence.sampling->seed, 42u);
  EXPECT_EQ(sequence.sampling->generated, tokens[id]);
  EXPECT_EQ(sequence.sampling->forbidden, Tokens({9, 1}));
}

TEST(DispatcherPlan, RequestsThatComeMeanwhileAreHeldAndCanBeCancelled) {
  Dispatcher dispatcher(plan_of({{1}}), 1, 3);
  ToyModel model;
  const std::uint64_t running = dispatcher.add(ask({1}, 4));
  dispatcher.change_plan(plan_of({{1, 1}}), 2);
  const std::uint64_t held = dispatcher.add(ask({2}, 4)), cancelled = dispatcher.add(ask({3}, 4));
  EXPECT_FALSE(dispatcher.next());
  EXPECT_THROW(dispatcher.add(ask({4}, 4)), Error);  // as many as may wait
  EXPECT_TRUE(dispatcher.cancel(cancelled));
  DriverStatus status;
  dispatcher.describe(status);
  EXPECT_EQ(status.held, 2);
  dispatcher.warm_up();
  std::map<std::uint64_t, Tokens> tokens;
  run(dispatcher, model, tokens);
  EXPECT_FALSE(tokens.contains(running) || tokens.contains(held));
  EXPECT_TRUE(dispatcher.resume().empty());
  run(dispatcher, model, tokens);
  EXPECT_EQ(tokens[running].size(), 4u);
  EXPECT_EQ(tokens[held].size(), 4u);
  EXPECT_FALSE(tokens.contains(cancelled));
}

TEST(DispatcherPlan, NoRequestIsRefusedForTheQueuesSake) {
  Dispatcher dispatcher(plan_of({{1}}), 1, 4);
  ToyModel model;
  std::map<std::uint64_t, Tokens> tokens;
  for (std::int32_t i = 0; i < 12; ++i) {
    dispatcher.add(ask({i}, 6));
    run(dispatcher, model, tokens, 1);
  }
  change(dispatcher, model, plan_of({{1}}, 32));  // one at a time
  EXPECT_TRUE(dispatcher.resume().empty());
  EXPECT_THROW(dispatcher.add(ask({1}, 6)), Error);  // new ones are
  run(dispatcher, model, tokens);
  EXPECT_TRUE(dispatcher.idle());
  for (const auto& [id, of_request] : tokens) EXPECT_EQ(of_request.size(), 6u) << id;
}

TEST(DispatcherPlan, AChangeWithinAChangeLosesNothing) {
  Dispatcher dispatcher(plan_of({{1}}), 1, 10);
  ToyModel model;
  std::map<std::uint64_t, Tokens> tokens, none;
  const std::uint64_t id = dispatcher.add(ask({1, 2}, 9));
  run(dispatcher, model, tokens, 4);
  dispatcher.change_plan(plan_of({{1, 1}}), 2);
  dispatcher.warm_up();
  const auto warm_up = dispatcher.next();  // never answered
  ASSERT_TRUE(warm_up);
  change(dispatcher, model, plan_of({{2}}));
  dispatcher.resume();
  run(dispatcher, model, tokens);
  EXPECT_EQ(tokens[id].size(), 9u);
  EXPECT_TRUE(dispatcher.idle());
}

TEST(DispatcherPlan, ARequestIsCutToTheRoomThatIsLeftOrEndsWithTheReason) {
  Dispatcher dispatcher(plan_of({{1}}), 1, 10);
  ToyModel model;
  std::map<std::uint64_t, Tokens> tokens;
  const std::uint64_t small = dispatcher.add(ask({1}, 200));
  const std::uint64_t large = dispatcher.add(ask(Tokens(60, 7), 200));
  run(dispatcher, model, tokens, 10);
  change(dispatcher, model, plan_of({{1}}, 64));
  const std::size_t known = 60 + tokens[large].size();
  ASSERT_GT(known, 64u);
  const std::vector<GenerateEvent> ends = dispatcher.resume();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].request, large);
  EXPECT_EQ(ends[0].finished, FinishReason::no_room);
  EXPECT_EQ(ends[0].stop_cause, "the deployment's plan has changed; the request has " + std::to_string(known) +
                                    " tokens, but no route of the new plan has room for more than 64 tokens of keys "
                                    "and values");
  run(dispatcher, model, tokens);
  EXPECT_TRUE(dispatcher.idle());
  EXPECT_EQ(tokens[small].size(), 63u);  // with the prompt 64
}

// Of routes of different sizes a request takes one that has room for it.
TEST(DispatcherPlan, ALargeRequestTakesTheRouteWithRoom) {
  ServePlan plan = toy_plan({{1}, {1}});
  plan.stages[0].kv_tokens = 32;
  Dispatcher dispatcher(std::make_shared<const ServePlan>(plan), 1, 10);
  dispatcher.add(ask(Tokens(40, 3), 2));
  dispatcher.add(ask(Tokens(40, 3), 2));
  dispatcher.add(ask({3}, 2));
  DriverStatus status;
  dispatcher.describe(status);
  EXPECT_EQ(status.waiting, (std::vector<std::int64_t>{1, 2}));
}

}  // namespace
}  // namespace motley
