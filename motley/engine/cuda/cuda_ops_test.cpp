// The operations by the CUDA kernels, which here run on the processor thread by thread, against the other operations on
// random shapes.
#include "motley/engine/cuda/cuda_ops.hpp"

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "motley/base/error.hpp"
#include "motley/base/quantised_types_test.hpp"
#include "motley/base/random.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/cuda/cuda_library.hpp"

namespace motley {
namespace {

using at::Tensor;

const cuda::Kernels& kernels_on_host() {
  static const cuda::Kernels& kernels = open_cuda_kernels(MOTLEY_HOST_KERNELS);
  return kernels;
}

class CudaOpsTest : public ::testing::Test {
 protected:
  CudaOpsTest() { at::manual_seed(11); }
  // Within [first, last].
  std::int64_t pick(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(uniform_at(7, turn_++) * static_cast<double>(last - first + 1));
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[pick(0, static_cast<std::int64_t>(values.size()) - 1)];
  }
  at::ScalarType type() { return one_of({at::kFloat, at::kBFloat16}); }
  static void expect_close(const Tensor& a, const Tensor& b, double tolerance = 0) {
    if (tolerance == 0) tolerance = a.scalar_type() == at::kBFloat16 ? 0.04 : 3e-5;
    const Tensor x = a.to(at::kFloat), y = b.to(at::kFloat);
    ASSERT_TRUE(at::allclose(x, y, tolerance, tolerance))
        << "largest difference " << (x - y).abs().max().item<float>() << " in " << a.sizes();
  }

  // As GGUF files hold the rows of `values`.
  static WeightMatrix held(DType kind, const Tensor& values) {
    const std::int64_t outputs = values.size(0), width = values.size(1);
    WeightMatrix matrix{
        .values = at::empty({outputs, bytes_of(kind, width)}, at::kByte), .type = kind, .inputs = width};
    for (std::int64_t row = 0; row < outputs; ++row)
      quantise_row(kind, values[row].const_data_ptr<float>(), width,
                   reinterpret_cast<std::byte*>(matrix.values[row].mutable_data_ptr<std::uint8_t>()));
    return matrix;
  }

  CudaOps ops_{kernels_on_host(), cpu_device()};
  const Ops& others_ = generic_ops();

