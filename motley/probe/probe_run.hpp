// Worker processes that run single steps to order, to be timed: the same program, threads and channels as when a plan
// is served, over a model without meaning.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "motley/plan/serve_plan.hpp"
#include "motley/workers/fleet.hpp"

namespace motley {

// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();  // throws an environment error
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A Llama model with the widths of `shape` and this many layers; its config describes it completely.
Model probe_model(const Architecture& shape, std::int64_t layers);

// Writes model.safetensors with all its tensors. Zeros: a file that takes no room, and numbers that a processor takes
// as long to multiply as others. A GPU multiplies them faster, since its clock follows the power that it takes.
enum class Fill { zeros, random };
void write_weights(const Architecture& arch, const std::filesystem::path& folder, Fill fill = Fill::zeros);

struct ProbeStage {
  int degree = 1;
  std::int64_t layers = 1;
};
struct ProbeRoute {
  std::vector<ProbeStage> stages;
  DType type = DType::fp32;
};

// A plan that verify() need not accept: routes may have fewer layers than the model, on devices with room for anything.
// Each has a machine of its own, so that its devices begin at slot 0.
ServePlan probe_plan(const Model& model, const StepLimits& step, std::int64_t kv_tokens,
                     const std::vector<ProbeRoute>& routes);

// `sequences` sequences with `tokens` each after `position` cached ones.
struct ProbeStep {
  std::int64_t sequences = 1, tokens = 1, position = 0;
};
struct StepTime {
  double round_s = 0;             // from the sending to the last answer
  std::vector<double> compute_s;  // of the route's workers, in order
};

class ProbeRun {
 public:
  // Returns when all workers have loaded. Throws what a worker reports.
  // `model` is a folder.
  ProbeRun(ServePlan plan, Fleet& fleet, const std::filesystem::path& model);
  ~ProbeRun();
  ProbeRun(const ProbeRun&) = delete;
  ProbeRun& operator=(const ProbeRun&) = delete;

  const ServePlan& plan() const { return plan_; }
  StepTime run(std::size_t route, const ProbeStep& step);
  // Any step, but for its number: what the route's workers answer, in order.
  std::vector<StepResult> run(Step step);

 private:
  void wait();
  void take(std::size_t worker, const Message& message);

  ServePlan plan_;
  Workers workers_;
  std::vector<std::vector<std::size_t>> of_route_;  // workers
  std::size_t ready_ = 0;
  std::uint64_t step_ = 0;
  std::size_t answers_ = 0;  // to that step
  std::vector<StepResult> results_;
};

struct ProbeCase {
  std::size_t route = 0;
  ProbeStep step = {};
};
struct MeasuredStep {
  std::size_t route = 0;
  ProbeStep step = {};
  double round_s = 0;
  double compute_s = 0;  // of all workers together
  double rest_s = 0;     // of the round, without that
};

// Times of all cases, in order. The cases of a list take turns for a row of rounds, as decode steps follow one another:
// after a large product a processor is slower for a while. Then comes the next list; several passes of all where there
// is time, so that what disturbs one does not count. About `seconds`, but a few rounds of each case whatever they take.
std::vector<MeasuredStep> measure(ProbeRun& run, const std::vector<std::vector<ProbeCase>>& cases, double seconds);

}  // namespace motley
