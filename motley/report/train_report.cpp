#include "motley/report/train_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/report/plan_report.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

constexpr double gibibyte = 1073741824;

std::set<std::string> devices_of(const TrainPlan& plan) {
  std::set<std::string> devices;
  for (const auto& replica : plan.replicas)
    for (const auto& stage : replica.stages) devices.insert(stage.devices.begin(), stage.devices.end());
  return devices;
}

// Types of a stage's devices, in order of their first.
std::string types_of(const TrainPlan& plan, const TrainStage& stage) {
  std::vector<std::string> types;
  for (const auto& device : stage.devices) {
    const std::string& type = plan.cluster.type_of(plan.cluster.find_device(device)).name;
    if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
  }
  return fmt::format("{}", fmt::join(types, ", "));
}

std::string stage_name(std::size_t replica, std::size_t stage) { return fmt::format("r{}/s{}", replica, stage); }

std::string replicas_text(const TrainPlan& plan) {
  std::string text;
  for (std::size_t r = 0; r < plan.replicas.size(); ++r) {
    const TrainReplica& replica = plan.replicas[r];
    text += fmt::format("\nreplica {}: {} of the batch in {} micro-batches\n", r, percent(replica.share),
                        replica.micro_batches);
    Table table({"stage", ">layers", "devices", "type", "strategies"});
    for (std::size_t s = 0; s < replica.stages.size(); ++s) {
      const TrainStage& stage = replica.stages[s];
      std::vector<std::string> strategies;
      for (const auto& strategy : stage.strategies)
        strategies.push_back(
            fmt::format("{}-{} {}", strategy.layers.first, strategy.layers.end - 1, strategy_text(strategy)));
      table.add({stage_name(r, s), fmt::format("{}", stage.layers.size()), compact_devices(stage.devices),
                 types_of(plan, stage), fmt::format("{}", fmt::join(strategies, "; "))});
    }
    text += table.render();
  }
  return text;
}

// Devices that hold the same are told together.
std::string memory_text(const TrainPlan& plan) {
  using Cells = std::vector<std::string>;
  std::vector<std::pair<Cells, std::vector<std::string>>> rows;
  for (const auto& device : plan.cluster.devices) {
    const auto found = plan.predicted.memory_bytes.find(device.name);
    if (found == plan.predicted.memory_bytes.end()) continue;
    const TrainMemory& memory = found->second;
    const auto bytes = [](std::int64_t count) { return human_bytes(static_cast<double>(count)); };
    const Cells cells = {bytes(memory.weights),     bytes(memory.gradients), bytes(memory.optimizer),
                         bytes(memory.activations), bytes(memory.reserve),   bytes(memory.total()),
                         bytes(memory.limit)};
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.first == cells; });
    if (same != rows.end())
      same->second.push_back(device.name);
    else
      rows.push_back({cells, {device.name}});
  }
  if (rows.empty()) return {};
  Table table({"devices", ">weights", ">gradients", ">optimizer", ">activations", ">reserve", ">used", ">of"});
  for (const auto& [cells, devices] : rows) {
    Cells row = {compact_devices(devices)};
    row.insert(row.end(), cells.begin(), cells.end());
    table.add(row);
  }
  return "\nmemory\n" + table.render();
}

std::string unused_text(const TrainPlan& plan) {
  std::map<std::string, std::vector<std::string>> devices_of_reason;
  for (const auto& unused : plan.unused) devices_of_reason[unused.reason].push_back(unused.device);
  std::string text;
  for (const auto& [reason, devices] : devices_of_reason)
    text += fmt::format("\nunused: {}: {}\n", compact_devices(devices), reason);
  return text;
}

struct Use {
  std::string stage;
  double busy_s = 0, use = 0;
};
std::vector<Use> uses(const TrainPlan& plan, const TrainStepPrice& price) {
  std::vector<Use> list;
  for (std::size_t r = 0; r < plan.replicas.size(); ++r)
    for (std::size_t s = 0; s < plan.replicas[r].stages.size(); ++s) {
      const double busy_s = price.pipelines[r].busy_s[s];
      list.push_back({stage_name(r, s), busy_s, busy_s / price.iteration_s});
    }
  return list;
}

double slowest_s(const TrainStepPrice& price) {
  double most = 0;
  for (const auto& pipeline : price.pipelines) most = std::max(most, pipeline.makespan_s);
  return most;
}

}  // namespace