 private:
  std::uint64_t turn_ = 0;
};

TEST_F(CudaOpsTest, Norms) {
  for (int i = 0; i < 600; ++i) {
    const auto kind = one_of({Norm::rms, Norm::rms1p, Norm::layer});
    const std::int64_t columns = i % 100 == 0 ? pick(4096, 5000) : pick(1, 300);
    const auto of = type();
    const Tensor x = at::randn({pick(1, 3), columns}).to(of);
    const NormWeights weights{at::randn({columns}).to(of), pick(0, 1) ? at::randn({columns}).to(of) : Tensor()};
    Tensor one = at::empty_like(x), other = at::empty_like(x);
    ops_.norm(kind, one, x, weights, 1e-5);
    others_.norm(kind, other, x, weights, 1e-5);
    expect_close(one, other);
  }
}

TEST_F(CudaOpsTest, Heads) {
  for (int i = 0; i < 600; ++i) {
    const std::int64_t tokens = pick(1, 4), dim = 4 * pick(1, 40), kv_heads = pick(1, 3), heads = kv_heads * pick(1, 4);
    const auto of = type();
    const RotaryFrequencies frequencies = rotary_frequencies({.theta = 5000, .partial = one_of({1.0, 0.5})}, dim);
    const Tensor positions = at::randint(0, 3000, {tokens}, at::kLong);
    const bool norms = pick(0, 1) == 1, rotates = !norms || pick(0, 1) == 1;
    const NormWeights query_norm{norms ? at::randn({dim}).to(of) : Tensor(), {}};
    const NormWeights key_norm{norms ? at::randn({dim}).to(of) : Tensor(), {}};
    const HeadRotation turn{one_of({Norm::rms, Norm::rms1p}), query_norm, key_norm, 1e-6, positions,
                            rotates ? &frequencies : nullptr};
    Tensor query = at::randn({tokens, heads, dim}).to(of), key = at::randn({tokens, kv_heads, dim}).to(of);
    Tensor other_query = query.clone(), other_key = key.clone();
    ops_.rotate_heads(query, key, turn);
    others_.rotate_heads(other_query, other_key, turn);
    expect_close(query, other_query, of == at::kFloat ? 2e-4 : 0);  // sine and cosine of large angles
    expect_close(key, other_key, of == at::kFloat ? 2e-4 : 0);
  }
}

TEST_F(CudaOpsTest, ActivationsSumsAndLookUps) {
  for (int i = 0; i < 1000; ++i) {
    const auto of = type();
    const std::int64_t rows = pick(1, 4), columns = pick(1, 200);
    const Tensor values = at::randn({rows, columns}).to(of), factors = at::randn({rows, columns}).to(of);
    const Tensor bias = pick(0, 1) ? at::randn({columns}).to(of) : Tensor();
    const auto kind = one_of<Activation>({Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu,
                                          Activation(Activation::swiglu, 0.7, 1.702)});
    Tensor one = values.clone(), other = values.clone();
    ops_.activate(Activation::relu, one, pick(0, 1) ? factors : Tensor());
    one = values.clone();
    ops_.activate(kind, one, factors);
    others_.activate(kind, other, factors);
    expect_close(one, other);
    ops_.add(one, factors, bias);
    others_.add(other, factors, bias);
    expect_close(one, other);
    const Tensor table = at::randn({9, columns}).to(of), tokens = at::randint(0, 40, {rows}, at::kLong);
    ops_.embedding(one, tokens, {table}, {20, 29});
    others_.embedding(other, tokens, {table}, {20, 29});
    ASSERT_TRUE(one.equal(other));
  }
}

TEST_F(CudaOpsTest, ProductsOfPlainWeights) {
  for (int i = 0; i < 300; ++i) {
    const auto of = type();
    const std::int64_t rows = pick(1, 12), inputs = pick(0, 1) ? 8 * pick(1, 90) : pick(1, 300);
    const Tensor x = (at::randn({rows, inputs}) / std::sqrt(static_cast<double>(inputs))).to(of);
    const bool halves = of == at::kFloat && pick(0, 1) == 1;  // of fp16, against inputs of fp32
    const auto weights = [&](std::int64_t outputs) {
      return LinearWeights{{at::randn({outputs, inputs}).to(halves ? at::kHalf : of)},
                           pick(0, 1) ? at::randn({outputs}).to(of) : Tensor()};
    };
    const LinearWeights a = weights(pick(1, 40)), b = weights(pick(1, 9)), c = weights(pick(1, 9));
    const bool wide = pick(0, 1) == 1;
    const auto empty = [&](const LinearWeights& w) {
      return at::empty({rows, w.weight.values.size(0)}, wide ? at::kFloat : of);
    };
    std::vector<Tensor> one = {empty(a), empty(b), empty(c)}, other = {empty(a), empty(b), empty(c)};
    ops_.linears({{one[0], a}, {one[1], b}, {one[2], c}}, x);
    others_.linears({{other[0], a}, {other[1], b}, {other[2], c}}, x);
    for (std::size_t j = 0; j < 3; ++j) expect_close(one[j], other[j], of == at::kBFloat16 ? 0.04 : 0);

    const LinearWeights gate = weights(pick(1, 30)), up = {{at::randn_like(gate.weight.values)}, {}};
    Tensor out = at::empty({rows, gate.weight.values.size(0)}, of), other_out = out.clone(), between = out.clone();
    const auto kind = one_of<Activation>({Activation::silu, Activation(Activation::swiglu, 0.7, 1.702)});
    ops_.gated(kind, out, between, x, gate, up);
    others_.gated(kind, other_out, between, x, gate, up);
    expect_close(out, other_out);
    ops_.add_linear(out, between, x, gate);
    others_.add_linear(other_out, between, x, gate);
    expect_close(out, other_out);
  }
}

// The values that the matrix stands for are known exactly; inputs are rounded to int8 in groups.
TEST_F(CudaOpsTest, ProductsOfQuantisedWeights) {
  for (int i = 0; i < 300; ++i) {
    const DType kind = quantised_types.at(static_cast<std::size_t>(pick(0, std::ssize(quantised_types) - 1)));
    const std::int64_t block = dtype_row(kind).block_values, blocks = pick(1, 1024 / block), width = blocks * block;
    const std::int64_t outputs = pick(1, 12), rows = one_of<std::int64_t>({1, 2, 3, 5, 9, 16, 17, 70, 513});
    WeightMatrix weight = held(kind, at::randn({outputs, width}));
    weight.skipped = pick(0, 1) ? pick(0, std::min<std::int64_t>(block, width) - 1) : 0;
    weight.inputs = pick(std::max<std::int64_t>(1, width - block + 1 - weight.skipped), width - weight.skipped);
    const Tensor exact = dequantised(weight, at::kFloat);
    ops_.prepare(weight);

    Tensor rows_of_table = at::empty({outputs + 2, weight.inputs});
    ops_.embedding(rows_of_table, at::arange(-1, outputs + 1), weight, {0, outputs});
    ASSERT_TRUE(at::allclose(rows_of_table.narrow(0, 1, outputs), exact, 1e-5, 1e-5)) << name_of(kind);
    ASSERT_EQ(rows_of_table[0].abs().sum().item<float>() + rows_of_table[outputs + 1].abs().sum().item<float>(), 0);

    const Tensor x = at::randn({rows, weight.inputs}), bias = at::randn({outputs});
    Tensor out = at::zeros({rows, outputs});
    ops_.linear(out, x, weight, bias);
    const Tensor expected = at::linear(x, exact, bias);
    const double size = at::matmul(x.norm(2, 1, true), exact.norm(2, 1, true).t()).max().item<double>();
    ASSERT_LE((out - expected).abs().max().item<double>(), 0.02 * size) << name_of(kind) << " " << rows;
  }
}

// Of few rows, and of more than the kernels take; with biases and with gates of unlike types, which they do not know.
TEST_F(CudaOpsTest, RoutesAndMixesExperts) {
  const c10::InferenceMode guard;
  for (int i = 0; i < 80; ++i) {
    const auto plain = type();
    const DType of_plain = plain == at::kBFloat16 ? DType::bf16 : DType::fp32;
    const DType gate = one_of({of_plain, of_plain, DType::q8_0, DType::q4_k}), down = one_of({gate, gate, DType::q6_k});
    const DType up = i % 10 == 0 && is_quantised(gate) ? DType::q5_k : gate;
    const auto of = is_quantised(gate) || is_quantised(down) ? at::kFloat : plain;
    const bool rounded = of == at::kBFloat16 || is_quantised(gate) || is_quantised(down) || is_quantised(up);
    const std::int64_t tokens = pick(1, 12), count = pick(2, 6), active = pick(1, count);
    const std::int64_t hidden = rounded ? 256 : pick(1, 100), columns = rounded ? 256 : pick(1, 100);
    ExpertWeights own, generic;
    const auto add = [&](std::vector<LinearWeights> ExpertWeights::*matrices, DType kind, std::int64_t outputs,
                         std::int64_t inputs, bool biased) {
      const Tensor values = at::randn({outputs, inputs}) / std::sqrt(static_cast<double>(inputs));
      const LinearWeights linear{is_quantised(kind) ? held(kind, values) : WeightMatrix{.values = values.to(of)},
                                 biased ? at::randn({outputs}).to(of) : Tensor()};
      (generic.*matrices).push_back(linear);
      (own.*matrices).push_back(linear);
      ops_.prepare((own.*matrices).back().weight);
    };
    for (std::int64_t expert = 0; expert < count; ++expert) {
      add(&ExpertWeights::gate, gate, columns, hidden, i % 3 == 0);
      add(&ExpertWeights::up, up, columns, hidden, i % 3 == 0);
      add(&ExpertWeights::down, down, hidden, columns, i % 3 == 0);
    }
    const Experts rule{
        .count = count,
        .active = active,
        .router = {.score = one_of({RouterScore::softmax_of_chosen, RouterScore::softmax, RouterScore::sigmoid}),
                   .normalise = one_of({false, true}),
                   .factor = one_of({1.0, 2.5})}};
    const Tensor input = at::randn({tokens, hidden}).to(of),
                 selection_bias = one_of({false, true}) ? at::randn({count}) : Tensor();
    Tensor scores = at::randn({tokens, count}), other_scores = scores.clone();
    Tensor ids = at::empty({tokens, active}, at::kLong), other_ids = ids.clone(), shares = at::empty({tokens, active}),
           other_shares = shares.clone(), gates = at::empty({tokens * active, columns}, of), others = gates.clone(),
           out = at::empty_like(input), other_out = out.clone();
    ops_.score(rule.router.score, scores);
    others_.score(rule.router.score, other_scores);
    expect_close(scores, other_scores);
    other_scores = scores;  // they are rounded unlike
    ops_.route(ids, shares, scores, selection_bias, rule);
    others_.route(other_ids, other_shares, other_scores, selection_bias, rule);
    ASSERT_TRUE(ids.equal(other_ids));
    expect_close(shares, other_shares);
    const auto kind = one_of<Activation>({Activation::silu, Activation(Activation::swiglu, 0.7, 1.702)});
    ops_.mix_experts(kind, out, gates, others, input, ids, shares, own);
    others_.mix_experts(kind, other_out, gates, others, input, ids, shares, generic);
    if (rounded)
      ASSERT_LE((out - other_out).abs().max().item<float>(), 0.1 * other_out.to(at::kFloat).std().item<float>());
    else
      expect_close(out, other_out);
  }
}

struct Cached {
  std::vector<std::int32_t> blocks;
  std::int64_t length = 0;
};

TEST_F(CudaOpsTest, CacheAndAttention) {
  for (int i = 0; i < 80; ++i) {
    const auto of = type();
    const DType kv_type = one_of({DType::fp32, DType::bf16, DType::q8_0});
    const std::int64_t dim = kv_type == DType::q8_0 ? 32 * pick(1, 4)
                             : i % 20 == 0          ? 256
                             : i % 7 == 0           ? 20
                                                    : 8 * pick(1, 16);
    const std::int64_t kv_heads = pick(1, 2), heads = kv_heads * pick(1, 9),
                       block_tokens = one_of<std::int64_t>({1, 4, 7, 16});
    const std::int64_t longest = i % 10 == 0 ? 200 : 24, blocks_each = (longest + block_tokens - 1) / block_tokens;
    const CacheShape shape{3 * blocks_each, kv_heads, dim, block_tokens};
    const LayerCache one = empty_cache(kv_type, shape, cpu_device()), other = empty_cache(kv_type, shape, cpu_device());
    std::vector<std::int64_t> order(static_cast<std::size_t>(shape.blocks));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t j = order.size() - 1; j > 0; --j)
      std::swap(order[j], order[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(j)))]);
    std::vector<Cached> all(static_cast<std::size_t>(pick(1, 3)));
    for (std::size_t s = 0; s < all.size(); ++s)
      for (std::int64_t b = 0; b < blocks_each; ++b)
        all[s].blocks.push_back(
            static_cast<std::int32_t>(order[s * static_cast<std::size_t>(blocks_each) + static_cast<std::size_t>(b)]));
    const AttentionShape attention{.window = one_of<std::int64_t>({0, 0, 3, 20}),
                                   .scale = 0.3,
                                   .sinks = pick(0, 1) ? at::randn({heads}).to(of) : Tensor()};
    for (int step = 0; step < 2; ++step) {
      std::vector<SequenceRows> sequences;
      std::vector<Tensor> positions;
      std::int64_t tokens = 0;
      for (Cached& cached : all) {
        const std::int64_t count = step == 0 ? pick(1, longest - 1) : 1;
        sequences.push_back({tokens, count, cached.length, cached.blocks});
        positions.push_back(at::arange(cached.length, cached.length + count));
        cached.length += count;
        tokens += count;
      }
      const Tensor query = at::randn({tokens, heads, dim}).to(of), key = at::randn({tokens, kv_heads, dim}).to(of),
                   value = at::randn({tokens, kv_heads, dim}).to(of);
      Tensor out = at::zeros_like(query), other_out = at::zeros_like(query);
      const Tensor at_positions = at::cat(positions);
      ops_.begin_step({sequences}, at_positions);
      ops_.attend(out, query, key, value, one, sequences, attention);
      others_.attend(other_out, query, key, value, other, sequences, attention);
      ASSERT_TRUE(one.keys.equal(other.keys) && one.values.equal(other.values));
      if (one.key_scales.defined()) {
        ASSERT_TRUE(one.key_scales.equal(other.key_scales) && one.value_scales.equal(other.value_scales));
      }
      expect_close(out, other_out, of == at::kFloat ? 1e-4 : 0);
    }
  }
}

