// Routing and mixing of experts against plain sums, by every device's operations and on every instruction set.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "motley/checkpoint/quants.hpp"
#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/cpu/cpu_kernels.hpp"
#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/scalar_type.hpp"
#include "motley/engine/ops/ops.hpp"

namespace motley {
namespace {

using at::Tensor;

constexpr std::int64_t experts_of_mixture = 5, mixture_hidden = 256, mixture_columns = 256;

// ---- routing ----

void expect_route(const Ops& ops, const ComputeDevice& device) {
  const Tensor logits = at::tensor({1.0F, 3.0F, 2.0F, 3.0F, 3.0F,  // a tie for the second place
                                    0.0F, 0.0F, 0.0F, 0.0F, 0.0F,  //
                                    -9.0F, 5.0F, -9.0F, -7.0F, 7.0F})
                            .view({3, experts_of_mixture});
  Tensor ids = device.empty({3, 2}, at::kLong), shares = device.empty({3, 2}, at::kFloat);
  ops.route(ids, shares, logits.to(device.place()), {}, {.count = experts_of_mixture, .active = 2});
  EXPECT_TRUE(ids.cpu().equal(at::tensor({1, 3, 0, 1, 1, 4}, at::kLong).view({3, 2}))) << ids.cpu();
  const float less = 1 / (1 + std::exp(2.0F));
  const Tensor expected = at::tensor({0.5F, 0.5F, 0.5F, 0.5F, less, 1 - less}).view({3, 2});
  EXPECT_TRUE(shares.scalar_type() == at::kFloat && at::allclose(shares.cpu(), expected, 1e-6, 1e-7)) << shares.cpu();
}

TEST(Route, TakesTheLargestAndOfEqualOnesTheFirst) {
  for (const Ops* ops : {&cpu_ops(), &generic_ops(), &differentiable_ops()}) expect_route(*ops, cpu_device());
  expect_route(*apart_device().make_ops(), apart_device());
}

TEST(Route, IsInFp32WhateverTheTypes) {
  const Tensor logits = at::tensor({1.0F, 1.00390625F, 2.0F}).view({1, 3}).to(at::kBFloat16);  // 1 + 2^-8 becomes 1
  Tensor ids, shares;
  differentiable_ops().route(ids, shares, logits, {}, {.count = 3, .active = 2});
  EXPECT_TRUE(ids.equal(at::tensor({0, 2}, at::kLong).view({1, 2})));
  EXPECT_EQ(shares.scalar_type(), at::kFloat);
  EXPECT_NEAR(shares[0][0].item<float>(), 1 / (1 + std::exp(1.0F)), 1e-7);
}

struct RoutedRow {
  std::vector<std::int64_t> ids;
  std::vector<double> shares;
};

// By sorting, in fp64, of scores that exist.
RoutedRow plainly_routed(const Tensor& scores, const Tensor& selection_bias, const Experts& experts) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(experts.count));
  std::iota(order.begin(), order.end(), 0);
  const auto compared = [&](std::int64_t expert) {
    const float bias = selection_bias.defined() ? selection_bias[expert].item<float>() : 0.0F;
    return scores[expert].item<float>() + bias;
  };
  std::ranges::stable_sort(order, std::ranges::greater(), compared);
  order.resize(static_cast<std::size_t>(experts.active));
  std::ranges::sort(order);
  RoutedRow row{.ids = order, .shares = {}};
  for (const std::int64_t expert : order) row.shares.push_back(scores[expert].item<double>());
  const auto divide = [&](double epsilon) {
    const double sum = std::accumulate(row.shares.begin(), row.shares.end(), epsilon);
    for (double& share : row.shares) share /= sum;
  };
  if (experts.router.score == RouterScore::softmax_of_chosen) {
    for (double& share : row.shares) share = std::exp(share);
    divide(0);
  }
  if (experts.router.normalise) divide(experts.router.epsilon);
  for (double& share : row.shares) share *= experts.router.factor;
  return row;
}

