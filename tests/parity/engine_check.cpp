// Runs a model under many layouts inside one process, one thread per rank over real links, and writes what came out.
//
//   engine_check CASE.json OUT
//
// writes OUT.json (greedy tokens of every run) and OUT.bin (the logits they were taken from, fp32, in the order of
// OUT.json).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <mutex>
#include <optional>
#include <thread>

#include "motley/base/binding.hpp"
#include "motley/engine/devices.hpp"
#include "motley/engine/stage/crossing.hpp"
#include "motley/engine/stage/sampler.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {

struct CheckStage {
  std::int64_t first = 0, last = 0;  // layers
  int degree = 1;
  std::vector<double> shares;
  std::vector<std::int64_t> expert_shares;
  std::string backend = "cpu";  // of all its ranks
  bool operator==(const CheckStage&) const = default;
};

struct CheckLayout {
  std::string name;
  std::string transport = "shm";
  std::vector<CheckStage> stages;
  bool operator==(const CheckLayout&) const = default;
};

struct CheckRequest {
  std::vector<std::int32_t> prompt;
  std::int64_t generate = 1;
  std::vector<std::int32_t> forced;  // follow the prompt in place of what is chosen; as many as are generated
  bool operator==(const CheckRequest&) const = default;
};

// How the requests are run: `chunk` prompt tokens at a time (0: the whole prompt), one after the other or together.
struct CheckScript {
  std::string name;
  std::int64_t chunk = 0;
  bool together = false;
  bool operator==(const CheckScript&) const = default;
};

struct CheckCase {
  std::string model;
  DType weight_type = DType::fp32;
  DType kv_type = DType::fp32;
  std::optional<DType> crossing_type;  // none: what stages compute in
  std::int64_t block_tokens = 16;
  std::vector<CheckLayout> layouts;
  std::vector<CheckRequest> requests;
  std::vector<CheckScript> scripts;
};

template <>
const Schema<CheckStage>& schema<CheckStage>() {
  static const auto table = Schema<CheckStage>("stage", "Layers [first, last) on `degree` ranks.")
                                .field("first", &CheckStage::first, "", {.required = true})
                                .field("last", &CheckStage::last, "", {.required = true})
                                .field("degree", &CheckStage::degree, "")
                                .field("shares", &CheckStage::shares, "")
                                .field("expert_shares", &CheckStage::expert_shares, "")
                                .field("backend", &CheckStage::backend, "");
  return table;
}
template <>
const Schema<CheckLayout>& schema<CheckLayout>() {
  static const auto table = Schema<CheckLayout>("layout", "A chain of stages.")
                                .field("name", &CheckLayout::name, "", {.required = true})
                                .field("transport", &CheckLayout::transport, "")
                                .field("stages", &CheckLayout::stages, "", {.required = true});
  return table;
}
template <>
const Schema<CheckRequest>& schema<CheckRequest>() {
  static const auto table = Schema<CheckRequest>("request", "A prompt.")
                                .field("prompt", &CheckRequest::prompt, "", {.required = true})
                                .field("generate", &CheckRequest::generate, "", {.required = true})
                                .field("forced", &CheckRequest::forced, "");
  return table;
}
template <>
const Schema<CheckScript>& schema<CheckScript>() {
  static const auto table = Schema<CheckScript>("script", "A way to run the requests.")
                                .field("name", &CheckScript::name, "", {.required = true})
                                .field("chunk", &CheckScript::chunk, "")
                                .field("together", &CheckScript::together, "");
  return table;
}
template <>
const Schema<CheckCase>& schema<CheckCase>() {
  static const auto table = Schema<CheckCase>("case", "What to run.")
                                .field("model", &CheckCase::model, "", {.required = true})
                                .field("weight_type", &CheckCase::weight_type, "")
                                .field("kv_type", &CheckCase::kv_type, "")
                                .field("crossing_type", &CheckCase::crossing_type, "")
                                .field("block_tokens", &CheckCase::block_tokens, "")
                                .field("layouts", &CheckCase::layouts, "", {.required = true})
                                .field("requests", &CheckCase::requests, "", {.required = true})
                                .field("scripts", &CheckCase::scripts, "", {.required = true});
  return table;
}

