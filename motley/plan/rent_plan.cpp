#include "motley/plan/rent_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "motley/cluster/interconnect.hpp"

namespace motley {

double carried_per_s(const Offers& offers, const std::vector<RentedConfiguration>& fleet,
                     const RentAssignment& assignment) {
  const std::vector<double> mix = class_mix(offers);
  double busiest_s = 0;  // per request of the mix, spread over the copies
  for (const auto& rented : fleet) {
    const auto configuration = std::find_if(offers.configurations.begin(), offers.configurations.end(),
                                            [&](const auto& c) { return c.name == rented.configuration; });
    if (configuration == offers.configurations.end()) continue;
    double busy_s = 0;
    for (std::size_t w = 0; w < mix.size(); ++w) {
      const auto of_class = assignment.find(offers.classes[w].name);
      if (mix[w] <= 0 || of_class == assignment.end()) continue;
      const auto share = of_class->second.find(rented.configuration);
      if (share == of_class->second.end() || share->second <= 0) continue;
      busy_s += share->second * mix[w] / (configuration->rate_per_s[w] * offers.utilisation);
    }
    busiest_s = std::max(busiest_s, busy_s / static_cast<double>(rented.copies));
  }
  return busiest_s > 0 ? 1 / busiest_s : 0;
}

namespace {

constexpr std::int64_t slots_per_machine = 8;
constexpr LinkSpeed between_machines{.latency_s = 0.2e-3, .bandwidth_bytes_per_s = 1.25e9};
constexpr LinkSpeed between_domains{.latency_s = 50e-3, .bandwidth_bytes_per_s = 0.125e9};

std::string machine_name(std::string_view text) {
  std::string name;
  for (const char c : text) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
    name += plain ? c : '-';
  }
  return name;
}

// Devices of one type of one copy, machine by machine: whole stages, as many as a machine has slots for.
std::vector<std::int64_t> machines_of(const Configuration& configuration, const std::string& type, std::int64_t count) {
  std::int64_t unit = 1;
  for (const auto& stage : configuration.stages)
    if (stage.device_type == type) unit = stage.degree;
  const std::int64_t most = std::max<std::int64_t>(unit, slots_per_machine / unit * unit);
  std::vector<std::int64_t> machines(static_cast<std::size_t>(count / most), most);
  if (count % most > 0) machines.push_back(count % most);
  return machines;
}

}  // namespace

ClusterDescription rented_cluster(const RentPlan& plan) {
  ClusterDescription cluster;
  cluster.name = "rented";
  std::set<std::string> names, sites;
  for (const auto& rented : plan.fleet) {
    const auto configuration = std::find_if(plan.offers.configurations.begin(), plan.offers.configurations.end(),
                                            [&](const auto& c) { return c.name == rented.configuration; });
    if (configuration == plan.offers.configurations.end())
      throw input_error(fmt::format("the offers have no configuration \"{}\"", rented.configuration),
                        "`motley verify` says what else is wrong with the plan");
    for (const auto& [type, count] : rented.devices) {
      const OfferType& offer = plan.offers.types.at(type);
      const auto sizes = machines_of(*configuration, type, count);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        MachineDescription machine;
        machine.name = machine_name(rented.configuration);
        if (rented.devices.size() > 1) machine.name += "-" + machine_name(type);
        if (sizes.size() > 1) machine.name += fmt::format("-m{}", i);
        while (!names.insert(machine.name).second) machine.name += "_";
        machine.count = rented.copies;
        machine.site = offer.domain.empty() ? "rented" : machine_name(offer.domain);
        machine.devices = {sizes[i] > 1 ? fmt::format("{}*{}", type, sizes[i]) : type};
        machine.link = machine_link(type);
        machine.usd_per_hour = static_cast<double>(sizes[i]) * offer.usd_per_hour;
        sites.insert(machine.site);
        cluster.machines.push_back(std::move(machine));
      }
    }
  }
  cluster.network.within_site = plan.offers.network.value_or(between_machines);
  if (sites.size() > 1) cluster.network.between_sites = between_domains;
  return resolve(cluster, "the rented fleet").description;
}

}  // namespace motley
