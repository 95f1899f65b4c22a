// Iteration-level continuous batching over one route: which sequences' tokens go into the next micro-batch. Plain logic
// without tensors, sockets or a clock, so that the server and the simulator run the same code.
//
// A pipeline of several stages works only while several micro-batches are under way; a sequence is in at most one of them at a time.
// A step assigns tokens under one budget: decodes first, then prompt chunks. Blocks are ids of KV blocks, the same in all stages.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace motley {

// Hands out KV block ids [0, count).
class BlockPool {
 public:
  explicit BlockPool(std::int64_t count);
  std::int64_t free_count() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t total() const { return total_; }
  std::int32_t take();              // throws when none is left: ask free_count() first
  void give_back(std::int32_t id);  // throws on a block that is not out

 private:
  std::int64_t total_;
  std::vector<std::int32_t> free_;
  std::vector<bool> out_;
};

struct SchedulerLimits {
  std::int64_t blocks = 0;          // KV blocks of the route: the smallest stage's
  std::int64_t block_tokens = 16;
  std::int64_t max_tokens = 512;    // of one micro-batch
  std::int64_t max_sequences = 32;  // of one micro-batch
  std::int64_t micro_batches = 1;   // under way at once
  std::int64_t max_queue = 256;     // waiting requests; more are refused
};

enum class Admission { accepted, queue_full, never_fits };

// One sequence's part of a step. The caller knows the token ids; the scheduler counts.
struct ScheduledSequence {
  std::uint64_t id = 0;
  std::int64_t position = 0;  // of the first token
  std::int64_t count = 0;
  std::vector<std::int32_t> blocks;  // covers [0, position + count)
  bool samples = false;              // these are the last known tokens: a new one comes out
  bool operator==(const ScheduledSequence&) const = default;
};

struct ScheduledStep {
  std::uint64_t id = 0;
  std::vector<ScheduledSequence> sequences;
};

struct SchedulerCounts {
  std::int64_t waiting = 0, running = 0, steps_under_way = 0, free_blocks = 0;
  std::int64_t preemptions = 0;  // so far
};

class Scheduler {
 public:
  explicit Scheduler(SchedulerLimits limits);

  // `prompt_tokens` known tokens, at most `max_new_tokens` more. never_fits: prompt + output exceed all blocks.
  Admission add(std::uint64_t id, std::int64_t prompt_tokens, std::int64_t max_new_tokens, std::int64_t priority = 0);
  // Takes a sequence out, now or when its step under way completes.
  void cancel(std::uint64_t id);

  // The next micro-batch, or nothing: all micro-batches are under way, or there is no work.
  std::optional<ScheduledStep> next();

  // A step is done. `finished` names those of its sequences that end now; every other sampling sequence has one more token.
  void complete(std::uint64_t step, const std::set<std::uint64_t>& finished);

  SchedulerCounts counts() const;
  bool idle() const;

 private:
  struct Sequence;
  SchedulerLimits limits_;
  BlockPool pool_;
  // ... the implementation's own state
};

// Which route a new request goes to: the least loaded in proportion to its weight; ties to the first.
std::size_t choose_route(const std::vector<double>& weights, const std::vector<double>& load);

}  // namespace motley
