#include "motley/cost/train/pipeline.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <queue>

namespace motley {
namespace {

struct StageState {
  std::int64_t warm_up = 0;                               // forward passes before the first backward pass
  std::int64_t lag = 0;                                   // of the passes for gradients of weights; 0: there are none
  std::int64_t forwards = 0, backwards = 0, weights = 0;  // begun
  std::int64_t inputs = 0, gradients = 0;                 // arrived; they come in order
  bool working = false;
  double pass_end_s = 0;                // while it works
  bool transferring = false;            // blocking hops: sends or receives
  std::optional<bool> unsent_backward;  // blocking hops: direction of the message that it has to send before it goes on
  double send_free_s = 0, back_free_s = 0;  // of its own links
};

enum class What : std::uint8_t { pass_ended, gradient_ready, input_arrived, gradient_arrived, transfer_ended };

// Small: most of the time goes into keeping them in order.
struct Event {
  double time_s = 0;
  std::int64_t order = 0;  // of equal times, in the order in which they were made
  std::uint32_t pipeline = 0, stage = 0;
  What what = What::pass_ended;
  PassKind kind = PassKind::forward;
  bool operator>(const Event& o) const { return time_s != o.time_s ? time_s > o.time_s : order > o.order; }
};

class Run {
 public:
  Run(PipelineSchedule schedule, const std::vector<PipelineLoad>& pipelines, std::vector<PipelinePass>* passes)
      : pipelines_(pipelines), passes_(passes), states_(pipelines.size()), times_(pipelines.size()) {
    for (std::size_t p = 0; p < pipelines.size(); ++p) {
      const std::size_t stages = pipelines[p].stages.size();
      MOTLEY_CHECK(stages > 0 && pipelines[p].micro_batches > 0);
      states_[p].resize(stages);
      for (std::size_t s = 0; s < stages; ++s) {
        states_[p][s].warm_up = micro_batches_in_flight(schedule, s, stages, pipelines[p].micro_batches);
        states_[p][s].lag = weight_lag(schedule, s);
      }
      states_[p][0].inputs = pipelines[p].micro_batches;
      times_[p].busy_s.assign(stages, 0);
      times_[p].gradients_complete_s.assign(stages, 0);
    }
  }

  std::vector<PipelineTimes> run() {
    for (std::size_t p = 0; p < pipelines_.size(); ++p) begin_next(p, 0, 0);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      take(event);
    }
    for (std::size_t p = 0; p < pipelines_.size(); ++p)
      for (const StageState& state : states_[p]) MOTLEY_CHECK(is_done(state, pipelines_[p].micro_batches));
    return std::move(times_);
  }

 private:
  void take(const Event& event) {
    StageState& state = states_[event.pipeline][event.stage];
    if (event.what == What::transfer_ended) {
      end_transfer(event);
      return;
    }
    if (event.what == What::gradient_ready) {
      send(event);
      return;
    }
    if (event.what != What::pass_ended) {
      count_arrival(state, event.what);
    } else {
      state.working = false;
      times_[event.pipeline].makespan_s = std::max(times_[event.pipeline].makespan_s, event.time_s);
      if (event.kind != PassKind::forward) times_[event.pipeline].gradients_complete_s[event.stage] = event.time_s;
      const bool sent = event.kind == PassKind::backward && sends_early(event.pipeline, event.stage);
      if (event.kind != PassKind::weights && !sent) send(event);
    }
    go_on(event.pipeline, event.stage, event.time_s);
  }

  // The gradient of its input, while it still computes those of its weights.
  bool sends_early(std::size_t pipeline, std::size_t stage) const {
    return states_[pipeline][stage].lag == 0 && pipelines_[pipeline].hops == HopMode::overlapped &&
           pipelines_[pipeline].stages[stage].weights_s > 0;
  }

