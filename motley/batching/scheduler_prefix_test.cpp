// Sequences that begin with the same tokens hold the same blocks.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "motley/base/error.hpp"
#include "motley/batching/scheduler.hpp"

namespace motley {
namespace {

using Part = ScheduledSequence;

// The key of a block says which tokens it and those before it hold: here it only has to differ where these do.
std::vector<BlockKey> keys_of(const std::vector<std::int32_t>& tokens, std::int64_t block_tokens) {
  std::vector<BlockKey> keys;
  std::uint64_t digest = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    digest = (digest + static_cast<std::uint64_t>(tokens[i]) + 1) * 0x9E3779B97F4A7C15;
    if ((static_cast<std::int64_t>(i) + 1) % block_tokens == 0) keys.push_back({{digest}});
  }
  return keys;
}
std::vector<BlockKey> keys(std::uint64_t first, std::uint64_t count) {
  std::vector<BlockKey> all;
  for (std::uint64_t i = 0; i < count; ++i) all.push_back({{first + i}});
  return all;
}

class SchedulerPrefix : public testing::Test {
 protected:
  Admission add(std::uint64_t id, std::int64_t prompt, std::vector<BlockKey> of_prompt, std::size_t lane = 0) {
    return scheduler_.add(id, prompt, 8, 0, 0, QueueLimit::applies, lane, std::move(of_prompt));
  }
  ScheduledStep next() {
    auto step = scheduler_.next();
    EXPECT_TRUE(step);
    return step.value_or(ScheduledStep{});
  }
  void run(std::set<std::uint64_t> finished = {}) { scheduler_.complete(next().id, finished); }

