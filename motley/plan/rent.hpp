// Renting: what is offered (motley.offers/1), and the plan of kind "rent".
//
// A configuration is one replica shape: devices, and the rate at which one copy serves each class of requests when it
// serves only that class. Time-sharing between classes adds up: a copy that gives a part of its time to each class
// serves that part of each rate. docs/planner-rent.md has the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/plan/format.hpp"
#include "motley/plan/plan.hpp"

namespace motley {

// ---- offers ----

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
template <>
const Schema<Offers>& schema<Offers>();

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

// ---- the plan ----

enum class RentForm {
  budget,   // the greatest throughput for so much money
  cheapest  // the least money that carries the demand
};
template <>
const std::vector<EnumName<RentForm>>& enum_names<RentForm>();

struct RentGoal {
  RentForm form = RentForm::budget;
  std::optional<double> budget_usd_per_hour;
  double survive = 0;        // share of the throughput that must be left when any one domain is lost
  double startup_share = 0;  // of its hourly price that a copy costs at its start, per hour until the next planning
  std::map<std::string, std::int64_t> current;  // copies that run already, by configuration: these start free
  bool operator==(const RentGoal&) const = default;
};

struct RentedConfiguration {
  std::string configuration;
  std::map<std::string, std::int64_t> devices;  // of one copy
  std::int64_t copies = 0;
  double usd_per_hour = 0;  // of one copy
  bool operator==(const RentedConfiguration&) const = default;
};

// Share of every class that goes to each configuration.
using RentAssignment = std::map<std::string, std::map<std::string, double>>;

struct HomogeneousFleet {
  std::string type;
  std::optional<double> limited;    // with the devices that are available; none: it cannot
  std::optional<double> unlimited;  // with as many as one likes
  bool operator==(const HomogeneousFleet&) const = default;
};

struct ClassExplanation {
  double usd_per_1000_requests = 0;  // what 1000 more would cost, by the relaxation's prices
  double scarcity_share = 0;         // of that price which is paid for devices that are all rented
  std::string binding;               // what keeps this class from more
  bool operator==(const ClassExplanation&) const = default;
};

struct SlowerCase {
  std::string type;  // slower than planned with; empty: every type
  double factor = 1;
  double throughput_per_s = 0;                   // of this fleet, requests routed again
  std::optional<double> replanned_usd_per_hour;  // of the cheapest fleet that would carry the demand
  bool operator==(const SlowerCase&) const = default;
};

struct RentPrediction {
  double throughput_per_s = 0;  // requests of the whole mix that the fleet carries
  double cost_usd_per_hour = 0;
  std::optional<double> headroom;  // throughput / demand
  double startup_usd_per_hour = 0;
  std::map<std::string, double> shadow_price_usd_per_hour;  // what one more device of the type is worth
  std::vector<HomogeneousFleet> homogeneous;                // requests/s for the budget; $/h in the form `cheapest`
  std::map<std::string, ClassExplanation> classes;
  std::vector<SlowerCase> slower;
  bool operator==(const RentPrediction&) const = default;
};

struct RentPlan {
  std::string kind = "rent";
  std::optional<ModelDocument> model;  // where the configurations come from the cost model
  std::optional<Workload> workload;
  Offers offers;
  RentGoal goal;
  std::vector<RentedConfiguration> fleet;
  RentAssignment assignment;
  std::map<std::string, RentAssignment> fallback;  // when a domain is lost
  RentPrediction predicted;
  SearchRecord search;
  bool operator==(const RentPlan&) const = default;
};
template <>
const Schema<RentPlan>& schema<RentPlan>();

Value write_rent_plan(const RentPlan& plan);
RentPlan read_rent_plan(const Value& value, std::string source);

// Requests per second of the whole mix when the busiest configuration is full.
double carried_per_s(const Offers& offers, const std::vector<RentedConfiguration>& fleet,
                     const RentAssignment& assignment);

// Checks a plan by arithmetic alone, knowing no planner and no solver. Empty: nothing wrong.
std::vector<Violation> verify(const RentPlan& plan);

// The rented machines as a cluster that can be planned on. Throws an input error where a type is not in the catalogue.
ClusterDescription rented_cluster(const RentPlan& plan);

}  // namespace motley
