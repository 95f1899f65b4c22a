// Every instruction set that this processor runs, against plain loops in double precision.
#include "motley/engine/cpu/cpu_kernels.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <random>

#include "motley/base/error.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/engine/cpu/weight_panels.hpp"

namespace motley {
namespace {

float widen(float x) { return x; }
float widen(Bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
float widen(Fp16 x) { return half_to_float(x.bits); }
void narrow(float from, float& to) { to = from; }
void narrow(float from, Fp16& to) { to.bits = float_to_half(from); }
void narrow(float from, Bf16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(from);
  to.bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
std::vector<T> random_values(std::size_t count, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<T> values(count);
  for (T& value : values) narrow(normal(random), value);
  return values;
}

template <class T>
std::vector<std::byte> prepare(const Product<T>& product, const T* input, std::int64_t stride, std::int64_t tokens,
                               std::int64_t inputs) {
  const std::int64_t bytes = product.prepared_bytes(inputs);
  std::vector<std::byte> prepared(static_cast<std::size_t>(tokens * bytes), std::byte{0xff});
  for (std::int64_t t = 0; t < tokens; t += product.together)
    product.prepare(input + t * stride, stride, std::min(product.together, tokens - t), inputs, 0,
                    prepared.data() + t * bytes);
  return prepared;
}

// The rows of a weight as the product reads them.
template <class T, class W>
std::vector<W> lay_panels(const Product<T>& product, const std::vector<W>& weight, std::int64_t inputs) {
  if (product.panel == 0) return weight;
  std::vector<W> laid(weight.size());
  const std::int64_t outputs = std::ssize(weight) / inputs;
  for (std::int64_t row = 0; row < outputs; row += product.panel)
    lay_panel(DType::bf16, reinterpret_cast<const std::byte*>(weight.data() + row * inputs),
              std::min(product.panel, outputs - row), inputs * std::int64_t{sizeof(W)},
              reinterpret_cast<std::byte*>(laid.data() + row * inputs));
  return laid;
}

template <class T, class W>
LinearTask<T> linear_task(const Product<T>& product, const std::vector<std::byte>& prepared,
                          const std::vector<W>& weight, const T* bias, void* output, std::int64_t tokens,
                          std::int64_t inputs, std::int64_t outputs) {
  return {prepared.data(),
          product.prepared_bytes(inputs),
          reinterpret_cast<const std::byte*>(weight.data()),
          bias,
          output,
          outputs,
          tokens,
          inputs,
          outputs};
}

template <class T>
class CpuKernelsTest : public ::testing::Test {
 protected:
  // Of a result rounded to T, relative to its size.
  static constexpr double rounding = std::is_same_v<T, float> ? 1e-6 : 1.0 / 256;

  template <class Check>
  void for_each_set(const Check& check) {
    for (const CpuKernels<T>* kernels : all_cpu_kernels<T>()) {
      SCOPED_TRACE(kernels->instructions);
      check(*kernels);
    }
  }
};
using Types = ::testing::Types<float, Bf16>;
TYPED_TEST_SUITE(CpuKernelsTest, Types);

// Products with weights of W.
template <class W>
using ActivationsOf = std::conditional_t<std::is_same_v<W, Bf16>, Bf16, float>;
template <class W>
class CpuLinearTest : public CpuKernelsTest<ActivationsOf<W>> {
 protected:
  static constexpr DType type = std::is_same_v<W, float>  ? DType::fp32
                                : std::is_same_v<W, Bf16> ? DType::bf16
                                                          : DType::fp16;
};
using WeightTypes = ::testing::Types<float, Bf16, Fp16>;
TYPED_TEST_SUITE(CpuLinearTest, WeightTypes);

TYPED_TEST(CpuKernelsTest, ChoosesTheBestThatRunsUnlessOthersAreNamed) {
  ASSERT_FALSE(all_cpu_kernels<TypeParam>().empty());
  const char* named = std::getenv("MOTLEY_KERNELS");
  EXPECT_EQ(cpu_kernels<TypeParam>().instructions,
            named != nullptr ? named : all_cpu_kernels<TypeParam>().back()->instructions);
  EXPECT_EQ(cpu_kernels<TypeParam>().instructions, cpu_kernels_name());
}

// In processes of their own, as the environment is read once.
TEST(KernelsByName, AreTakenOrRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto take = [](const char* name) {
    ::setenv("MOTLEY_KERNELS", name, 1);
    try {
      std::cerr << "took " << cpu_kernels<float>().instructions;
      std::exit(0);
    } catch (const Error& error) {
      std::cerr << error.what() << "; " << error.hint();
      std::exit(static_cast<int>(error.code()));
    }
  };
  EXPECT_EXIT(take("portable"), ::testing::ExitedWithCode(0), "took portable");
  EXPECT_EXIT(take("avx9"), ::testing::ExitedWithCode(static_cast<int>(ErrorCode::input)),
              "MOTLEY_KERNELS names avx9, .*choose from: portable");
}

TYPED_TEST(CpuLinearTest, EqualsTheDotProducts) {
  using T = ActivationsOf<TypeParam>;
  for (const std::int64_t inputs : {1, 7, 16, 31, 64, 100, 333, 1030})
    for (const std::int64_t tokens : {1, 2, 3, 5, 6, 7, 13, 16, 21, 40}) {
      const std::int64_t outputs = 101;
      const auto x = random_values<T>(static_cast<std::size_t>(tokens * (inputs + 3)), 1);  // rows three elements apart
      const auto w = random_values<TypeParam>(static_cast<std::size_t>(outputs * inputs), 2);
      const auto bias = random_values<T>(static_cast<std::size_t>(outputs), 3);
      this->for_each_set([&](const CpuKernels<T>& kernels) {
        constexpr DType weights = TestFixture::type;
        std::vector<float> y(static_cast<std::size_t>(tokens * outputs), NAN);
        std::vector<T> rounded(y.size());
        const auto prepared = prepare<T>(*kernels.product(weights), x.data(), inputs + 3, tokens, inputs);
        const auto laid = lay_panels(*kernels.product(weights), w, inputs);
        LinearTask<T> task =
            linear_task(*kernels.product(weights), prepared, laid, bias.data(), y.data(), tokens, inputs, outputs);
        const std::int64_t cut = kernels.product(weights)->panel > 0 ? kernels.product(weights)->panel : 5;
        kernels.product(weights)->multiply_fp32(task, 0, cut);
        kernels.product(weights)->multiply_fp32(task, cut, outputs);
        task.output = rounded.data();
        kernels.product(weights)->multiply(task, 0, outputs);
        for (std::int64_t t = 0; t < tokens; ++t)
          for (std::int64_t n = 0; n < outputs; ++n) {
            double expected = widen(bias[static_cast<std::size_t>(n)]), size = std::abs(expected);
            for (std::int64_t k = 0; k < inputs; ++k) {
              const double term = static_cast<double>(widen(x[static_cast<std::size_t>(t * (inputs + 3) + k)])) *
                                  widen(w[static_cast<std::size_t>(n * inputs + k)]);
              expected += term;
              size += std::abs(term);
            }
            const auto i = static_cast<std::size_t>(t * outputs + n);
            ASSERT_NEAR(y[i], expected, 1e-6 * size) << tokens << " tokens, " << inputs << " inputs";
            ASSERT_NEAR(widen(rounded[i]), expected, 1e-6 * size + this->rounding * std::abs(expected));
          }
      });
    }
}

// To the bit: a token's row is the same whatever else is in the batch, and wherever the rows of the weight are cut.
TYPED_TEST(CpuLinearTest, DoesNotDependOnTheBatch) {
  using T = ActivationsOf<TypeParam>;
  const std::int64_t inputs = 2100, outputs = 75, most = 64;
  const auto x = random_values<T>(static_cast<std::size_t>(most * inputs), 1);
  const auto w = random_values<TypeParam>(static_cast<std::size_t>(outputs * inputs), 2);
  this->for_each_set([&](const CpuKernels<T>& kernels) {
    constexpr DType weights = TestFixture::type;
    const auto laid = lay_panels(*kernels.product(weights), w, inputs);
    const auto run = [&](std::int64_t first, std::int64_t tokens, std::int64_t cut) {
      std::vector<float> y(static_cast<std::size_t>(tokens * outputs));
      const auto prepared = prepare<T>(*kernels.product(weights), x.data() + first * inputs, inputs, tokens, inputs);
      const auto task =
          linear_task<T>(*kernels.product(weights), prepared, laid, nullptr, y.data(), tokens, inputs, outputs);
      kernels.product(weights)->multiply_fp32(task, 0, cut);
      kernels.product(weights)->multiply_fp32(task, cut, outputs);
      return y;
    };
    const std::vector<float> together = run(0, most, 48);
    for (const std::int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 16})
      for (std::int64_t first = 0; first + tokens <= most; first += 17) {
        const std::vector<float> some = run(first, tokens, 16);
        for (std::size_t i = 0; i < some.size(); ++i)
          ASSERT_EQ(some[i], together[static_cast<std::size_t>(first * outputs) + i]) << tokens << " tokens";
      }
  });
}

TYPED_TEST(CpuKernelsTest, NormsEqualTheirFormulas) {
  using T = TypeParam;
  for (const Norm kind : {Norm::rms, Norm::rms1p, Norm::layer})
    for (const std::int64_t columns : {1, 12, 16, 50, 64}) {
      const std::int64_t rows = 3;
      const auto x = random_values<T>(static_cast<std::size_t>(rows * columns), 4, 3);
      const auto weight = random_values<T>(static_cast<std::size_t>(columns), 5);
      const auto bias = random_values<T>(static_cast<std::size_t>(columns), 6);
      this->for_each_set([&](const CpuKernels<T>& kernels) {
        std::vector<T> y = x;  // in place
        kernels.norm({kind, y.data(), y.data(), weight.data(), bias.data(), columns, 1e-3f}, 0, rows);
        for (std::int64_t row = 0; row < rows; ++row) {
          double mean = 0, square = 0;
          const auto at = [&](std::int64_t c) {
            return static_cast<double>(widen(x[static_cast<std::size_t>(row * columns + c)]));
          };
          for (std::int64_t c = 0; kind == Norm::layer && c < columns; ++c)
            mean += at(c) / static_cast<double>(columns);
          for (std::int64_t c = 0; c < columns; ++c)
            square += (at(c) - mean) * (at(c) - mean) / static_cast<double>(columns);
          for (std::int64_t c = 0; c < columns; ++c) {
            const auto i = static_cast<std::size_t>(c);
            const double times = widen(weight[i]) + (kind == Norm::rms1p ? 1.0 : 0.0);
            const double expected = (at(c) - mean) / std::sqrt(square + 1e-3) * times + widen(bias[i]);
            ASSERT_NEAR(widen(y[static_cast<std::size_t>(row * columns + c)]), expected,
                        2e-6 + this->rounding * (1 + std::abs(expected)));
          }
        }
      });
    }
}

TYPED_TEST(CpuKernelsTest, RotatesPairs) {
  using T = TypeParam;
  const std::int64_t tokens = 4, heads = 3, dim = 12, pairs = 5;  // the last two elements stay
  const std::vector<std::int64_t> positions = {0, 3, 100, 7};
  const std::vector<float> inverse = {1, 0.5f, 0.1f, 0.02f, 0.001f};
  std::vector<float> waves;
  for (const std::int64_t position : positions) {
    for (const float turn : inverse) waves.push_back(1.5f * std::cos(static_cast<float>(position) * turn));
    for (const float turn : inverse) waves.push_back(1.5f * std::sin(static_cast<float>(position) * turn));
  }
  const auto before = random_values<T>(static_cast<std::size_t>(tokens * heads * dim), 7);
  this->for_each_set([&](const CpuKernels<T>& kernels) {
    std::vector<T> after = before;
    kernels.rotate({after.data(), heads, dim, pairs, waves.data()}, 0, tokens);
    for (std::int64_t row = 0; row < tokens * heads; ++row)
      for (std::int64_t i = 0; i < dim; ++i) {
        const auto at = [&](std::int64_t c) {
          return static_cast<double>(widen(before[static_cast<std::size_t>(row * dim + c)]));
        };
        double expected = at(i);
        if (i < 2 * pairs) {
          const double angle = static_cast<double>(positions[static_cast<std::size_t>(row / heads)]) *
                               static_cast<double>(inverse[static_cast<std::size_t>(i % pairs)]);
          expected = 1.5 * (i < pairs ? at(i) * std::cos(angle) - at(i + pairs) * std::sin(angle)
                                      : at(i) * std::cos(angle) + at(i - pairs) * std::sin(angle));
        }
        ASSERT_NEAR(widen(after[static_cast<std::size_t>(row * dim + i)]), expected,
                    2e-5 + this->rounding * std::abs(expected));
      }
  });
}

double activated(const Activation& kind, double x) {
  switch (kind.kind) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::gelu_tanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::relu: return std::max(x, 0.0);
    case Activation::swiglu: return std::min(x, kind.limit) / (1 + std::exp(-kind.slope * std::min(x, kind.limit)));
  }
  return x;
}

TYPED_TEST(CpuKernelsTest, ActivatesAndAdds) {
  using T = TypeParam;
  const std::int64_t columns = 41, count = 3 * columns;
  auto x = random_values<T>(static_cast<std::size_t>(count), 8, 4);
  narrow(200, x[0]);  // where an exponential would overflow
  narrow(-200, x[1]);
  const auto factors = random_values<T>(x.size(), 9), bias = random_values<T>(static_cast<std::size_t>(columns), 10);
  this->for_each_set([&](const CpuKernels<T>& kernels) {
    for (const Activation kind : {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu}) {
      std::vector<T> plain = x, gated = x;
      kernels.activate(kind, plain.data(), nullptr, 0, count);
      kernels.activate(kind, gated.data(), factors.data(), 0, count);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected = activated(kind, widen(x[i]));
        ASSERT_NEAR(widen(plain[i]), expected, 2e-6 + this->rounding * std::abs(expected)) << i;
        const double product = expected * widen(factors[i]);
        ASSERT_NEAR(widen(gated[i]), product, 4e-6 + this->rounding * std::abs(product)) << i;
      }
    }
    constexpr Activation clamped(Activation::swiglu, 0.75, 1.702);
    std::vector<T> gated = x;
    kernels.activate(clamped, gated.data(), factors.data(), 0, count);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = activated(clamped, widen(x[i])) * (std::clamp(1.0 * widen(factors[i]), -0.75, 0.75) + 1);
      ASSERT_NEAR(widen(gated[i]), expected, 2e-6 + this->rounding * std::abs(expected)) << i;
    }
    for (const T* with : {static_cast<const T*>(nullptr), bias.data()}) {
      std::vector<T> sum = x;
      kernels.add(sum.data(), factors.data(), with, columns, 0, count);
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double expected =
            widen(x[i]) + widen(factors[i]) + (with ? widen(bias[i % static_cast<std::size_t>(columns)]) : 0.0f);
        ASSERT_NEAR(widen(sum[i]), expected, 1e-6 + this->rounding * std::abs(expected));
      }
    }
  });
}

