// The source of the kernels of products with quantised weights and with experts, run on the processor, against plain
// loops in double.
#include "motley/engine/cuda/products.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "motley/engine/cuda/experts.cuh"
#include "motley/engine/cuda/kernels_test.hpp"

namespace motley::cuda {
namespace {

// A quantised matrix in its planes: random bytes, but for its numbers in fp16 and its exponents.
class QuantisedMatrix {
 public:
  QuantisedMatrix(WeightKind kind, std::int64_t outputs, std::int64_t inputs, std::int64_t skipped) {
    const Layout layout = layout_of(kind);
    const std::int64_t values = groups_of_block(kind) * group_values,
                       row_blocks = (skipped + inputs + values - 1) / values;
    const auto blocks = static_cast<std::size_t>(outputs * row_blocks), bytes = blocks * layout.bytes;
    storage_.resize(bytes / sizeof(uint4) + 1);
    auto* const planes = reinterpret_cast<unsigned char*>(storage_.data());
    for (std::size_t i = 0; i < bytes; ++i) planes[i] = static_cast<unsigned char>(between(0, 255));
    for (std::size_t block = 0; block < blocks; ++block)
      for (std::size_t i = 0; i < layout.halves; ++i) {
        const Fp16 number = from_float<Fp16>(random_float() / 64);
        std::memcpy(planes + blocks * layout.before + block * layout.stride + 2 * i, &number, sizeof(number));
      }
    if (kind == WeightKind::mxfp4)
      for (std::size_t block = 0; block < blocks; ++block)
        planes[blocks * layout.before + block] = static_cast<unsigned char>(between(118, 124));
    matrix_ = {kind, planes, outputs, inputs, skipped, row_blocks};
    expanded_.resize(static_cast<std::size_t>(outputs * inputs));
    EXPECT_EQ(0, expand({matrix_, Element::fp32, expanded_.data(), outputs, nullptr, 0}, nullptr));
  }
  const Matrix& matrix() const { return matrix_; }
  double at(std::int64_t output, std::int64_t input) const {
    return static_cast<double>(expanded_[static_cast<std::size_t>(output * matrix_.inputs + input)]);
  }