std::string strategy_text(const LayerStrategy& strategy) {
  std::string text = fmt::format("tp {} dp {}", strategy.tp, strategy.dp);
  if (strategy.shard != Sharding::none) text += fmt::format(" {}", name_of(strategy.shard));
  if (strategy.recompute) text += " recompute";
  if (strategy.split > 1) text += fmt::format(" split {}", strategy.split);
  return text;
}

std::string train_plan_summary(const TrainPlan& plan) {
  std::size_t least = plan.replicas.empty() ? 0 : plan.replicas[0].stages.size(), most = least;
  for (const auto& replica : plan.replicas) {
    least = std::min(least, replica.stages.size());
    most = std::max(most, replica.stages.size());
  }
  const std::string stages = least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
  return fmt::format("{} replica{} of {} stage{} on {} of {} devices", plan.replicas.size(),
                     plan.replicas.size() == 1 ? "" : "s", stages, most == 1 ? "" : "s", devices_of(plan).size(),
                     plan.cluster.devices.size());
}

std::string train_memory_report(const TrainPlan& plan, const std::vector<std::vector<double>>& prices_s_per_byte) {
  TrainPlan counted = plan;
  for (const auto& replica : plan.replicas)
    for (std::size_t s = 0; s < replica.stages.size(); ++s) {
      const auto memory = stage_memory(plan, replica, s);
      for (std::size_t i = 0; i < memory.size(); ++i)
        counted.predicted.memory_bytes[replica.stages[s].devices[i]] = memory[i];
    }
  std::string text = memory_text(counted);
  if (prices_s_per_byte.empty()) return text;
  Table table({"stage", "devices", ">a GiB more saves"});
  for (std::size_t r = 0; r < prices_s_per_byte.size(); ++r)
    for (std::size_t s = 0; s < prices_s_per_byte[r].size(); ++s)
      if (const double price = prices_s_per_byte[r][s]; price > 0)
        table.add({stage_name(r, s), compact_devices(plan.replicas[r].stages[s].devices),
                   human_seconds(price * gibibyte) + " of its step"});
  return text + "\nprice of memory: " +
         (!table.empty() ? "on each device of a stage with the same layers\n" + table.render()
                         : "0: more memory makes no stage faster\n");
}

Value train_memory_json(const TrainPlan& plan, const std::vector<std::vector<double>>& prices_s_per_byte) {
  Value stages = Value::array({});
  for (std::size_t r = 0; r < plan.replicas.size(); ++r)
    for (std::size_t s = 0; s < plan.replicas[r].stages.size(); ++s) {
      Value devices = Value::object();
      const auto memory = stage_memory(plan, plan.replicas[r], s);
      for (std::size_t i = 0; i < memory.size(); ++i)
        devices.set(plan.replicas[r].stages[s].devices[i], Value::object({{"weights", memory[i].weights},
                                                                          {"gradients", memory[i].gradients},
                                                                          {"optimizer", memory[i].optimizer},
                                                                          {"activations", memory[i].activations},
                                                                          {"reserve", memory[i].reserve},
                                                                          {"limit", memory[i].limit}}));
      Value stage = Value::object({{"stage", stage_name(r, s)}, {"devices", std::move(devices)}});
      if (!prices_s_per_byte.empty()) stage.set("price_s_per_byte", prices_s_per_byte[r][s]);
      stages.push_back(std::move(stage));
    }
  return stages;
}

std::string train_plan_report(const TrainPlan& plan) {
  const Training& training = training_of(plan.workload);
  std::string text =
      fmt::format("{} on {}: {}\n{} sequences of {} tokens per step, {}, {}\n", printable(plan.model.name),
                  printable(plan.cluster.description.name), train_plan_summary(plan), training.global_batch,
                  training.sequence_length, name_of(training.precision), name_of(plan.schedule));
  text += replicas_text(plan) + memory_text(plan) + unused_text(plan);
  Table table({"what", ">value", "note"});
  const auto& range = plan.predicted.iteration_s_range;
  table.add({"step", human_seconds(plan.predicted.iteration_s),
             range ? fmt::format("{} to {}: types that were not measured", human_seconds(range->low),
                                 human_seconds(range->high))
                   : ""});
  if (plan.predicted.tokens_per_s > 0) table.add({"tokens", fmt::format("{:.4g}/s", plan.predicted.tokens_per_s)});
  if (plan.predicted.mfu > 0) table.add({"MFU", percent(plan.predicted.mfu), "of the peak of the devices in use"});
  if (plan.search.bound) table.add({"bound", human_seconds(*plan.search.bound), "bound: no plan has a shorter step"});
  return text + "\npredicted\n" + table.render();
}