// A library that counts what it is asked to record.
struct Recorder {
  static inline int begun = 0, ended = 0, launched = 0, freed = 0, error = 0;
  static cuda::Kernels kernels() {
    begun = ended = launched = freed = error = 0;
    cuda::Kernels table = kernels_on_host();
    table.graph_begin = [](void*) { return ++begun, error; };
    table.graph_end = [](void*, void** graph) { return *graph = &ended, ++ended, 0; };
    table.graph_launch = [](void*, void*) { return ++launched, 0; };
    table.graph_free = [](void*) { ++freed; };
    return table;
  }
};

TEST(CudaRecords, AStepRunsIsRecordedAndReplayed) {
  const cuda::Kernels kernels = Recorder::kernels();
  int runs = 0;
  {
    const CudaOps ops(kernels, cpu_device());
    const auto work = [&] { ++runs; };
    ops.replay_or_run(2, work);
    EXPECT_EQ(runs, 1);
    EXPECT_EQ(Recorder::begun, 0);
    ops.replay_or_run(2, work);
    EXPECT_EQ(runs, 2);
    EXPECT_EQ(Recorder::ended, 1);
    EXPECT_EQ(Recorder::launched, 1);
    ops.replay_or_run(2, work);
    EXPECT_EQ(runs, 2);
    EXPECT_EQ(Recorder::launched, 2);
    ops.replay_or_run(4, work);  // another step
    EXPECT_EQ(runs, 3);
    EXPECT_EQ(Recorder::launched, 2);
  }
  EXPECT_EQ(Recorder::freed, 1);
}