  Scheduler scheduler_{{.blocks = 8, .block_tokens = 4, .micro_batches = 2}};
};

TEST_F(SchedulerPrefix, ASequenceBeginsBehindWhatItShares) {
  add(1, 10, keys(1, 2));
  const ScheduledStep first = next();
  EXPECT_EQ(first.sequences, (std::vector<Part>{{1, 0, 10, {0, 1, 2}, true}}));
  add(2, 11, keys(1, 2));
  EXPECT_EQ(next().sequences, (std::vector<Part>{{2, 8, 3, {0, 1, 3}, true}}))
      << "the step that fills them is on its way";
  EXPECT_EQ(scheduler_.counts().free_blocks, 4);
  EXPECT_EQ(scheduler_.counts().prompt_tokens, 21);
  EXPECT_EQ(scheduler_.counts().found_tokens, 8);
  scheduler_.complete(first.id, {1});
  EXPECT_EQ(scheduler_.counts().free_blocks, 5);
  EXPECT_EQ(scheduler_.found(keys(1, 2), 20), 8);
}

TEST_F(SchedulerPrefix, NothingOfTheSameStepIsShared) {
  add(1, 12, keys(1, 1));
  add(2, 11, keys(1, 1));
  EXPECT_EQ(next().sequences, (std::vector<Part>{{1, 0, 12, {0, 1, 2}, true}, {2, 0, 11, {4, 5, 6}, true}}));
}

TEST_F(SchedulerPrefix, WhoSharesHalfWaitsUntilItIsOnItsWay) {
  scheduler_ = Scheduler({.blocks = 16, .block_tokens = 4, .max_tokens = 8, .micro_batches = 4});
  add(1, 16, keys(1, 4));
  add(2, 24, keys(1, 4));
  EXPECT_EQ(next().sequences, (std::vector<Part>{{1, 0, 8, {0, 1}, false}}));
  EXPECT_EQ(next().sequences, (std::vector<Part>{{1, 8, 8, {2, 3}, true, 0, 2}}));
  EXPECT_EQ(next().sequences, (std::vector<Part>{{2, 16, 8, {0, 1, 2, 3, 5, 6}, true}}));
}

TEST_F(SchedulerPrefix, TheOneThatWouldFillItEnds) {
  scheduler_ = Scheduler({.blocks = 16, .block_tokens = 4, .max_tokens = 4, .micro_batches = 2});
  add(1, 16, keys(1, 4));
  add(2, 16, keys(1, 4));
  const ScheduledStep first = next();
  scheduler_.cancel(1);
  EXPECT_EQ(next().sequences, (std::vector<Part>{{2, 4, 4, {0, 5}, false}})) << "the rest is its own to compute";
}

TEST_F(SchedulerPrefix, TheLastTokenOfAPromptIsComputed) {
  add(1, 8, keys(1, 2));
  run({1});
  add(2, 8, keys(1, 2));
  EXPECT_EQ(next().sequences, (std::vector<Part>{{2, 4, 4, {0, 2}, true}}));
}

TEST_F(SchedulerPrefix, WhatCameOutIsSharedToo) {
  add(1, 6, keys(1, 1));
  run();
  run();
  scheduler_.add_key(1, {{2}});  // tokens 7 and 8
  run();
  run({1});
  EXPECT_EQ(scheduler_.found(keys(1, 2), 20), 8) << "of the ninth token only the id is known";
}

TEST_F(SchedulerPrefix, ABlockIsFoundOnceAStepFillsIt) {
  scheduler_ = Scheduler({.blocks = 8, .block_tokens = 4, .max_tokens = 6, .micro_batches = 2});
  add(1, 12, keys(1, 3));
  next();
  EXPECT_EQ(scheduler_.found(keys(1, 3), 20), 4);
  next();
  EXPECT_EQ(scheduler_.found(keys(1, 3), 20), 12);
}

TEST_F(SchedulerPrefix, TheBeginningIsKeptForLongest) {
  add(1, 12, keys(1, 3));
  run({1});
  add(2, 24, {});
  run({2});
  EXPECT_EQ(scheduler_.found(keys(1, 3), 20), 4) << "seven of eight blocks were needed";
}

// Two hold what both need, and no block is counted twice.
TEST_F(SchedulerPrefix, WhatOthersHoldTakesNoRoom) {
  add(1, 20, keys(1, 5));
  run();
  EXPECT_EQ(scheduler_.counts().free_blocks, 2);
  add(2, 21, keys(1, 5));
  add(3, 21, keys(11, 5));
  const ScheduledStep step = next();
  EXPECT_EQ(step.sequences.size(), 2u);
  EXPECT_EQ(step.sequences[1].id, 2u);
  EXPECT_EQ(scheduler_.counts().waiting, 1);
}

TEST_F(SchedulerPrefix, APreemptedSequenceFindsItsOwnBlocks) {
  scheduler_ = Scheduler({.blocks = 5, .block_tokens = 4});
  add(1, 7, keys(1, 1));
  add(2, 9, keys(11, 2));
  run();
  run();
  run();  // the first needs a third block
  EXPECT_EQ(scheduler_.counts().preemptions, 1);
  const ScheduledStep step = next();
  EXPECT_EQ(step.sequences.size(), 1u) << "there is no room for it yet";
  scheduler_.complete(step.id, {1});
  const ScheduledStep again = next();
  ASSERT_EQ(again.sequences.size(), 1u);
  EXPECT_EQ(again.sequences[0].id, 2u);
  EXPECT_EQ(again.sequences[0].position, 8);
  EXPECT_EQ(again.sequences[0].known_blocks, 0);
}

TEST_F(SchedulerPrefix, SequencesThatHaveNoBlocksAnyMoreAreNamedOnce) {
  add(1, 3, {});
  add(2, 3, {});
  run({1});
  const ScheduledStep second = next();
  EXPECT_EQ(second.gone, (std::vector<std::uint64_t>{1}));
  scheduler_.complete(second.id, {});
  EXPECT_TRUE(next().gone.empty());
}

TEST_F(SchedulerPrefix, AStepThatLaterStagesDoNotGetNamesNobody) {
  scheduler_ = Scheduler({.blocks = 8, .block_tokens = 4});
  scheduler_.adopt(1, 4, 5, {.tokens = 3, .blocks = {0}});
  scheduler_.adopt(2, 5, 5, {.tokens = 4, .blocks = {1}, .lacking_stages = 1});
  scheduler_.cancel(1);
  const ScheduledStep replayed = next();
  EXPECT_EQ(replayed.sequences[0].stages, 1);
  EXPECT_TRUE(replayed.gone.empty());
  scheduler_.complete(replayed.id, {});
  EXPECT_EQ(next().gone, (std::vector<std::uint64_t>{1}));
}

TEST_F(SchedulerPrefix, LanesShareNothing) {
  scheduler_ = Scheduler({.blocks = 8, .block_tokens = 4}, std::vector<Lane>(2, {fixed_steps({}, {}), 1}));
  add(1, 8, keys(1, 2), 0);
  run();
  EXPECT_EQ(scheduler_.found(keys(1, 2), 20, 0), 8);
  EXPECT_EQ(scheduler_.found(keys(1, 2), 20, 1), 0) << "its keys and values lie in other stages";
}

TEST_F(SchedulerPrefix, SlotsHoldWhatTheirSequenceLeft) {
  scheduler_ = Scheduler({.blocks = 8, .block_tokens = 4, .slots = 3});
  add(1, 8, keys(1, 2));
  run();
  EXPECT_EQ(scheduler_.found(keys(1, 2), 20), 0);
}

// The step that was to fill a block is lost: none of those that hold it has its tokens.
TEST_F(SchedulerPrefix, ALostStepLacksForAllThatHoldItsBlocks) {
  add(1, 8, keys(1, 2));
  const ScheduledStep first = next();
  add(2, 11, keys(1, 2));
  const ScheduledStep second = next();
  EXPECT_EQ(second.sequences[0].position, 8);
  EXPECT_TRUE(scheduler_.cached().empty());
  scheduler_.cancel(1);
  EXPECT_TRUE(scheduler_.cached().empty()) << "the step is under way all the same";
  scheduler_.complete(first.id, {});
  const auto cached = scheduler_.cached();
  ASSERT_EQ(cached.size(), 1u);
  EXPECT_EQ(cached.at(2).tokens, 8);
}

TEST_F(SchedulerPrefix, AdoptedSequencesHoldTheSameBlocks) {
  const std::vector<BlockKey> shared = keys(1, 2);
  EXPECT_EQ(scheduler_.adopt(1, 10, 4, {.tokens = 9, .blocks = {4, 5, 6}}, 0, shared), Admission::accepted);
  EXPECT_EQ(scheduler_.adopt(2, 12, 4, {.tokens = 11, .blocks = {4, 5, 7}}, 0, shared), Admission::accepted);
  EXPECT_EQ(scheduler_.counts().free_blocks, 4);
  add(3, 9, shared);
  const ScheduledStep step = next();
  EXPECT_EQ(step.sequences.back(), (Part{3, 8, 1, {4, 5, 0}, true}));
}

// ---- random conversations ----

// What lies in every block of a lane's stages: of each place the digest of a sequence's tokens up to there.
using Contents = std::map<std::pair<std::int32_t, std::int64_t>, std::uint64_t>;

class Conversations {
 public:
  Conversations(SchedulerLimits limits, std::size_t lanes, std::uint64_t seed)
      : limits_(limits), lanes_(lanes), scheduler_(make()), random_(seed), done_(lanes), scheduled_(lanes) {}

