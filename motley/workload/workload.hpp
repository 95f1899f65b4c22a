// What is asked: kinds of requests, how they arrive, and by when they must be answered.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/base/dtype.hpp"

namespace motley {

// A number of tokens, or its distribution.
struct Length {
  double mean = 0;
  double p50 = 0;  // 0: not given
  double p99 = 0;
  std::string trace;  // a CSV file with the lengths
  bool operator==(const Length&) const = default;
};

struct Deadline {
  double first_token_s = 0;  // 0: none
  double per_token_s = 0;
  double total_s = 0;
  bool operator==(const Deadline&) const = default;
};

struct RequestClass {
  std::string name;
  double rate_per_s = 0;
  Length prompt_tokens;
  Length output_tokens;
  Deadline deadline = {};
  double cached_share = 0;  // of a prompt's tokens: earlier requests of the class begin with them, too
  bool operator==(const RequestClass&) const = default;
  double computed_prompt_tokens() const { return (1 - cached_share) * prompt_tokens.mean; }
};

enum class ArrivalProcess { constant, poisson, gamma, trace };
EnumNames<ArrivalProcess> names_of(Bound<ArrivalProcess>);

struct Arrival {
  ArrivalProcess process = ArrivalProcess::poisson;
  double cv = 1;     // coefficient of variation, gamma only
  std::string file;  // trace only: arrival_s,prompt_tokens,output_tokens,class
  bool operator==(const Arrival&) const = default;
};

struct StateBytes {
  double weight = 2, gradient = 2, master = 4, moments = 8;  // bytes per parameter
  bool operator==(const StateBytes&) const = default;
};

// What runs a training plan; the cost form has constants for each.
enum class Executor {
  motley,
  fsdp  // PyTorch's fully sharded data parallelism
};
EnumNames<Executor> names_of(Bound<Executor>);

// What the learning rate does after its warm-up.
enum class RateSchedule { constant, cosine, linear };
EnumNames<RateSchedule> names_of(Bound<RateSchedule>);

struct Training {
  std::int64_t sequence_length = 0;
  std::int64_t global_batch = 0;  // sequences per step
  std::int64_t micro_batch = 0;   // 0: the planner chooses
  DType precision = DType::bf16;  // of the parameters
  std::optional<StateBytes> states;
  std::string optimizer = "adam";  // adam and adamw, which are the same here, or sgd
  Executor executor = Executor::motley;

  double learning_rate = 1e-3;
  RateSchedule schedule = RateSchedule::constant;
  std::int64_t warmup_steps = 0;
  double min_learning_rate = 0;
  std::int64_t total_steps = 0;              // at which the rate has come down; 0: the run's
  std::vector<double> betas = {0.9, 0.999};  // of the moments
  double eps = 1e-8;
  double weight_decay = 0.01;  // decoupled; not of norms and biases
  double momentum = 0;         // sgd only
  double clip_norm = 0;        // of all gradients together; 0: none
  bool operator==(const Training&) const = default;
};

// In step `step`, from 1. `total_steps` stands for the job's own where that says nothing.
double learning_rate(const Training& training, std::int64_t step, std::int64_t total_steps);

struct Workload {
  std::vector<RequestClass> classes;
  Arrival arrival;
  std::optional<Training> training;
  bool operator==(const Workload&) const = default;

  // Means over all classes, weighted by their rates (equally where no class has one).
  double mean_prompt_tokens() const;
  double mean_cached_tokens() const;  // of a prompt, that earlier ones begin with
  double mean_output_tokens() const;
  double total_rate_per_s() const;
};
Schema<Workload> schema_of(Bound<Workload>);

// One line of a trace file.
struct TraceRequest {
  double arrival_s = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::string class_name;  // "default" where the file has no such column
  bool operator==(const TraceRequest&) const = default;
};
// CSV with a header: arrival_s,prompt_tokens,output_tokens and optionally class; in order of arrival, at least one
// line.
std::vector<TraceRequest> read_trace(const std::filesystem::path& path);

// Paths of traces are taken relative to the file; lengths and rates that it leaves to a trace are filled in.
Workload read_workload(const std::filesystem::path& path);
// The workload that is assumed where none is given: one class "chat", 512 tokens in, 128 out, no deadline.
Workload default_workload();
// The same workload with every deadline multiplied.
Workload with_deadlines_scaled(Workload workload, double factor);

}  // namespace motley
