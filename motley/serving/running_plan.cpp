#include "motley/serving/running_plan.hpp"

#include <algorithm>
#include <cmath>

namespace motley {
namespace {

Value bytes_value(std::int64_t weights, std::int64_t kv, std::int64_t activations) {
  return Value::object({{"weights", weights}, {"kv", kv}, {"activations", activations}});
}

Value worker_value(const DriverStatus& status, const WorkerStatus& worker) {
  const ServePlan& plan = *status.plan;
  const auto slow = status.slow.find(worker.device);
  Value value = Value::object({{"device", worker.device},
                               {"stage", worker.stage},
                               {"rank", worker.rank},
                               {"process", worker.process},
                               {"alive", worker.alive},
                               {"kernels", worker.allocated.kernels},
                               {"peer_links", std::int64_t{worker.allocated.peer_links}},
                               {"weight_bytes", worker.allocated.weight_bytes},
                               {"loaded_bytes", worker.allocated.loaded_bytes},
                               {"standby_bytes", worker.standby_bytes},
                               {"load_s", worker.allocated.load_s},
                               {"busy_s", worker.busy_s},
                               {"waited_s", worker.waited_s},
                               {"busy_share", status.uptime_s > 0 ? worker.busy_s / status.uptime_s : 0.0},
                               {"slowdown", slow == status.slow.end() ? 1.0 : slow->second},
                               {"steps", static_cast<std::int64_t>(worker.steps)}});
  const auto predicted = stage_memory(plan, plan.stage(worker.stage));
  const TierMemory& memory = predicted.at(static_cast<std::size_t>(worker.rank)).device;
  value.set("memory_bytes",
            Value::object({{"predicted", bytes_value(memory.weights, memory.kv, memory.activations)},
                           {"measured", bytes_value(worker.allocated.weight_bytes, worker.allocated.kv_bytes,
                                                    worker.allocated.activation_bytes)}}));
  return value;
}

// Of a decode and of a full step, as `motley explain` has them, and how many tokens ride along with a decode at no
// cost.
Value stage_value(const StageTime& time, double full_step) {
  const auto tokens = time.tokens_at_no_cost();
  return Value::object({{"one_token_s", time.seconds({.tokens = 1, .logits = 1})},
                        {"full_step_s", time.seconds({.tokens = full_step, .context = full_step / 2, .logits = 1})},
                        {"tokens_at_no_cost", tokens && std::isfinite(*tokens) ? Value(*tokens) : Value()}});
}

// Of one route.
Value step_values(const ServePlan& plan, const PipelineStatus& pipeline) {
  const auto full_step = static_cast<double>(plan.step.max_tokens);
  Value::Array stages;
  for (std::size_t i = 0; i < pipeline.predicted.visits.size(); ++i) {
    const PipelineTime::Visit& visit = pipeline.predicted.visits[i];
    stages.push_back(Value::object({{"stage", plan.stages.at(visit.stage).id},
                                    {"measured_steps", pipeline.steps.at(i)},
                                    {"predicted", stage_value(visit.time, full_step)},
                                    {"measured", stage_value(pipeline.measured.visits.at(i).time, full_step)}}));
  }
  const auto way_s = [](const PipelineTime& times) {
    double seconds = times.back_s;
    for (const PipelineTime::Crossing& crossing : times.crossings) seconds += crossing.time.seconds(1);
    return seconds;
  };
  return Value::object(
      {{"stages", Value(std::move(stages))},
       {"between_stages", Value::object({{"measured_steps", pipeline.alone},
                                         {"predicted", Value::object({{"one_token_s", way_s(pipeline.predicted)}})},
                                         {"measured", Value::object({{"one_token_s", way_s(pipeline.measured)}})}})}});
}

}  // namespace

Value running_plan(const DriverStatus& status) {
  const ServePlan& plan = *status.plan;
  Value replayed = Value::object({});
  for (const auto& [stage, tokens] : status.replayed_tokens) replayed.set(stage, tokens);
  Value::Array workers, routes, steps;
  for (const PipelineStatus& pipeline : status.pipelines) steps.push_back(step_values(plan, pipeline));
  for (const auto& worker : status.workers) workers.push_back(worker_value(status, worker));
  for (std::size_t i = 0; i < plan.routes.size(); ++i)
    routes.push_back(Value::object({{"id", plan.routes[i].id},
                                    {"waiting", i < status.waiting.size() ? status.waiting[i] : 0},
                                    {"running", i < status.running.size() ? status.running[i] : 0}}));
  const double measured = status.uptime_s > 0 ? static_cast<double>(status.generated_tokens) / status.uptime_s : 0;
  return Value::object(
      {{"ready", status.ready},
       {"state", std::string(name_of(status.phase))},
       {"epoch", static_cast<std::int64_t>(status.epoch)},
       {"failure", status.failure ? Value(*status.failure) : Value()},
       {"uptime_s", status.uptime_s},
       {"tokens_per_s", Value::object({{"predicted", plan.predicted.tokens_per_s}, {"measured", measured}})},
       {"generated_tokens", status.generated_tokens},
       {"prompt_tokens", status.prompt_tokens},
       {"preemptions", status.preemptions},
       {"replayed_tokens", std::move(replayed)},
       {"held", status.held},
       {"kv_blocks", Value::object({{"free", status.free_blocks}, {"total", status.total_blocks}})},
       {"routes", Value(std::move(routes))},
       {"steps", Value(std::move(steps))},
       {"workers", Value(std::move(workers))},
       {"plan", write(plan)}});
}

}  // namespace motley