  void run(int events) {
    for (int i = 0; i < events && !testing::Test::HasFatalFailure(); ++i) {
      const std::int64_t what = pick(0, 99);
      if (what < 15)
        arrive();
      else if (what < 17)
        cancel();
      else if (what < 60)
        issue();
      else if (what < 99)
        complete();
      else
        lose();
    }
    for (int i = 0; !open_.empty() && !testing::Test::HasFatalFailure(); ++i) {
      ASSERT_LT(i, 100'000) << "requests never end";
      issue();
      complete();
    }
    while (!under_way_.empty()) complete();
    ASSERT_TRUE(scheduler_.idle());
    ASSERT_EQ(scheduler_.counts().free_blocks, limits_.blocks);
  }
  std::int64_t found() const { return found_ + scheduler_.counts().found_tokens; }
  std::int64_t preemptions() const { return preemptions_ + scheduler_.counts().preemptions; }
  std::int64_t adopted() const { return adopted_; }

 private:
  using Tokens = std::vector<std::int32_t>;
  struct Request {
    Tokens tokens;
    std::int64_t prompt = 0, output = 0;
    std::vector<std::int32_t> blocks = {};
    std::size_t lane = 0;
  };

  Scheduler make() const {
    return {limits_, std::vector<Lane>(lanes_, {fixed_steps({}, limits_), limits_.micro_batches})};
  }
  std::int64_t pick(std::int64_t low, std::int64_t high) { return std::uniform_int_distribution(low, high)(random_); }

  // Goes on with what was said before, or with a part of it.
  void arrive() {
    Request request{
        .tokens = said_.empty() ? Tokens() : said_[static_cast<std::size_t>(pick(0, std::ssize(said_) - 1))],
        .output = pick(1, 9),
        .lane = static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(lanes_) - 1))};
    if (pick(0, 2) == 0) request.tokens.resize(static_cast<std::size_t>(pick(0, std::ssize(request.tokens))));
    for (std::int64_t more = pick(1, 12); more > 0; --more)
      request.tokens.push_back(static_cast<std::int32_t>(pick(0, 1)));
    request.prompt = std::ssize(request.tokens);
    const std::uint64_t id = ++last_id_;
    if (scheduler_.add(id, request.prompt, request.output, 0, 0, QueueLimit::applies, request.lane,
                       keys_of(request.tokens, limits_.block_tokens)) == Admission::accepted)
      open_[id] = std::move(request);
  }

