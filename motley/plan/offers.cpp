#include "motley/plan/offers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

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

}  // namespace motley