namespace {

constexpr std::int64_t max_tokens = 256;

template <class T>
class Queue {
 public:
  void push(T value) {
    const std::lock_guard lock(mutex_);
    values_.push_back(std::move(value));
    changed_.notify_one();
  }
  T pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !values_.empty(); });
    T value = std::move(values_.front());
    values_.pop_front();
    return value;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> values_;
};

struct Logits {
  std::vector<float> values;  // [sequences that sample, vocabulary]
};

// One rank: its part of the model and its links.
struct Rank {
  StageSpec spec;
  std::string backend;
  DType crossing_type = DType::fp32;
  std::unique_ptr<WorkerGroup> group;    // of the stage; null: a single rank
  WorkerGroup* from_previous = nullptr;  // with who sends; null: the first stage
  std::vector<WorkerGroup*> to_next;     // with each receiver, null where another rank sends; none: the last stage
  Queue<std::optional<Step>> steps;
  StageModel::Allocated allocated;
};

// A layout at work: threads that wait for steps.
class Pipeline {
 public:
  Pipeline(const CheckCase& check, const CheckLayout& layout, const Architecture& arch, std::int64_t kv_tokens);
  ~Pipeline() {
    for (auto& rank : ranks_) rank->steps.push(std::nullopt);
    for (auto& thread : threads_) thread.join();
  }
  std::vector<float> run(const Step& step) {
    for (auto& rank : ranks_) rank->steps.push(step);
    const bool samples = std::ranges::any_of(step.sequences, [](const auto& s) { return s.sampling.has_value(); });
    return samples ? logits_.pop().values : std::vector<float>();
  }

 private:
  void connect(const CheckLayout& layout);
  void serve(Rank& rank, const std::string& folder);

  std::vector<std::unique_ptr<LinkedGroups>> links_;  // outlive the ranks' groups
  std::vector<std::vector<Rank*>> stages_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::thread> threads_;
  Queue<Logits> logits_;
};

Pipeline::Pipeline(const CheckCase& check, const CheckLayout& layout, const Architecture& arch,
                   std::int64_t kv_tokens) {
  for (const CheckStage& stage : layout.stages) {
    stages_.emplace_back();
    for (int r = 0; r < stage.degree; ++r) {
      auto rank = std::make_unique<Rank>();
      rank->backend = stage.backend;
      rank->crossing_type = check.crossing_type.value_or(dtype_row(check.weight_type).computed_in);
      rank->spec = {.arch = arch,
                    .layers = {stage.first, stage.last},
                    .embedding = stage.first == 0,
                    .head = stage.last == arch.layers,
                    .rank = r,
                    .degree = stage.degree,
                    .shares = stage.shares,
                    .expert_shares = stage.expert_shares,
                    .weight_type = check.weight_type,
                    .kv_type = check.kv_type,
                    .kv_tokens = kv_tokens,
                    .kv_sequences = static_cast<std::int64_t>(check.requests.size()),
                    .limits = {.max_tokens = max_tokens,
                               .max_sequences = static_cast<std::int64_t>(check.requests.size()),
                               .block_tokens = check.block_tokens}};
      stages_.back().push_back(rank.get());
      ranks_.push_back(std::move(rank));
    }
  }
  connect(layout);
  for (auto& rank : ranks_) threads_.emplace_back([this, &rank, folder = check.model] { serve(*rank, folder); });
}

void Pipeline::connect(const CheckLayout& layout) {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const auto& stage = stages_[s];
    const int degree = static_cast<int>(stage.size());
    if (degree > 1) {
      auto& groups =
          *links_.emplace_back(std::make_unique<LinkedGroups>(layout.transport, degree, 0, fmt::format("stage {}", s)));
      for (std::size_t r = 0; r < stage.size(); ++r) stage[r]->group = std::move(groups[r]);
    }
    if (s + 1 == stages_.size()) break;
    const auto& next = stages_[s + 1];
    for (std::size_t j = 0; j < next.size(); ++j) {
      const auto sender =
          static_cast<std::size_t>(crossing_sender(static_cast<int>(j), degree, static_cast<int>(next.size())));
      const auto& pair =
          *links_.emplace_back(std::make_unique<LinkedGroups>(layout.transport, 2, 0, fmt::format("rows {} {}", s, j)));
      next[j]->from_previous = pair[1].get();
      for (std::size_t r = 0; r < stage.size(); ++r) stage[r]->to_next.push_back(r == sender ? pair[0].get() : nullptr);
    }
  }
}

