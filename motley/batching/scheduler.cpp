#include "motley/batching/scheduler.hpp"

#include <algorithm>
#include <limits>
#include <ranges>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"

namespace motley {

Scheduler::Scheduler(SchedulerLimits limits, StepRule rule)
    : Scheduler(limits, {Lane{rule ? std::move(rule) : fixed_steps({}, limits), limits.micro_batches}}) {}

Scheduler::Scheduler(SchedulerLimits limits, std::vector<Lane> lanes)
    : limits_(limits), pool_(limits.blocks), slots_(limits.slots) {
  MOTLEY_CHECK(limits_.block_tokens > 0 && limits_.max_tokens > 0 && limits_.max_sequences > 0);
  MOTLEY_CHECK(!lanes.empty() && limits_.max_queue >= 0);
  for (Lane& lane : lanes) {
    MOTLEY_CHECK(lane.rule && lane.micro_batches > 0);
    const std::int64_t micro_batches = lane.micro_batches;
    lanes_.push_back({.given = std::move(lane), .micro_batches = micro_batches});
  }
  // Every sequence brings at least one token.
  limits_.max_sequences = std::min(limits_.max_sequences, limits_.max_tokens);
}

Admission Scheduler::add(std::uint64_t id, std::int64_t prompt_tokens, std::int64_t max_new_tokens,
                         std::int64_t priority, std::int64_t cached_tokens, QueueLimit queue_limit, std::size_t lane,
                         std::vector<BlockKey> keys) {
  MOTLEY_CHECK(prompt_tokens > 0 && max_new_tokens > 0 && !sequences_.contains(id));
  MOTLEY_CHECK(cached_tokens >= 0 && cached_tokens < prompt_tokens && (cached_tokens == 0 || keys.empty()));
  const std::int64_t room = limits_.blocks * limits_.block_tokens;
  if (prompt_tokens > room || max_new_tokens > room - prompt_tokens) return Admission::never_fits;
  if (queue_limit == QueueLimit::applies && counts().waiting >= limits_.max_queue) return Admission::queue_full;

  Sequence& sequence = insert(id, lane, prompt_tokens, max_new_tokens, priority);
  sequence.scheduled = cached_tokens;
  if (limits_.slots == 0) sequence.keys = std::move(keys);
  wait(sequence);
  return Admission::accepted;
}

Scheduler::Sequence& Scheduler::insert(std::uint64_t id, std::size_t lane, std::int64_t known_tokens,
                                       std::int64_t max_new_tokens, std::int64_t priority) {
  constexpr std::int64_t largest_priority = 1'000'000;
  const std::int64_t lead = std::clamp(priority, -largest_priority, largest_priority) * steps_per_priority;
  Sequence& sequence = sequences_[id];
  sequence.id = id;
  sequence.lane = lane;
  sequence.turn = static_cast<std::int64_t>(last_step_) - lead;
  sequence.number = ++arrivals_;
  sequence.known = known_tokens;
  sequence.most = known_tokens + max_new_tokens;
  lanes_.at(lane).may_start = true;
  return sequence;
}

// One block stays free, so that others are not kept out until an adopted sequence ends.
Admission Scheduler::adopt(std::uint64_t id, std::int64_t known_tokens, std::int64_t max_new_tokens,
                           const CachedTokens& cached, std::size_t lane, std::vector<BlockKey> keys) {
  MOTLEY_CHECK(cached.tokens > 0 && cached.tokens < known_tokens && max_new_tokens > 0 && !sequences_.contains(id));
  const std::int64_t room = limits_.blocks * limits_.block_tokens;
  if (known_tokens > room || max_new_tokens > room - known_tokens) return Admission::never_fits;
  const bool inside = std::ranges::all_of(cached.blocks, [&](std::int32_t block) { return block < limits_.blocks; });
  if (!inside) return Admission::never_fits;
  const auto new_blocks = std::ranges::count_if(cached.blocks, [&](std::int32_t block) { return !pool_.held(block); });
  if (new_blocks >= pool_.free_count()) return Admission::never_fits;
  if (limits_.slots > 0 && (cached.slot >= limits_.slots || slots_.free_count() == 0)) return Admission::never_fits;
  pool_.hold(cached.blocks);
  last_step_ = std::max(last_step_, cached.last_step);  // the steps to come are later ones
  Sequence& sequence = insert(id, lane, known_tokens, max_new_tokens, 0);
  sequence.blocks = cached.blocks;
  sequence.last_step = cached.last_step;
  sequence.reached = std::max(cached.reached, cached.tokens);
  if (limits_.slots == 0) sequence.keys = std::move(keys);
  if (limits_.slots > 0) {
    sequence.slot = cached.slot;
    if (cached.slot < 0)
      sequence.slot = slots_.take();
    else
      slots_.hold({cached.slot});
  }
  if (cached.lacking_stages == 0) {
    sequence.scheduled = cached.tokens;
  } else {
    sequence.replayed = cached.tokens;
    sequence.stages = cached.lacking_stages;
  }
  name_blocks(sequence);
  run(sequence);
  return Admission::accepted;
}

// A block that a lost step was to fill lacks tokens for all that hold it.
std::map<std::uint64_t, CachedTokens> Scheduler::cached() const {
  std::unordered_map<std::int32_t, std::int64_t> filled_to;  // by block that is not full, as a position in its sequence
  for (const auto& [id, step] : under_way_)
    for (const Part& part : step.parts) {
      const std::vector<std::int32_t>& blocks = part.sequence->blocks;
      for (std::int64_t i = part.position / limits_.block_tokens; i < std::ssize(blocks); ++i) {
        const std::int64_t position = std::max(part.position, i * limits_.block_tokens);
        const auto [known, is_new] = filled_to.emplace(blocks[static_cast<std::size_t>(i)], position);
        if (!is_new) known->second = std::min(known->second, position);
      }
    }
  std::map<std::uint64_t, CachedTokens> all;
  for (const LaneState& lane : lanes_)
    for (const Sequence* sequence : lane.running) {
      if (sequence->ended) continue;
      std::int64_t tokens = sequence->scheduled;
      for (const std::int32_t block : sequence->blocks)
        if (const auto found = filled_to.find(block); found != filled_to.end())
          tokens = std::min(tokens, found->second);
      if (tokens == 0) continue;
      all[sequence->id] = {.tokens = tokens,
                           .blocks = sequence->blocks,
                           .last_step = sequence->last_step,
                           .slot = sequence->slot,
                           .reached = sequence->reached};
    }
  return all;
}

void Scheduler::add_key(std::uint64_t id, const BlockKey& key) {
  if (limits_.slots == 0) sequences_.at(id).keys.push_back(key);
}

std::int64_t Scheduler::found(const std::vector<BlockKey>& keys, std::int64_t prompt_tokens, std::size_t lane) const {
  return std::ssize(find_blocks(keys, prompt_tokens, lane)) * limits_.block_tokens;
}

// Of a sequence of this many known tokens. A slot holds what its own sequence has left in it.
std::vector<std::int32_t> Scheduler::find_blocks(const std::vector<BlockKey>& keys, std::int64_t tokens,
                                                 std::size_t lane) const {
  std::vector<std::int32_t> blocks;
  if (limits_.slots > 0) return blocks;
  const auto most = static_cast<std::size_t>((tokens - 1) / limits_.block_tokens);
  while (blocks.size() < std::min(most, keys.size())) {
    const auto block = pool_.find({lane, keys[blocks.size()]});
    if (!block) break;
    blocks.push_back(*block);
  }
  return blocks;
}

// Whether one that runs is about to fill half of the blocks or more that this one would have to compute.
bool Scheduler::comes_soon(const LaneState& lane, const Sequence& sequence, std::size_t found) const {
  const std::int64_t left = sequence.known - static_cast<std::int64_t>(found) * limits_.block_tokens;
  const auto half = static_cast<std::size_t>(ceil_div(left, 2 * limits_.block_tokens));
  if (sequence.keys.size() < found + half) return false;
  return std::ranges::any_of(lane.running, [&](const Sequence* other) {
    return !other->ended && other->keyed == static_cast<std::int64_t>(found) && other->keys.size() >= found + half &&
           std::equal(other->keys.begin() + other->keyed, other->keys.begin() + other->keyed + half,
                      sequence.keys.begin() + other->keyed);
  });
}

// Those that are full when the steps so far are done.
void Scheduler::name_blocks(Sequence& sequence) {
  const std::int64_t full = std::min(sequence.scheduled / limits_.block_tokens, std::ssize(sequence.keys));
  for (; sequence.keyed < full; ++sequence.keyed) {
    const auto block = static_cast<std::size_t>(sequence.keyed);
    pool_.name(sequence.blocks[block], {sequence.lane, sequence.keys[block]});
  }
}

void Scheduler::cancel(std::uint64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  end(found->second);
}

std::optional<ScheduledStep> Scheduler::next() {
  for (std::size_t tries = 0; tries < lanes_.size(); ++tries) {
    LaneState& lane = lanes_[next_lane_];
    next_lane_ = (next_lane_ + 1) % lanes_.size();
    if (!lane.may_start) continue;
    if (auto step = next(lane)) return step;
    lane.may_start = false;
  }
  return std::nullopt;
}

std::optional<ScheduledStep> Scheduler::next(LaneState& lane) {
  if (lane.under_way >= lane.given.micro_batches) return std::nullopt;
  const StepState now = state(lane);
  const StepBudget budget = lane.given.rule(now);
  lane.micro_batches = std::min(budget.micro_batches, lane.given.micro_batches);
  if (lane.under_way >= lane.micro_batches) return std::nullopt;
  // Decodes leave a place for a prompt, or prompts would wait until an answer ends.
  const std::int64_t kept = now.prompts > 0 && limits_.max_sequences > 1 ? 1 : 0;
  const auto number = static_cast<std::size_t>(&lane - lanes_.data());
  Draft draft{{last_step_ + 1, number, {}}, {}, limits_.max_tokens, limits_.max_sequences - kept};
  add_decodes(lane, draft);
  draft.sequences += kept;
  draft.tokens = std::min(draft.tokens, budget.prompt_tokens);
  add_prompts(lane, draft, budget.chunks_under_way);
  admit(lane, draft);
  if (draft.step.sequences.empty()) return std::nullopt;
  for (const Part& part : draft.parts) name_blocks(*part.sequence);
  const auto passes_all = [](const ScheduledSequence& part) { return part.stages == 0; };
  if (std::ranges::any_of(draft.step.sequences, passes_all)) draft.step.gone = std::exchange(lane.gone, {});
  last_step_ = draft.step.id;
  under_way_[draft.step.id] = {number, std::move(draft.parts)};
  ++lane.under_way;
  return std::move(draft.step);
}

// Of those that wait, as many count as their blocks allow to run.
StepState Scheduler::state(const LaneState& lane) const {
  StepState state{.under_way = lane.under_way,
                  .free_blocks = static_cast<double>(pool_.free_count()) / static_cast<double>(pool_.total())};
  double cached = 0;
  for (const Sequence* sequence : lane.running) {
    if (sequence->ended) continue;
    const std::int64_t left = sequence->pending();
    if (left == 0 || sequence->decodes()) {
      ++state.decoding;
      state.ready += sequence->decodes() ? 1 : 0;
      cached += static_cast<double>(sequence->scheduled);
    } else {
      ++state.prompts;
      state.prompt_tokens += left;
    }
  }
  if (state.decoding > 0) state.context = cached / static_cast<double>(state.decoding);
  if (lane.waiting.empty()) return state;
  // As if all waiting sequences were as long as their mean, but the first as it is.
  const Sequence& first = **lane.waiting.begin();
  const std::int64_t running = std::ssize(lane.running), waiting = std::ssize(lane.waiting);
  const auto [blocks, slots] = room_for_next(lane);
  // One more than the micro-batches under way have places for, or nothing would ever ask for more of them.
  const std::int64_t left = std::min(slots, std::max<std::int64_t>(limits_.max_sequences * lane.micro_batches - running,
                                                                   running < places(lane) ? 1 : 0));
  const std::int64_t fit = blocks * limits_.block_tokens * waiting / std::max<std::int64_t>(1, lane.waiting_tokens);
  const std::int64_t fitting = std::clamp<std::int64_t>(fit, blocks_for(first.known + 1) <= blocks ? 1 : 0, waiting);
  const std::int64_t admitted = std::min(left, fitting);
  state.prompts += admitted;
  state.prompt_tokens += admitted == 1 ? first.pending() : lane.waiting_tokens * admitted / waiting;
  state.stalled = waiting - admitted;
  return state;
}

// What is free for the first in the queue of this lane: less what the first ones of other lanes need, which have waited
// for longer and have a place.
Scheduler::Room Scheduler::room_for_next(const LaneState& lane) const {
  Room room{pool_.free_count(), limits_.slots > 0 ? slots_.free_count() : std::numeric_limits<std::int64_t>::max()};
  for (const LaneState& other : lanes_) {
    if (&other == &lane || other.waiting.empty() || std::ssize(other.running) >= places(other)) continue;
    const Sequence* first = *other.waiting.begin();
    if (!QueueOrder()(first, *lane.waiting.begin())) continue;
    room.blocks -= blocks_for(first->known + 1);
    --room.slots;
  }
  return {std::max<std::int64_t>(0, room.blocks), std::max<std::int64_t>(0, room.slots)};
}

// Those that wait longest for their turn go first. The micro-batches share the sequences, for one that took all of them
// would leave the stages behind it without work: no step takes more than its part of all that run, nor more than its
// part of those that are ready now.
void Scheduler::add_decodes(LaneState& lane, Draft& draft) {
  std::vector<Sequence*> ready;
  for (Sequence* sequence : lane.running)
    if (sequence->decodes()) ready.push_back(sequence);
  std::ranges::stable_sort(ready, {}, &Sequence::last_step);

  const std::int64_t idle_micro_batches = lane.micro_batches - lane.under_way;
  std::int64_t share =
      std::min(ceil_div(std::ssize(lane.running), lane.micro_batches), ceil_div(std::ssize(ready), idle_micro_batches));
  for (Sequence* sequence : ready) {
    if (share == 0 || draft.full()) return;
    const bool preempted_meanwhile = !sequence->running;
    if (preempted_meanwhile || !reserve_for_decode(*sequence)) continue;
    schedule(*sequence, draft);
    --share;
  }
}

// The next chunks of prompts that have begun, also of those whose chunks are under way.
void Scheduler::add_prompts(LaneState& lane, Draft& draft, std::int64_t chunks_under_way) {
  for (Sequence* sequence : lane.running) {
    if (draft.full()) return;
    if (sequence->pending() == 0 || sequence->decodes() || sequence->ended) continue;
    // It gets one when the tokens before are done, as every decode does.
    if (sequence->pending() == 1 && std::ssize(sequence->blocks) < blocks_for(sequence->known)) continue;
    if (chunks_under_way == 0 || sequence->steps < chunks_under_way) schedule(*sequence, draft);
  }
}

// Strictly in the order of the queue: a short request behind a long one that finds no room waits with it, or the long
// one might wait for ever. No more run than the micro-batches have places for.
void Scheduler::admit(LaneState& lane, Draft& draft) {
  while (!lane.waiting.empty() && !draft.full() && std::ssize(lane.running) < places(lane)) {
    Sequence& sequence = **lane.waiting.begin();
    const std::int64_t blocks = blocks_for(sequence.known + 1);
    const Room room = room_for_next(lane);
    std::vector<std::int32_t> found = find_blocks(sequence.keys, sequence.known, sequence.lane);
    const auto held = std::ranges::count_if(found, [&](std::int32_t block) { return pool_.held(block); });
    if (blocks - held > room.blocks || room.slots == 0) return;
    if (comes_soon(lane, sequence, found.size())) return;
    leave_queue(sequence);
    begin(sequence, std::move(found));
    run(sequence);
    schedule(sequence, draft);
  }
}

void Scheduler::begin(Sequence& sequence, std::vector<std::int32_t> found) {
  pool_.hold(found);
  sequence.blocks = std::move(found);
  sequence.keyed = std::ssize(sequence.blocks);
  const std::int64_t tokens = sequence.keyed * limits_.block_tokens;
  sequence.scheduled += tokens;
  sequence.reached = sequence.scheduled;
  if (!sequence.keys.empty()) {
    prompt_tokens_ += sequence.known;
    found_tokens_ += tokens;
  }
  while (std::ssize(sequence.blocks) < blocks_for(sequence.known + 1)) sequence.blocks.push_back(pool_.take());
  if (limits_.slots > 0) sequence.slot = slots_.take();
}

void Scheduler::schedule(Sequence& sequence, Draft& draft) {
  const bool replays = sequence.scheduled < sequence.replayed;
  // Of an adopted one the last token may have no block yet.
  const std::int64_t covered = std::ssize(sequence.blocks) * limits_.block_tokens;
  const std::int64_t left = (replays ? sequence.replayed : std::min(sequence.known, covered)) - sequence.scheduled;
  const std::int64_t count = std::min(left, draft.tokens);
  const std::int64_t end = sequence.scheduled + count;
  const std::int64_t named = std::exchange(sequence.named, blocks_for(end));
  draft.step.sequences.push_back({.id = sequence.id,
                                  .position = sequence.scheduled,
                                  .count = count,
                                  .blocks = {sequence.blocks.begin() + named, sequence.blocks.begin() + sequence.named},
                                  .samples = end == sequence.known,
                                  .stages = replays ? sequence.stages : 0,
                                  .known_blocks = static_cast<std::int32_t>(named),
                                  .slot = sequence.slot});
  draft.parts.push_back({&sequence, sequence.scheduled, end == sequence.known});
  draft.tokens -= count;
  --draft.sequences;
  sequence.scheduled = end;
  sequence.reached = std::max(sequence.reached, end);
  if (replays && end == sequence.replayed) sequence.named = 0;  // later stages have not heard of it
  ++sequence.steps;
  sequence.last_step = draft.step.id;
}

void Scheduler::wait(Sequence& sequence) {
  LaneState& lane = lanes_[sequence.lane];
  lane.waiting.insert(&sequence);
  lane.waiting_tokens += sequence.pending();
}

void Scheduler::leave_queue(Sequence& sequence) {
  LaneState& lane = lanes_[sequence.lane];
  lane.waiting.erase(&sequence);
  lane.waiting_tokens -= sequence.pending();
  wake();
}

void Scheduler::run(Sequence& sequence) {
  std::vector<Sequence*>& running = lanes_[sequence.lane].running;
  running.insert(std::ranges::upper_bound(running, &sequence, QueueOrder()), &sequence);
  sequence.running = true;
}

void Scheduler::stop(Sequence& sequence) {
  std::vector<Sequence*>& running = lanes_[sequence.lane].running;
  running.erase(std::ranges::lower_bound(running, &sequence, QueueOrder()));
  sequence.running = false;
}

// There may be blocks now for what found none before: some are free, or a sequence that is done with its step can be
// preempted.
void Scheduler::wake() {
  for (LaneState& lane : lanes_) lane.may_start = true;
}

// A block for the token to be computed, at the cost of sequences behind this one in the queue. False: no one behind
// it can give one now, but some under way will.
bool Scheduler::reserve_for_decode(Sequence& sequence) {
  if (std::ssize(sequence.blocks) >= blocks_for(sequence.known)) return true;
  while (pool_.free_count() == 0) {  // what the last one holds may not be its alone
    Sequence& last = last_to_preempt();
    if (&last == &sequence) return false;
    preempt(last);
  }
  sequence.blocks.push_back(pool_.take());
  return true;
}

// Of any lane. There is one: the sequence that needs a block.
Scheduler::Sequence& Scheduler::last_to_preempt() const {
  Sequence* last = nullptr;
  for (const LaneState& lane : lanes_) {
    const auto found =
        std::find_if(lane.running.rbegin(), lane.running.rend(), [](const Sequence* s) { return s->steps == 0; });
    if (found != lane.running.rend() && (last == nullptr || QueueOrder()(last, *found))) last = *found;
  }
  MOTLEY_CHECK(last != nullptr);
  return *last;
}

// The last one first, so that the next sequence takes them in their order: what lies side by side moves at once where
// keys and values are on a disk. And of what is kept the beginning goes last, without which the rest is of no use.
void Scheduler::give_back(Sequence& sequence) {
  if (!sequence.blocks.empty()) lanes_[sequence.lane].gone.push_back(sequence.id);
  for (const std::int32_t block : std::views::reverse(sequence.blocks)) pool_.give_back(block);
  sequence.blocks.clear();
  sequence.named = sequence.keyed = 0;
  if (sequence.slot >= 0) slots_.give_back(std::exchange(sequence.slot, -1));
  wake();
}

void Scheduler::preempt(Sequence& sequence) {
  give_back(sequence);
  sequence.scheduled = sequence.replayed = sequence.reached = 0;
  stop(sequence);
  wait(sequence);
  ++preemptions_;
}

// Steps that are under way still write to its blocks.
void Scheduler::end(Sequence& sequence) {
  sequence.ended = true;
  if (sequence.steps == 0) release(sequence);
}

void Scheduler::release(Sequence& sequence) {
  give_back(sequence);
  if (sequence.running)
    stop(sequence);
  else
    leave_queue(sequence);
  sequences_.erase(sequence.id);
}

void Scheduler::complete(std::uint64_t step, const std::set<std::uint64_t>& finished) {
  const auto done = under_way_.find(step);
  MOTLEY_CHECK(done != under_way_.end());
  std::size_t ended = 0;
  LaneState& lane = lanes_[done->second.lane];
  for (const Part& part : done->second.parts) {
    Sequence& sequence = *part.sequence;
    --sequence.steps;
    const bool ends = part.samples && finished.contains(sequence.id);
    ended += ends ? 1 : 0;
    if (ends || sequence.ended) {
      end(sequence);
    } else if (part.samples) {
      ++sequence.known;
      MOTLEY_CHECK(sequence.known < sequence.most);
    }
  }
  MOTLEY_CHECK(ended == finished.size());
  under_way_.erase(done);
  --lane.under_way;
  lane.may_start = true;
  if (pool_.free_count() == 0) wake();
}

SchedulerCounts Scheduler::counts() const {
  SchedulerCounts counts{.steps_under_way = std::ssize(under_way_),
                         .free_blocks = pool_.free_count(),
                         .preemptions = preemptions_,
                         .prompt_tokens = prompt_tokens_,
                         .found_tokens = found_tokens_};
  for (const LaneState& lane : lanes_) {
    counts.waiting += std::ssize(lane.waiting);
    counts.running += std::ssize(lane.running);
  }
  return counts;
}

std::int64_t Scheduler::blocks_for(std::int64_t tokens) const { return ceil_div(tokens, limits_.block_tokens); }

}  // namespace motley
