#include "motley/serving/joined_deployment.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {
namespace {

// Once the machines that are waited for are there. One that comes later may have any name.
void check_without(const std::vector<std::string>& without, const std::vector<MachineStatus>& members) {
  std::vector<std::string> devices;
  for (const MachineStatus& member : members)
    for (const OfferedDevice& device : member.devices) devices.push_back(device_name(member.name, device));
  for (const std::string& device : without)
    if (std::ranges::find(devices, device) == devices.end())
      throw input_error(fmt::format("--without \"{}\" is not a device of a machine that has joined", device),
                        did_you_mean(device, devices, fmt::format("there are {}", fmt::join(devices, ", "))));
}

Value members_value(const std::vector<MachineStatus>& members) {
  Value::Array all;
  for (const MachineStatus& member : members) {
    Value::Array devices;
    for (const OfferedDevice& device : member.devices) {
      const auto out = member.out_of_service.find(device_name(member.name, device));
      const Value cause = out == member.out_of_service.end() ? Value() : Value(out->second);
      Value described = Value::object({{"device", device_name(member.name, device)},
                                       {"out_of_service", cause},
                                       {"type", device.kind},
                                       {"vendor", device.vendor},
                                       {"memory_bytes", device.memory_bytes},
                                       {"bytes_per_s", device.bytes_per_s},
                                       {"flop_per_s", device.flop_per_s},
                                       {"threads", device.threads}});
      if (!device.uuid.empty()) {
        described.set("uuid", device.uuid);
        described.set("total_bytes", device.total_bytes);
        described.set("free_bytes", device.free_bytes);
        described.set("kernels", static_cast<std::int64_t>(device.kernels));
        described.set("rates", device.rates.empty() ? "catalogue" : "measured");
      }
      devices.push_back(std::move(described));
    }
    all.push_back(
        Value::object({{"name", member.name}, {"address", member.address}, {"devices", Value(std::move(devices))}}));
  }
  return Value(std::move(all));
}

Value events_value(const EventLog& events) {
  Value::Array all;
  for (const Event& event : events.newest())
    all.push_back(Value::object({{"elapsed_s", event.elapsed_s}, {"what", event.what}, {"detail", event.detail}}));
  return Value(std::move(all));
}

}  // namespace

JoinedDeployment::JoinedDeployment(std::unique_ptr<DeploymentStore> store, GatheringOptions gathered,
                                   JoinedDeploymentOptions options, EventLog& events)
    : options_(std::move(options)),
      events_(events),
      gathering_(std::move(store), std::move(gathered)),
      plans_(options_.search, options_.cluster, options_.without, gathering_.name(), gathering_.machines(),
             std::ref(events)) {}

// By name, with how many are waited for.
std::set<std::string> JoinedDeployment::machines_needed() const {
  if (options_.plan) return machines_of(*options_.plan);
  std::set<std::string> names;
  if (options_.cluster)
    for (const Machine& machine : options_.cluster->machines) names.insert(machine.name);
  return names;
}

ServePlan JoinedDeployment::first_plan() {
  gathering_.open();
  gathering_.offer_weights();
  gathering_.wait_for(options_.wait, machines_needed());
  check_without(options_.without, gathering_.machines().list());
  if (options_.cluster)
    gathering_.check_described(*options_.cluster);
  else if (options_.wait > 1 || options_.plan)
    gathering_.measure_links();
  if (options_.plan) return *options_.plan;
  ServeOutcome outcome = plans_.plan(options_.quiet);
  if (!outcome.plan) throw Error(ErrorCode::negative, "does not fit: " + outcome.reason, outcome.hint);
  return *std::move(outcome.plan);
}

void JoinedDeployment::end() {
  gathering_.end();
  gathering_.check_held();
}

void JoinedDeployment::watch(Generator& driver) {
  watch_.emplace(gathering_.machines(), plans_,
                 RunningPlan{.status = [&driver] { return driver.status(); },
                             .change = [&driver](ServePlan next) { driver.change_plan(std::move(next)); }},
                 !options_.cluster.has_value(), std::ref(events_));
}

Value JoinedDeployment::describe() const {
  return Value::object({{"members", members_value(gathering_.machines().list())},
                        {"if_lost", loss_impacts_value(plans_.losses())},
                        {"events", events_value(events_)}});
}

std::vector<std::string> JoinedDeployment::drain(const std::string& member, bool revoke) {
  if (revoke) return gathering_.revoke(member);
  gathering_.machines().drain(member);
  return {};
}

double JoinedDeployment::invite(bool revoke, std::optional<double> lifetime_s) {
  return gathering_.show_new_invitation(revoke, lifetime_s);
}

}  // namespace motley