 private:
  // Of a block's bytes, and of the plane with the halves: bytes of the planes before, of a block, halves at its front.
  struct Layout {
    std::size_t bytes, before, stride, halves;
  };
  static Layout layout_of(WeightKind kind) {
    switch (kind) {
      case WeightKind::q8_0: return {34, 32, 2, 1};
      case WeightKind::q4_0: return {18, 16, 2, 1};
      case WeightKind::q4_1: return {20, 16, 4, 2};
      case WeightKind::q5_0: return {22, 20, 2, 1};
      case WeightKind::q5_1: return {24, 20, 4, 2};
      case WeightKind::mxfp4: return {17, 16, 1, 0};
      case WeightKind::iq4_nl: return {18, 16, 2, 1};
      case WeightKind::q4_k: return {144, 128, 16, 2};
      case WeightKind::q5_k: return {176, 160, 16, 2};
      case WeightKind::iq4_xs: return {136, 128, 8, 1};
      default: return {210, 208, 2, 1};
    }
  }
  std::vector<uint4> storage_;
  std::vector<float> expanded_;
  Matrix matrix_{};
};

// Inputs that rounding leaves as they are: integers up to 127, of which each group has one of 127, times a power of two
// of the group.
template <class T>
void make_exact(Array<T>& input, std::int64_t rows, std::int64_t stride, const Matrix& matrix) {
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t last_group = -1;
    float unit = 1;
    for (std::int64_t i = 0; i < matrix.inputs; ++i) {
      const std::int64_t group = (matrix.skipped + i) / group_values;
      if (group != last_group) unit = std::ldexp(1.0f, between(-9, -6));
      const int integer = group != last_group ? (one_in(2) ? 127 : -127) : between(-127, 127);
      last_group = group;
      input.data()[row * stride + i] = from_float<T>(unit * static_cast<float>(integer));
    }
  }
}

constexpr int first_quantised = static_cast<int>(WeightKind::q8_0),
              last_quantised = static_cast<int>(WeightKind::iq4_xs);
WeightKind random_kind() { return static_cast<WeightKind>(between(first_quantised, last_quantised)); }

// Inputs, products and, now and then, outputs of T.
template <class T, class Multiply>
void check_quantised_product(const Multiply& multiply, WeightKind kind, std::int64_t rows) {
  const bool same_element = one_in(2);
  const auto then = static_cast<Then>(between(0, 2));
  const int matrices = then == Then::gate ? 2 : then == Then::add ? 1 : between(1, 3);
  const std::int64_t inputs = one_in(10) ? between(1, 6000) : one_in(2) ? between(1, 5) * 256 : between(1, 1500);
  const std::int64_t skipped = one_in(2)   ? 0
                               : one_in(2) ? 8 * between(0, 3)
                                           : between(0, groups_of_block(kind) * group_values - 1);
  const std::int64_t stride = inputs + between(0, 1) * between(0, 16);
  std::vector<QuantisedMatrix> weights;
  for (int i = 0; i < matrices; ++i) {
    const std::int64_t outputs = between(1, one_in(5) ? 150 : 40);
    weights.emplace_back(kind, then == Then::gate && i > 0 ? weights[0].matrix().outputs : outputs, inputs, skipped);
  }
  Array<T> input(static_cast<std::size_t>(rows * stride));
  make_exact(input, rows, stride, weights[0].matrix());
  std::vector<uint4> scratch(static_cast<std::size_t>(product_scratch_bytes(rows, inputs)) / sizeof(uint4) + 1,
                             {~0U, ~0U, ~0U, ~0U});
  ProductTask task{.element = element_of<T>,
                   .out_element = same_element ? element_of<T> : Element::fp32,
                   .matrices = matrices,
                   .matrix = {},
                   .bias = {},
                   .out = {},
                   .out_stride = {},
                   .input = input.data(),
                   .input_stride = stride,
                   .rows = rows,
                   .then = then,
                   .activation = random_rule(),
                   .scratch = scratch.data()};
  std::vector<Array<T>> biases, outs;
  std::vector<Array<float>> float_outs;
  for (int i = 0; i < matrices; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t outputs = weights[at].matrix().outputs;
    task.matrix[i] = weights[at].matrix();
    task.out_stride[i] = outputs + between(0, 3);
    biases.emplace_back(static_cast<std::size_t>(outputs));
    outs.emplace_back(static_cast<std::size_t>(rows * task.out_stride[i]));
    float_outs.emplace_back(static_cast<std::size_t>(rows * task.out_stride[i]));
  }
  // Their elements have moved for the last time.
  for (std::size_t i = 0; i < biases.size(); ++i) {
    if (one_in(2)) task.bias[i] = biases[i].data();
    task.out[i] = same_element ? static_cast<void*>(outs[i].data()) : float_outs[i].data();
  }
  const std::vector<Array<T>> outs_before = outs;
  const std::vector<Array<float>> float_outs_before = float_outs;
  SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << " then " << static_cast<int>(then)
                                  << " matrices " << matrices << " rows " << rows << " inputs " << inputs << " skipped "
                                  << skipped);
  ASSERT_EQ(0, multiply(task, nullptr));
  const auto product = [&](std::size_t i, std::int64_t row, std::int64_t output, double& magnitude) {
    double sum = task.bias[i] != nullptr ? biases[i].at(static_cast<std::size_t>(output)) : 0;
    for (std::int64_t k = 0; k < inputs; ++k) {
      const double term = weights[i].at(output, k) * input.at(static_cast<std::size_t>(row * stride + k));
      sum += term;
      magnitude += std::abs(term);
    }
    return sum;
  };
  const auto check = [&](const auto& out, const auto& before, std::size_t i) {
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t output = 0; output < task.out_stride[i]; ++output) {
        const auto at = static_cast<std::size_t>(row * task.out_stride[i] + output);
        if (output >= task.matrix[i].outputs || (i > 0 && then == Then::gate)) {
          ASSERT_EQ(before.at(at), out.at(at));
          continue;
        }
        double magnitude = 1, expected = product(i, row, output, magnitude);
        if (then == Then::gate) {
          double other_magnitude = 1;
          const double other = product(1, row, output, other_magnitude);
          magnitude *= other_magnitude;
          expected = activated(task.activation, expected) * times(task.activation, other);
        }
        if (then == Then::add) expected += before.at(at);
        ASSERT_NO_FATAL_FAILURE(expect_close(expected, out.data()[at], magnitude)) << row << " " << output;
      }
  };
  for (std::size_t i = 0; i < outs.size(); ++i) {
    if (same_element)
      ASSERT_NO_FATAL_FAILURE(check(outs[i], outs_before[i], i));
    else
      ASSERT_NO_FATAL_FAILURE(check(float_outs[i], float_outs_before[i], i));
  }
}