  // The output of a pass.
  void send(const Event& done) {
    StageState& state = states_[done.pipeline][done.stage];
    const bool backward = done.kind == PassKind::backward;
    const bool to_neighbour = backward ? done.stage > 0 : done.stage + 1 < states_[done.pipeline].size();
    if (to_neighbour && pipelines_[done.pipeline].hops == HopMode::blocking) {
      state.unsent_backward = backward;
      return;
    }
    const PipelineStage& stage = pipelines_[done.pipeline].stages[done.stage];
    if (backward) {
      if (done.stage > 0) arrive(done, stage.back, state.back_free_s, What::gradient_arrived, done.stage - 1);
    } else if (done.stage + 1 < states_[done.pipeline].size()) {
      arrive(done, stage.send, state.send_free_s, What::input_arrived, done.stage + 1);
    } else {
      ++state.gradients;  // the loss follows at once
    }
  }

  void arrive(const Event& done, const PipelineHop& hop, double& own_free_s, What what, std::size_t stage) {
    double& free_s = hop.link == PipelineHop::own_link ? own_free_s : link_free_s_[hop.link];
    free_s = std::max(free_s, done.time_s) + hop.busy_s;
    const double time_s = free_s + hop.latency_s;
    StageState& receiver = states_[done.pipeline][stage];
    if (receiver.working && time_s < receiver.pass_end_s)
      count_arrival(receiver, what);  // what arrives during a pass changes nothing before its end
    else
      push(time_s, what, done.pipeline, stage);
  }

  static void count_arrival(StageState& state, What what) {
    ++(what == What::input_arrived ? state.inputs : state.gradients);
  }

  // A stage that may have become free: blocked messages from it and to it, then its next pass.
  void go_on(std::size_t pipeline, std::size_t stage, double now_s) {
    if (pipelines_[pipeline].hops == HopMode::blocking) {
      begin_transfer(pipeline, stage, now_s);
      if (stage > 0) begin_transfer(pipeline, stage - 1, now_s);
      if (stage + 1 < states_[pipeline].size()) begin_transfer(pipeline, stage + 1, now_s);
    }
    begin_next(pipeline, stage, now_s);
  }

  void begin_transfer(std::size_t pipeline, std::size_t from, double now_s) {
    StageState& sender = states_[pipeline][from];
    if (!sender.unsent_backward || sender.transferring) return;
    const bool backward = *sender.unsent_backward;
    const std::size_t to = backward ? from - 1 : from + 1;
    StageState& receiver = states_[pipeline][to];
    const PassKind needed_for = backward ? PassKind::backward : PassKind::forward;
    if (receiver.working || receiver.transferring || next_kind(pipeline, to) != needed_for) return;
    sender.transferring = receiver.transferring = true;
    const PipelineStage& stage = pipelines_[pipeline].stages[from];
    const PipelineHop& hop = backward ? stage.back : stage.send;
    double own_free_s = now_s;
    double& free_s = hop.link == PipelineHop::own_link ? own_free_s : link_free_s_[hop.link];
    free_s = std::max(free_s, now_s) + hop.busy_s;
    push(free_s + hop.latency_s, What::transfer_ended, pipeline, from);
  }

  void end_transfer(const Event& event) {
    StageState& sender = states_[event.pipeline][event.stage];
    const bool backward = *sender.unsent_backward;
    const std::size_t to = backward ? event.stage - 1 : event.stage + 1;
    StageState& receiver = states_[event.pipeline][to];
    ++(backward ? receiver.gradients : receiver.inputs);
    sender.unsent_backward.reset();
    sender.transferring = receiver.transferring = false;
    go_on(event.pipeline, to, event.time_s);
    go_on(event.pipeline, event.stage, event.time_s);
  }

  PassKind next_kind(std::size_t pipeline, std::size_t stage) const {
    const StageState& state = states_[pipeline][stage];
    const std::int64_t micro_batches = pipelines_[pipeline].micro_batches;
    if (state.lag > 0 && (state.backwards - state.weights > state.lag || state.backwards == micro_batches))
      return PassKind::weights;
    return state.forwards == std::min(micro_batches, state.warm_up + state.backwards) ? PassKind::backward
                                                                                      : PassKind::forward;
  }