  void cancel() {
    if (open_.empty()) return;
    const auto found = std::next(open_.begin(), pick(0, std::ssize(open_) - 1));
    scheduler_.cancel(found->first);
    open_.erase(found);
  }

  static std::uint64_t digest(const Tokens& tokens, std::int64_t end) {
    std::uint64_t digest = 1;
    for (std::int64_t i = 0; i < end; ++i)
      digest = (digest + static_cast<std::uint64_t>(tokens[static_cast<std::size_t>(i)])) * 0x9E3779B97F4A7C15 + 1;
    return digest;
  }
  std::pair<std::int32_t, std::int64_t> place(const Request& request, std::int64_t position) const {
    return {request.blocks.at(static_cast<std::size_t>(position / limits_.block_tokens)),
            position % limits_.block_tokens};
  }

  // A block belongs to all lanes, and has one lane's keys and values in it.
  void write(std::vector<Contents>& contents, const Request& request, const Part& part) const {
    for (std::int64_t i = part.position; i < part.position + part.count; ++i)
      for (std::size_t lane = 0; lane < lanes_; ++lane)
        if (lane == request.lane)
          contents[lane][place(request, i)] = digest(request.tokens, i + 1);
        else
          contents[lane].erase(place(request, i));
  }

  void issue() {
    auto step = scheduler_.next();
    if (!step) return;
    for (const std::uint64_t id : step->gone) tables_.erase(id);
    std::vector<Written> written;
    for (const Part& part : step->sequences) {
      ASSERT_TRUE(open_.contains(part.id));
      Request& request = open_.at(part.id);
      if (part.known_blocks == 0) request.blocks.clear();
      ASSERT_EQ(part.known_blocks, std::ssize(request.blocks));
      request.blocks.insert(request.blocks.end(), part.blocks.begin(), part.blocks.end());
      for (std::int64_t i = 0; i < part.position; ++i) {
        const auto found = scheduled_[request.lane].find(place(request, i));
        ASSERT_TRUE(found != scheduled_[request.lane].end() && found->second == digest(request.tokens, i + 1))
            << "sequence " << part.id << " lacks token " << i << " of " << part.position;
      }
      tables_.insert(part.id);
      written.push_back({part, request});
    }
    for (const Written& of : written) write(scheduled_, of.request, of.part);
    under_way_.push_back({*step, std::move(written)});
    ASSERT_LE(std::ssize(tables_), limits_.blocks) << "those that are gone are not named";
  }

