// How much the next step takes: how many tokens of prompts in addition to the decodes, and how many steps are under way
// at once.
//
// A decode step reads all weights of a stage, and up to some number of tokens ride along at no cost. More tokens delay
// every decode behind them, fewer waste the reads. The right number differs by stage, by link and by load, so the rule
// is given the times of all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "motley/cost/serve/step_time.hpp"

namespace motley {

// What a scheduler may hold and put under way.
struct SchedulerLimits {
  std::int64_t blocks = 0;  // KV blocks of the route: the smallest stage's
  std::int64_t block_tokens = 16;
  std::int64_t max_tokens = 512;    // of one micro-batch
  std::int64_t max_sequences = 32;  // of one micro-batch
  std::int64_t micro_batches = 1;   // under way at once
  std::int64_t max_queue = 256;     // waiting requests; more are refused
  std::int64_t slots = 0;           // of the route: the smallest stage's; 0: sequences need none
};

// What there is to do.
struct StepState {
  std::int64_t decoding = 0;       // running sequences whose prompt is computed
  std::int64_t ready = 0;          // of them: not under way
  std::int64_t under_way = 0;      // steps
  double context = 0;              // cached tokens of each of them, on average
  std::int64_t prompts = 0;        // sequences that have prompt left, and blocks and a place for it
  std::int64_t prompt_tokens = 0;  // what they have left
  std::int64_t stalled = 0;        // sequences that wait for blocks or a place
  double free_blocks = 1;          // share of all
};

// Within the limits.
struct StepBudget {
  std::int64_t micro_batches = 1;     // under way at once, with this one
  std::int64_t prompt_tokens = 0;     // in addition to the decodes
  std::int64_t chunks_under_way = 0;  // of one prompt at once; 0: any number
};

// Asked before every step. The same states and times in the same order get the same budgets.
using StepRule = std::function<StepBudget(const StepState&)>;
// The times may change between two steps, where they are corrected by measured ones.
using PipelineHandle = std::shared_ptr<const PipelineTime>;
using MakeStepRule = std::function<StepRule(const PipelineHandle&, const SchedulerLimits&)>;

// Every step takes what the limits allow.
StepRule fixed_steps(const PipelineHandle& pipeline, const SchedulerLimits& limits);

// A step takes the tokens of prompts that make requests wait least by the times of the pipeline: prompts wait for their
// last chunk, decodes for what a chunk adds to the time between tokens. With B tokens left in q prompts, D sequences
// decoding in k micro-batches, d of them in this step, and for a step with c tokens of prompts the time u(c) of its
// busiest stage or link and its round trip r(c):
//
//   waiting(c) = q r(c) + ((q + 1) / 2 * B / c - q) u(c)  +  w B / c * (d own(c) + (D - d) late(c))
//   late(c)    = max(0, u(c) - turn)      longer than the turn of a step delays all behind it
//   own(c)     = max(late(c), r(c) - r(0))
//   turn       = max(r(0) / k, u(0))      with D / k decodes
//
// A step does not overtake the one that started before it: r(c) is at least what is left of that one, and u(c). So the
// chunks of a prompt keep their size, and a step without decodes takes more of it than one with many.
// For a single prompt and no decodes this is the time to first token, (B / c - 1) u(c) + r(c). While requests wait
// for blocks or places that prompts hold, c is at least what brings nearly as many tokens per second as any.
// The number of micro-batches is the smallest that brings nearly the most tokens per second; it rises at once, and
// falls when fewer stay enough or more cost too much. Where all sequences have a place in fewer, more of them must not
// cost much of the tokens per second that rounds with equally many tokens of prompts bring.
StepRule timed_steps(const PipelineHandle& pipeline, const SchedulerLimits& limits);

}  // namespace motley
