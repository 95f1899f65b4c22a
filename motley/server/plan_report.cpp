#include "motley/server/plan_report.hpp"

#include <algorithm>

namespace motley {
namespace {

Value bytes_value(std::int64_t weights, std::int64_t kv, std::int64_t activations) {
  return Value::object({{"weights", weights}, {"kv", kv}, {"activations", activations}});
}

Value worker_value(const ServePlan& plan, const WorkerStatus& worker, double uptime_s) {
  Value value = Value::object({{"device", worker.device},
                               {"stage", worker.stage},
                               {"rank", worker.rank},
                               {"process", worker.process},
                               {"alive", worker.alive},
                               {"load_s", worker.allocated.load_s},
                               {"busy_s", worker.busy_s},
                               {"waited_s", worker.waited_s},
                               {"busy_share", uptime_s > 0 ? worker.busy_s / uptime_s : 0.0},
                               {"steps", static_cast<std::int64_t>(worker.steps)}});
  const auto predicted = stage_memory(plan, plan.stage(worker.stage));
  const TierMemory& memory = predicted.at(static_cast<std::size_t>(worker.rank)).device;
  value.set("memory_bytes",
            Value::object({{"predicted", bytes_value(memory.weights, memory.kv, memory.activations)},
                           {"measured", bytes_value(worker.allocated.weight_bytes, worker.allocated.kv_bytes,
                                                    worker.allocated.activation_bytes)}}));
  return value;
}

}  // namespace

Value plan_report(const DriverStatus& status) {
  const ServePlan& plan = *status.plan;
  Value::Array workers, routes;
  for (const auto& worker : status.workers) workers.push_back(worker_value(plan, worker, status.uptime_s));
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
       {"held", status.held},
       {"kv_blocks", Value::object({{"free", status.free_blocks}, {"total", status.total_blocks}})},
       {"routes", Value(std::move(routes))},
       {"workers", Value(std::move(workers))},
       {"plan", write(plan)}});
}

}  // namespace motley
