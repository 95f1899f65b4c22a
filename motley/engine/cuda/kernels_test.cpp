// The source of the CUDA kernels, run on the processor (host_grid.hpp), against plain loops in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

#include "motley/engine/cuda/attention.cuh"
#include "motley/engine/cuda/draw.cuh"
#include "motley/engine/cuda/kernels_test.hpp"
#include "motley/engine/cuda/rows.cuh"

namespace motley::cuda {
namespace {

TEST(CudaKernels, Norm) {
  for_elements(2000, []<class T>() {
    const auto rows = static_cast<std::size_t>(between(1, 3)), columns = static_cast<std::size_t>(random_columns());
    Array<T> input(rows * columns), other(rows * columns), weight(columns), bias(columns);
    const Array<T> before = input;
    const bool in_place = one_in(2), layer = one_in(2), biased = one_in(2), one_more = !layer && one_in(2);
    Array<T>& out = in_place ? input : other;
    ASSERT_EQ(0, norm({.kind = layer      ? NormKind::layer
                               : one_more ? NormKind::rms1p
                                          : NormKind::rms,
                       .element = element_of<T>,
                       .input = input.data(),
                       .out = out.data(),
                       .weight = weight.data(),
                       .bias = biased ? bias.data() : nullptr,
                       .rows = static_cast<std::int64_t>(rows),
                       .columns = static_cast<std::int64_t>(columns),
                       .epsilon = 1e-3f},
                      nullptr));
    for (std::size_t row = 0; row < rows; ++row) {
      double mean = 0, squares = 0;
      for (std::size_t i = 0; i < columns; ++i) mean += before.at(row * columns + i) / static_cast<double>(columns);
      if (!layer) mean = 0;
      for (std::size_t i = 0; i < columns; ++i)
        squares += std::pow(before.at(row * columns + i) - mean, 2) / static_cast<double>(columns);
      for (std::size_t i = 0; i < columns; ++i) {
        const double x = (before.at(row * columns + i) - mean) / std::sqrt(squares + 1e-3) * (weight.at(i) + one_more);
        ASSERT_NO_FATAL_FAILURE(expect_close(x + (biased ? bias.at(i) : 0), out.data()[row * columns + i], 4));
      }
    }
  });
}

TEST(CudaKernels, Heads) {
  for_elements(2000, []<class T>() {
    const int rows = between(1, 4), heads_count = between(1, 5), kv_heads = between(1, 3);
    const int head_dim = 2 * between(1, 70), pairs = one_in(4) ? 0 : between(1, head_dim / 2);
    const auto size = [&](int heads_here) { return static_cast<std::size_t>(rows * heads_here * head_dim); };
    Array<T> query(size(heads_count)), key(size(kv_heads));
    const Array<T> query_before = query, key_before = key;
    const Array<T> query_norm(static_cast<std::size_t>(head_dim)), key_norm(static_cast<std::size_t>(head_dim));
    const bool normed = one_in(2), one_more = one_in(2);
    std::vector<float> frequencies(static_cast<std::size_t>(pairs));
    for (float& x : frequencies) x = std::abs(random_float());
    std::vector<std::int64_t> positions(static_cast<std::size_t>(rows));
    for (std::int64_t& x : positions) x = between(0, one_in(10) ? 1000000 : 4000);
    ASSERT_EQ(0, heads({.kind = one_more ? NormKind::rms1p : NormKind::rms,
                        .element = element_of<T>,
                        .query = query.data(),
                        .key = key.data(),
                        .query_norm = normed ? query_norm.data() : nullptr,
                        .key_norm = normed ? key_norm.data() : nullptr,
                        .epsilon = 1e-3f,
                        .rows = rows,
                        .heads = heads_count,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .pairs = pairs,
                        .inverse_frequencies = frequencies.data(),
                        .amplitude = 1.25f,
                        .positions = positions.data()},
                       nullptr));
    const auto check = [&](const Array<T>& before, const Array<T>& after, const Array<T>& weight, int heads_here) {
      for (int head = 0; head < rows * heads_here; ++head) {
        const auto first = static_cast<std::size_t>(head * head_dim);
        std::vector<double> x(static_cast<std::size_t>(head_dim));
        double squares = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] = before.at(first + i);
          squares += x[i] * x[i] / head_dim;
        }
        for (std::size_t i = 0; normed && i < x.size(); ++i)
          x[i] *= (weight.at(i) + one_more) / std::sqrt(squares + 1e-3);
        const auto half = static_cast<std::size_t>(pairs);
        for (std::size_t i = 0; i < half; ++i) {
          const float angle =
              static_cast<float>(positions[static_cast<std::size_t>(head / heads_here)]) * frequencies[i];
          const double cosine = 1.25 * std::cos(static_cast<double>(angle)),
                       sine = 1.25 * std::sin(static_cast<double>(angle));
          const double a = x[i], b = x[i + half];
          x[i] = a * cosine - b * sine;
          x[i + half] = b * cosine + a * sine;
        }
        for (std::size_t i = 0; i < x.size(); ++i)
          ASSERT_NO_FATAL_FAILURE(expect_close(x[i], after.data()[first + i], 4));
      }
    };
    ASSERT_NO_FATAL_FAILURE(check(query_before, query, query_norm, heads_count));
    ASSERT_NO_FATAL_FAILURE(check(key_before, key, key_norm, kv_heads));
  });
}