// Logits of few values, so that many are equal: all devices take the same experts of the same scores, whatever else is
// in the step.
void expect_rule(const RouterRule& rule, bool biased) {
  const Experts experts{.count = 16, .active = 4, .router = rule};
  const Tensor logits = at::randint(-3, 4, {40, experts.count}).to(at::kFloat) * 0.5;
  const Tensor bias = biased ? at::randint(-2, 3, {experts.count}).to(at::kFloat) * 0.25 : Tensor();
  Tensor scores = logits.clone();
  generic_ops().score(rule.score, scores);
  std::vector<RoutedRow> expected;
  for (std::int64_t row = 0; row < logits.size(0); ++row)
    expected.push_back(plainly_routed(scores[row], bias, experts));
  const auto check = [&](const Ops& ops, const ComputeDevice& device) {
    Tensor own = logits.to(device.place()).clone();
    ops.score(rule.score, own);
    EXPECT_TRUE(at::allclose(own.cpu(), scores, 1e-6, 1e-7));
    const Tensor own_bias = biased ? bias.to(device.place()) : Tensor(), same = scores.to(device.place());
    for (const std::int64_t first : {0, 39}) {
      const std::int64_t rows = logits.size(0) - first;
      Tensor ids = device.empty({rows, experts.active}, at::kLong),
             shares = device.empty({rows, experts.active}, at::kFloat);
      ops.route(ids, shares, same.narrow(0, first, rows), own_bias, experts);
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t i = 0; i < experts.active; ++i) {
          const RoutedRow& of = expected[static_cast<std::size_t>(first + row)];
          ASSERT_EQ(ids[row][i].item<std::int64_t>(), of.ids[static_cast<std::size_t>(i)]) << first + row;
          ASSERT_NEAR(shares[row][i].item<double>(), of.shares[static_cast<std::size_t>(i)], 1e-6) << first + row;
        }
    }
  };
  for (const Ops* ops : {&cpu_ops(), &generic_ops(), &differentiable_ops()}) check(*ops, cpu_device());
  check(*apart_device().make_ops(), apart_device());
}

TEST(Route, FollowsEachRule) {
  at::manual_seed(11);
  for (const RouterScore score : {RouterScore::softmax_of_chosen, RouterScore::softmax, RouterScore::sigmoid})
    for (const bool biased : {false, true})
      for (const bool normalise : {false, true}) {
        SCOPED_TRACE(fmt::format("score {}, bias {}, normalised {}", static_cast<int>(score), biased, normalise));
        expect_rule({.score = score,
                     .selection_bias = biased,
                     .normalise = normalise,
                     .epsilon = normalise ? 1e-20 : 0,
                     .factor = normalise ? 2.5 : 1},
                    biased);
      }
}

// In processes of their own, as the environment is read once.
void on_every_instruction_set(const std::function<void()>& check) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const CpuKernels<float>* kernels : all_cpu_kernels<float>()) {
    const std::string name(kernels->instructions);
    const auto run = [&] {
      ::setenv("MOTLEY_KERNELS", name.c_str(), 1);
      check();
      std::exit(::testing::Test::HasFailure() ? 1 : cpu_kernels_name() == name ? 0 : 2);
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "") << name;
  }
}

// A million logits of a router in BF16, of which the step of the grid makes many equal: as a stable sort says, and
// whichever rows are in the step.
void expect_million_routed(const Experts& experts) {
  constexpr std::int64_t rows = 7813;
  at::manual_seed(17);
  const Tensor logits = ((at::randn({rows, experts.count}) * 8).round() / 8).to(at::kBFloat16).to(at::kFloat);
  const Tensor order = std::get<1>(logits.sort(/*stable=*/true, -1, /*descending=*/true));
  const Tensor expected = std::get<0>(order.narrow(1, 0, experts.active).sort(-1));
  const auto routed = [&](const Ops& ops, std::int64_t first, std::int64_t count) {
    Tensor scores = logits.narrow(0, first, count).clone(), ids = at::empty({count, experts.active}, at::kLong),
           shares = at::empty({count, experts.active}, at::kFloat);
    ops.score(experts.router.score, scores);
    ops.route(ids, shares, scores, {}, experts);
    return std::pair(ids, shares);
  };
  const auto [ids, shares] = routed(cpu_ops(), 0, rows);
  EXPECT_TRUE(ids.equal(expected));
  EXPECT_TRUE(routed(generic_ops(), 0, rows).first.equal(expected));
  for (const std::int64_t count : {1, 2, 7, 64, 1000})
    for (std::int64_t first = 0; first < rows; first += std::max<std::int64_t>(61, count)) {
      const std::int64_t own = std::min(count, rows - first);
      const auto [some_ids, some_shares] = routed(cpu_ops(), first, own);
      ASSERT_TRUE(some_ids.equal(ids.narrow(0, first, own)) && some_shares.equal(shares.narrow(0, first, own)))
          << own << " rows from " << first << " on";
    }
}

