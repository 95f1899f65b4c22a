#include "motley/batching/scheduler.hpp"

#include <algorithm>
#include <limits>

#include "motley/base/error.hpp"

namespace motley {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

BlockPool::BlockPool(std::int64_t count) : total_(count) {
  MOTLEY_CHECK(count >= 0 && count <= std::numeric_limits<std::int32_t>::max());
  for (std::int64_t id = count; id-- > 0;) free_.push_back(static_cast<std::int32_t>(id));
  out_.resize(static_cast<std::size_t>(count), false);
}

std::int32_t BlockPool::take() {
  MOTLEY_CHECK(!free_.empty());
  const std::int32_t id = free_.back();
  free_.pop_back();
  out_[static_cast<std::size_t>(id)] = true;
  return id;
}

void BlockPool::give_back(std::int32_t id) {
  MOTLEY_CHECK(id >= 0 && id < total_ && out_[static_cast<std::size_t>(id)]);
  out_[static_cast<std::size_t>(id)] = false;
  free_.push_back(id);
}

Scheduler::Scheduler(SchedulerLimits limits) : limits_(limits), pool_(limits.blocks) {
  MOTLEY_CHECK(limits_.block_tokens > 0 && limits_.max_tokens > 0 && limits_.max_sequences > 0);
  MOTLEY_CHECK(limits_.micro_batches > 0 && limits_.max_queue >= 0);
  // Every sequence brings at least one token.
  limits_.max_sequences = std::min(limits_.max_sequences, limits_.max_tokens);
}

Admission Scheduler::add(std::uint64_t id, std::int64_t prompt_tokens, std::int64_t max_new_tokens,
                         std::int64_t priority, std::int64_t cached_tokens, QueueLimit queue_limit) {
  MOTLEY_CHECK(prompt_tokens > 0 && max_new_tokens > 0 && !sequences_.contains(id));
  MOTLEY_CHECK(cached_tokens >= 0 && cached_tokens < prompt_tokens);
  const std::int64_t room = limits_.blocks * limits_.block_tokens;
  if (prompt_tokens > room || max_new_tokens > room - prompt_tokens) return Admission::never_fits;
  if (queue_limit == QueueLimit::applies && std::ssize(waiting_) >= limits_.max_queue) return Admission::queue_full;

  constexpr std::int64_t largest_priority = 1'000'000;
  const std::int64_t lead = std::clamp(priority, -largest_priority, largest_priority) * steps_per_priority;
  Sequence& sequence = sequences_[id];
  sequence.id = id;
  sequence.turn = static_cast<std::int64_t>(last_step_) - lead;
  sequence.number = ++arrivals_;
  sequence.known = prompt_tokens;
  sequence.most = prompt_tokens + max_new_tokens;
  sequence.computed = cached_tokens;
  waiting_.insert(&sequence);
  return Admission::accepted;
}

void Scheduler::cancel(std::uint64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  if (found->second.under_way)
    found->second.cancelled = true;  // the step still writes to its blocks
  else
    release(found->second);
}

std::optional<ScheduledStep> Scheduler::next() {
  if (std::ssize(under_way_) >= limits_.micro_batches) return std::nullopt;
  Draft draft{{last_step_ + 1, {}}, {}, limits_.max_tokens, limits_.max_sequences};
  add_decodes(draft);
  add_prompts(draft);
  admit(draft);
  if (draft.step.sequences.empty()) return std::nullopt;
  last_step_ = draft.step.id;
  under_way_[draft.step.id] = std::move(draft.parts);
  return std::move(draft.step);
}

// Those that wait longest for their turn go first. The micro-batches share the sequences, for one that took all of them
// would leave the stages behind it without work: no step takes more than its part of all that run, nor more than its
// part of those that are ready now.
void Scheduler::add_decodes(Draft& draft) {
  std::vector<Sequence*> ready;
  for (Sequence* sequence : running_)
    if (!sequence->under_way && sequence->pending() == 1) ready.push_back(sequence);
  std::ranges::stable_sort(ready, {}, &Sequence::last_step);

  const std::int64_t idle_micro_batches = limits_.micro_batches - std::ssize(under_way_);
  std::int64_t share =
      std::min(ceil_div(std::ssize(running_), limits_.micro_batches), ceil_div(std::ssize(ready), idle_micro_batches));
  for (Sequence* sequence : ready) {
    if (share == 0 || draft.full()) return;
    const bool preempted_meanwhile = !sequence->running;
    if (preempted_meanwhile || !reserve_for_decode(*sequence)) continue;
    schedule(*sequence, draft);
    --share;
  }
}

// The next chunks of prompts that have begun.
void Scheduler::add_prompts(Draft& draft) {
  for (Sequence* sequence : running_) {
    if (draft.full()) return;
    if (!sequence->under_way && sequence->pending() > 1) schedule(*sequence, draft);
  }
}

// Strictly in the order of the line: a short request behind a long one that finds no room waits with it, or the long
// one might wait for ever. No more run than the micro-batches have places for.
void Scheduler::admit(Draft& draft) {
  const std::int64_t places = limits_.max_sequences * limits_.micro_batches;
  while (!waiting_.empty() && !draft.full() && std::ssize(running_) < places) {
    Sequence& sequence = **waiting_.begin();
    const std::int64_t blocks = blocks_for(sequence.known + 1);
    if (blocks > pool_.free_count()) return;
    for (std::int64_t i = 0; i < blocks; ++i) sequence.blocks.push_back(pool_.take());
    waiting_.erase(waiting_.begin());
    run(sequence);
    schedule(sequence, draft);
  }
}

void Scheduler::schedule(Sequence& sequence, Draft& draft) {
  const std::int64_t count = std::min(sequence.pending(), draft.tokens);
  const std::int64_t end = sequence.computed + count;
  const auto covering = sequence.blocks.begin() + blocks_for(end);
  draft.step.sequences.push_back({.id = sequence.id,
                                  .position = sequence.computed,
                                  .count = count,
                                  .blocks = {sequence.blocks.begin(), covering},
                                  .samples = end == sequence.known});
  draft.parts.push_back({&sequence, count, end == sequence.known});
  draft.tokens -= count;
  --draft.sequences;
  sequence.under_way = true;
  sequence.last_step = draft.step.id;
}

void Scheduler::run(Sequence& sequence) {
  running_.insert(std::ranges::upper_bound(running_, &sequence, InLine()), &sequence);
  sequence.running = true;
}

void Scheduler::stop(Sequence& sequence) {
  running_.erase(std::ranges::lower_bound(running_, &sequence, InLine()));
  sequence.running = false;
}

// A block for the token to be computed, at the cost of sequences behind this one in the line. False: nobody behind it
// can give one now, but some under way will.
bool Scheduler::reserve_for_decode(Sequence& sequence) {
  if (std::ssize(sequence.blocks) >= blocks_for(sequence.known)) return true;
  if (pool_.free_count() == 0) {
    const auto last = std::find_if(running_.rbegin(), running_.rend(), [](const Sequence* s) { return !s->under_way; });
    if (*last == &sequence) return false;
    preempt(**last);
  }
  sequence.blocks.push_back(pool_.take());
  return true;
}

void Scheduler::preempt(Sequence& sequence) {
  for (const std::int32_t block : sequence.blocks) pool_.give_back(block);
  sequence.blocks.clear();
  sequence.computed = 0;
  stop(sequence);
  waiting_.insert(&sequence);
  ++preemptions_;
}

void Scheduler::release(Sequence& sequence) {
  for (const std::int32_t block : sequence.blocks) pool_.give_back(block);
  if (sequence.running)
    stop(sequence);
  else
    waiting_.erase(&sequence);
  sequences_.erase(sequence.id);
}

void Scheduler::complete(std::uint64_t step, const std::set<std::uint64_t>& finished) {
  const auto done = under_way_.find(step);
  MOTLEY_CHECK(done != under_way_.end());
  std::size_t ended = 0;
  for (const Part& part : done->second) {
    Sequence& sequence = *part.sequence;
    sequence.under_way = false;
    sequence.computed += part.count;
    const bool ends = finished.contains(sequence.id);
    ended += ends ? 1 : 0;
    if (ends || sequence.cancelled) {
      release(sequence);
    } else if (part.samples) {
      ++sequence.known;
      MOTLEY_CHECK(sequence.known < sequence.most);
    }
  }
  MOTLEY_CHECK(ended == finished.size());
  under_way_.erase(done);
}

SchedulerCounts Scheduler::counts() const {
  return {.waiting = std::ssize(waiting_),
          .running = std::ssize(running_),
          .steps_under_way = std::ssize(under_way_),
          .free_blocks = pool_.free_count(),
          .preemptions = preemptions_};
}

std::int64_t Scheduler::blocks_for(std::int64_t tokens) const { return ceil_div(tokens, limits_.block_tokens); }

}  // namespace motley
