// Renting: the plan of kind "rent". Copies of the offers' configurations, and which requests go to which.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/model/model.hpp"
#include "motley/plan/offers.hpp"
#include "motley/plan/shared.hpp"
#include "motley/workload/workload.hpp"

namespace motley {

enum class RentForm {
  budget,   // the greatest throughput for so much money
  cheapest  // the least money that carries the demand
};
EnumNames<RentForm> names_of(Bound<RentForm>);

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
Schema<RentPrediction> schema_of(Bound<RentPrediction>);

struct RentPlan {
  static constexpr PlanKind kind{"rent", "motley plan rent"};

  std::optional<Model> model;  // where the configurations come from the cost model
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
Schema<RentPlan> schema_of(Bound<RentPlan>);

// Requests per second of the whole mix when the busiest configuration is full.
double carried_per_s(const Offers& offers, const std::vector<RentedConfiguration>& fleet,
                     const RentAssignment& assignment);

// Checks a plan by arithmetic alone, knowing no planner and no solver. Empty: nothing wrong.
std::vector<Violation> verify(const RentPlan& plan);

// The rented machines as a cluster that can be planned on. Throws an input error where a type is not in the catalogue.
ClusterDescription rented_cluster(const RentPlan& plan);

}  // namespace motley
