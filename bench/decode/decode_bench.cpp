// Decode speed of a model on this machine's CPU or a GPU, one process, and the memory bandwidth that a CPU could reach.
//
//   decode_bench MODEL TYPE BATCH CONTEXT STEPS THREADS [KV [BACKEND]]
//                                 tokens/s of BATCH sequences that hold CONTEXT tokens each; of "1,16,1x2048" one line
//                                 for each, the last with a context of its own
//   decode_bench kernels          the names of the sets that this processor runs
//   decode_bench bandwidth THREADS  bytes/s of reading and of copying large arrays
//
// TYPE: of the weights; `file`: as the model has them. KV: of keys and values (default: the type computed in, and bf16
// with quantised weights). Prints JSON.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <thread>

#include "motley/base/rounding.hpp"
#include "motley/base/value.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/cpu/cpu_kernels.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/devices.hpp"
#include "motley/engine/ops/ops.hpp"
#include "motley/engine/stage/sampler.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/engine/weights/load_weights.hpp"

namespace motley {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Runs `work(thread)` on all threads at once; the best bytes/s of several rounds.
template <class Work>
double best_rate(int threads, double bytes, const Work& work) {
  double best = 0;
  for (int round = 0; round < 7; ++round) {
    const double begin = now_s();
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) running.emplace_back([&work, t] { work(static_cast<std::size_t>(t)); });
    for (std::thread& thread : running) thread.join();
    best = std::max(best, bytes / (now_s() - begin));
  }
  return best;
}

// An array of 512 MiB, far beyond any cache, in large pages where the system has them, as the engine's weights are.
struct LargeArray {
  static constexpr std::size_t bytes = std::size_t{512} << 20;
  LargeArray() : data(static_cast<std::uint64_t*>(std::aligned_alloc(std::size_t{2} << 20, bytes))) {
    ::madvise(data.get(), bytes, MADV_HUGEPAGE);
    std::memset(data.get(), 1, bytes);
  }
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<std::uint64_t, Free> data;
};

