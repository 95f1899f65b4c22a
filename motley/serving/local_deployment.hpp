// Plans that are served by this machine alone.
#pragma once

#include <utility>

#include "motley/serving/served_deployment.hpp"
#include "motley/workers/local_fleet.hpp"

namespace motley {

class LocalDeployment final : public ServedDeployment {
 public:
  explicit LocalDeployment(LocalFleetOptions options) : fleet_(std::move(options)) {}

  Fleet& fleet() override { return fleet_; }
  RestartRule restart() const override { return {.deaths = 3}; }
  // Over the devices of the plan's cluster that are left. Throws a negative error where nothing fits.
  Replan replan() override;

 private:
  LocalFleet fleet_;
};

}  // namespace motley