// ---- attention ----

struct AttentionCase {
  std::int64_t heads, kv_heads, dim, block_tokens, window, length;
  bool sinks = false;
};

// A token's head as a cache of C holds it, and what this stands for.
template <class C>
struct CachedHead {
  std::vector<C> elements;
  std::vector<Fp16> scales;  // empty where C has none
  std::vector<float> values;

  CachedHead(std::int64_t dim, unsigned seed) {
    if constexpr (std::is_same_v<C, std::int8_t>) {
      values = random_values<float>(static_cast<std::size_t>(dim), seed);
      std::vector<BlockQ8_0> blocks(values.size() / 32);
      auto* bytes = reinterpret_cast<std::byte*>(blocks.data());
      quantise_row(DType::q8_0, values.data(), dim, bytes);
      dequantise_row(DType::q8_0, bytes, dim, values.data());
      for (const BlockQ8_0& block : blocks) {
        scales.push_back({block.scale});
        elements.insert(elements.end(), block.values, block.values + 32);
      }
    } else {
      elements = random_values<C>(static_cast<std::size_t>(dim), seed);
      for (const C& x : elements) values.push_back(widen(x));
    }
  }
};

template <class T, class C>
struct AttentionData {
  AttentionCase shape;
  std::vector<T> query;     // [length][heads][dim]
  std::vector<float> keys;  // [length][kv_heads][dim]
  std::vector<float> values;
  std::vector<C> key_cache, value_cache;
  std::vector<Fp16> key_scales, value_scales;
  std::vector<std::int32_t> blocks;
  std::vector<T> sinks;  // of each head, or none