// Records hold addresses: where a buffer moves, they are void.
TEST(CudaRecords, AreForgottenWhereABufferGrows) {
  const cuda::Kernels kernels = Recorder::kernels();
  const CudaOps ops(kernels, cpu_device());
  const std::vector<std::int32_t> few(3), many(5000);
  const auto step = [&](const std::vector<std::int32_t>& blocks) {
    ops.begin_step({{{0, 1, 0, blocks}}}, at::zeros({1}, at::kLong));
    ops.replay_or_run(2, [] {});
  };
  step(few);
  step(few);
  step(few);
  EXPECT_EQ(Recorder::launched, 2);
  step(many);
  EXPECT_EQ(Recorder::freed, 1);
  EXPECT_EQ(Recorder::launched, 2);
  step(few);
  EXPECT_EQ(Recorder::launched, 3);
}

TEST(CudaRecords, WhatCannotBeRecordedRunsAsItIs) {
  const cuda::Kernels kernels = Recorder::kernels();
  Recorder::error = 900;
  const CudaOps ops(kernels, cpu_device());
  int runs = 0;
  for (int i = 0; i < 5; ++i) ops.replay_or_run(2, [&] { ++runs; });
  EXPECT_EQ(runs, 5);
  EXPECT_EQ(Recorder::begun, 1);
  EXPECT_EQ(Recorder::launched, 0);
}

