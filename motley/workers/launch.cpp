#include "motley/workers/launch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/model/part_tensors.hpp"
#include "motley/plan/worker_part.hpp"

namespace motley {

std::vector<std::string> worker_devices(const ServePlan& plan) {
  std::vector<std::string> devices;
  for (const Stage& stage : plan.stages) devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
  return devices;
}

namespace {

const Stage& stage_with(const ServePlan& plan, const std::string& device) {
  for (const Stage& stage : plan.stages)
    if (std::ranges::count(stage.devices, device) > 0) return stage;
  throw input_error(fmt::format("{} is in no stage of the plan", device), "name a device that the plan uses");
}

}  // namespace

std::vector<ReadRows> rows_of(const ServePlan& plan, const std::string& device, ReadsOf of) {
  const Stage& stage = stage_with(plan, device);
  const auto rank = static_cast<std::size_t>(std::ranges::find(stage.devices, device) - stage.devices.begin());
  const Architecture& arch = plan.model.arch;
  const Shard shard = stage_shards(arch, stage).at(rank);
  std::vector<ReadRows> read;
  const auto add = [&](const ModelPart& part) {
    for (const TensorSpec& tensor : held_tensors(arch, part, shard))
      read.push_back({tensor.name, slice_of(arch, tensor, shard).rows});
  };
  add({stage.layers, stage.embedding, stage.head});
  if (of == ReadsOf::standby_too)
    for (const StandbyWeights& standby : stage.standby_weights) add(with_ends(arch, standby.layers));
  return read;
}

void launch_workers(Workers& workers, const ServePlan& plan, std::uint64_t epoch, const CacheHandover& handover) {
  Launch launch{.plan_json = {}, .epoch = epoch, .devices = worker_devices(plan), .workers = {}, .handover = handover};
  for (const Worker& worker : workers) launch.workers.push_back(worker.at);
  auto worker = workers.begin();
  for (const Stage& stage : plan.stages) {
    launch.plan_json = to_json(write(part_of(plan, stage)));
    const std::string message = encode(launch);
    for (int rank = 0; rank < std::ssize(stage.devices); ++rank, ++worker) {
      worker->stage = stage.id;
      worker->rank = rank;
      worker->handle->send(message);
    }
  }
}

void ask_to_preload(const Worker& worker, const ServePlan& plan) {
  worker.handle->send(encode(Preload{.plan_json = to_json(write(part_of(plan, stage_with(plan, worker.device))))}));
}

}  // namespace motley