TEST(Route, TakesTheSameOfAMillionLogitsOnEveryInstructionSet) {
  on_every_instruction_set([] {
    expect_million_routed({.count = 128, .active = 8, .router = {.score = RouterScore::softmax, .normalise = true}});
    expect_million_routed({.count = 128, .active = 4});
  });
}

// ---- mixing ----

struct TypesOfExperts {
  DType gate, up, down;
};

// A matrix as a file has it, and its values.
struct ExpertMatrix {
  WeightMatrix held;
  Tensor values;
};

ExpertMatrix random_matrix(DType type, std::int64_t outputs, std::int64_t inputs) {
  Tensor values = at::randn({outputs, inputs}) / std::sqrt(static_cast<double>(inputs));
  if (!is_quantised(type)) {
    const Tensor held = values.to(scalar_type(type));
    return {{.values = held, .type = type}, held.to(at::kFloat)};
  }
  const Tensor blocks = at::empty({outputs, bytes_of(type, inputs)}, at::kByte);
  for (std::int64_t row = 0; row < outputs; ++row) {
    const std::span<std::byte> bytes = bytes_of(blocks[row]);
    quantise_row(type, values[row].const_data_ptr<float>(), inputs, bytes.data());
    dequantise_row(type, bytes.data(), inputs, values[row].mutable_data_ptr<float>());
  }
  return {{.values = blocks, .type = type, .inputs = inputs}, values};
}

struct LinearValues {
  Tensor weight, bias;
  Tensor of(const Tensor& rows) const { return at::linear(rows, weight, bias); }
};

constexpr double clamp_limit = 1.5, clamp_slope = 1.702;

struct Mixture {
  explicit Mixture(const TypesOfExperts& types) : type(scalar_type(dtype_row(types.gate).computed_in)) {
    at::manual_seed(3);
    for (std::int64_t expert = 0; expert < experts_of_mixture; ++expert) {
      const auto add = [&](std::vector<LinearWeights>& weights, std::vector<LinearValues>& values,
                           const ExpertMatrix& matrix) {
        const Tensor bias = at::randn({matrix.values.size(0)}).to(type);
        weights.push_back({.weight = matrix.held, .bias = bias});
        values.push_back({matrix.values, bias.to(at::kFloat)});
      };
      add(held.gate, gate, random_matrix(types.gate, mixture_columns, mixture_hidden));
      add(held.up, up, random_matrix(types.up, mixture_columns, mixture_hidden));
      add(held.down, down, random_matrix(types.down, mixture_hidden, mixture_columns));
    }
  }
  // As the operations of a device read them.
  ExpertWeights on(const ComputeDevice& device, const Ops& ops) const {
    ExpertWeights weights = held;
    for (auto* matrices : {&weights.gate, &weights.up, &weights.down})
      for (LinearWeights& linear : *matrices) {
        linear.weight.values = linear.weight.values.clone().to(device.place());
        linear.bias = linear.bias.to(device.place());
        ops.prepare(linear.weight);
      }
    return weights;
  }
  // Every expert of every token in fp32, of which most count nothing.
  Tensor expected(const Tensor& input, const Tensor& ids, const Tensor& shares) const {
    const Tensor rows = input.to(at::kFloat), sums = at::zeros(input.sizes());
    for (std::size_t expert = 0; expert < gate.size(); ++expert) {
      const Tensor least = gate[expert].of(rows).clamp_max(clamp_limit);
      const Tensor inside =
          least * at::sigmoid(clamp_slope * least) * (up[expert].of(rows).clamp(-clamp_limit, clamp_limit) + 1);
      const Tensor share = (shares * (ids == static_cast<std::int64_t>(expert))).sum(1, true);
      sums.add_(share * down[expert].of(inside));
    }
    return sums;
  }

  at::ScalarType type;  // of activations
  ExpertWeights held;
  std::vector<LinearValues> gate, up, down;
};

// Of each token two experts: those that `choose` says.
template <class Choose>
Tensor chosen_by(std::int64_t tokens, const Choose& choose) {
  const Tensor ids = at::empty({tokens, 2}, at::kLong);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto [first, second] = choose(token);
    ids[token][0] = first;
    ids[token][1] = second;
  }
  return ids;
}

using Pair = std::pair<std::int64_t, std::int64_t>;