  static bool is_done(const StageState& state, std::int64_t micro_batches) {
    return (state.lag > 0 ? state.weights : state.backwards) == micro_batches;
  }

  void begin_next(std::size_t pipeline, std::size_t stage, double now_s) {
    StageState& state = states_[pipeline][stage];
    if (state.working || state.transferring || state.unsent_backward ||
        is_done(state, pipelines_[pipeline].micro_batches))
      return;
    const PipelineStage& work = pipelines_[pipeline].stages[stage];
    const PassKind kind = next_kind(pipeline, stage);
    std::int64_t* begun = &state.weights;
    double seconds = work.weights_s;
    if (kind != PassKind::weights) {
      const bool backward = kind == PassKind::backward;
      begun = backward ? &state.backwards : &state.forwards;
      if (*begun == (backward ? state.gradients : state.inputs)) return;
      seconds = backward ? work.backward_s - (state.lag > 0 ? work.weights_s : 0) : work.forward_s;
    }
    if (passes_) passes_->push_back({pipeline, stage, *begun, kind, now_s, now_s + seconds});
    times_[pipeline].busy_s[stage] += seconds;
    state.working = true;
    state.pass_end_s = now_s + seconds;
    ++*begun;
    if (kind == PassKind::backward && sends_early(pipeline, stage))
      push(state.pass_end_s - work.weights_s, What::gradient_ready, pipeline, stage, kind);
    push(state.pass_end_s, What::pass_ended, pipeline, stage, kind);
  }

  void push(double time_s, What what, std::size_t pipeline, std::size_t stage, PassKind kind = PassKind::forward) {
    events_.push({.time_s = time_s,
                  .order = ++last_order_,
                  .pipeline = static_cast<std::uint32_t>(pipeline),
                  .stage = static_cast<std::uint32_t>(stage),
                  .what = what,
                  .kind = kind});
  }

  const std::vector<PipelineLoad>& pipelines_;
  std::vector<PipelinePass>* passes_;
  std::vector<std::vector<StageState>> states_;
  std::vector<PipelineTimes> times_;
  std::map<int, double> link_free_s_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::int64_t last_order_ = 0;
};

}  // namespace

std::vector<PipelineTimes> run_pipelines(PipelineSchedule schedule, const std::vector<PipelineLoad>& pipelines,
                                         std::vector<PipelinePass>* passes) {
  return Run(schedule, pipelines, passes).run();
}

double least_makespan_s(PipelineSchedule schedule, const PipelineLoad& pipeline) {
  const auto& stages = pipeline.stages;
  std::vector<double> passes_s, ways_s;  // of one micro-batch through stage s, and to it and back
  const auto late_s = [&](std::size_t s) {
    return pipeline.hops == HopMode::overlapped || weight_lag(schedule, s) > 0 ? stages[s].weights_s : 0;
  };
  double way_s = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (s > 0)
      for (const PipelineHop& hop : {stages[s - 1].send, stages[s].back}) way_s += hop.busy_s + hop.latency_s;
    ways_s.push_back(way_s);
    passes_s.push_back(stages[s].forward_s + stages[s].backward_s);
    way_s += passes_s[s] - late_s(s);
  }
  double least_s = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const std::int64_t in_flight = micro_batches_in_flight(schedule, s, stages.size(), pipeline.micro_batches);
    const std::int64_t rounds = (pipeline.micro_batches - 1) / in_flight;
    const double rounds_s = static_cast<double>(rounds) * (way_s - ways_s[s]);
    const auto rest = static_cast<double>(pipeline.micro_batches - rounds * in_flight);
    for (std::size_t k = s; k < stages.size(); ++k) {
      const double after = std::min(rest, 1 + static_cast<double>(weight_lag(schedule, k)));  // the last gradient sent
      least_s = std::max(least_s, rounds_s + ways_s[k] + rest * passes_s[k] - after * late_s(k));
    }
  }
  return least_s;
}

}  // namespace motley