// The widest loads that the processor has, in independent sums.
__attribute__((target_clones("avx512f", "avx2", "default"))) std::uint64_t read_all(const std::uint64_t* from) {
  typedef std::uint64_t Vec __attribute__((vector_size(64)));
  const auto* vectors = reinterpret_cast<const Vec*>(from);
  Vec sums[4] = {};
  for (std::size_t i = 0; i < LargeArray::bytes / sizeof(Vec); i += 4)
    for (std::size_t j = 0; j < 4; ++j) sums[j] += vectors[i + j];
  const Vec sum = sums[0] + sums[1] + sums[2] + sums[3];
  return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

Value measure_bandwidth(int threads) {
  const auto count = static_cast<std::size_t>(threads);
  const std::vector<LargeArray> from(count), to(count);
  std::vector<std::uint64_t> sums(count * 8);
  const double bytes = static_cast<double>(count) * static_cast<double>(LargeArray::bytes);
  const double read = best_rate(threads, bytes, [&](std::size_t t) { sums[t * 8] = read_all(from[t].data.get()); });
  const double copy = best_rate(
      threads, 2 * bytes, [&](std::size_t t) { std::memcpy(to[t].data.get(), from[t].data.get(), LargeArray::bytes); });
  if (sums[0] != LargeArray::bytes / 8 * 0x0101010101010101U)
    throw Error(ErrorCode::internal, "the sum of what was read is wrong");
  return Value::object({{"read_bytes_per_s", read}, {"copy_bytes_per_s", copy}});
}

// A step of `count` tokens per sequence from `position` on: of each sequence and place others, which take other
// experts.
Step make_step(std::int64_t batch, std::int64_t position, std::int64_t count, std::int64_t blocks_each, bool samples) {
  constexpr std::int64_t some = 997, apart = 61;  // tokens; a sequence from the next
  Step step;
  for (std::int64_t s = 0; s < batch; ++s) {
    StepSequence sequence{.sequence = static_cast<std::uint64_t>(s),
                          .position = position,
                          .count = count,
                          .slot = static_cast<std::int32_t>(s)};
    for (std::int64_t i = position; i < position + count; ++i)
      sequence.tokens.push_back(static_cast<std::int32_t>(3 + (s * apart + i * i) % some));
    for (std::int64_t b = 0; b < blocks_each; ++b)
      sequence.blocks.push_back(static_cast<std::int32_t>(s * blocks_each + b));
    if (samples) sequence.sampling = Sampling{.temperature = 0};
    step.sequences.push_back(std::move(sequence));
  }
  return step;
}

// Blocks whose matrices are of a quantised type, made of those of the folder; norms and biases stay fp32.
class QuantisedBlocks final : public BlockStore {
 public:
  QuantisedBlocks(WeightLoader& loader, const LayerRange& layers, DType type) {
    for (std::int64_t layer = layers.first; layer < layers.end; ++layer) {
      BlockWeights block = loader.block(layer);
      for (LinearWeights* linear : {&block.q, &block.k, &block.v, &block.o, &block.gate, &block.up, &block.down})
        if (linear->weight.defined()) linear->weight = quantised(linear->weight, type);
      blocks_.push_back(std::move(block));
    }
  }
  const BlockWeights& block(std::int64_t layer) override { return blocks_.at(static_cast<std::size_t>(layer)); }
  std::int64_t bytes() const override {
    std::int64_t bytes = 0;
    for (const BlockWeights& block : blocks_)
      for (const LinearWeights* linear : {&block.q, &block.k, &block.v, &block.o, &block.gate, &block.up, &block.down})
        if (linear->weight.defined()) bytes += allocated_bytes(linear->weight.values);
    return bytes;
  }

  static WeightMatrix quantised(const WeightMatrix& from, DType type) {
    const std::int64_t rows = from.values.size(0), inputs = from.values.size(1);
    WeightMatrix matrix{.values = at::empty({rows, bytes_of(type, inputs)}, at::kByte), .type = type, .inputs = inputs};
    for (std::int64_t row = 0; row < rows; ++row)
      quantise_row(
          type, from.values.const_data_ptr<float>() + row * inputs, inputs,
          reinterpret_cast<std::byte*>(matrix.values.mutable_data_ptr<std::uint8_t>()) + row * matrix.values.size(1));
    cpu_ops().prepare(matrix);
    return matrix;
  }

 private:
  std::vector<BlockWeights> blocks_;
};

StageWeights weights_of(const StageSpec& spec, const std::string& folder, DType type) {
  if (dtype_row(type).computed_in == type || type == DType::file) return load_weights(spec, folder, cpu_device());
  WeightLoader loader(spec, folder, cpu_device());
  StageWeights weights{std::make_unique<QuantisedBlocks>(loader, spec.layers, type), loader.ends()};
  const bool tied = weights.ends.head.values.is_same(weights.ends.embedding.values);
  weights.ends.embedding = QuantisedBlocks::quantised(weights.ends.embedding, type);
  weights.ends.head = tied ? weights.ends.embedding : QuantisedBlocks::quantised(weights.ends.head, type);
  weights.ends.bytes =
      allocated_bytes(weights.ends.embedding.values) + (tied ? 0 : allocated_bytes(weights.ends.head.values));
  return weights;
}

struct Load {
  std::int64_t batch, context;
};

constexpr std::int64_t warm_steps = 4;  // of a GPU: the first are recorded

// Of each sequence.
std::int64_t blocks_of(const StageSpec& spec, const Load& load, std::int64_t steps) {
  const std::int64_t tokens = load.context + steps + warm_steps + 1;
  return ceil_div(tokens, spec.limits.block_tokens);
}

// Tokens as a worker gets them: drawn on the device where that draws, or from the logits on the host.
void choose_tokens(StageModel& model, const Step& step, std::int64_t vocabulary) {
  const at::Tensor logits = model.logits(step, model.forward(step, {}));
  const std::vector<PlainDraw> greedy(step.sequences.size());
  if (model.draw(logits, greedy)) return;
  const at::Tensor host = logits.to(at::kCPU);
  for (std::size_t s = 0; s < step.sequences.size(); ++s)
    sample({host[static_cast<std::int64_t>(s)].const_data_ptr<float>(), static_cast<std::size_t>(vocabulary)},
           *step.sequences[s].sampling, 0, step.sequences[s].position);
}

Value measure_load(StageModel& model, const StageSpec& spec, const Load& load, std::int64_t steps,
                   const ComputeDevice& device) {
  const auto [batch, context] = load;
  const std::int64_t blocks_each = blocks_of(spec, load, steps), chunk = spec.limits.max_tokens / batch;
  double prefill_s = 0;
  // A GPU's libraries choose kernels the first time, and what takes milliseconds is measured several times.
  std::vector<double> rounds;
  for (int round = 0; round < (device.has_own_memory() ? 6 : 1); ++round) {
    const double begin = now_s();
    for (std::int64_t done = 0; done < context; done += chunk)
      model.forward(make_step(batch, done, std::min(chunk, context - done), blocks_each, false), {});
    device.synchronize();
    prefill_s = now_s() - begin;
    if (round > 0) rounds.push_back(prefill_s);
  }
  if (!rounds.empty()) {
    std::ranges::nth_element(rounds, rounds.begin() + std::ssize(rounds) / 2);
    prefill_s = rounds[rounds.size() / 2];
  }
  const auto decode = [&](std::int64_t first, std::int64_t count) {
    const double begin = now_s();
    for (std::int64_t i = first; i < first + count; ++i)
      choose_tokens(model, make_step(batch, context + i, 1, blocks_each, true), spec.arch.vocabulary);
    device.synchronize();
    return (now_s() - begin) / static_cast<double>(count);
  };
  if (device.has_own_memory()) decode(0, warm_steps);
  const double step_s = decode(device.has_own_memory() ? warm_steps : 0, steps);
  return Value::object({{"batch", batch},
                        {"context", context},
                        {"tokens_per_s", static_cast<double>(batch) / step_s},
                        {"step_s", step_s},
                        {"prefill_tokens_per_s", context > 0 ? static_cast<double>(batch * context) / prefill_s : 0.0},
                        {"kernels", device.kernels()},
                        {"weight_bytes", model.allocated().weights},
                        {"kv_bytes", model.allocated().kv},
                        {"activation_bytes", model.allocated().activations},
                        {"weight_bytes_per_s", static_cast<double>(model.allocated().weights) / step_s}});
}

// "1,16,1x2048": numbers of sequences, some with a context of their own.
std::vector<Load> read_loads(const std::string& text, std::int64_t context) {
  std::vector<Load> loads;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    const auto cross = word.find('x');
    loads.push_back({std::stoll(word), cross == std::string::npos ? context : std::stoll(word.substr(cross + 1))});
  }
  return loads;
}