void serve_steps(Rank& rank, const std::string& folder, Queue<Logits>& logits) {
  const ComputeDevice& device = open_device(rank.backend);
  StageModel model(rank.spec, folder, rank.group.get(), device);
  const StageSpec& spec = rank.spec;
  const Shard shard = spec.shards()[static_cast<std::size_t>(spec.rank)];
  const ModelPart part{spec.layers, spec.embedding, spec.head};
  const StageModel::Allocated real = model.allocated();
  const std::int64_t planned =
      weight_bytes(spec.arch, part, shard, spec.weight_type) +
      cache_bytes(spec.arch, part.layers, shard, spec.kv_type, spec.cache_room(), spec.limits) +
      activation_bytes(spec.arch, part, shard, spec.weight_type, spec.limits);
  const std::int64_t total = real.weights + real.kv + real.activations;
  if (std::abs(total - planned) * 100 > planned)
    throw Error(ErrorCode::internal, fmt::format("{} bytes allocated where {} were planned", total, planned));

  std::optional<CrossingReceiver> receiver;
  if (rank.from_previous != nullptr) receiver.emplace(device, model.incoming_buffer(), rank.group.get());
  CrossingSender sender(device);
  while (const std::optional<Step> step = rank.steps.pop()) {
    std::int64_t tokens = 0;
    for (const StepSequence& sequence : step->sequences) tokens += sequence.count;
    at::Tensor incoming;
    if (receiver) {
      receiver->expect({step->step, tokens, rank.crossing_type, rank.from_previous});
      incoming = receiver->take(step->step);
    }
    const at::Tensor hidden = model.forward(*step, incoming);
    if (receiver) receiver->release();
    if (!rank.to_next.empty()) sender.post(hidden, rank.crossing_type, rank.to_next);
    if (!spec.head) continue;
    at::Tensor rows = model.logits(*step, hidden);
    if (spec.rank == 0 && rows.size(0) > 0) {
      rows = rows.to(at::kCPU);
      const float* values = rows.const_data_ptr<float>();
      logits.push({{values, values + rows.numel()}});
    }
  }
}

void Pipeline::serve(Rank& rank, const std::string& folder) {
  at::set_num_threads(1);
  const c10::InferenceMode guard;  // as in a worker
  try {
    serve_steps(rank, folder, logits_);
  } catch (const std::exception& error) {  // the other threads wait for this one: nothing can be undone
    std::cerr << fmt::format("rank {} of layers [{}, {}): {}\n", rank.spec.rank, rank.spec.layers.first,
                             rank.spec.layers.end, error.what());
    std::_Exit(70);
  }
}

// One request under way. Its KV blocks are its own from the start, and interleaved with the others', so that they are
// apart.
struct Running {
  std::vector<std::int32_t> tokens;
  std::int64_t done = 0;  // in the cache
  std::int64_t prompt = 0, generate = 0;
  std::vector<std::int32_t> forced = {}, blocks = {};
  std::vector<float> logits = {};
  std::int32_t slot = 0;
  bool finished() const { return std::ssize(tokens) == prompt + generate; }
};

std::vector<Running> start(const CheckCase& check, std::int64_t blocks_each) {
  std::vector<Running> all;
  const auto count = static_cast<std::int64_t>(check.requests.size());
  for (std::int64_t r = 0; r < count; ++r) {
    const CheckRequest& request = check.requests[static_cast<std::size_t>(r)];
    all.push_back({.tokens = request.prompt,
                   .prompt = std::ssize(request.prompt),
                   .generate = request.generate,
                   .forced = request.forced,
                   .slot = static_cast<std::int32_t>(count - 1 - r)});
    for (std::int64_t b = 0; b < blocks_each; ++b)
      all.back().blocks.push_back(static_cast<std::int32_t>((blocks_each - 1 - b) * count + r));
  }
  return all;
}

