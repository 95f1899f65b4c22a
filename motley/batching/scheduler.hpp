// Iteration-level continuous batching over one block table: which sequences' tokens go into the next micro-batch. Plain
// logic without tensors, sockets or a clock, so that the server and the simulator run the same code.
//
// A pipeline of several stages works only while several micro-batches are under way. The chunks of one prompt may be in
// several of them: every stage computes steps in the order in which they were scheduled, so a chunk finds the keys and
// values of those before it. A decode waits for the token before it. A step assigns tokens under one budget: decodes
// first, then prompt chunks. Blocks are ids of KV blocks, the same in all stages. Where layers keep something of a
// sequence that does not grow with it, a sequence has a slot for that while it runs, the same in all stages, too.
//
// A sequence begins behind the full blocks whose tokens it shares with one of its lane before it. Such a block may be
// held as soon as the step that fills it is on its way, since no later step overtakes that one. A sequence waits for
// one that is about to fill half of what it has to compute, or more. The last token of a prompt is always computed, as
// nothing else says what follows it.
//
// Routes that share stages share the block table, the slots and the queue for both, and nothing else: each is a lane,
// with steps of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "motley/batching/block_pool.hpp"
#include "motley/batching/step_rule.hpp"

namespace motley {

enum class Admission { accepted, queue_full, never_fits };
// Waived for requests that were accepted before: under another plan.
enum class QueueLimit { applies, waived };

// One sequence's part of a step. The caller knows the token ids; the scheduler counts.
struct ScheduledSequence {
  std::uint64_t id = 0;
  std::int64_t position = 0;  // of the first token
  std::int64_t count = 0;
  std::vector<std::int32_t> blocks;  // of its table: those that follow what earlier steps have named
  bool samples = false;              // these are the last known tokens: a new one comes out
  std::int32_t stages = 0;           // of the route, that they pass; 0: all
  std::int32_t known_blocks = 0;     // this many: with `blocks` they cover [0, position + count); 0: of an empty table
  std::int32_t slot = -1;            // -1: sequences have none. Position 0 begins it again
  bool operator==(const ScheduledSequence&) const = default;
};

struct ScheduledStep {
  std::uint64_t id = 0;
  std::size_t lane = 0;
  std::vector<ScheduledSequence> sequences;
  // Of the lane, that have no blocks any more, before this step. Only a step that passes all stages names any.
  std::vector<std::uint64_t> gone = {};
};

// Keys and values that are there already: of tokens [0, tokens), in these blocks. But the first `lacking_stages` of the
// route do not all have them: there the tokens are computed once more. 0: every stage has them. `last_step` is the one
// that the sequence was in last: the lower, the longer it has waited for the next. Some stages have computed
// tokens up to `reached`, in steps that were lost or before others were lacking: they may have let go of what lies
// behind the windows of these. Sequences that share blocks name the same.
struct CachedTokens {
  std::int64_t tokens = 0;
  std::vector<std::int32_t> blocks;
  std::int32_t lacking_stages = 0;
  std::uint64_t last_step = 0;
  std::int32_t slot = -1;
  std::int64_t reached = 0;
  bool operator==(const CachedTokens&) const = default;
};

// One route of those that share the blocks.
struct Lane {
  StepRule rule;
  std::int64_t micro_batches = 1;  // under way at once
};

struct SchedulerCounts {
  std::int64_t waiting = 0, running = 0, steps_under_way = 0, free_blocks = 0;
  std::int64_t preemptions = 0;    // so far
  std::int64_t prompt_tokens = 0;  // so far, of sequences that began and had keys
  std::int64_t found_tokens = 0;   // of them: in blocks that were there already
};

// The line is ordered by arrival, counted in steps: one unit of priority puts a request ahead of those that came up to
// `steps_per_priority` steps before it, so that the urgent go first and none waits forever. The first in the queue
//  is never preempted, hence always ends.
//
// A running sequence holds a slot, and blocks for all its known tokens and the next one; it takes further blocks as it
// grows. Where none is free, the last in the queue that is not under way gives slot and blocks back and is recomputed
// later: its position restarts at 0 and its steps then carry the tokens it has generated, too.
class Scheduler {
 public:
  static constexpr std::int64_t steps_per_priority = 64;

  // Without a rule, every step takes what the limits allow.
  explicit Scheduler(SchedulerLimits limits, StepRule rule = {});
  Scheduler(SchedulerLimits limits, std::vector<Lane> lanes);
  Scheduler(Scheduler&&) = default;  // no copies: the queue points at its sequences
  Scheduler& operator=(Scheduler&&) = default;

  // `prompt_tokens` known tokens, at most `max_new_tokens` more, both positive; `id` is not in use. The keys and values
  // of the first `cached_tokens` of the prompt come from elsewhere and are written once its blocks are taken; fewer
  // than the prompt has. `keys` are those of its full blocks; without any, and where sequences have slots, it shares
  // none. never_fits: prompt + output exceed all blocks.
  Admission add(std::uint64_t id, std::int64_t prompt_tokens, std::int64_t max_new_tokens, std::int64_t priority = 0,
                std::int64_t cached_tokens = 0, QueueLimit queue_limit = QueueLimit::applies, std::size_t lane = 0,
                std::vector<BlockKey> keys = {});
  // A sequence of another scheduler whose `cached` tokens, fewer than are known and at least one, stay in their blocks
  // and slot, and which runs at once; ends as never_fits where they do not. Those that have waited longest go first.
  // Before any step.
  Admission adopt(std::uint64_t id, std::int64_t known_tokens, std::int64_t max_new_tokens, const CachedTokens& cached,
                  std::size_t lane = 0, std::vector<BlockKey> keys = {});
  // The tokens that came out of a sequence with keys have filled one more block. Before complete() of their step.
  void add_key(std::uint64_t id, const BlockKey& key);
  // Tokens of a prompt with these keys that are there now.
  std::int64_t found(const std::vector<BlockKey>& keys, std::int64_t prompt_tokens, std::size_t lane = 0) const;
  // What is there of the running sequences, if every step under way is lost.
  std::map<std::uint64_t, CachedTokens> cached() const;
  // Takes a sequence out, now or when its step under way completes. An id that is gone already is not an error.
  void cancel(std::uint64_t id);

