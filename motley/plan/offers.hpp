// What can be rented (motley.offers/1).
//
// A configuration is one replica shape: devices, and the rate at which one copy serves each class of requests when it
// serves only that class. Time-sharing between classes adds up: a copy that gives a part of its time to each class
// serves that part of each rate. docs/concepts/planner-rent.md has the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/cluster/cluster.hpp"

namespace motley {

struct OfferClass {
  std::string name;
  std::string model;                   // where several share the market
  std::optional<double> demand_per_s;  // requests, of all classes or of none
  std::optional<double> share;         // of all requests, otherwise; shares sum to 1
  bool operator==(const OfferClass&) const = default;
};

struct OfferType {
  double usd_per_hour = 0;                // of one device
  std::optional<std::int64_t> available;  // devices; none: as many as one likes
  std::string domain;                     // what fails together: a zone, a region, a spot pool
  bool operator==(const OfferType&) const = default;
};

// A stage of the pipeline that one copy is, first to last.
struct StageLayout {
  std::string device_type;
  std::int64_t degree = 1;  // tensor parallel
  std::int64_t layers = 0;
  bool operator==(const StageLayout&) const = default;
};

struct Configuration {
  std::string name;
  std::string model;
  std::map<std::string, std::int64_t> devices;  // of one copy, by type
  std::vector<double> rate_per_s;               // of one copy, one per class; 0: cannot
  std::vector<StageLayout> stages;              // where the cost model made it
  bool operator==(const Configuration&) const = default;
};

struct Offers {
  std::vector<OfferClass> classes;
  std::map<std::string, OfferType> types;
  std::vector<Configuration> configurations;
  double utilisation = 1;            // share of its rates that a copy is planned with
  std::optional<LinkSpeed> network;  // between the machines of a copy
  bool operator==(const Offers&) const = default;
};
Schema<Offers> schema_of(Bound<Offers>);

// Conditions across the entries: names, lengths, shares. Reading checks them too. Throws an input error.
void check_offers(const Offers& offers, const std::string& source);
Offers read_offers(const std::filesystem::path& path);

// Prices and rates that are most likely in a wrong unit, with the value read: for people.
std::vector<std::string> offer_warnings(const Offers& offers);

// Share of each class in all requests; sums to 1.
std::vector<double> class_mix(const Offers& offers);
// Requests per second of all classes; 0 where the classes have shares only.
double total_demand_per_s(const Offers& offers);
double copy_usd_per_hour(const Offers& offers, const Configuration& configuration);
// A configuration is lost with the domain of any of its devices. Domains by name, the unnamed one left out.
std::vector<std::string> domains_of(const Offers& offers);
bool in_domain(const Offers& offers, const Configuration& configuration, const std::string& domain);

}  // namespace motley
