#include "motley/cost/pipeline.hpp"

#include <algorithm>
#include <limits>

namespace motley {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct StageState {
  std::int64_t warm_up = 0;                  // forward passes before the first backward pass
  std::int64_t forwards = 0, backwards = 0;  // done
  double free_s = 0;
  std::vector<double> input_s, gradient_s;  // by micro-batch: when they arrive
  double send_free_s = 0, return_free_s = 0;
};

class Run {
 public:
  Run(PipelineSchedule schedule, const std::vector<PipelineStage>& stages, std::int64_t micro_batches,
      std::vector<PipelinePass>* passes)
      : stages_(stages), micro_batches_(micro_batches), passes_(passes), states_(stages.size()) {
    const auto count = static_cast<std::size_t>(micro_batches);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      StageState& state = states_[s];
      state.warm_up = micro_batches_in_flight(schedule, s, stages.size(), micro_batches);
      state.input_s.assign(count, s == 0 ? 0 : kNever);
      state.gradient_s.assign(count, kNever);
    }
    times_.busy_s.assign(stages.size(), 0);
    times_.last_backward_end_s.assign(stages.size(), 0);
  }

  PipelineTimes run() {
    std::vector<std::size_t> awake(stages_.size());
    for (std::size_t s = 0; s < awake.size(); ++s) awake[s] = awake.size() - 1 - s;
    while (!awake.empty()) {
      const std::size_t s = awake.back();
      awake.pop_back();
      while (advance(s)) {
        if (s > 0) awake.push_back(s - 1);
        if (s + 1 < stages_.size()) awake.push_back(s + 1);
      }
    }
    for (const StageState& state : states_) MOTLEY_CHECK(state.backwards == micro_batches_);
    return std::move(times_);
  }

 private:
  // Whether the stage's next pass could run.
  bool advance(std::size_t s) {
    StageState& state = states_[s];
    if (state.backwards == micro_batches_) return false;
    const bool backward = state.forwards == std::min(micro_batches_, state.warm_up + state.backwards);
    const auto micro_batch = static_cast<std::size_t>(backward ? state.backwards : state.forwards);
    const double ready_s = backward ? state.gradient_s[micro_batch] : state.input_s[micro_batch];
    if (ready_s == kNever) return false;
    const double start_s = std::max(ready_s, state.free_s);
    const double seconds = backward ? stages_[s].backward_s : stages_[s].forward_s;
    state.free_s = start_s + seconds;
    times_.busy_s[s] += seconds;
    times_.makespan_s = std::max(times_.makespan_s, state.free_s);
    if (passes_) passes_->push_back({s, static_cast<std::int64_t>(micro_batch), backward, start_s, state.free_s});
    if (backward) {
      ++state.backwards;
      times_.last_backward_end_s[s] = state.free_s;
      if (s > 0) {
        state.return_free_s = std::max(state.return_free_s, state.free_s) + stages_[s].return_s;
        states_[s - 1].gradient_s[micro_batch] = state.return_free_s;
      }
    } else {
      ++state.forwards;
      if (s + 1 == stages_.size()) {
        state.gradient_s[micro_batch] = state.free_s;  // the loss follows at once
      } else {
        state.send_free_s = std::max(state.send_free_s, state.free_s) + stages_[s].send_s;
        states_[s + 1].input_s[micro_batch] = state.send_free_s;
      }
    }
    return true;
  }

  const std::vector<PipelineStage>& stages_;
  std::int64_t micro_batches_;
  std::vector<PipelinePass>* passes_;
  std::vector<StageState> states_;
  PipelineTimes times_;
};

}  // namespace

PipelineTimes run_pipeline(PipelineSchedule schedule, const std::vector<PipelineStage>& stages,
                           std::int64_t micro_batches, std::vector<PipelinePass>* passes) {
  MOTLEY_CHECK(!stages.empty() && micro_batches > 0);
  return Run(schedule, stages, micro_batches, passes).run();
}

}  // namespace motley
