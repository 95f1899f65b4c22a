#include "motley/trainer/step_timeline.hpp"

#include <set>

#include "motley/cost/train/train_price.hpp"
#include "motley/trainer/layout/worker_layout.hpp"

namespace motley {
namespace {

TimelineLane real_lane(const TrainPlan& plan, const std::string& device, const TrainStepDone& done) {
  const TrainPlace place = place_of(plan, device);
  const double exchanged_s = done.busy_s + done.exchange_s;
  TimelineLane lane{.replica = static_cast<std::int64_t>(place.replica),
                    .stage = static_cast<std::int64_t>(place.stage),
                    .device = device,
                    .passes = {},
                    .exchange = {done.busy_s, exchanged_s},
                    .update = {exchanged_s, exchanged_s + done.update_s}};
  std::set<std::int64_t> went_back;  // a second backward pass is that of the weights, which have waited
  for (const TrainPass& pass : done.passes) {
    const bool backward = pass.way == TrainPass::Way::backward;
    const bool weights = backward && !went_back.insert(pass.micro_batch).second;
    lane.passes.push_back({pass.micro_batch, backward, pass.start_s, pass.end_s, weights});
  }
  return lane;
}

void predict(const TrainPlan& plan, StepTimeline& timeline) {
  std::vector<PipelinePass> passes;
  const TrainStepPrice price = price_step(plan, {.form = "motley"}, &passes);
  timeline.predicted_s = price.iteration_s;
  const double exchanged_s = price.iteration_s - price.update_s, passed_s = exchanged_s - price.exchange_s;
  std::vector<std::size_t> first_lane;  // of each replica
  for (std::size_t r = 0; r < plan.replicas.size(); ++r) {
    first_lane.push_back(timeline.predicted.size());
    for (std::size_t s = 0; s < plan.replicas[r].stages.size(); ++s)
      timeline.predicted.push_back({.replica = static_cast<std::int64_t>(r),
                                    .stage = static_cast<std::int64_t>(s),
                                    .device = {},
                                    .passes = {},
                                    .exchange = {passed_s, exchanged_s},
                                    .update = {exchanged_s, price.iteration_s}});
  }
  for (const PipelinePass& pass : passes)
    timeline.predicted[first_lane[pass.pipeline] + pass.stage].passes.push_back(
        {pass.micro_batch, pass.kind != PassKind::forward, pass.start_s, pass.end_s, pass.kind == PassKind::weights});
}

}  // namespace

StepTimeline step_timeline(const TrainPlan& plan, const StepMetrics& metrics,
                           const std::vector<TrainStepDone>& answers) {
  StepTimeline timeline{
      .step = metrics.step, .seconds = metrics.seconds, .predicted_s = 0, .workers = {}, .predicted = {}};
  const std::vector<std::string> devices = train_devices(plan);
  for (std::size_t i = 0; i < devices.size(); ++i)
    timeline.workers.push_back(real_lane(plan, devices[i], answers.at(i)));
  try {
    predict(plan, timeline);
  } catch (const Error&) {  // such as a device without figures
    timeline.predicted.clear();
    timeline.predicted_s = 0;
  }
  return timeline;
}

}  // namespace motley