  explicit AttentionData(const AttentionCase& s) : shape(s) {
    query = random_values<T>(static_cast<std::size_t>(s.length * s.heads * s.dim), 11, 2);
    if (s.sinks) sinks = random_values<T>(static_cast<std::size_t>(s.heads), 13, 4);
    const std::int64_t count = (s.length + s.block_tokens - 1) / s.block_tokens;
    blocks.resize(static_cast<std::size_t>(count));
    std::iota(blocks.begin(), blocks.end(), 1);  // block 0 belongs to no sequence
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(12));
    // What was never written may hold anything.
    C nothing{};
    if constexpr (!std::is_same_v<C, std::int8_t>) narrow(NAN, nothing);
    key_cache.assign(static_cast<std::size_t>((count + 1) * s.kv_heads * s.dim * s.block_tokens), nothing);
    value_cache = key_cache;
    key_scales.assign(key_cache.size() / kv_scale_values, {0x7e00});  // NaN
    value_scales = key_scales;
    for (std::int64_t t = 0; t < s.length; ++t)
      for (std::int64_t h = 0; h < s.kv_heads; ++h) {
        const CachedHead<C> key(s.dim, static_cast<unsigned>(1000 + t * s.kv_heads + h)),
            value(s.dim, static_cast<unsigned>(9000 + t * s.kv_heads + h));
        const std::int64_t block = blocks[static_cast<std::size_t>(t / s.block_tokens)] * s.kv_heads + h,
                           in = t % s.block_tokens, groups = s.dim / kv_scale_values;
        for (std::size_t d = 0; d < key.elements.size(); ++d) {
          const auto at = static_cast<std::int64_t>(d);
          key_cache[static_cast<std::size_t>((block * s.dim + at) * s.block_tokens + in)] = key.elements[d];
          value_cache[static_cast<std::size_t>((block * s.block_tokens + in) * s.dim + at)] = value.elements[d];
        }
        for (std::size_t g = 0; g < key.scales.size(); ++g) {
          const auto at =
              static_cast<std::size_t>((block * groups + static_cast<std::int64_t>(g)) * s.block_tokens + in);
          key_scales[at] = key.scales[g];
          value_scales[at] = value.scales[g];
        }
        keys.insert(keys.end(), key.values.begin(), key.values.end());
        values.insert(values.end(), value.values.begin(), value.values.end());
      }
  }

  AttentionTask<T, C> task(std::int64_t first, std::int64_t count, std::vector<T>& out) const {
    const std::int64_t row = shape.heads * shape.dim;
    return {query.data() + first * row,
            out.data() + first * row,
            key_cache.data(),
            value_cache.data(),
            key_scales.data(),
            value_scales.data(),
            blocks.data(),
            first,
            count,
            shape.heads,
            shape.kv_heads,
            shape.dim,
            shape.block_tokens,
            shape.window,
            0.3f,
            sinks.empty() ? nullptr : sinks.data()};
  }

  double expected(std::int64_t row, std::int64_t head, std::int64_t d) const {
    const std::int64_t kv = head / (shape.heads / shape.kv_heads);
    const std::int64_t first = shape.window > 0 ? std::max<std::int64_t>(0, row + 1 - shape.window) : 0;
    double numerator = 0, denominator = 0;
    if (!sinks.empty()) denominator = std::exp(1.0 * widen(sinks[static_cast<std::size_t>(head)]));
    for (std::int64_t t = first; t <= row; ++t) {
      double score = 0;
      for (std::int64_t i = 0; i < shape.dim; ++i)
        score +=
            static_cast<double>(widen(query[static_cast<std::size_t>((row * shape.heads + head) * shape.dim + i)])) *
            static_cast<double>(keys[static_cast<std::size_t>((t * shape.kv_heads + kv) * shape.dim + i)]);
      const double weight = std::exp(0.3 * score);
      denominator += weight;
      numerator +=
          weight * static_cast<double>(values[static_cast<std::size_t>((t * shape.kv_heads + kv) * shape.dim + d)]);
    }
    return numerator / denominator;
  }
};

