#include "motley/batching/step_rule.hpp"

#include <algorithm>

#include "motley/base/rounding.hpp"

namespace motley {
namespace {

constexpr std::int64_t least_chunk = 16;
// A second that a decode waits counts a quarter of one that a prompt waits. With this
// weight, `bench steps` shows the time between tokens within a tenth of the best, and the earliest first tokens.
constexpr double decode_weight = 0.25;
// Shares of the most tokens per second that are near enough: of numbers of micro-batches, and of chunks.
constexpr double enough_micro_batches = 0.99;
constexpr double enough_chunk = 0.95;
// More micro-batches that give no more sequences a place may cost so much of the tokens per second of equal rounds.
// They make up for steps of unlike sizes: at none, piles with slow links lose up to 5 %, at any they lose 20 %.
constexpr double enough_of_equal_rounds = 0.9;
// The number of micro-batches falls only after this many steps in a row for which fewer are enough, or when what more
// of them cost adds up to the tokens of this many steps: every change leaves decodes behind that wait for a turn.
constexpr std::int64_t patience = 64;
constexpr double most_lost_steps = 2;
// Prompts count as what holds the blocks that other requests wait for when there is one for this many decodes.
constexpr std::int64_t decodes_per_prompt = 3;

class TimedSteps {
 public:
  TimedSteps(PipelineHandle times, const SchedulerLimits& limits)
      : times_(std::move(times)), pipeline_(times_->merged()), limits_(limits) {}

  StepBudget operator()(const StepState& state) {
    if (pipeline_.corrections != times_->corrections) pipeline_ = times_->merged();
    const StepBudget budget = decide(state);
    const bool starts = state.under_way < budget.micro_batches && (state.ready > 0 || budget.prompt_tokens > 0);
    if (starts) last_ = span(state, ready_share(state), budget.prompt_tokens);
    return budget;
  }

 private:
  StepBudget decide(const StepState& state) {
    const std::int64_t chunk = best_chunk(state);
    const std::int64_t count = best_micro_batches(state, chunk);
    const bool fewer = count < micro_batches_;
    fewer_wanted_ = fewer ? fewer_wanted_ + 1 : 0;
    lost_steps_ = fewer ? lost_steps_ + lost(state, chunk, count) : 0;
    const bool waits = fewer && fewer_wanted_ < patience && lost_steps_ < most_lost_steps;
    if (count == micro_batches_ || waits) return {micro_batches_, chunk};
    micro_batches_ = count;
    fewer_wanted_ = 0;
    lost_steps_ = 0;
    if (!fewer) return decide(state);  // with the chunks of this many, yet more may bring tokens
    return {micro_batches_, best_chunk(state)};
  }

  static double cycle_s(const StepSpan& span, std::int64_t micro_batches) {
    return std::max(span.round_s, static_cast<double>(micro_batches) * span.busiest_s);
  }

  // Of a step on average.
  std::int64_t decodes_of(const StepState& state, std::int64_t micro_batches) const {
    return std::min(ceil_div(state.decoding, micro_batches), limits_.max_sequences);
  }

  // Of the next step, which shares those that are ready with the steps that may still start.
  std::int64_t ready_share(const StepState& state) const {
    const std::int64_t steps = std::max<std::int64_t>(1, micro_batches_ - state.under_way);
    return std::min(decodes_of(state, micro_batches_), ceil_div(state.ready, steps));
  }

  // Of a step with this many decodes and this many tokens of one prompt, in its middle.
  StepSpan span(const StepState& state, std::int64_t decoding, std::int64_t chunk) const {
    const auto decodes = static_cast<double>(decoding), prompt = static_cast<double>(chunk);
    const auto seen = [&](double context) {
      return pipeline_.window > 0 ? std::min(context, static_cast<double>(pipeline_.window)) : context;
    };
    const double before =
        chunk > 0 ? static_cast<double>(state.prompt_tokens) / static_cast<double>(state.prompts) / 2 : 0;
    const double tokens = std::max(1.0, decodes + prompt);
    const auto context = [&](double decode, double half) { return (decodes * decode + prompt * half) / tokens; };
    const auto cached = [&](double decode, double half) { return decodes * decode + half; };
    return pipeline_.span({.tokens = tokens,
                           .context = context(state.context, before),
                           .cached = cached(state.context, before),
                           .logits = decodes,
                           .window_context = context(seen(state.context), seen(before)),
                           .window_cached = cached(seen(state.context), seen(before))});
  }

  // The same for the next step. It does not overtake the one that started last.
  StepSpan next_span(const StepState& state, std::int64_t chunk) const {
    StepSpan next = span(state, ready_share(state), chunk);
    if (state.under_way > 0) next.round_s = std::max(next.round_s, last_.round_s - last_.busiest_s + next.busiest_s);
    return next;
  }

