// The CPU's operations against the generic ones, which are those of a GPU.
#include "motley/engine/ops/ops.hpp"
#include "motley/engine/cpu/cpu_device.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "motley/checkpoint/quants.hpp"
#include "motley/engine/device/host_memory.hpp"

namespace motley {
namespace {

using at::Tensor;

class OpsTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  Tensor random(at::IntArrayRef shape) const { return at::randn(shape).to(GetParam()); }
  void expect_close(const Tensor& a, const Tensor& b) const {
    const double tolerance = GetParam() == at::kFloat ? 2e-5 : 0.04;
    EXPECT_TRUE(at::allclose(a.to(at::kFloat), b.to(at::kFloat), tolerance, tolerance))
        << "largest difference " << (a.to(at::kFloat) - b.to(at::kFloat)).abs().max().item<float>();
  }
  // Runs `step(ops, out)` with both on copies of `out`.
  template <class Step>
  void compare(const Tensor& out, const Step& step) const {
    Tensor one = out.clone(), other = out.clone();
    step(cpu_ops(), one);
    step(generic_ops(), other);
    expect_close(one, other);
  }
};

// As `ops` reads it.
WeightMatrix prepared(const Ops& ops, const Tensor& values) {
  WeightMatrix matrix{.values = values.clone()};
  ops.prepare(matrix);
  return matrix;
}

TEST_P(OpsTest, Linear) {
  for (const std::int64_t inputs : {96, 75})
    for (const std::int64_t tokens : {0, 1, 3, 8, 64, 65, 90}) {
      const Tensor x = random({tokens, inputs}), w = random({50, inputs}), b = random({50});
      const auto of = [&](at::ScalarType type, const Tensor& bias) {
        compare(at::zeros({tokens, 50}, type),
                [&](const Ops& ops, Tensor& out) { ops.linear(out, x, prepared(ops, w), bias); });
      };
      of(GetParam(), b);
      of(GetParam(), {});
      of(at::kFloat, {});
    }
}

TEST_P(OpsTest, Norms) {
  const Tensor x = random({5, 3, 40});
  for (const Norm kind : {Norm::rms, Norm::rms1p, Norm::layer}) {
    const NormWeights plain{random({40}), {}}, biased{random({40}), random({40})};
    compare(x, [&](const Ops& ops, Tensor& out) { ops.norm(kind, out, x, plain, 1e-5); });
    compare(x, [&](const Ops& ops, Tensor& out) { ops.norm(kind, out, out, biased, 1e-5); });
  }
}

TEST_P(OpsTest, Rotation) {
  const RotaryFrequencies frequencies = rotary_frequencies({.theta = 500}, 24);
  const auto rotate = [&](const Tensor& positions, const RotaryFrequencies& by) {
    compare(random({5, 4, 24}), [&](const Ops& ops, Tensor& heads) { ops.rotate(heads, positions, by); });
  };
  rotate(at::tensor({0, 5, 100, 77, 3}, at::kLong), frequencies);
  rotate(at::tensor({0, 5, 100, 78, 3}, at::kLong), frequencies);
  rotate(at::tensor({0, 5, 100, 78, 3}, at::kLong), rotary_frequencies({.theta = 900}, 24));
}

TEST_P(OpsTest, ActivationsAndSums) {
  const Tensor factors = random({6, 33}), bias = random({33});
  for (const Activation kind : {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu}) {
    compare(random({6, 33}), [&](const Ops& ops, Tensor& values) { ops.activate(kind, values, {}); });
    compare(random({6, 33}), [&](const Ops& ops, Tensor& values) { ops.activate(kind, values, factors); });
  }
  const Activation clamped(Activation::swiglu, 0.7, 1.702);
  compare(random({6, 33}), [&](const Ops& ops, Tensor& values) { ops.activate(clamped, values, factors); });
  compare(random({6, 33}), [&](const Ops& ops, Tensor& values) { ops.scale(values, 9.7979589711); });
  compare(random({6, 33}), [&](const Ops& ops, Tensor& sum) { ops.add(sum, factors, {}); });
  compare(random({6, 33}), [&](const Ops& ops, Tensor& sum) { ops.add(sum, factors, bias); });
}

TEST_P(OpsTest, LookUpLeavesOtherRanksRowsZero) {
  const Tensor table = random({10, 71}), tokens = at::tensor({20, 29, 3, 30, 24}, at::kLong);
  compare(random({5, 71}), [&](const Ops& ops, Tensor& out) {
    ops.embedding(out, tokens, prepared(ops, table), {20, 30});
  });
  Tensor out = random({5, 71});
  cpu_ops().embedding(out, tokens, prepared(cpu_ops(), table), {20, 30});
  EXPECT_TRUE(out[0].equal(table[0]) && out[1].equal(table[9]) && out[4].equal(table[4]));
  EXPECT_EQ(out[2].abs().sum().item<float>() + out[3].abs().sum().item<float>(), 0);
}

TEST_P(OpsTest, CacheAndAttention) {
  for (const DType kv_type : {DType::fp32, DType::bf16, DType::q8_0})
    for (const auto& [window, with_sinks] : {std::pair{0, false}, {6, false}, {0, true}, {6, true}}) {
      const std::int64_t heads = 6, kv_heads = 2, dim = 64, block_tokens = 4;
      const CacheShape shape{12, kv_heads, dim, block_tokens};
      const Tensor sinks = with_sinks ? random({heads}) : Tensor();
      const LayerCache one = empty_cache(kv_type, shape, cpu_device()),
                       other = empty_cache(kv_type, shape, cpu_device());
      const std::vector<std::int32_t> first_blocks = {3, 0, 7, 1}, second_blocks = {5, 2};
      const std::vector<std::vector<SequenceRows>> steps = {
          {{0, 9, 0, first_blocks}, {9, 5, 0, second_blocks}},
          {{0, 1, 5, second_blocks}, {1, 6, 9, first_blocks}},  // a decode and a second chunk
      };
      for (const auto& sequences : steps) {
        const std::int64_t tokens = sequences.back().first_row + sequences.back().count;
        const Tensor query = random({tokens, heads, dim}), key = random({tokens, kv_heads, dim}),
                     value = random({tokens, kv_heads, dim});
        compare(at::zeros_like(query), [&](const Ops& ops, Tensor& out) {
          ops.attend(out, query, key, value, &ops == &cpu_ops() ? one : other, sequences,
                     {.window = window, .scale = 0.25, .sinks = sinks});
        });
        EXPECT_TRUE(one.keys.equal(other.keys) && one.values.equal(other.values));
        if (!one.key_scales.defined()) continue;
        EXPECT_TRUE(one.key_scales.equal(other.key_scales) && one.value_scales.equal(other.value_scales));
      }
    }
}

// Two sequences, each in its slot, in steps of unlike lengths: chunks and tokens, of another order each time.
TEST_P(OpsTest, DeltaNets) {
  const std::int64_t key_heads = 2, value_heads = 6, key_dim = 20, value_dim = 75, width = 4, longest = 150;
  const std::int64_t keys = key_heads * key_dim, values = value_heads * value_dim;
  const Tensor decay = at::randn({value_heads}) - 2, step = at::randn({value_heads}),
               weight = at::randn({values, width}) * 0.5;
  const auto each = [&](std::int64_t width_of) { return random({2, longest, width_of}); };
  const Tensor query = each(keys), key = each(keys), value = each(values), alpha = at::randn({2, longest, value_heads}),
               beta = at::randn({2, longest, value_heads});
  struct Run {
    Tensor out, states, kept;
  };
  // What comes of steps, in which the sequences have these numbers of rows.
  const auto run = [&](const Ops& ops, bool tiled, const std::vector<std::array<std::int64_t, 2>>& steps) {
    Run made{at::zeros({2, longest, value_heads, value_dim}, GetParam()),
             at::full({3, value_heads, key_dim, value_dim}, 7.0F), at::full({3, values, width - 1}, 7.0F)};
    std::array<std::int64_t, 2> done = {0, 0};
    for (const auto& counts : steps) {
      std::vector<SequenceRows> sequences;
      std::vector<std::size_t> order = {1, 0};
      std::int64_t rows = 0;
      for (const std::size_t s : order) {
        if (counts[s] == 0) continue;
        sequences.push_back({rows, counts[s], done[s], {}, static_cast<std::int32_t>(s == 0 ? 2 : 0)});
        rows += counts[s];
      }
      const auto gathered = [&](const Tensor& of) {
        std::vector<Tensor> parts;
        for (const std::size_t s : order)
          if (counts[s] > 0) parts.push_back(of[static_cast<std::int64_t>(s)].narrow(0, done[s], counts[s]));
        return at::cat(parts, 0);
      };
      Tensor apart = at::zeros({rows, values + 5}, GetParam());
      Tensor mixed = apart.narrow(1, 5, values);
      mixed.copy_(gathered(value));
      ops.convolve(mixed, weight, made.kept, sequences);
      Tensor out = at::zeros({rows, value_heads, value_dim}, GetParam());
      ops.gated_delta(out,
                      {.query = gathered(query).unflatten(1, {key_heads, key_dim}),
                       .key = gathered(key).unflatten(1, {key_heads, key_dim}),
                       .value = mixed.unflatten(1, {value_heads, value_dim}),
                       .alpha = gathered(alpha),
                       .beta = gathered(beta),
                       .decay = decay,
                       .step = step,
                       .tiled = tiled},
                      made.states, sequences);
      std::int64_t row = 0;
      for (const std::size_t s : order) {
        if (counts[s] == 0) continue;
        made.out[static_cast<std::int64_t>(s)].narrow(0, done[s], counts[s]).copy_(out.narrow(0, row, counts[s]));
        row += counts[s];
        done[s] += counts[s];
      }
    }
    return made;
  };
  std::vector<std::array<std::int64_t, 2>> tokens(static_cast<std::size_t>(longest), {1, 1});
  for (const bool tiled : {false, true}) {
    const Run whole = run(generic_ops(), tiled, {{longest, longest}});
    for (const auto& steps :
         {std::vector<std::array<std::int64_t, 2>>{{longest, longest}}, {{65, 0}, {1, 149}, {84, 1}}, tokens})
      for (const Ops* ops : {&cpu_ops(), &generic_ops()}) {
        const Run other = run(*ops, tiled, steps);
        expect_close(other.out, whole.out);
        for (const std::int64_t slot : {0, 2}) {
          expect_close(other.states[slot], whole.states[slot]);
          expect_close(other.kept[slot], whole.kept[slot]);
        }
        EXPECT_EQ(other.states[1].min().item<float>(), 7);
      }
    EXPECT_GT((run(cpu_ops(), !tiled, {{longest, longest}}).out - whole.out).abs().max().item<float>(), 0.05);
  }
}

TEST_P(OpsTest, Gates) {
  const Tensor gates = random({6, 2, 33}).select(1, 1), one = at::randn({6, 1});
  compare(random({6, 33}), [&](const Ops& ops, Tensor& values) { ops.gate(values, gates); });
  compare(random({6, 33}), [&](const Ops& ops, Tensor& values) { ops.gate(values, one); });
}

// Token 5 of a sequence whose second block is 2, in a cache of q8_0: the blocks that quantise_row() makes, which are
// those of GGUF. Among the values are some that lie halfway between two numbers, and a head of zeros.
TEST_P(OpsTest, CachedHeadsAreBlocksOfTheType) {
  const std::int64_t kv_heads = 3, dim = 64, block_tokens = 4;
  Tensor key = random({6, kv_heads, dim}), value = random({6, kv_heads, dim});
  key[5][0] = at::arange(-31, 33).to(GetParam()) / 2;
  key[5][0][10] = 127;
  key[5][1].zero_();
  const std::vector<std::int32_t> blocks = {1, 2};
  for (const Ops* ops : {&cpu_ops(), &generic_ops()}) {
    const LayerCache cache = empty_cache(DType::q8_0, {3, kv_heads, dim, block_tokens}, cpu_device());
    Tensor out = at::zeros({6, kv_heads, dim}, GetParam());
    ops->attend(out, key, key, value, cache, {{0, 6, 0, blocks}}, {});
    for (std::int64_t head = 0; head < kv_heads; ++head)
      for (const bool of_keys : {true, false}) {
        const Tensor from = (of_keys ? key : value)[5][head].to(at::kFloat);
        const Tensor held = of_keys ? cache.keys[2][head].select(1, 1) : cache.values[2][head][1];
        const Tensor scales = (of_keys ? cache.key_scales : cache.value_scales)[2][head].select(1, 1);
        std::vector<BlockQ8_0> expected(dim / 32);
        quantise_row(DType::q8_0, from.const_data_ptr<float>(), dim, reinterpret_cast<std::byte*>(expected.data()));
        for (std::int64_t i = 0; i < dim; ++i)
          ASSERT_EQ(held[i].item<int>(), expected[static_cast<std::size_t>(i / 32)].values[i % 32]) << head << " " << i;
        for (std::int64_t group = 0; group < dim / 32; ++group)
          ASSERT_EQ(scales[group].item<c10::Half>().x, expected[static_cast<std::size_t>(group)].scale) << head;
      }
  }
}

TEST(KvCache, KeepsItsBlocksInAnotherSize) {
  const std::int64_t kv_heads = 2, dim = 64, block_tokens = 4;
  for (const DType type : {DType::fp32, DType::bf16, DType::q8_0}) {
    LayerCache cache = empty_cache(type, {8, kv_heads, dim, block_tokens}, cpu_device());
    for (at::Tensor* tensor : {&cache.keys, &cache.values, &cache.key_scales, &cache.value_scales})
      if (tensor->defined()) tensor->copy_(at::randint(1, 100, tensor->sizes()));
    const at::Tensor keys = cache.keys.clone(), values = cache.values.clone();
    cache = resized(std::move(cache), type, {12, kv_heads, dim, block_tokens}, cpu_device());
    ASSERT_EQ(cache.keys.size(0), 12);
    EXPECT_TRUE(cache.keys.narrow(0, 0, 8).equal(keys) && cache.values.narrow(0, 0, 8).equal(values));
    EXPECT_EQ(cache.keys.narrow(0, 8, 4).count_nonzero().item<int>(), 0);
    EXPECT_EQ(cache.values.narrow(0, 8, 4).count_nonzero().item<int>(), 0);
    cache = resized(std::move(cache), type, {5, kv_heads, dim, block_tokens}, cpu_device());
    ASSERT_EQ(cache.values.size(0), 5);
    EXPECT_TRUE(cache.keys.equal(keys.narrow(0, 0, 5)) && cache.values.equal(values.narrow(0, 0, 5)));
  }
}

// To copy a cache would be most of what it takes to go over to another plan.
TEST(KvCache, OfAnotherSizeHasThePagesThatWereWritten) {
  const CacheShape shape{1024, 2, 64, 16}, larger{2048, 2, 64, 16};  // 4 KiB for the keys of a block
  LayerCache cache = empty_cache(DType::bf16, shape, cpu_device());
  cache.keys[7].fill_(1);
  cache = resized(std::move(cache), DType::bf16, larger, cpu_device());
  EXPECT_EQ(cache.keys[7].min().item<float>(), 1);
  std::vector<unsigned char> in_memory(static_cast<std::size_t>(larger.blocks));
  ASSERT_EQ(::mincore(cache.keys.mutable_data_ptr(), cache.keys.nbytes(), in_memory.data()), 0);
  const auto pages = std::ranges::count_if(in_memory, [](unsigned char page) { return (page & 1) != 0; });
  EXPECT_GE(pages, 1);
  EXPECT_LT(pages, shape.blocks);
}

// Weights of 8 bits with a scale per group of inputs: as their dequantised values, in products and in look-ups.
TEST_P(OpsTest, GroupWiseWeights) {
  const std::int64_t group = 32;
  const WeightMatrix eight{.values = at::randint(-127, 128, {50, 96}, at::kChar),
                           .scales = at::rand({50, 96 / group}) * 0.02,
                           .group = group,
                           .type = DType::int8};
  const Tensor values = at::repeat_interleave(eight.scales, group, 1) * eight.values.to(at::kFloat);
  EXPECT_TRUE(dequantised(eight, at::kFloat).equal(values));
  const WeightMatrix plain{.values = values.to(GetParam())};
  const Tensor bias = random({50}), tokens = at::tensor({3, 49, 50}, at::kLong);
  for (const Ops* ops : {&cpu_ops(), &generic_ops()}) {
    for (const std::int64_t count : {1, 65}) {
      const Tensor x = random({count, 96});
      Tensor out = at::zeros({count, 50}, GetParam()), expected = at::zeros({count, 50}, GetParam());
      ops->linear(out, x, eight, bias);
      generic_ops().linear(expected, x, plain, bias);
      EXPECT_TRUE(out.equal(expected));
    }
    Tensor out = at::zeros({3, 96}, GetParam());
    ops->embedding(out, tokens, eight, {0, 50});
    EXPECT_TRUE(out[0].equal(plain.values[3]) && out[1].equal(plain.values[49]) &&
                out[2].equal(at::zeros_like(out[2])));
  }
}

// A rank's columns of a quantised matrix begin and end inside of blocks. Inputs that are multiples of a 127th of the
// largest of their block are rounded to themselves.
TEST(QuantisedMatrix, MeetsItsColumnsAlone) {
  for (const DType type : {DType::q4_0, DType::q8_0, DType::q6_k}) {
    const std::int64_t width = 512, outputs = 43, skipped = 40, inputs = 448;
    const Tensor from = at::randn({outputs, width}), values = at::empty({outputs, width});
    WeightMatrix matrix{.values = at::empty({outputs, bytes_of(type, width)}, at::kByte),
                        .type = type,
                        .inputs = inputs,
                        .skipped = skipped};
    for (std::int64_t row = 0; row < outputs; ++row) {
      auto* bytes = reinterpret_cast<std::byte*>(matrix.values[row].mutable_data_ptr<std::uint8_t>());
      quantise_row(type, from[row].const_data_ptr<float>(), width, bytes);
      dequantise_row(type, bytes, width, values[row].mutable_data_ptr<float>());
    }
    cpu_ops().prepare(matrix);
    const Tensor plain = values.narrow(1, skipped, inputs).contiguous(), bias = at::randn({outputs});
    for (const std::int64_t tokens : {1, 5, 100}) {
      Tensor x = at::randint(-127, 128, {tokens, inputs}).to(at::kFloat);
      x.slice(1, 0, inputs, 8).fill_(127);
      Tensor out = at::empty({tokens, outputs}), expected = at::empty({tokens, outputs});
      cpu_ops().linear(out, x, matrix, bias);
      generic_ops().linear(expected, x, {plain}, bias);
      EXPECT_TRUE(at::allclose(out, expected, 1e-4, 0.05)) << (out - expected).abs().max().item<float>();
    }
    Tensor found = at::empty({3, inputs});
    cpu_ops().embedding(found, at::tensor({7, 42, 43}, at::kLong), matrix, {0, outputs});
    EXPECT_TRUE(found[0].equal(plain[7]) && found[1].equal(plain[42]) && found[2].equal(at::zeros({inputs})));
  }
}

// Products of one input are those of each call, bit for bit, whatever types the matrices have.
TEST(QuantisedMatrix, SharesItsInputWithOthers) {
  const std::int64_t inputs = 512, tokens = 5;
  const Tensor x = at::randn({tokens, inputs}), bias = at::randn({70});
  std::vector<LinearWeights> all;
  for (const DType type : {DType::q8_0, DType::q4_1, DType::q4_k, DType::q6_k, DType::fp32, DType::q8_0}) {
    const Tensor values = at::randn({70, inputs});
    WeightMatrix matrix{.values = values, .type = type, .inputs = inputs};
    if (is_quantised(type)) {
      matrix.values = at::empty({70, bytes_of(type, inputs)}, at::kByte);
      for (std::int64_t row = 0; row < 70; ++row)
        quantise_row(type, values[row].const_data_ptr<float>(), inputs,
                     reinterpret_cast<std::byte*>(matrix.values[row].mutable_data_ptr<std::uint8_t>()));
    }
    cpu_ops().prepare(matrix);
    all.push_back({matrix, bias});
  }
  std::vector<Tensor> together(all.size()), alone(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    together[i] = at::zeros({tokens, 70});
    alone[i] = at::zeros({tokens, 70});
    cpu_ops().linear(alone[i], x, all[i].weight, bias);
  }
  cpu_ops().linears({{together[0], all[0]},
                     {together[1], all[1]},
                     {together[2], all[2]},
                     {together[3], all[3]},
                     {together[4], all[4]},
                     {together[5], all[5]}},
                    x);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(together[i].equal(alone[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Types, OpsTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& type) { return std::string(at::toString(type.param)); });

// ---- rotary frequencies: values from the definitions ----

TEST(Rotary, PlainAndLinear) {
  const RotaryFrequencies plain = rotary_frequencies({.theta = 10000}, 8);
  ASSERT_EQ(plain.inverse_frequencies.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(plain.inverse_frequencies[i], std::pow(10000.0, -static_cast<double>(i) / 4), 1e-7);
  EXPECT_EQ(plain.amplitude, 1);
  const RotaryFrequencies slow = rotary_frequencies({.theta = 10000, .scaling = RotaryScaling::linear, .factor = 4}, 8);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(slow.inverse_frequencies[i], plain.inverse_frequencies[i] / 4);
  EXPECT_EQ(rotary_frequencies({.scaling = RotaryScaling::dynamic, .factor = 4}, 8).inverse_frequencies,
            plain.inverse_frequencies);
}

// As `transformers` scales a forward pass over 4096 positions of a model of 1024: theta ((4 * 4096 / 1024) - 3)^(8 /
// 6).
TEST(Rotary, DynamicFollowsTheLongestSequence) {
  const Rotary rotary{.theta = 10000, .scaling = RotaryScaling::dynamic, .factor = 4, .original_context = 1024};
  const auto plain = rotary_frequencies({.theta = 10000}, 8).inverse_frequencies;
  EXPECT_EQ(rotary_frequencies(rotary, 8, 1024).inverse_frequencies, plain);
  const auto scaled = rotary_frequencies(rotary, 8, 4096).inverse_frequencies;
  const double theta = 10000 * std::pow(13.0, 8.0 / 6.0);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(scaled[i], std::pow(theta, -static_cast<double>(i) / 4), 1e-7);
}

TEST(Rotary, Llama3KeepsShortWavesAndSlowsLongOnes) {
  const Rotary rotary{.theta = 500000,
                      .scaling = RotaryScaling::llama3,
                      .factor = 8,
                      .low_freq_factor = 1,
                      .high_freq_factor = 4,
                      .original_context = 8192};
  const auto plain = rotary_frequencies({.theta = 500000}, 64).inverse_frequencies;
  const auto scaled = rotary_frequencies(rotary, 64).inverse_frequencies;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wave = 2 * M_PI / plain[i];
    if (wave < 8192.0 / 4) {
      EXPECT_EQ(scaled[i], plain[i]);
    } else if (wave > 8192.0) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8);
    } else {
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 8);
    }
  }
}