TEST(CudaKernels, QuantisedProducts) {
  for_elements(200, []<class T>() { check_quantised_product<T>(product, random_kind(), between(1, 24)); });
}

// Each with all numbers of rows, not only those that `product` leaves to it.
TEST(CudaKernels, QuantisedProductsByTiles) {
  for_elements(
      1000, []<class T>() { check_quantised_product<T>(product_by_tiles, random_kind(), between(1, most_tile_rows)); });
}

TEST(CudaKernels, QuantisedProductsByDots) {
  for_elements(
      1000, []<class T>() { check_quantised_product<T>(product_by_dots, random_kind(), between(1, most_tile_rows)); });
}

TEST(CudaKernels, QuantisedProductsByPanels) {
  for (int kind = first_quantised; kind <= last_quantised; ++kind)
    for (const std::int64_t rows : {17, 24, 33, 64, 65, 100, 130})
      for_elements(2, [&]<class T>() {
        const int tiles = one_of({1, 2, 4});
        SCOPED_TRACE(testing::Message() << tiles << " tiles a panel");
        check_quantised_product<T>(
            [&](const ProductTask& task, void* stream) { return product_by_panels_of(task, tiles, stream); },
            static_cast<WeightKind>(kind), rows);
      });
}

// To the bit: what a row's products are does not depend on the other rows of a step, nor on how many there are.
TEST(CudaKernels, RowsOfPanelsDoNotDependOnOthers) {
  for_elements(30, []<class T>() {
    const std::int64_t rows = between(40, 140), inputs = between(1, 900), outputs = between(1, 100);
    const std::int64_t first = between(0, 20), count = between(most_tile_rows + 1, static_cast<int>(rows - first));
    const int tiles = one_of({1, 2, 4});
    const QuantisedMatrix weights(random_kind(), outputs, inputs, 0);
    const Array<T> input(static_cast<std::size_t>(rows * inputs));
    std::vector<uint4> scratch(static_cast<std::size_t>(product_scratch_bytes(rows, inputs)) / sizeof(uint4) + 1,
                               {~0U, ~0U, ~0U, ~0U});
    const auto multiply = [&](std::int64_t from, std::int64_t of, Array<float>& out) {
      return product_by_panels_of({.element = element_of<T>,
                                   .out_element = Element::fp32,
                                   .matrices = 1,
                                   .matrix = {weights.matrix()},
                                   .bias = {},
                                   .out = {out.data()},
                                   .out_stride = {outputs},
                                   .input = input.data() + from * inputs,
                                   .input_stride = inputs,
                                   .rows = of,
                                   .then = Then::store,
                                   .activation = random_rule(),
                                   .scratch = scratch.data()},
                                  tiles, nullptr);
    };
    Array<float> all(static_cast<std::size_t>(rows * outputs)), some(static_cast<std::size_t>(count * outputs));
    ASSERT_EQ(0, multiply(0, rows, all));
    ASSERT_EQ(0, multiply(first, count, some));
    for (std::size_t i = 0; i < some.size(); ++i)
      ASSERT_EQ(all.at(static_cast<std::size_t>(first * outputs) + i), some.at(i)) << i;
  });
}

// ---- experts ----

// The largest of a row by a plain sort, by ascending expert.
std::vector<std::int64_t> largest_of(const float* logits, std::int64_t experts, int active) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) { return logits[a] > logits[b]; });
  order.resize(static_cast<std::size_t>(active));
  std::ranges::sort(order);
  return order;
}