// Each expert; two of them by all; all but one, of unlike numbers of tokens.
std::vector<Tensor> choices(std::int64_t tokens) {
  return {chosen_by(tokens,
                    [](std::int64_t token) {
                      return Pair{token % 4, 4};
                    }),
          chosen_by(tokens,
                    [](std::int64_t) {
                      return Pair{1, 3};
                    }),
          chosen_by(tokens, [](std::int64_t token) {
            return token % 3 > 0 ? Pair{0, 2} : Pair{2, 4};
          })};
}

Tensor mixed(const Mixture& mixture, const Tensor& input, const Tensor& ids, const Tensor& shares,
             const ComputeDevice& device, const Ops& ops, const ExpertWeights& weights) {
  const std::int64_t rows = ids.numel();
  Tensor out = device.empty(input.sizes(), mixture.type), gates = device.empty({rows, mixture_columns}, mixture.type),
         others = device.empty({rows, mixture_columns}, mixture.type);
  ops.mix_experts(Activation(Activation::swiglu, clamp_limit, clamp_slope), out, gates, others,
                  input.to(device.place()), ids.to(device.place()), shares.to(device.place()), weights);
  return out.cpu();
}

// Those that a rank holds.
ExpertWeights part_of(const ExpertWeights& all, std::int64_t first, std::int64_t end) {
  const auto some = [&](const std::vector<LinearWeights>& of_all) {
    return std::vector<LinearWeights>(of_all.begin() + first, of_all.begin() + end);
  };
  return {.gate = some(all.gate), .up = some(all.up), .down = some(all.down), .first = first};
}

void expect_mixed(const TypesOfExperts& types, const ComputeDevice& device, std::initializer_list<std::int64_t> rows) {
  SCOPED_TRACE(fmt::format("gate {}, {}", name_of(types.gate), device.kernels()));
  const Mixture mixture(types);
  const std::shared_ptr<const Ops> ops = device.make_ops();
  const ExpertWeights weights = mixture.on(device, *ops);
  for (const std::int64_t tokens : rows)
    for (const Tensor& ids : choices(tokens)) {
      const Tensor input = at::randn({tokens, mixture_hidden}).to(mixture.type);
      const Tensor shares = at::softmax(at::randn({tokens, 2}), 1);
      const Tensor real = mixed(mixture, input, ids, shares, device, *ops, weights).to(at::kFloat);
      const Tensor expected = mixture.expected(input, ids, shares);
      const double within = mixture.type == at::kBFloat16 ? 0.05 : is_quantised(types.gate) ? 0.1 : 1e-5;
      EXPECT_LT((real - expected).abs().max().item<double>(), within * expected.std(/*unbiased=*/false).item<double>())
          << tokens << " tokens";
      // Ranks that hold some of them each make a part of the sum.
      Tensor sum = at::zeros(real.sizes());
      for (const auto& [first, end] : {Pair{0, 2}, Pair{2, 5}})
        sum += mixed(mixture, input, ids, shares, device, *ops, part_of(weights, first, end)).to(at::kFloat);
      EXPECT_LT((sum - expected).abs().max().item<double>(), within * expected.std(/*unbiased=*/false).item<double>())
          << tokens << " tokens over two ranks";
      // What else is in the step changes nothing.
      const std::int64_t last = tokens - 1;
      const auto only = [&](const Tensor& of_all) { return of_all.narrow(0, last, 1).contiguous(); };
      if (!device.has_own_memory()) {
        EXPECT_TRUE(mixed(mixture, only(input), only(ids), only(shares), device, *ops, weights)[0]
                        .to(at::kFloat)
                        .equal(real[last]));
      }
    }
}

void expect_all_types_mixed() {
  for (const DType type : {DType::fp32, DType::bf16, DType::q8_0, DType::q5_1, DType::q4_k})
    expect_mixed({type, type, type}, cpu_device(), {1, 4, 64});
  // A file may hold gate and up in types that round their inputs in unlike blocks.
  expect_mixed({DType::q4_k, DType::q8_0, DType::q6_k}, cpu_device(), {1, 4});
  expect_mixed({DType::q8_0, DType::q8_0, DType::q8_0}, cpu_device(), {230});  // more than is computed at once
}

TEST(MixExperts, IsAPlainSumOnEveryInstructionSet) { on_every_instruction_set(expect_all_types_mixed); }

TEST(MixExperts, IsAPlainSumOnADeviceWithMemoryOfItsOwn) {
  for (const DType type : {DType::fp32, DType::bf16, DType::q4_k})
    expect_mixed({type, type, type}, apart_device(), {1, 4, 64});
}

}  // namespace
}  // namespace motley