TEST(CudaRecords, AStepThatThrowsIsNotKept) {
  const cuda::Kernels kernels = Recorder::kernels();
  const CudaOps ops(kernels, cpu_device());
  ops.replay_or_run(2, [] {});
  EXPECT_THROW(ops.replay_or_run(2, [] { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(Recorder::freed, 1);
  EXPECT_EQ(Recorder::launched, 0);
}

// A library whose records are the tasks of experts: what else was done while it recorded is not done again.
struct Replayer {
  static inline std::vector<std::function<int()>> record;
  static inline int recorded = 0;
  static inline bool recording = false;
  static int run(const std::function<int()>& task) { return recording ? (record.push_back(task), 0) : task(); }
  static cuda::Kernels kernels() {
    recorded = 0;
    cuda::Kernels table = kernels_on_host();
    table.route = [](const cuda::RouteTask& task, void*) {
      return run([task] { return kernels_on_host().route(task, nullptr); });
    };
    table.experts = [](const cuda::ExpertsTask& task, void*) {
      return run([task] { return kernels_on_host().experts(task, nullptr); });
    };
    table.graph_begin = [](void*) { return record.clear(), recording = true, 0; };
    table.graph_end = [](void*, void** graph) { return *graph = &record, recording = false, ++recorded, 0; };
    table.graph_launch = [](void*, void*) {
      for (const auto& task : record) task();
      return 0;
    };
    table.graph_free = [](void*) {};
    return table;
  }
};

// A record chooses by the numbers of its own step; with more rows the host chooses, and there is no record.
TEST(CudaRecords, AStepWithExpertsIsReplayed) {
  const c10::InferenceMode guard;
  at::manual_seed(5);
  constexpr std::int64_t count = 5, active = 2, width = 32;
  ExpertWeights experts;
  for (auto* matrices : {&experts.gate, &experts.up, &experts.down})
    for (std::int64_t i = 0; i < count; ++i) matrices->push_back({.weight = {.values = at::randn({width, width})}});
  const cuda::Kernels kernels = Replayer::kernels();
  const CudaOps ops(kernels, cpu_device());
  for (const std::int64_t tokens : {3, 9}) {
    const Tensor input = at::empty({tokens, width}), logits = at::empty({tokens, count});
    Tensor ids = at::empty({tokens, active}, at::kLong), shares = at::empty({tokens, active}),
           gates = at::empty({tokens * active, width}), others = gates.clone(), out = at::empty_like(input);
    const auto step = [&](const Ops& by) {
      by.route(ids, shares, logits, {}, {.count = count, .active = active});
      by.mix_experts(Activation::silu, out, gates, others, input, ids, shares, experts);
    };
    for (int turn = 0; turn < 4; ++turn) {
      input.normal_();
      logits.normal_();
      step(generic_ops());
      const Tensor expected = out.clone();
      out.zero_();
      ops.replay_or_run(tokens, [&] { step(ops); });
      EXPECT_TRUE(at::allclose(out, expected, 1e-4, 1e-3)) << tokens << " " << turn;
    }
    EXPECT_EQ(Replayer::recorded, 1);
  }
}

TEST(CudaLibrary, OthersAreRefused) {
  const auto refused = [](const std::string& path) -> std::string {
    try {
      open_cuda_kernels(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::environment);
      EXPECT_THAT(error.hint(), testing::HasSubstr("./dev gpu --build"));
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refused("/nowhere/libmotley_cuda.so"), testing::HasSubstr("cannot open"));
  EXPECT_THAT(refused("libm.so.6"), testing::HasSubstr("not a library of CUDA kernels"));
  EXPECT_THAT(refused(MOTLEY_OLD_KERNELS), testing::HasSubstr("kernels of version 0"));
}

// A kernel's error names what was being done.
TEST(CudaLibrary, ErrorsAreSaid) {
  cuda::Kernels kernels = kernels_on_host();
  kernels.norm = [](const cuda::NormTask&, void*) { return 700; };
  const CudaOps ops(kernels, cpu_device());
  Tensor x = at::randn({1, 8});
  try {
    ops.norm(Norm::rms, x, x, {at::ones({8}), {}}, 1e-5);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("CUDA error 700"));
    EXPECT_THAT(error.what(), testing::HasSubstr("normalising"));
  }
}

}  // namespace
}  // namespace motley