template <class T, class C>
void check_attention(const CpuKernels<T>& kernels, const AttentionCase& shape, double rounding) {
  SCOPED_TRACE(::testing::Message() << shape.heads << " heads, " << shape.kv_heads << " kv, dim " << shape.dim
                                    << ", blocks of " << shape.block_tokens << ", window " << shape.window
                                    << ", length " << shape.length);
  const AttentionData<T, C> data(shape);
  const auto run = [&](const AttentionTask<T, C>& task) {
    for (std::int64_t kv = 0; kv < shape.kv_heads; ++kv) {
      if constexpr (std::is_same_v<C, float>)
        kernels.attend_fp32(task, kv, 0, task.rows);
      else if constexpr (std::is_same_v<C, Bf16>)
        kernels.attend_bf16(task, kv, 0, task.rows);
      else
        kernels.attend_int8(task, kv, 0, task.rows);
    }
  };
  std::vector<T> whole(data.query.size()), chunked(data.query.size());
  run(data.task(0, shape.length, whole));
  for (std::int64_t first = 0, chunk = 1; first < shape.length; first += chunk, chunk = chunk % 7 + 1)
    run(data.task(first, std::min(chunk, shape.length - first), chunked));
  for (std::int64_t row = 0; row < shape.length; ++row)
    for (std::int64_t head = 0; head < shape.heads; ++head)
      for (std::int64_t d = 0; d < shape.dim; ++d) {
        const auto i = static_cast<std::size_t>((row * shape.heads + head) * shape.dim + d);
        const double expected = data.expected(row, head, d);
        // Scores reach 40 here, and their rounding errors come out of the exponential as relative ones.
        ASSERT_NEAR(widen(whole[i]), expected, 1e-5 + rounding * std::abs(expected)) << row << " " << head << " " << d;
        ASSERT_EQ(widen(whole[i]), widen(chunked[i])) << "a chunk's result differs";
      }
}

TYPED_TEST(CpuKernelsTest, AttentionEqualsTheFormulaHoweverItIsChunked) {
  const std::vector<AttentionCase> cases = {
      {4, 2, 16, 16, 0, 150}, {6, 1, 32, 16, 0, 40}, {3, 3, 8, 4, 0, 30},         {4, 4, 20, 16, 5, 90},
      {12, 1, 16, 32, 0, 70}, {2, 1, 64, 1, 9, 25},  {2, 2, 16, 24, 0, 75},       {5, 1, 48, 128, 100, 200},
      {4, 2, 64, 16, 0, 150}, {3, 3, 96, 24, 7, 80}, {6, 2, 64, 16, 0, 90, true}, {8, 1, 20, 4, 9, 70, true},
  };
  this->for_each_set([&](const CpuKernels<TypeParam>& kernels) {
    for (const AttentionCase& shape : cases) {
      check_attention<TypeParam, float>(kernels, shape, this->rounding);
      check_attention<TypeParam, Bf16>(kernels, shape, this->rounding);
      if (shape.dim % kv_scale_values == 0) check_attention<TypeParam, std::int8_t>(kernels, shape, this->rounding);
    }
  });
}

}  // namespace
}  // namespace motley
