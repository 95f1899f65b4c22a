// What one pipeline over some devices can be made of: classes, kinds of stages, and the chain problem they make at a
// given batch.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/planner/serve/pipeline/classes.hpp"
#include "motley/planner/serve/pipeline/serve_problem.hpp"
#include "motley/solve/chain_dp.hpp"

namespace motley {

// Who says how many layers fit.
enum class MemoryRule {
  true_bytes,  // the form's and model/'s: the plan will run
  form_only    // the form's alone, to compare with published results
};

// A kind of stage: units of one class, or of several where types are mixed or tensor parallelism may cross machines; or
// one device that offloads, with at most this many layers.
struct StageKind {
  std::vector<int> takes;  // units of every class
  int place = 0;
  std::vector<double> shares;  // empty: equal
  std::vector<std::int64_t> expert_shares = {};
  TensorGroup group;                      // of the first such devices
  std::optional<MemoryTiers> tiers = {};  // none: all its layers are in its devices' own memory
  std::int64_t most_layers = 0;           // where there are tiers
};

// Which layers the stages of a chain hold.
std::vector<LayerRange> layers_of(const std::vector<ChainStage>& stages);

// How the stages of a chain offload, in order; none for those that do not.
using ChainOffload = std::vector<std::optional<StreamedStage>>;

// What the load of a stage is in a chain problem: all its work for a request, or for the chunks of a lone prompt after
// the first.
enum class LoadOf { request, further_chunks };

class StageTable {
 public:
  // The problem's cluster and model must outlive it.
  StageTable(const ServeProblem& problem, std::vector<DeviceClass> classes);

  // With every hop, block and end priced by `form`, and KV room for `in_flight` requests.
  ChainProblem problem(const ServeForm& form, const ServePoint& point, std::int64_t in_flight, MemoryRule rule,
                       std::vector<int> must_use, LoadOf load = LoadOf::request) const;

  // Where the stages of a chain that offload keep their layers, with KV room for `in_flight` requests.
  ChainOffload place(const ServeForm& form, const ServePoint& point, std::int64_t in_flight,
                     const std::vector<ChainStage>& stages) const;

  // A chain of this table on the devices that devices_of() deals out, with their real links (classes that were made by
  // type alone say nothing of links).
  PathPrice price(const ServeForm& form, const std::vector<ChainStage>& stages, const ChainOffload& offload) const;

  const std::vector<DeviceClass>& classes() const { return classes_; }
  const std::vector<StageKind>& kinds() const { return kinds_; }
  std::vector<int> counts() const;
  // Whether every number of layers is tried of stages that offload.
  bool all_sizes() const { return all_sizes_; }

  // Devices of every stage of a chain: units of a class are dealt out in order, first stage first.
  std::vector<std::vector<int>> devices_of(const std::vector<ChainStage>& stages) const;

 private:
  void add_alike(const ServeOptions& options);
  void add_across_machines();
  void add_mixed(const ServeOptions& options);
  void add_offloading(const ServeProblem& problem);
  void add_kind(std::vector<int> takes, int place, std::vector<double> shares = {});
  LayerRoom room(const ServeForm& form, const TensorGroup& group, const CacheRoom& caches, std::int64_t in_flight,
                 MemoryRule rule) const;
  std::vector<int> devices_taken(const std::vector<int>& takes) const;
  template <class Weight>
  std::vector<double> shares_by(const std::vector<int>& devices, Weight weight) const;
  int add_place(const std::vector<int>& members);
  std::optional<std::pair<TensorGroup, TensorGroup>> neighbours(int from, int to) const;
  void set_sending(TensorGroup& from, const TensorGroup& to) const;

  const Cluster& cluster_;
  const Architecture& arch_;
  std::vector<DeviceClass> classes_;
  StepLimits step_;
  WeightTypes weights_;
  DType kv_type_;
  std::optional<DType> crossing_type_;  // between machines
  bool all_sizes_ = true;
  std::vector<StageKind> kinds_;
  std::vector<std::vector<int>> place_devices_;  // one or two of every class that stands there
};

// Shares that say what each rank gets where the KV heads (or, beyond them, the query heads) do not divide evenly; empty
// where they do.
std::vector<double> uneven_shares(const Architecture& arch, int degree);

}  // namespace motley
