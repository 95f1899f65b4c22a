#include "motley/probe/probe_run.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <random>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"
#include "motley/model/part_tensors.hpp"
#include "motley/probe/fit/typical.hpp"
#include "motley/probe/fit/unknown_machine.hpp"
#include "motley/workers/launch.hpp"

namespace motley {
namespace {

constexpr double answer_patience_s = 60;
constexpr double start_grace_s = 1;

// The tokens are others in each step.
Step step_of(std::uint64_t number, std::size_t route, const ProbeStep& asked, const ServePlan& plan) {
  Step step{.route = route, .sequences = {}};
  const std::int64_t end = asked.position + asked.tokens;
  const std::int64_t blocks = ceil_div(end, plan.step.block_tokens);
  for (std::int64_t i = 0; i < asked.sequences; ++i) {
    StepSequence sequence{.sequence = static_cast<std::uint64_t>(i) + 1,
                          .position = asked.position,
                          .count = asked.tokens,
                          .tokens = {},
                          .blocks = {},
                          .sampling = Sampling{.temperature = 0}};
    for (std::int64_t t = 0; t < asked.tokens; ++t)
      sequence.tokens.push_back(
          static_cast<std::int32_t>((t + static_cast<std::int64_t>(number)) % plan.model.arch.vocabulary));
    for (std::int64_t b = 0; b < blocks; ++b) sequence.blocks.push_back(static_cast<std::int32_t>(i * blocks + b));
    step.sequences.push_back(std::move(sequence));
  }
  return step;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "motley-probe-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) throw environment_error("cannot make a temporary folder");
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Model probe_model(const Architecture& shape, std::int64_t layers) {
  Model model;
  model.name = "probe";
  model.config = Value::object({{"model_type", "llama"},
                                {"num_hidden_layers", layers},
                                {"hidden_size", shape.hidden},
                                {"intermediate_size", shape.kinds.front().ffn},
                                {"num_attention_heads", shape.heads},
                                {"num_key_value_heads", shape.kinds.front().kv_heads},
                                {"head_dim", shape.kinds.front().head_dim},
                                {"vocab_size", shape.vocabulary},
                                {"max_position_embeddings", shape.context},
                                {"hidden_act", "silu"},
                                {"rms_norm_eps", 1e-5},
                                {"tie_word_embeddings", true},
                                {"torch_dtype", "bfloat16"}});
  model.arch = read_architecture(model.config, "probe");
  return model;
}

namespace {

// Numbers of bf16 between 1/64 and 1/32 in size, of random signs and digits.
void fill_at_random(const std::filesystem::path& file, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t pattern_values = (std::int64_t{1} << 20) + 7;  // rows differ
  std::mt19937 bits(1);
  std::vector<std::uint16_t> pattern(pattern_values);
  for (std::uint16_t& value : pattern) value = static_cast<std::uint16_t>((bits() & 0x807f) | 0x3c80);
  std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(begin);
  for (std::int64_t at = begin; at < end && out; at += pattern_values * 2)
    out.write(reinterpret_cast<const char*>(pattern.data()), std::min(pattern_values * 2, end - at));
  if (!out.flush()) throw environment_error(fmt::format("cannot write {}", file.string()));
}

}  // namespace

void write_weights(const Architecture& arch, const std::filesystem::path& folder, Fill fill) {
  Value header = Value::object();
  std::int64_t bytes = 0;
  for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch))) {
    Value shape = Value::array();
    for (const std::int64_t extent : tensor.shape) shape.push_back(extent);
    const std::int64_t end = bytes + bytes_of(DType::bf16, tensor.elements());
    header.set(tensor.name,
               Value::object({{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", Value::array({bytes, end})}}));
    bytes = end;
  }
  const std::string text = to_json(header);
  const auto length = static_cast<std::uint64_t>(text.size());
  const std::filesystem::path file = folder / "model.safetensors";
  write_file(file, std::string(reinterpret_cast<const char*>(&length), sizeof length) + text);
  const auto begin = static_cast<std::int64_t>(sizeof length + length);
  std::filesystem::resize_file(file, static_cast<std::uintmax_t>(begin + bytes));
  if (fill == Fill::random) fill_at_random(file, begin, begin + bytes);
}

ServePlan probe_plan(const Model& model, const StepLimits& step, std::int64_t kv_tokens,
                     const std::vector<ProbeRoute>& routes) {
  ServePlan plan;
  plan.model = model;
  plan.workload = default_workload();
  plan.step = step;
  ClusterDescription cluster;
  for (const ProbeRoute& asked : routes) {
    Route route{.id = fmt::format("r{}", plan.routes.size()), .path = {}};
    int devices = 0;
    std::int64_t layer = 0;
    for (const ProbeStage& described : asked.stages) {
      Stage stage{.id = fmt::format("{}/s{}", route.id, route.path.size()),
                  .layers = {layer, layer + described.layers},
                  .devices = {},
                  .shares = {},
                  .embedding = route.path.empty(),
                  .head = route.path.size() + 1 == asked.stages.size(),
                  .kv_tokens = kv_tokens,
                  .weight_type = asked.type,
                  .kv_type = asked.type};
      layer = stage.layers.end;
      for (int rank = 0; rank < described.degree; ++rank)
        stage.devices.push_back(fmt::format("{}/{}", route.id, devices++));
      route.path.push_back({stage.id, stage.layers});
      plan.stages.push_back(std::move(stage));
    }
    ClusterDescription machine = one_machine(devices, std::int64_t{1} << 50, route.id);
    std::ranges::move(cluster.machines, std::back_inserter(machine.machines));
    cluster = std::move(machine);
    plan.routes.push_back(std::move(route));
  }
  plan.cluster = resolve(cluster, "probe");
  return plan;
}

ProbeRun::ProbeRun(ServePlan plan, Fleet& fleet, const std::filesystem::path& model) : plan_(std::move(plan)) {
  Workers none;
  workers_ = start_workers(fleet, worker_devices(plan_), {.model = model, .rows = {}}, none);
  launch_workers(workers_, plan_, 1);
  results_.resize(workers_.size());
  std::map<std::string, std::vector<std::size_t>> of_stage;
  for (std::size_t i = 0; i < workers_.size(); ++i) of_stage[workers_[i].stage].push_back(i);
  for (const Route& route : plan_.routes) {
    std::vector<std::size_t>& workers = of_route_.emplace_back();
    for (const Hop& hop : route.path)
      workers.insert(workers.end(), of_stage[hop.stage].begin(), of_stage[hop.stage].end());
  }
  while (ready_ < workers_.size()) wait();
}

ProbeRun::~ProbeRun() { end_workers(workers_, start_grace_s); }

StepTime ProbeRun::run(std::size_t route, const ProbeStep& asked) {
  Step step = step_of(step_ + 1, route, asked, plan_);
  const Instant start = Clock::now();
  const std::vector<StepResult> results = run(std::move(step));
  StepTime time{.round_s = seconds_since(start), .compute_s = {}};
  for (const StepResult& result : results) time.compute_s.push_back(result.compute_s);
  return time;
}

std::vector<StepResult> ProbeRun::run(Step step) {
  const std::vector<std::size_t>& workers = of_route_.at(step.route);
  answers_ = 0;
  step.step = ++step_;
  const std::string message = encode(std::move(step));
  for (const std::size_t i : workers) workers_[i].handle->send(message);
  while (answers_ < workers.size()) wait();
  std::vector<StepResult> results;
  for (const std::size_t i : workers) results.push_back(std::move(results_[i]));
  return results;
}

// Until some worker has something to tell.
void ProbeRun::wait() {
  const std::vector<std::size_t> to_read = wait_for_workers(workers_, -1, answer_patience_s);
  if (to_read.empty()) throw Error(ErrorCode::peer, fmt::format("no worker answered within {} s", answer_patience_s));
  for (const std::size_t i : to_read) {
    WorkerHandle& handle = *workers_[i].handle;
    for (const Message& message : handle.receive()) take(i, message);
    if (handle.ended()) throw Error(ErrorCode::peer, workers_[i].name() + " ended");
  }
}

void ProbeRun::take(std::size_t worker, const Message& message) {
  if (const auto* failure = std::get_if<Failure>(&message))
    throw Error(ErrorCode::environment, fmt::format("{}: {}", workers_[worker].name(), failure->message),
                failure->hint);
  if (std::holds_alternative<Ready>(message)) ++ready_;
  const auto* result = std::get_if<StepResult>(&message);
  if (result == nullptr || result->step != step_) return;
  results_[worker] = *result;
  ++answers_;
}

std::vector<MeasuredStep> measure(ProbeRun& run, const std::vector<std::vector<ProbeCase>>& cases, double seconds) {
  constexpr int passes = 3, rounds = 10, warm_up_rounds = 3;
  constexpr int late_rounds = 3, late_warm_up_rounds = 1;
  struct Times {
    std::vector<double> round_s, compute_s, rest_s;
  };
  std::vector<std::vector<Times>> times;
  for (const auto& turns : cases) times.emplace_back(turns.size());
  const Instant start = Clock::now();
  const auto late = [&] { return seconds_since(start) > seconds; };
  for (int pass = 0; pass < passes && !(pass > 0 && late()); ++pass)
    for (std::size_t list = 0; list < cases.size(); ++list) {
      const bool hurry = late();
      for (int round = hurry ? -late_warm_up_rounds : -warm_up_rounds; round < (hurry ? late_rounds : rounds); ++round)
        for (std::size_t i = 0; i < cases[list].size(); ++i) {
          const StepTime time = run.run(cases[list][i].route, cases[list][i].step);
          if (round < 0) continue;
          const double compute_s = std::accumulate(time.compute_s.begin(), time.compute_s.end(), 0.0);
          times[list][i].round_s.push_back(time.round_s);
          times[list][i].compute_s.push_back(compute_s);
          times[list][i].rest_s.push_back(time.round_s - compute_s);
        }
    }
  std::vector<MeasuredStep> measured;
  for (std::size_t list = 0; list < cases.size(); ++list)
    for (std::size_t i = 0; i < cases[list].size(); ++i) {
      const Times& of = times[list][i];
      measured.push_back(
          {cases[list][i].route, cases[list][i].step, typical(of.round_s), typical(of.compute_s), typical(of.rest_s)});
    }
  return measured;
}

}  // namespace motley