  void complete() {
    if (under_way_.empty()) return;
    const Step step = std::move(under_way_.front());
    under_way_.pop_front();
    for (const Written& of : step.written) write(done_, of.request, of.part);
    std::set<std::uint64_t> finished;
    for (const Part& part : step.scheduled.sequences) {
      const auto found = open_.find(part.id);
      if (found == open_.end() || !part.samples) continue;
      Request& request = found->second;
      request.tokens.push_back(static_cast<std::int32_t>(pick(0, 1)));
      const std::size_t known = keys_of(request.tokens, limits_.block_tokens).size();
      if (std::ssize(request.tokens) % limits_.block_tokens == 0)
        scheduler_.add_key(part.id, keys_of(request.tokens, limits_.block_tokens)[known - 1]);
      if (std::ssize(request.tokens) == request.prompt + request.output) finished.insert(part.id);
    }
    scheduler_.complete(step.scheduled.id, finished);
    for (const std::uint64_t id : finished) {
      said_.push_back(std::move(open_.at(id).tokens));
      if (said_.size() > 20) said_.pop_front();
      if (std::ssize(said_.back()) > limits_.blocks * limits_.block_tokens / 3) said_.pop_back();
      open_.erase(id);
    }
  }

  // All steps under way: another scheduler goes on with what is there, in the same blocks.
  void lose() {
    const auto cached = scheduler_.cached();
    found_ += scheduler_.counts().found_tokens;
    preemptions_ += scheduler_.counts().preemptions;
    scheduler_ = make();
    under_way_.clear();
    tables_.clear();
    scheduled_ = done_;
    std::map<std::uint64_t, Request> before = std::exchange(open_, {});
    for (auto& [id, request] : before) {
      request.blocks.clear();
      const std::int64_t left = request.prompt + request.output - std::ssize(request.tokens);
      const std::vector<BlockKey> of_tokens = keys_of(request.tokens, limits_.block_tokens);
      const auto found = cached.find(id);
      if (found != cached.end() && found->second.tokens < std::ssize(request.tokens) &&
          scheduler_.adopt(id, std::ssize(request.tokens), left, found->second, request.lane, of_tokens) ==
              Admission::accepted) {
        ++adopted_;
        open_[id] = std::move(request);
      }
    }
    for (auto& [id, request] : before)
      if (!open_.contains(id) && !request.tokens.empty()) {
        const std::int64_t left = request.prompt + request.output - std::ssize(request.tokens);
        ASSERT_EQ(scheduler_.add(id, std::ssize(request.tokens), left, 0, 0, QueueLimit::waived, request.lane,
                                 keys_of(request.tokens, limits_.block_tokens)),
                  Admission::accepted);
        open_[id] = std::move(request);
      }
  }

  struct Written {
    Part part;
    Request request;  // as it was
  };
  struct Step {
    ScheduledStep scheduled;
    std::vector<Written> written;
  };

  SchedulerLimits limits_;
  std::size_t lanes_;
  Scheduler scheduler_;
  std::mt19937_64 random_;
  std::vector<Contents> done_, scheduled_;  // by lane: after the steps that are done, and after all
  std::map<std::uint64_t, Request> open_;
  std::set<std::uint64_t> tables_;  // that a worker keeps
  std::deque<Tokens> said_;
  std::deque<Step> under_way_;
  std::uint64_t last_id_ = 0;
  std::int64_t found_ = 0, preemptions_ = 0, adopted_ = 0;
};

TEST(SchedulerPrefixProperty, EveryTokenIsInTheBlocksOfWhoNeedsIt) {
  const std::vector<SchedulerLimits> all_limits = {
      {.blocks = 64, .block_tokens = 4, .max_tokens = 32, .max_sequences = 8, .micro_batches = 3, .max_queue = 20},
      {.blocks = 20, .block_tokens = 4, .max_tokens = 16, .max_sequences = 6, .micro_batches = 2, .max_queue = 12},
      {.blocks = 70, .block_tokens = 1, .max_tokens = 9, .max_sequences = 4, .micro_batches = 4, .max_queue = 12}};
  std::uint64_t seed = 1;
  std::int64_t found = 0, preemptions = 0, adopted = 0;
  for (const SchedulerLimits& limits : all_limits)
    for (std::size_t lanes = 1; lanes <= 2; ++lanes, ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      Conversations conversations(limits, lanes, seed);
      conversations.run(20'000);
      if (HasFatalFailure()) return;
      found += conversations.found();
      preemptions += conversations.preemptions();
      adopted += conversations.adopted();
    }
  EXPECT_GT(found, 100'000);
  EXPECT_GT(preemptions, 500);
  EXPECT_GT(adopted, 500);
}

}  // namespace
}  // namespace motley