  // Where each step has this span.
  double tokens_per_s(const StepState& state, std::int64_t chunk, std::int64_t micro_batches,
                      const StepSpan& step) const {
    const std::int64_t per_step = decodes_of(state, micro_batches);
    const std::int64_t decodes = std::max<std::int64_t>(1, std::min(state.decoding, micro_batches * per_step));
    return static_cast<double>(decodes + micro_batches * chunk) / cycle_s(step, micro_batches);
  }
  double tokens_per_s(const StepState& state, std::int64_t chunk, std::int64_t micro_batches) const {
    return tokens_per_s(state, chunk, micro_batches, span(state, decodes_of(state, micro_batches), chunk));
  }
  // The same where a round has as many tokens of prompts as it has now. More of them are worth nothing by themselves:
  // requests have a number of them for each decode, and decodes wait for a longer round.
  double tokens_per_s_of_equal_rounds(const StepState& state, std::int64_t chunk, std::int64_t micro_batches) const {
    return tokens_per_s(state, std::min(ceil_div(chunk * micro_batches_, micro_batches), limits_.max_tokens),
                        micro_batches);
  }

  // The share of a step's tokens that the present number of micro-batches costs.
  double lost(const StepState& state, std::int64_t chunk, std::int64_t better) const {
    return std::max(0.0, 1 - tokens_per_s(state, chunk, micro_batches_) / tokens_per_s(state, chunk, better));
  }

  std::int64_t best_micro_batches(const StepState& state, std::int64_t chunk) const {
    std::int64_t best = 1;
    double most = 0, most_of_equal_rounds = 0;
    std::int64_t per_step = 0;
    StepSpan step;
    for (std::int64_t count = 1; count <= limits_.micro_batches; ++count) {
      if (const std::int64_t decodes = decodes_of(state, count); count == 1 || decodes != per_step) {
        per_step = decodes;
        step = span(state, per_step, chunk);
      }
      const double of_equal_rounds = chunk > 0 ? tokens_per_s_of_equal_rounds(state, chunk, count) : 0;
      const bool more_places = (count - 1) * limits_.max_sequences < state.decoding + state.prompts;
      if (!more_places && of_equal_rounds < enough_of_equal_rounds * most_of_equal_rounds) continue;
      most_of_equal_rounds = std::max(most_of_equal_rounds, of_equal_rounds);
      const double rate = tokens_per_s(state, chunk, count, step);
      if (most >= enough_micro_batches * rate) continue;
      most = rate;
      best = count;
    }
    return best;
  }

  std::int64_t best_chunk(const StepState& state) const {
    if (state.prompts == 0) return 0;
    const std::int64_t left = state.prompt_tokens, most = std::min(left, limits_.max_tokens);
    const auto prompts = static_cast<double>(state.prompts), inside = static_cast<double>(ready_share(state)),
               outside = static_cast<double>(state.decoding) - inside;
    const double without_s = next_span(state, 0).round_s;
    const double turn_s = cycle_s(span(state, decodes_of(state, micro_batches_), 0), micro_batches_) /
                          static_cast<double>(micro_batches_);
    std::int64_t best = 0;
    double least_s = 0;
    const auto consider = [&](std::int64_t chunk) {
      const StepSpan step = next_span(state, chunk);
      const auto steps = static_cast<double>(ceil_div(left, chunk));
      const double late_s = std::max(0.0, step.busiest_s - turn_s);
      const double decodes_wait_s = inside * std::max(late_s, step.round_s - without_s) + outside * late_s;
      const double waiting_s = prompts * step.round_s + ((prompts + 1) / 2 * steps - prompts) * step.busiest_s +
                               decode_weight * steps * decodes_wait_s;
      if (best > 0 && waiting_s >= least_s) return;
      least_s = waiting_s;
      best = chunk;
    };
    // Chunks of equal size, then those around the best of them.
    for (std::int64_t steps = ceil_div(left, most); best == 0 || ceil_div(left, steps) >= least_chunk;
         steps = std::max(steps + 1, steps * 5 / 4))
      consider(ceil_div(left, steps));
    if (const std::int64_t coarse = best; coarse < left / 4)
      for (std::int64_t sixteenths = 13; sixteenths < 20; ++sixteenths)
        if (const std::int64_t chunk = coarse * sixteenths / 16; chunk >= least_chunk && chunk <= most) consider(chunk);
    const bool held_by_prompts = state.stalled > 0 && decodes_per_prompt * state.prompts > state.decoding;
    return held_by_prompts ? std::max(best, efficient_chunk(state, most)) : best;
  }

  // The smallest with nearly as many tokens per second as the largest.
  std::int64_t efficient_chunk(const StepState& state, std::int64_t most) const {
    const std::int64_t decodes = decodes_of(state, micro_batches_);
    const auto rate = [&](std::int64_t chunk) {
      return static_cast<double>(decodes + chunk) / span(state, decodes, chunk).busiest_s;
    };
    const double enough = enough_chunk * rate(most);
    std::int64_t chunk = std::min(most, least_chunk);
    while (chunk < most && rate(chunk) < enough) chunk = std::min(most, chunk * 9 / 8);
    return chunk;
  }

  PipelineHandle times_;
  PipelineTime pipeline_;  // of these times
  SchedulerLimits limits_;
  std::int64_t micro_batches_ = 1;
  std::int64_t fewer_wanted_ = 0;  // times in a row
  double lost_steps_ = 0;          // meanwhile
  StepSpan last_ = {};             // of the step that started last
};

}  // namespace

StepRule fixed_steps(const PipelineHandle&, const SchedulerLimits& limits) {
  return [budget = StepBudget{limits.micro_batches, limits.max_tokens}](const StepState&) { return budget; };
}

StepRule timed_steps(const PipelineHandle& pipeline, const SchedulerLimits& limits) {
  return TimedSteps(pipeline, limits);
}

}  // namespace motley
