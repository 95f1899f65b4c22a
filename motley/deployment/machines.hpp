// The machines of a deployment, as far as the plan that it runs depends on them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

// From one machine to another.
struct MachineLink {
  std::string from, to;
  double latency_s = 0;  // one way
  double bytes_per_s = 0;
  bool operator==(const MachineLink&) const = default;
};
// For people: "a to b: 200 us, 119 MiB/s".
std::string describe(const MachineLink& link);

// Safe to use from several threads.
class Machines {
 public:
  virtual ~Machines() = default;

  // What those offer that are connected and do not want to leave, but for `without`; with the links that were measured.
  // Empty where there are none.
  virtual Cluster offered(const std::set<std::string>& without) const = 0;
  // Names of those that are connected and want to leave.
  virtual std::set<std::string> leaving() const = 0;
  // Devices of those that are connected that cannot be used for now, with the cause. offered() has them, too: a name
  // stays a device's own.
  virtual std::map<std::string, std::string> out_of_service() const = 0;
  // A descriptor that is readable from a change of these until clear_changed().
  virtual int changed() const = 0;
  virtual void clear_changed() = 0;

  // Measures the links between the machines that are there (or those of them in `among`), for about this many seconds.
  // What is known of them afterwards: also links that were measured before. Less than two machines measure nothing, and
  // where a measurement fails that is reported and nothing is learned. Returns early when `stop`, a descriptor, is
  // readable.
  virtual std::vector<MachineLink> measure_links(double seconds, int stop, const std::set<std::string>& among) = 0;
  virtual std::vector<MachineLink> links() const = 0;
};

// Of all devices that stages use.
std::set<std::string> machines_of(const ServePlan& plan);

}  // namespace motley