// A wave of 4096 positions is a third of the way from 8192 / 1, where all is slowed, to 8192 / 4, where nothing is.
TEST(Rotary, Llama3BlendsByTurnsOfTheContext) {
  const double frequency = 2 * M_PI / 4096;
  const Rotary rotary{.theta = 1 / (frequency * frequency),  // the second of two pairs
                      .scaling = RotaryScaling::llama3,
                      .factor = 8,
                      .original_context = 8192};
  EXPECT_NEAR(rotary_frequencies(rotary, 4).inverse_frequencies[1], frequency * (2.0 / 3 / 8 + 1.0 / 3), 1e-8);
}

TEST(Rotary, YarnRampsBetweenItsBounds) {
  const Rotary rotary{.theta = 10000, .scaling = RotaryScaling::yarn, .factor = 4, .original_context = 2048};
  const auto plain = rotary_frequencies({.theta = 10000}, 64);
  const auto scaled = rotary_frequencies(rotary, 64);
  EXPECT_FLOAT_EQ(scaled.inverse_frequencies.front(), plain.inverse_frequencies.front());
  EXPECT_FLOAT_EQ(scaled.inverse_frequencies.back(), plain.inverse_frequencies.back() / 4);
  for (std::size_t i = 1; i < scaled.inverse_frequencies.size(); ++i)
    EXPECT_LE(scaled.inverse_frequencies[i] / plain.inverse_frequencies[i],
              scaled.inverse_frequencies[i - 1] / plain.inverse_frequencies[i - 1] + 1e-6f);
  // 32 turns: pair 8.06; one turn: pair 20.1. So the ramp goes from 8 to 21.
  const auto kept = [&](std::size_t pair) {
    return scaled.inverse_frequencies[pair] / plain.inverse_frequencies[pair];
  };
  EXPECT_NEAR(kept(8), 1, 1e-6);
  EXPECT_NEAR(kept(9), 1 - 0.75 / 13, 1e-6);
  EXPECT_NEAR(kept(20), 1 - 0.75 * 12 / 13, 1e-6);
  EXPECT_NEAR(kept(21), 0.25, 1e-6);
  EXPECT_NEAR(scaled.amplitude, 0.1 * std::log(4) + 1, 1e-6);
  EXPECT_EQ(rotary_frequencies(
                {.scaling = RotaryScaling::yarn, .factor = 4, .attention_factor = 0.7, .original_context = 2048}, 64)
                .amplitude,
            0.7f);
}

}  // namespace
}  // namespace motley