std::string train_step_report(const TrainPlan& plan, const TrainStepPrice& price) {
  Table table({"stage", ">busy", ">share of the step"});
  for (const auto& [stage, busy_s, use] : uses(plan, price)) table.add({stage, human_seconds(busy_s), percent(use)});
  return fmt::format("one step: {} = {} in pipelines + {} gradients + {} update\n\n{}",
                     human_seconds(price.iteration_s), human_seconds(slowest_s(price)), human_seconds(price.exchange_s),
                     human_seconds(price.update_s), table.render());
}

Value train_step_json(const TrainPlan& plan, const TrainStepPrice& price) {
  Value stages = Value::array();
  for (const auto& [stage, busy_s, use] : uses(plan, price))
    stages.push_back(Value::object({{"stage", stage}, {"busy_s", busy_s}, {"use", use}}));
  const Training& training = training_of(plan.workload);
  const auto tokens = static_cast<double>(training.global_batch * training.sequence_length);
  return Value::object({{"iteration_s", price.iteration_s},
                        {"tokens_per_s", tokens / price.iteration_s},
                        {"pipeline_s", slowest_s(price)},
                        {"gradients_s", price.exchange_s},
                        {"update_s", price.update_s},
                        {"stages", stages}});
}

std::string train_chrome_trace(const TrainPlan& plan, const TrainStepPrice& price,
                               const std::vector<PipelinePass>& passes) {
  constexpr double micro = 1e6;
  std::vector<std::string> events;
  std::vector<std::size_t> first_track;
  std::size_t tracks = 0;
  const auto name_track = [&](std::size_t track, const std::string& name) {
    events.push_back(to_json(Value::object({{"ph", "M"},
                                            {"pid", 1},
                                            {"tid", static_cast<std::int64_t>(track)},
                                            {"name", "thread_name"},
                                            {"args", Value::object({{"name", name}})}})));
  };
  for (std::size_t r = 0; r < plan.replicas.size(); ++r) {
    first_track.push_back(tracks);
    for (std::size_t s = 0; s < plan.replicas[r].stages.size(); ++s)
      name_track(tracks++, fmt::format("{} {}", stage_name(r, s), compact_devices(plan.replicas[r].stages[s].devices)));
  }
  name_track(tracks, "gradients and update");
  const auto add = [&](std::size_t track, const std::string& name, double start_s, double end_s) {
    events.push_back(fmt::format(R"({{"ph":"X","pid":1,"tid":{},"name":"{}","ts":{:.3f},"dur":{:.3f}}})", track, name,
                                 start_s * micro, (end_s - start_s) * micro));
  };
  for (const auto& pass : passes)
    add(first_track[pass.pipeline] + pass.stage, fmt::format("{} {}", name_of(pass.kind), pass.micro_batch),
        pass.start_s, pass.end_s);
  const double ends_s = slowest_s(price);
  add(tracks, "gradients", ends_s, ends_s + price.exchange_s);
  add(tracks, "update", ends_s + price.exchange_s, price.iteration_s);
  return fmt::format("{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{}\n]}}\n", fmt::join(events, ",\n"));
}

std::string compare_report(const std::vector<NamedPlan<TrainPlan>>& plans) {
  Table table({"plan", ">step", ">tokens/s", ">of the first", ">MFU", "layout"});
  const double first = plans.front().plan->predicted.iteration_s;
  for (const auto& [name, plan] : plans)
    table.add({name, human_seconds(plan->predicted.iteration_s), fmt::format("{:.4g}", plan->predicted.tokens_per_s),
               fmt::format("{:.2f}x", first / plan->predicted.iteration_s), percent(plan->predicted.mfu),
               train_plan_summary(*plan)});
  return table.render("");
}

Value compare_json(const std::vector<NamedPlan<TrainPlan>>& plans) {
  Value list = Value::array();
  const double first = plans.front().plan->predicted.iteration_s;
  for (const auto& [name, plan] : plans)
    list.push_back(Value::object({{"plan", name},
                                  {"iteration_s", plan->predicted.iteration_s},
                                  {"tokens_per_s", plan->predicted.tokens_per_s},
                                  {"mfu", plan->predicted.mfu},
                                  {"speed", first / plan->predicted.iteration_s}}));
  return Value::object({{"plans", list}});
}

}  // namespace motley