  // The next micro-batch of any lane, in turn, or nothing: all micro-batches are under way, or there is no work, or its
  // blocks are not yet free.
  std::optional<ScheduledStep> next();

  // A step is done, after all earlier ones that share a sequence with it. `finished` names those of its sequences that
  // end now; every other sampling sequence has one more token.
  void complete(std::uint64_t step, const std::set<std::uint64_t>& finished);

  SchedulerCounts counts() const;
  bool idle() const { return sequences_.empty(); }

 private:
  struct Sequence {
    std::uint64_t id = 0;
    std::size_t lane = 0;
    std::int64_t turn = 0;       // arrival in steps, less the priority's lead
    std::uint64_t number = 0;    // of the arrival: orders equal turns
    std::int64_t known = 0;      // tokens whose ids are known: prompt and generated
    std::int64_t most = 0;       // known tokens at the end
    std::int64_t scheduled = 0;  // tokens in the KV cache, or on their way there
    std::int64_t replayed = 0;   // this many, the first, pass only
    std::int32_t stages = 0;     // this many stages
    std::int64_t reached = 0;    // tokens that some stage may have computed
    std::vector<std::int32_t> blocks;
    std::int64_t named = 0;  // of the blocks, in steps that passed the same stages
    std::vector<BlockKey> keys;
    std::int64_t keyed = 0;  // of the blocks, the first: they are filled, and can be found
    std::uint64_t last_step = 0;
    std::int64_t steps = 0;  // under way with tokens of it
    std::int32_t slot = -1;
    bool running = false;
    bool ended = false;  // goes when the last of its steps is done
    std::int64_t pending() const { return known - scheduled; }
    bool decodes() const { return steps == 0 && pending() == 1; }
  };
  struct QueueOrder {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->turn != b->turn ? a->turn < b->turn : a->number < b->number;
    }
  };

  // Views into sequences_, in the order of the queue; every sequence is in one of them.
  struct LaneState {
    Lane given;
    std::int64_t micro_batches = 1;  // of the last budget
    std::int64_t under_way = 0;
    std::set<Sequence*, QueueOrder> waiting = {};
    std::vector<Sequence*> running = {};
    std::int64_t waiting_tokens = 0;  // that the waiting sequences have to compute
    bool may_start = false;           // something has changed since no step could start
    std::vector<std::uint64_t> gone = {};
  };

  // What comes back to the scheduler with a step that is done. A sequence that is under way stays where it is.
  struct Part {
    Sequence* sequence = nullptr;
    std::int64_t position = 0;
    bool samples = false;
  };

  // A step that is being put together, and the room left in it.
  struct Draft {
    ScheduledStep step;
    std::vector<Part> parts;
    std::int64_t tokens = 0;
    std::int64_t sequences = 0;
    bool full() const { return tokens == 0 || sequences == 0; }
  };

  std::optional<ScheduledStep> next(LaneState& lane);
  StepState state(const LaneState& lane) const;
  std::int64_t places(const LaneState& lane) const { return limits_.max_sequences * lane.given.micro_batches; }
  struct Room {
    std::int64_t blocks = 0, slots = 0;
  };
  Room room_for_next(const LaneState& lane) const;
  void add_decodes(LaneState& lane, Draft& draft);
  void add_prompts(LaneState& lane, Draft& draft, std::int64_t chunks_under_way);
  void admit(LaneState& lane, Draft& draft);
  Sequence& insert(std::uint64_t id, std::size_t lane, std::int64_t known_tokens, std::int64_t max_new_tokens,
                   std::int64_t priority);
  void begin(Sequence& sequence, std::vector<std::int32_t> found);
  void schedule(Sequence& sequence, Draft& draft);
  void wait(Sequence& sequence);
  void leave_queue(Sequence& sequence);
  void run(Sequence& sequence);
  void stop(Sequence& sequence);
  bool reserve_for_decode(Sequence& sequence);
  Sequence& last_to_preempt() const;
  void wake();
  std::vector<std::int32_t> find_blocks(const std::vector<BlockKey>& keys, std::int64_t tokens, std::size_t lane) const;
  bool comes_soon(const LaneState& lane, const Sequence& sequence, std::size_t found) const;
  void name_blocks(Sequence& sequence);
  void give_back(Sequence& sequence);  // its blocks and slot
  void preempt(Sequence& sequence);
  void end(Sequence& sequence);
  void release(Sequence& sequence);
  std::int64_t blocks_for(std::int64_t tokens) const;

  SchedulerLimits limits_;
  BlockPool pool_, slots_;
  std::vector<LaneState> lanes_;
  std::size_t next_lane_ = 0;                              // whose turn it is
  std::unordered_map<std::uint64_t, Sequence> sequences_;  // by id
  struct UnderWay {
    std::size_t lane = 0;
    std::vector<Part> parts;
  };
  std::map<std::uint64_t, UnderWay> under_way_;  // by step
  std::uint64_t last_step_ = 0;
  std::uint64_t arrivals_ = 0;
  std::int64_t preemptions_ = 0;
  std::int64_t prompt_tokens_ = 0, found_tokens_ = 0;
};

}  // namespace motley