TEST(CudaKernels, Activate) {
  for_elements(2000, []<class T>() {
    const auto count = static_cast<std::size_t>(random_columns());
    Array<T> values(count);
    const Array<T> before = values, factors(count);
    const ActivationRule rule = random_rule();
    const bool gated = rule.kind == ActivationKind::swiglu || one_in(2);
    ASSERT_EQ(0, activate({.rule = rule,
                           .element = element_of<T>,
                           .values = values.data(),
                           .factors = gated ? factors.data() : nullptr,
                           .count = static_cast<std::int64_t>(count)},
                          nullptr));
    for (std::size_t i = 0; i < count; ++i) {
      const double x = before.at(i);
      const double y = activated(rule, x);
      ASSERT_NO_FATAL_FAILURE(expect_close(gated ? y * times(rule, factors.at(i)) : y, values.data()[i]));
    }
  });
}

TEST(CudaKernels, Add) {
  for_elements(2000, []<class T>() {
    const auto rows = static_cast<std::size_t>(between(1, 4)), columns = static_cast<std::size_t>(random_columns());
    Array<T> sum(rows * columns);
    const Array<T> before = sum, terms(rows * columns), bias(columns);
    const bool biased = one_in(2);
    ASSERT_EQ(0, add({.element = element_of<T>,
                      .sum = sum.data(),
                      .terms = terms.data(),
                      .bias = biased ? bias.data() : nullptr,
                      .rows = static_cast<std::int64_t>(rows),
                      .columns = static_cast<std::int64_t>(columns)},
                     nullptr));
    for (std::size_t i = 0; i < rows * columns; ++i)
      ASSERT_NO_FATAL_FAILURE(
          expect_close(before.at(i) + terms.at(i) + (biased ? bias.at(i % columns) : 0), sum.data()[i]));
  });
}

TEST(CudaKernels, LookUp) {
  for_elements(1000, []<class T>() {
    const auto rows = static_cast<std::size_t>(between(1, 5)), columns = static_cast<std::size_t>(random_columns());
    const auto first = between(0, 100), table_rows = between(1, 6);
    Array<T> out(rows * columns);
    const Array<T> table(static_cast<std::size_t>(table_rows) * columns);
    std::vector<std::int64_t> tokens(rows);
    for (std::int64_t& token : tokens) token = first + between(-2, table_rows + 1);
    ASSERT_EQ(0, embedding({.element = element_of<T>,
                            .out = out.data(),
                            .tokens = tokens.data(),
                            .table = table.data(),
                            .rows = static_cast<std::int64_t>(rows),
                            .columns = static_cast<std::int64_t>(columns),
                            .first = first,
                            .table_rows = table_rows},
                           nullptr));
    for (std::size_t i = 0; i < rows * columns; ++i) {
      const std::int64_t row = tokens[i / columns] - first;
      const bool inside = row >= 0 && row < table_rows;
      ASSERT_EQ(inside ? table.at(static_cast<std::size_t>(row) * columns + i % columns) : 0, out.at(i));
    }
  });
}

// A cache of some sequences, all of whose tokens were written by the kernel; what was not is NaN.
template <class T, class C>
class Sequences {
 public:
  static constexpr bool scaled = sizeof(C) == 1;

