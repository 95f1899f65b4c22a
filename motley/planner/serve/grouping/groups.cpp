#include "motley/planner/serve/grouping/groups.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "motley/planner/serve/pipeline/need.hpp"
#include "motley/planner/serve/pipeline/offloading.hpp"

namespace motley {
namespace {

int image(const Pipeline& pipeline, int device) {
  const auto& from = pipeline.answer->devices;
  return pipeline.devices[static_cast<std::size_t>(std::find(from.begin(), from.end(), device) - from.begin())];
}

}  // namespace

std::vector<std::vector<int>> Pipeline::stage_devices() const {
  auto stages = best().table->devices_of(best().chain.stages);
  for (auto& stage : stages)
    for (int& device : stage) device = image(*this, device);
  return stages;
}

std::vector<int> Pipeline::used_devices() const {
  std::vector<int> used;
  for (const auto& stage : stage_devices()) used.insert(used.end(), stage.begin(), stage.end());
  return used;
}

Groups::Groups(const ServeProblem& problem) : problem_(problem), need_(least_need(problem).total()) {
  const auto form = problem.form(problem.point(problem.options.step.max_sequences, true));
  for (std::size_t type = 0; type < problem.cluster.types.size(); ++type) {
    const auto& devices = problem.cluster.devices;
    const auto found = std::find_if(devices.begin(), devices.end(),
                                    [&](const Device& device) { return device.type == static_cast<int>(type); });
    const auto device = static_cast<int>(found - devices.begin());
    const TensorGroup alone = make_group(problem.cluster, problem.model.arch, {device}, {},
                                         problem.weights_on({device}), problem.kv_type, problem.options.step);
    const LayerCounts layers = layer_counts(problem.model.arch, {0, problem.model.arch.layers});
    most_of_type_.push_back(form->requests_per_job() / price_layers(*form, alone, layers).load_s);
  }
  for (const int device : all_devices(problem.cluster)) {
    usable_.push_back(usable_bytes(problem, device));
    with_tiers_.push_back(usable_with_tiers(problem, device));
  }
}

// Machines with the same devices stand in the same order whatever their names, so that groups which are images of each
// other have the same signature. (Where equal machines have unlike links to others, images may be missed; never are
// groups taken for images that are not.)
std::vector<int> Groups::in_order(std::vector<int> devices) const {
  const Cluster& cluster = problem_.cluster;
  std::map<int, std::vector<int>> by_machine;
  std::sort(devices.begin(), devices.end());
  for (const int device : devices) by_machine[cluster.devices[device].machine].push_back(device);
  using Entry = std::tuple<std::vector<int>, double, double, int>;
  std::vector<Entry> machines;
  for (auto& [machine, members] : by_machine) {
    std::stable_sort(members.begin(), members.end(),
                     [&](int a, int b) { return cluster.devices[a].type < cluster.devices[b].type; });
    std::vector<int> types;
    for (const int device : members) types.push_back(cluster.devices[device].type);
    const PathSpeed inside = members.size() > 1 ? cluster.link(members[0], members[1]) : PathSpeed{};
    machines.emplace_back(std::move(types), inside.latency_s, inside.bandwidth_bytes_per_s, machine);
  }
  std::sort(machines.begin(), machines.end());
  devices.clear();
  for (const auto& entry : machines) {
    const auto& members = by_machine[std::get<3>(entry)];
    devices.insert(devices.end(), members.begin(), members.end());
  }
  return devices;
}

// Types and links in that order: all that a pipeline's price depends on. Without a measured matrix links depend on the
// machines alone.
std::vector<double> Groups::signature(const std::vector<int>& ordered) const {
  const Cluster& cluster = problem_.cluster;
  const bool every_pair = cluster.description.network.matrix.has_value();
  std::vector<double> text;
  std::vector<int> ends;  // between which links are told
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    const int machine = cluster.devices[ordered[i]].machine;
    const bool new_machine = i == 0 || cluster.devices[ordered[i - 1]].machine != machine;
    text.push_back(cluster.devices[ordered[i]].type);
    if (new_machine) text.push_back(-1);
    // Devices of a type differ in these only by their machines.
    const bool new_type = new_machine || cluster.devices[ordered[i - 1]].type != cluster.devices[ordered[i]].type;
    if (const auto copies = new_type ? copies_of(cluster, ordered[i]) : std::nullopt)
      text.insert(text.end(), {copies->upload_bytes_per_s, copies->download_bytes_per_s});
    if (new_machine) add_tiers(ordered[i], text);
    if (every_pair || new_machine) ends.push_back(ordered[i]);
    if (!every_pair && !new_machine && cluster.devices[ordered[i - 1]].machine == machine) {
      const PathSpeed inside = cluster.link(ordered[i - 1], ordered[i]);
      text.push_back(inside.latency_s);
      text.push_back(inside.bandwidth_bytes_per_s);
    }
  }
  for (const int from : ends)
    for (const int to : ends) {
      if (from == to) continue;
      const PathSpeed link = cluster.link(from, to);
      text.push_back(link.latency_s);
      text.push_back(link.bandwidth_bytes_per_s);
    }
  return text;
}

// What a pipeline's price depends on where the machine's devices may offload.
void Groups::add_tiers(int device, std::vector<double>& text) const {
  const std::optional<MemoryTiers> tiers = offload_tiers(problem_, device);
  if (!tiers) return;
  const Disk disk = tiers->disk.value_or(Disk{});
  const HostRates& host = tiers->host;
  text.insert(text.end(),
              {-2, static_cast<double>(tiers->host_bytes), static_cast<double>(disk.capacity_bytes),
               disk.read_bytes_per_s, disk.write_bytes_per_s, disk.both_bytes_per_s, host.upload_bytes_per_s,
               host.download_bytes_per_s, host.bandwidth_bytes_per_s, host.flop_per_s});
}

Pipeline Groups::best(std::vector<int> devices) {
  Pipeline pipeline{in_order(std::move(devices)), nullptr};
  std::vector<double> key = signature(pipeline.devices);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = answers_.find(key); found != answers_.end()) {
      pipeline.answer = found->second;
      return pipeline;
    }
  }
  GroupAnswer answer{pipeline.devices, {.best = {}, .exact = true, .evaluated = 0}};
  if (may_fit(pipeline.devices)) answer.part = search_part(problem_, pipeline.devices);
  pipeline.answer = std::make_shared<const GroupAnswer>(std::move(answer));
  const std::lock_guard lock(mutex_);
  // Two threads may have searched the same at once, on unlike devices: the first stays.
  pipeline.answer = answers_.emplace(std::move(key), pipeline.answer).first->second;
  return pipeline;
}

double Groups::most_requests_per_s(const std::vector<int>& devices) const {
  double sum = 0;
  for (const int device : devices) sum += most_of_type_[problem_.cluster.devices[device].type];
  return sum;
}

double Groups::copies(const std::vector<int>& devices) const {
  double usable = 0;
  for (const int device : devices) usable += usable_[static_cast<std::size_t>(device)];
  return usable / need_;
}

bool Groups::may_fit(const std::vector<int>& devices) const {
  double usable = 0;
  for (const int device : devices) usable += with_tiers_[static_cast<std::size_t>(device)];
  return usable / need_ >= 1;
}

}  // namespace motley