void measure_decode(const std::string& folder, DType type, const std::vector<Load>& loads, std::int64_t steps,
                    int threads, DType kv_type, const ComputeDevice& device) {
  at::set_num_threads(threads);
  StageSpec spec{.arch = read_model(folder).arch,
                 .embedding = true,
                 .head = true,
                 .weight_type = device.has_own_memory() || type == DType::file ? type : dtype_row(type).computed_in,
                 .kv_type = kv_type};
  spec.layers = {0, spec.arch.layers};
  for (const Load& load : loads) {
    spec.limits.max_sequences = std::max(spec.limits.max_sequences, load.batch);
    spec.limits.max_tokens = std::max({spec.limits.max_tokens, load.batch, device.has_own_memory() ? 2048L : 512L});
    spec.kv_tokens = std::max(spec.kv_tokens, load.batch * blocks_of(spec, load, steps) * spec.limits.block_tokens);
    if (has_states(spec.arch)) spec.kv_sequences = std::max(spec.kv_sequences, load.batch);
  }
  const c10::InferenceMode guard;
  StageModel model(spec, device.has_own_memory() ? load_weights(spec, folder, device) : weights_of(spec, folder, type),
                   nullptr, device);
  for (const Load& load : loads) std::cout << to_json(measure_load(model, spec, load, steps, device)) << std::endl;
}

Value kernel_names() {
  Value::Array names;
  for (const CpuKernels<float>* kernels : all_cpu_kernels<float>()) names.push_back(std::string(kernels->instructions));
  return Value(std::move(names));
}

void run(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "bandwidth") {
    std::cout << to_json(measure_bandwidth(std::stoi(arguments[1]))) << "\n";
    return;
  }
  if (arguments.size() == 1 && arguments[0] == "kernels") {
    std::cout << to_json(kernel_names()) << "\n";
    return;
  }
  if (arguments.size() < 6 || arguments.size() > 8)
    throw input_error("see the head of decode_bench.cpp for its arguments");
  const auto type_of = [](const std::string& name) {
    const DTypeRow* row = find_dtype(name);
    if (row == nullptr) throw input_error("there is no type " + name);
    return row->type;
  };
  const DType type = type_of(arguments[1]), computed_in = dtype_row(type).computed_in;
  const DType kv_type = arguments.size() > 6 ? type_of(arguments[6]) : computed_in != type ? DType::bf16 : computed_in;
  const ComputeDevice& device = open_device(arguments.size() > 7 ? arguments[7] : "cpu");
  measure_decode(arguments[0], type, read_loads(arguments[2], std::stoll(arguments[3])), std::stoll(arguments[4]),
                 std::stoi(arguments[5]), kv_type, device);
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  try {
    motley::run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 2;
  }
}