  Sequences() {
    view_.element = element_of<C>;
    view_.kv_heads = between(1, 3);
    view_.head_dim = scaled ? one_of({32, 64, 96, 128}) : one_of({8, 16, 24, 32, 40, 64, 80, 96, 128, 256});
    view_.block_tokens = one_in(2) ? 16 : one_of({1, 2, 3, 4, 5, 8, 12, 17, 32, 48, 64, 256});
    for (int sequences = between(1, 3); sequences > 0; --sequences)
      lengths_.push_back(between(1, one_in(20) ? 400 : one_in(4) ? 150 : 40));
    width_ = (*std::max_element(lengths_.begin(), lengths_.end()) + view_.block_tokens - 1) / view_.block_tokens;
    table_.resize(lengths_.size() * static_cast<std::size_t>(width_));
    for (std::size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<std::int32_t>(i);
    std::shuffle(table_.begin(), table_.end(), random_bits());
    const auto count = table_.size() * static_cast<std::size_t>(view_.kv_heads * view_.head_dim * view_.block_tokens);
    // The engine's allocations are aligned.
    keys_.assign(count, nothing());
    values_.assign(count, nothing());
    if (scaled) {
      key_scales_.assign(count / 32, from_float<Fp16>(not_a_number));
      value_scales_ = key_scales_;
    }
    view_.keys = keys_.data();
    view_.values = values_.data();
    view_.key_scales = key_scales_.data();
    view_.value_scales = value_scales_.data();
    fill();
  }

  const CacheView& view() const { return view_; }
  const std::vector<int>& lengths() const { return lengths_; }
  const std::int32_t* blocks_of(std::size_t sequence) const {
    return table_.data() + sequence * static_cast<std::size_t>(width_);
  }
  RowsView rows(const std::vector<std::int64_t>& positions, const std::vector<std::int32_t>& sequences) const {
    return {positions.data(), sequences.data(), table_.data(), width_, static_cast<std::int64_t>(positions.size())};
  }
  // [head_dim]
  const float* key(std::size_t sequence, int token, int head) const {
    return read_keys_.data() + read_at(sequence, token, head);
  }
  const float* value(std::size_t sequence, int token, int head) const {
    return read_values_.data() + read_at(sequence, token, head);
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  static C nothing() {
    if constexpr (scaled)
      return 99;
    else
      return from_float<C>(not_a_number);
  }

  void fill() {
    std::vector<std::int64_t> positions;
    std::vector<std::int32_t> sequences;
    for (std::size_t s = 0; s < lengths_.size(); ++s)
      for (int token = 0; token < lengths_[s]; ++token) {
        positions.push_back(token);
        sequences.push_back(static_cast<std::int32_t>(s));
      }
    const auto row_size = static_cast<std::size_t>(view_.kv_heads * view_.head_dim);
    const Array<T> key_rows(positions.size() * row_size), value_rows(positions.size() * row_size);
    ASSERT_EQ(0,
              write({element_of<T>, key_rows.data(), value_rows.data(), view_, rows(positions, sequences)}, nullptr));
    for (std::size_t row = 0; row < positions.size(); ++row)
      for (int head = 0; head < view_.kv_heads; ++head) {
        const auto token = static_cast<int>(positions[row]);
        const int block = blocks_of(static_cast<std::size_t>(sequences[row]))[token / view_.block_tokens];
        read(block * view_.kv_heads + head, token % view_.block_tokens);
      }
    ASSERT_EQ(stored(key_rows), read_keys_);
    ASSERT_EQ(stored(value_rows), read_values_);
  }

  // Appends one token's head.
  void read(int place, int offset) {
    for (int i = 0; i < view_.head_dim; ++i) {
      float key = to_float(keys_[at((place * view_.head_dim + i) * view_.block_tokens + offset)]);
      float value = to_float(values_[at((place * view_.block_tokens + offset) * view_.head_dim + i)]);
      if (scaled) {
        const std::size_t scale = at((place * (view_.head_dim / 32) + i / 32) * view_.block_tokens + offset);
        key *= to_float(key_scales_[scale]);
        value *= to_float(value_scales_[scale]);
      }
      read_keys_.push_back(key);
      read_values_.push_back(value);
    }
  }

  // What the cache is to hold of these.
  static std::vector<float> stored(const Array<T>& rows) {
    std::vector<float> out(rows.size());
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = scaled ? to_float(rows.data()[i])
                      : to_float(from_float<std::conditional_t<scaled, T, C>>(to_float(rows.data()[i])));
    for (std::size_t first = 0; scaled && first < out.size(); first += 32) {
      const std::span group(out.data() + first, 32);
      float largest = 0;
      for (const float x : group) largest = std::max(largest, std::abs(x));
      const float scale = largest / 127, inverse = 1 / scale;
      for (float& x : group) x = std::round(x * inverse) * to_float(from_float<Fp16>(scale));
    }
    return out;
  }

  std::size_t read_at(std::size_t sequence, int token, int head) const {
    std::size_t row = at(token);
    for (std::size_t s = 0; s < sequence; ++s) row += at(lengths_[s]);
    return (row * at(view_.kv_heads) + at(head)) * at(view_.head_dim);
  }

  CacheView view_{};
  std::vector<int> lengths_;
  std::vector<std::int32_t> table_;
  int width_ = 0;
  std::vector<C> keys_, values_;
  std::vector<Fp16> key_scales_, value_scales_;
  std::vector<float> read_keys_, read_values_;  // [tokens of all sequences, kv_heads, head_dim]
};

template <class T, class C>
void check_attention() {
  const Sequences<T, C> cache;
  if (testing::Test::HasFatalFailure()) return;
  const CacheView& view = cache.view();
  const int group = one_of({1, 2, 3, 4, 5, 7, 8, 9, 16}), heads_count = group * view.kv_heads, dims = view.head_dim;
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> sequences;
  for (int row = between(1, 3); row > 0; --row) {
    sequences.push_back(between(0, static_cast<int>(cache.lengths().size()) - 1));
    const int length = cache.lengths()[static_cast<std::size_t>(sequences.back())];
    positions.push_back(one_in(2) ? length - 1 : between(0, length - 1));
  }
  const auto rows = positions.size();
  const int window = one_in(3) ? between(1, 200) : 0, splits = one_in(2) ? 1 : between(2, 6);
  const auto row_size = static_cast<std::size_t>(heads_count * dims);
  const Array<T> query(rows * row_size), sinks(static_cast<std::size_t>(heads_count));
  const bool has_sinks = one_in(2);
  Array<T> out(rows * row_size);
  std::vector<float> partial(rows * static_cast<std::size_t>(heads_count * splits * (dims + 2)), not_a_number);
  ASSERT_EQ(0, attend({.element = element_of<T>,
                       .query = query.data(),
                       .out = out.data(),
                       .heads = heads_count,
                       .cache = view,
                       .at = cache.rows(positions, sequences),
                       .window = window,
                       .scale = 0.3f,
                       .sinks = has_sinks ? sinks.data() : nullptr,
                       .splits = splits,
                       .partial = splits > 1 ? partial.data() : nullptr},
                      nullptr));
  SCOPED_TRACE(testing::Message() << "dims " << dims << " block " << view.block_tokens << " group " << group
                                  << " window " << window << " splits " << splits);
  for (std::size_t row = 0; row < rows; ++row)
    for (int head = 0; head < heads_count; ++head) {
      const auto sequence = static_cast<std::size_t>(sequences[row]);
      const auto last = static_cast<int>(positions[row]);
      const int first = window > 0 ? std::max(0, last - window + 1) : 0;
      const std::size_t at = row * row_size + static_cast<std::size_t>(head * dims);
      std::vector<double> weights;
      const double sink = has_sinks ? sinks.at(static_cast<std::size_t>(head)) : -infinity;
      double largest = sink, total = 0;
      for (int token = first; token <= last; ++token) {
        double score = 0;
        const float* key = cache.key(sequence, token, head / group);
        for (int i = 0; i < dims; ++i)
          score += query.at(at + static_cast<std::size_t>(i)) * static_cast<double>(key[i]);
        weights.push_back(score * static_cast<double>(0.3f));
        largest = std::max(largest, weights.back());
      }
      for (double& weight : weights) total += weight = std::exp(weight - largest);
      total += std::exp(sink - largest);
      std::vector<double> expected(static_cast<std::size_t>(dims));
      for (int token = first; token <= last; ++token) {
        const double weight = weights[static_cast<std::size_t>(token - first)] / total;
        const float* value = cache.value(sequence, token, head / group);
        for (double& x : expected) x += weight * static_cast<double>(*value++);
      }
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NO_FATAL_FAILURE(expect_close(expected[i], out.data()[at + i], 4));
    }
}

template <class C>
void check_gather() {
  const Sequences<float, C> cache;
  if (testing::Test::HasFatalFailure()) return;
  const CacheView& view = cache.view();
  const int tokens = between(1, cache.lengths()[0]);
  const auto count = static_cast<std::size_t>(tokens * view.kv_heads * view.head_dim);
  std::vector<Bf16> keys(count), values(count);
  ASSERT_EQ(0, gather({view, cache.blocks_of(0), tokens, keys.data(), values.data()}, nullptr));
  std::size_t at = 0;
  for (int token = 0; token < tokens; ++token)
    for (int head = 0; head < view.kv_heads; ++head)
      for (int i = 0; i < view.head_dim; ++i, ++at) {
        ASSERT_EQ(from_float<Bf16>(cache.key(0, token, head)[i]).bits, keys[at].bits);
        ASSERT_EQ(from_float<Bf16>(cache.value(0, token, head)[i]).bits, values[at].bits);
      }
}

TEST(CudaKernels, WriteAndAttend) {
  for_elements(1000, []<class T>() {
    switch (between(0, 2)) {
      case 0: return check_attention<T, float>();
      case 1: return check_attention<T, Bf16>();
      default: return check_attention<T, std::int8_t>();
    }
  });
}

TEST(CudaKernels, Gather) {
  for_elements(200, []<class C>() {
    if (one_in(3)) return check_gather<std::int8_t>();
    check_gather<C>();
  });
}

// Whether `token` may be drawn: its stretch of the running sum holds the target, but for the weights' rounding.
void expect_drawn(std::span<const float> logits, float temperature, float min_p, double uniform, std::int32_t token) {
  double largest = -infinity;
  std::int32_t best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (static_cast<double>(logits[i]) > largest) {
      largest = static_cast<double>(logits[i]);
      best = static_cast<std::int32_t>(i);
    }
  if (best < 0 || temperature == 0 || largest == infinity) {
    ASSERT_EQ(best, token);
    return;
  }
  std::vector<double> sums{0};
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto logit = static_cast<double>(logits[i]);
    double weight = std::isnan(logit) ? 0 : std::exp((logit - largest) / static_cast<double>(temperature));
    if (weight < static_cast<double>(min_p) && static_cast<std::int32_t>(i) != best) weight = 0;
    sums.push_back(sums.back() + weight);
  }
  ASSERT_GE(token, 0);
  ASSERT_LT(static_cast<std::size_t>(token), logits.size());
  const auto at = static_cast<std::size_t>(token);
  const double target = uniform * sums.back(), slack = 1e-5 * sums.back();
  ASSERT_GT(sums[at + 1], sums[at]);
  ASSERT_GE(target, sums[at] - slack);
  ASSERT_LE(target, sums[at + 1] + slack);
}

TEST(CudaKernels, Draw) {
  for (int time = 0; time < 500 && !HasFatalFailure(); ++time) {
    SCOPED_TRACE(time);
    const auto rows = static_cast<std::size_t>(between(1, 2));
    const auto columns = static_cast<std::size_t>(one_in(10) ? between(1, 8000) : between(1, 200));
    std::vector<float> logits(rows * columns), temperatures(rows), min_p(rows);
    std::vector<double> uniform(rows);
    std::vector<std::int32_t> tokens(rows, -2);
    // Quarters: many are equal, and none's weight is close to those least ones.
    for (float& logit : logits) logit = std::round(random_float() * 8) / 4;
    const int strange = one_in(3) ? between(1, 3) : 0;
    for (int i = 0; i < strange; ++i) {
      const float values[] = {not_a_number, INFINITY, -INFINITY};
      logits[static_cast<std::size_t>(between(0, static_cast<int>(logits.size()) - 1))] = values[between(0, 2)];
    }
    for (std::size_t row = 0; row < rows; ++row) {
      temperatures[row] = one_in(4) ? 0 : static_cast<float>(one_of({1, 2, 4})) / 2;
      min_p[row] = one_in(2) ? 0 : static_cast<float>(between(1, 99)) / 100;
      uniform[row] = one_in(10) ? 0 : std::uniform_real_distribution<double>()(random_bits());
      if (one_in(20))
        for (std::size_t i = 0; i < columns; ++i) logits[row * columns + i] = one_in(2) ? not_a_number : -INFINITY;
    }
    ASSERT_EQ(0, draw({logits.data(), static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns),
                       temperatures.data(), min_p.data(), uniform.data(), tokens.data()},
                      nullptr));
    for (std::size_t row = 0; row < rows; ++row)
      ASSERT_NO_FATAL_FAILURE(expect_drawn(std::span(logits).subspan(row * columns, columns), temperatures[row],
                                           min_p[row], uniform[row], tokens[row]));
  }
}

}  // namespace
}  // namespace motley::cuda