TEST(CudaKernels, Score) {
  for (int i = 0; i < 200 && !testing::Test::HasFatalFailure(); ++i) {
    const int columns = between(1, 300), rows = between(1, 9);
    const auto kind = one_in(2) ? ScoreKind::softmax : ScoreKind::sigmoid;
    Array<float> values(static_cast<std::size_t>(rows * columns));
    const Array<float> before = values;
    ASSERT_EQ(0, score({kind, values.data(), rows, columns}, nullptr));
    for (int row = 0; row < rows; ++row) {
      double sum = 0;
      for (int j = 0; j < columns; ++j) sum += std::exp(before.at(static_cast<std::size_t>(row * columns + j)));
      for (int j = 0; j < columns; ++j) {
        const auto at = static_cast<std::size_t>(row * columns + j);
        const double e = std::exp(before.at(at));
        ASSERT_NO_FATAL_FAILURE(expect_close(kind == ScoreKind::softmax ? e / sum : e / (1 + e), values.data()[at]));
      }
    }
  }
}

TEST(CudaKernels, Route) {
  for (int i = 0; i < 2000 && !testing::Test::HasFatalFailure(); ++i) {
    const int experts = one_in(2) ? between(1, 256) : between(1, 12), rows = between(1, 9);
    const int active = between(1, std::min(experts, one_in(10) ? most_active : 16));
    Array<float> scores(static_cast<std::size_t>(rows * experts)), bias(static_cast<std::size_t>(experts));
    if (one_in(2)) {  // ties, also of zeros of unlike signs
      for (float& x : scores) x = static_cast<float>(between(-2, 2)) * (one_in(2) ? 1.0f : -1.0f);
      for (float& x : bias) x = static_cast<float>(between(-2, 2));
    }
    const bool biased = one_in(2), softmax = one_in(2), normalised = one_in(2);
    const double epsilon = normalised ? 0.5 : -1.0, factor = one_in(2) ? 2.5 : 1.0;
    if (normalised && !softmax)  // as scores are, so that sums stay away from 0
      for (float& x : scores) x = std::abs(x);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(rows * active), -1);
    std::vector<float> shares(ids.size());
    ASSERT_EQ(0, route({.scores = scores.data(),
                        .selection_bias = biased ? bias.data() : nullptr,
                        .rows = rows,
                        .experts = experts,
                        .active = active,
                        .softmax = softmax ? 1 : 0,
                        .epsilon = static_cast<float>(epsilon),
                        .factor = static_cast<float>(factor),
                        .ids = ids.data(),
                        .shares = shares.data()},
                       nullptr));
    for (int row = 0; row < rows; ++row) {
      const float* const of_row = scores.data() + row * experts;
      std::vector<float> compared(of_row, of_row + experts);
      for (std::size_t j = 0; biased && j < compared.size(); ++j) compared[j] += bias.data()[j];
      const std::vector<std::int64_t> expected = largest_of(compared.data(), experts, active);
      std::vector<double> of_chosen;
      for (const std::int64_t expert : expected)
        of_chosen.push_back(softmax ? std::exp(static_cast<double>(of_row[expert])) : of_row[expert]);
      const double sum = std::accumulate(of_chosen.begin(), of_chosen.end(), 0.0);
      const double divisor = (softmax ? sum : 1.0) * (normalised ? (softmax ? 1.0 : sum) + epsilon : 1.0);
      for (std::size_t j = 0; j < expected.size(); ++j) {
        const std::size_t at = static_cast<std::size_t>(row * active) + j;
        ASSERT_EQ(expected[j], ids[at]) << experts << " " << active;
        ASSERT_NO_FATAL_FAILURE(expect_close(of_chosen[j] / divisor * factor, shares[at]));
      }
    }
  }
}

// Not to end the process where numbers have overflown, ids stay those of experts.
TEST(CudaKernels, RouteOfNoNumbers) {
  const std::vector<float> logits = {not_a_number, 1, -not_a_number, not_a_number, -not_a_number};
  std::vector<std::int64_t> ids(5, -1);
  std::vector<float> shares(5);
  ASSERT_EQ(0, route({.scores = logits.data(),
                      .selection_bias = nullptr,
                      .rows = 1,
                      .experts = 5,
                      .active = 5,
                      .softmax = 1,
                      .epsilon = -1,
                      .factor = 1,
                      .ids = ids.data(),
                      .shares = shares.data()},
                     nullptr));
  EXPECT_EQ(ids, (std::vector<std::int64_t>{0, 1, 2, 3, 4}));
}

