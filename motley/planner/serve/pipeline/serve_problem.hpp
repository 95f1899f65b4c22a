// What the planner of serving is asked, and what it answers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/cost/form/form.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/solve/chain_dp.hpp"

namespace motley {

enum class Objective {
  slo,         // the greatest throughput that keeps the workload's deadlines; where none does, the least excess
  throughput,  // requests per second
  latency,     // of a single request; of equals the greatest throughput
  flow         // steady token rate; of pipelines that share nothing this is the throughput
};
EnumNames<Objective> names_of(Bound<Objective>);

enum class UseDevices { may_idle, all };
enum class TensorParallel { within_machine, across_machines };
enum class StageTypes {
  alike,  // devices of one type in a stage
  mixed   // also stages of all devices of several types of one machine, with uneven shares
};
enum class Replication { one_pipeline, allowed };

// Whether some stages only prefill and others only decode. The server does not run such plans yet, the simulator does.
enum class StageRoles { both, apart_where_better };

// Whether a device that has host memory or a disk behind it may become a stage that streams its weights.
enum class Offloading { never, where_better };

enum class Front { skip, whole_cluster };

// When a stage may hand over to another that holds [s, e), its own last layer being followed by `next`.
enum class Handover {
  exact,   // where that begins with the next layer: next = s
  partial  // where that holds the next layer: s <= next < e; it then computes [next, e) only
};

struct ServeOptions {
  Objective objective = Objective::slo;
  CostOptions cost = {};
  StepLimits step = {};
  std::uint64_t seed = 0;  // recorded; the search of this form draws no random numbers
  double deadline_s = 10;
  double effort = 1;  // scales how long local search goes on; below 1 inner searches are quick ones as well
  int threads = 1;    // over numbers of pipelines; the plan does not depend on it
  UseDevices use_devices = UseDevices::may_idle;
  TensorParallel tensor_parallel = TensorParallel::within_machine;
  StageTypes stage_types = StageTypes::mixed;  // published cost forms know only `alike`
  Replication replication = Replication::allowed;
  Front front = Front::whole_cluster;
  std::optional<DType> weight_type = {};           // default: the checkpoint's
  std::map<std::string, DType> weight_types = {};  // of stages on these device types, in place of `weight_type`
  std::optional<double> most_kl = {};       // choose types under this mean divergence (docs/concepts/planner-serve.md)
  std::optional<DType> kv_type = {};        // default: as the weights
  std::optional<DType> crossing_type = {};  // of activations between machines; default: as the next stage computes
  std::int64_t max_batch = 1024;            // most requests in flight per pipeline
  std::vector<std::string> excluded = {};   // devices to leave out, by name
  std::map<std::string, int> degrees = {};  // of tensor parallelism, for every stage on these machines
  Profile profile = {};                     // measured rates; the plan carries them
  Handover handover = Handover::exact;      // of stages that routes share (objective flow)
  StageRoles roles = StageRoles::apart_where_better;
  // Copies of other stages' layers in what memory is left, for which so much of each device is set aside as far as the
  // model still fits.
  std::optional<std::int64_t> standby_bytes = {};
  Offloading offloading = Offloading::where_better;  // published cost forms know no such stages
};

// A non-dominated layout of one pipeline over the whole cluster, for one request at a time (hexgen: one job of its
// batch).
struct FrontEntry {
  struct Stage {
    std::vector<std::string> devices;
    LayerRange layers;
  };
  double latency_s = 0;
  double bottleneck_s = 0;
  std::vector<Stage> stages;
};

struct ServeOutcome {
  std::optional<ServePlan> plan;
  std::string reason;  // where there is no plan: what is missing, and where
  std::string hint;
  std::vector<FrontEntry> front;  // by latency, ascending
};

// Work of one dynamic programme, in cells times kinds of stages, above which it is not tried: seconds where it is run
// once, some hundredths of a second where a local search runs it for thousands of groups.
inline constexpr double thorough_work = 4e8;
inline constexpr double quick_work = 1e7;

// Types of weights by the device types of a cluster. A stage on several has the one with the fewest bits.
struct WeightTypes {
  std::vector<DType> of_type;
  DType on(const Cluster& cluster, const std::vector<int>& devices) const;
};

// Those of a plan's stages, as options for another plan of its cluster.
std::map<std::string, DType> weight_types_of(const ServePlan& plan);

struct ServeProblem {
  const Cluster& cluster;
  const Model& model;
  const Workload& workload;
  const ServeOptions& options;
  DType weight_type;
  DType kv_type;
  Instant deadline;
  double most_work = thorough_work;
  double effort = 1;          // scales how long local search goes on
  Phase phase = Phase::both;  // what the pipelines do of a request

  WeightTypes weight_types() const;
  DType weights_on(const std::vector<int>& on) const { return weight_types().on(cluster, on); }
  // The type that the options give to what goes from a stage on these devices to one on those.
  std::optional<DType> sent_in(const std::vector<int>& from, const std::vector<int>& to) const;
  DType smallest_weights() const { return weights_on(devices()); }  // that a stage may have
  std::vector<int> devices() const;  // of the cluster, without those that the options exclude
  ServePoint point(std::int64_t sequences, bool loaded = false) const;
  std::unique_ptr<ServeForm> form(const ServePoint& point) const;
};

inline bool expired(const ServeProblem& problem) { return Clock::now() >= problem.deadline; }

// Whether the options, the form and the workload leave prefill and decode anything to part.
bool may_have_roles(const ServeProblem& problem);

}  // namespace motley
