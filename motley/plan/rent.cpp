#include "motley/plan/rent.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "motley/cluster/interconnect.hpp"

namespace motley {

std::vector<std::string> offer_warnings(const Offers& offers) {
  constexpr double least_usd = 0.01, most_usd = 100, most_rate = 1e5;
  std::vector<std::string> warnings;
  for (const auto& [name, type] : offers.types)
    if (type.usd_per_hour > most_usd || (type.usd_per_hour > 0 && type.usd_per_hour < least_usd))
      warnings.push_back(
          fmt::format("{} is read as {:g} $/h for one device: is the unit right?", name, type.usd_per_hour));
  for (const auto& configuration : offers.configurations)
    for (std::size_t w = 0; w < configuration.rate_per_s.size(); ++w)
      if (configuration.rate_per_s[w] > most_rate)
        warnings.push_back(
            fmt::format("configuration {} is read to serve {:g} requests/s of class {}: is the unit right?",
                        configuration.name, configuration.rate_per_s[w], offers.classes[w].name));
  return warnings;
}

double total_demand_per_s(const Offers& offers) {
  double sum = 0;
  for (const auto& one : offers.classes) sum += one.demand_per_s.value_or(0);
  return sum;
}

std::vector<double> class_mix(const Offers& offers) {
  const double total = total_demand_per_s(offers);
  std::vector<double> mix;
  for (const auto& one : offers.classes)
    mix.push_back(one.share ? *one.share : total > 0 ? one.demand_per_s.value_or(0) / total : 0);
  return mix;
}

double copy_usd_per_hour(const Offers& offers, const Configuration& configuration) {
  double sum = 0;
  for (const auto& [type, count] : configuration.devices)
    sum += static_cast<double>(count) * offers.types.at(type).usd_per_hour;
  return sum;
}

std::vector<std::string> domains_of(const Offers& offers) {
  std::set<std::string> names;
  for (const auto& [name, type] : offers.types)
    if (!type.domain.empty()) names.insert(type.domain);
  return {names.begin(), names.end()};
}

bool in_domain(const Offers& offers, const Configuration& configuration, const std::string& domain) {
  return std::any_of(configuration.devices.begin(), configuration.devices.end(),
                     [&](const auto& entry) { return offers.types.at(entry.first).domain == domain; });
}

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

// ---- the rented machines ----

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