// One matrix of each expert, and its values.
template <class T>
class MatricesOfExperts {
 public:
  MatricesOfExperts(WeightKind kind, int experts, std::int64_t outputs, std::int64_t inputs, std::int64_t skipped)
      : matrix_{kind, nullptr, outputs, inputs, 0, 0} {
    for (int i = 0; i < experts; ++i)
      if (kind == WeightKind::fp32 || kind == WeightKind::bf16)
        plain_.emplace_back(static_cast<std::size_t>(outputs * inputs));
      else if (kind == WeightKind::fp16)
        halves_.emplace_back(static_cast<std::size_t>(outputs * inputs));
      else
        matrix_ = quantised_.emplace_back(kind, outputs, inputs, skipped).matrix();
    matrix_.values = nullptr;
  }
  const Matrix& matrix() const { return matrix_; }
  void list(const void* (&values)[most_experts]) const {
    for (std::size_t i = 0; i < plain_.size(); ++i) values[i] = plain_[i].data();
    for (std::size_t i = 0; i < halves_.size(); ++i) values[i] = halves_[i].data();
    for (std::size_t i = 0; i < quantised_.size(); ++i) values[i] = quantised_[i].matrix().values;
  }
  double at(std::int64_t expert, std::int64_t output, std::int64_t input) const {
    const auto i = static_cast<std::size_t>(expert), place = static_cast<std::size_t>(output * matrix_.inputs + input);
    if (!plain_.empty()) return plain_[i].at(place);
    return halves_.empty() ? quantised_[i].at(output, input) : halves_[i].at(place);
  }

 private:
  Matrix matrix_;
  std::vector<Array<T>> plain_;
  std::vector<Array<Fp16>> halves_;
  std::vector<QuantisedMatrix> quantised_;
};