// Runs some requests to their end, all in every step.
void run_requests(Pipeline& pipeline, std::span<Running> running, std::int64_t chunk, std::int64_t vocabulary,
                  std::uint64_t& next_step) {
  while (!std::ranges::all_of(running, &Running::finished)) {
    Step step{.step = next_step++};
    std::int64_t budget = max_tokens;
    std::vector<Running*> parts;
    for (Running& r : running) {
      const std::int64_t left = std::ssize(r.tokens) - r.done;
      const std::int64_t count = std::min(chunk > 0 ? std::min(left, chunk) : left, budget);
      if (r.finished() || count == 0) continue;
      budget -= count;
      StepSequence part{
          .sequence = static_cast<std::uint64_t>(&r - running.data()), .position = r.done, .count = count};
      part.tokens.assign(r.tokens.begin() + r.done, r.tokens.begin() + r.done + count);
      part.blocks = r.blocks;
      part.slot = r.slot;
      if (count == left) part.sampling = Sampling{.temperature = 0};
      step.sequences.push_back(std::move(part));
      parts.push_back(&r);
    }
    const std::vector<float> logits = pipeline.run(step);
    auto row = logits.begin();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Running& r = *parts[i];
      r.done += step.sequences[i].count;
      if (!step.sequences[i].sampling) continue;
      const std::span<const float> mine(row, row + vocabulary);
      const auto place = static_cast<std::size_t>(r.done - r.prompt);
      r.tokens.push_back(r.forced.empty() ? sample(mine, *step.sequences[i].sampling, 0, r.done).token
                                          : r.forced.at(place));
      r.logits.insert(r.logits.end(), mine.begin(), mine.end());
      row += vocabulary;
    }
  }
}

void run_case(const CheckCase& check, const std::string& out) {
  const Architecture arch = read_model(check.model).arch;
  std::int64_t longest = 0;
  for (const CheckRequest& request : check.requests)
    longest = std::max(longest, std::ssize(request.prompt) + request.generate);
  const std::int64_t blocks_each = (longest + check.block_tokens - 1) / check.block_tokens;
  const auto requests = static_cast<std::int64_t>(check.requests.size());
  // So much that layers with a window keep that alone.
  const std::int64_t slot_blocks = requests * (window_blocks(widest_window(arch), check.block_tokens) + 1);
  const std::int64_t kv_tokens =
      std::max(blocks_each * requests, slot_blocks + max_tokens / check.block_tokens + 2) * check.block_tokens;

  std::ofstream bytes(out + ".bin", std::ios::binary);
  Value runs = Value::array();
  for (const CheckLayout& layout : check.layouts) {
    Pipeline pipeline(check, layout, arch, kv_tokens);
    std::uint64_t next_step = 1;
    for (const CheckScript& script : check.scripts) {
      std::vector<Running> running = start(check, blocks_each);
      if (script.together)
        run_requests(pipeline, running, script.chunk, arch.vocabulary, next_step);
      else
        for (Running& r : running) run_requests(pipeline, {&r, 1}, script.chunk, arch.vocabulary, next_step);
      for (std::size_t i = 0; i < running.size(); ++i) {
        const Running& r = running[i];
        Value tokens = Value::array();
        for (auto token = r.tokens.begin() + r.prompt; token != r.tokens.end(); ++token)
          tokens.push_back(std::int64_t{*token});
        runs.push_back(Value::object({{"layout", layout.name},
                                      {"script", script.name},
                                      {"request", static_cast<std::int64_t>(i)},
                                      {"tokens", std::move(tokens)}}));
        bytes.write(reinterpret_cast<const char*>(r.logits.data()),
                    static_cast<std::streamsize>(r.logits.size() * sizeof(float)));
      }
    }
  }
  write_file(out + ".json", to_json(runs));
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: engine_check CASE.json OUT\n";
    return 2;
  }
  try {
    motley::run_case(motley::read<motley::CheckCase>(motley::read_document(argv[1]), argv[1]), argv[2]);
    return 0;
  } catch (const motley::Error& error) {
    std::cerr << "error: " << error.what() << "\nhint: " << error.hint() << "\n";
    return static_cast<int>(error.code());
  }
}