// Of a gate, or of sums over each token's experts.
template <class T, class Out>
void check_experts(bool gate) {
  const auto quantised = random_kind();
  const WeightKind plain_kind = sizeof(T) != 4 ? WeightKind::bf16 : one_in(2) ? WeightKind::fp32 : WeightKind::fp16;
  const WeightKind kind = one_in(3) ? plain_kind : quantised;
  const bool plain = kind != quantised;
  const int experts = between(1, 6), active = between(1, experts), tokens = between(1, 4);
  const int before_ours = one_in(2) ? 0 : between(0, 3), all = before_ours + experts + (one_in(2) ? 0 : between(0, 3));
  const std::int64_t inputs = one_in(2) ? between(1, 5) * 256 : between(1, 700), outputs = between(1, 30);
  const std::int64_t skipped = plain || one_in(2) ? 0 : between(0, groups_of_block(kind) * group_values - 1);
  SCOPED_TRACE(testing::Message() << "kind " << static_cast<int>(kind) << " gate " << gate << " experts " << experts
                                  << " from " << before_ours << " on of " << all << " active " << active << " tokens "
                                  << tokens << " inputs " << inputs);
  std::vector<MatricesOfExperts<T>> weights;
  for (int i = 0; i < (gate ? 2 : 1); ++i) weights.emplace_back(kind, experts, outputs, inputs, skipped);
  const std::int64_t rows = gate ? tokens : tokens * active, stride = inputs + between(0, 1) * 16,
                     out_rows = gate ? tokens * active : tokens, out_stride = outputs + between(0, 3);
  Array<T> input(static_cast<std::size_t>(rows * stride));
  if (!plain) make_exact(input, rows, stride, weights[0].matrix());
  std::vector<std::int64_t> ids;
  for (int token = 0; token < tokens; ++token) {
    const Array<float> logits(static_cast<std::size_t>(all));
    const std::vector<std::int64_t> chosen = largest_of(logits.data(), all, active);
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  const Array<float> shares(ids.size());
  Array<Out> out(static_cast<std::size_t>(out_rows * out_stride));
  const Array<Out> before = out;
  std::vector<uint4> scratch(static_cast<std::size_t>(product_scratch_bytes(rows, inputs)) / sizeof(uint4) + 1,
                             {~0U, ~0U, ~0U, ~0U});
  ExpertsTask task{.product = {.element = element_of<T>,
                               .out_element = element_of<Out>,
                               .matrices = static_cast<std::int32_t>(weights.size()),
                               .matrix = {},
                               .bias = {},
                               .out = {out.data()},
                               .out_stride = {out_stride},
                               .input = input.data(),
                               .input_stride = stride,
                               .rows = rows,
                               .then = gate ? Then::gate : Then::store,
                               .activation = random_rule(),
                               .scratch = scratch.data()},
                   .values = {},
                   .biases = {},
                   .first = before_ours,
                   .experts = experts,
                   .active = active,
                   .ids = ids.data(),
                   .shares = shares.data()};
  std::vector<std::vector<Array<T>>> biases(weights.size());  // of each matrix and expert, or none
  const bool biased = one_in(2);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    task.product.matrix[i] = weights[i].matrix();
    weights[i].list(task.values[i]);
    for (int expert = 0; biased && expert < experts; ++expert)
      biases[i].emplace_back(static_cast<std::size_t>(outputs));
    for (std::size_t expert = 0; expert < biases[i].size(); ++expert) task.biases[i][expert] = biases[i][expert].data();
  }
  ASSERT_EQ(0, ::motley::cuda::experts(task, nullptr));

  const auto product = [&](std::size_t i, std::size_t place, std::int64_t row, std::int64_t output, double& magnitude) {
    double sum = 0;
    const std::int64_t expert = ids[place] - before_ours;
    if (expert < 0 || expert >= experts) return sum;  // another rank's
    for (std::int64_t k = 0; k < inputs; ++k) {
      const double term = weights[i].at(expert, output, k) * input.at(static_cast<std::size_t>(row * stride + k));
      sum += term;
      magnitude += std::abs(term);
    }
    if (biased) sum += biases[i][static_cast<std::size_t>(expert)].at(static_cast<std::size_t>(output));
    return sum;
  };
  for (std::int64_t row = 0; row < out_rows; ++row)
    for (std::int64_t output = 0; output < out_stride; ++output) {
      const auto at = static_cast<std::size_t>(row * out_stride + output);
      if (output >= outputs) {
        ASSERT_EQ(before.at(at), out.at(at));
        continue;
      }
      double expected = 0, magnitude = 1;
      if (gate) {
        double other_magnitude = 1;
        const auto place = static_cast<std::size_t>(row);
        const ActivationRule& rule = task.product.activation;
        expected = activated(rule, product(0, place, row / active, output, magnitude)) *
                   times(rule, product(1, place, row / active, output, other_magnitude));
        magnitude *= other_magnitude;
      } else {
        for (std::int64_t place = row * active; place < (row + 1) * active; ++place) {
          const auto i = static_cast<std::size_t>(place);
          double of_product = 0;
          expected += shares.at(i) * product(0, i, place, output, of_product);
          magnitude += std::abs(shares.at(i)) * of_product;
        }
      }
      ASSERT_NO_FATAL_FAILURE(expect_close(expected, out.data()[at], magnitude)) << row << " " << output;
    }

  // The last token alone, to the bit.
  const std::int64_t own = out_rows / tokens * out_stride, first = (tokens - 1) * active;
  Array<Out> alone(static_cast<std::size_t>(own));
  task.ids += first;
  task.shares += first;
  task.product.rows /= tokens;
  task.product.input = input.data() + (rows - rows / tokens) * stride;
  task.product.out[0] = alone.data();
  ASSERT_EQ(0, ::motley::cuda::experts(task, nullptr));
  for (std::int64_t i = 0; i < own; ++i)
    if (i % out_stride < outputs) {
      ASSERT_EQ(out.at(static_cast<std::size_t>(out_rows * out_stride - own + i)),
                alone.at(static_cast<std::size_t>(i)));
    }
}

TEST(CudaKernels, ExpertsOfEachToken) {
  for_elements(1000, []<class T>() { one_in(2) ? check_experts<T, T>(true) : check_experts<T, float>(true); });
}

TEST(CudaKernels, SumsOverTheExpertsOfEachToken) {
  for_elements(1000, []<class T>() { one_in(2) ? check_experts<T, T>(false) : check_experts<T, float>(false); });
}

}  // namespace
}  // namespace motley::cuda
