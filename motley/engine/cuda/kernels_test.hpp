// What the tests of the CUDA kernels share: random choices, arrays, and plain functions to compare with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "motley/engine/cuda/device.cuh"

namespace motley::cuda {

inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline const float not_a_number = std::numeric_limits<float>::quiet_NaN();

inline std::mt19937& random_bits() {
  static std::mt19937 bits(7);
  return bits;
}

inline int between(int low, int high) { return std::uniform_int_distribution(low, high)(random_bits()); }
inline bool one_in(int n) { return between(1, n) == 1; }
inline int one_of(std::initializer_list<int> choices) {
  return choices.begin()[between(0, static_cast<int>(choices.size()) - 1)];
}
inline float random_float() { return std::normal_distribution<float>()(random_bits()); }

template <class T>
constexpr Element element_of = sizeof(T) == 4   ? Element::fp32
                               : sizeof(T) == 2 ? Element::bf16
                                                : Element::int8;

// Elements at an address that is aligned to 16 bytes, or now and then only to one of them.
template <class T>
class Array {
 public:
  explicit Array(std::size_t count, bool random = true) : elements_(count + 16 / sizeof(T)), count_(count) {
    const auto at = reinterpret_cast<std::uintptr_t>(elements_.data()) / sizeof(T);
    const std::size_t per_pack = 16 / sizeof(T);
    first_ = (per_pack - at % per_pack) % per_pack + (one_in(8) ? 1 : 0);
    if (first_ == per_pack) first_ = 0;
    if (random)
      for (T& x : *this) x = from_float<T>(random_float());
  }
  T* data() { return elements_.data() + first_; }
  const T* data() const { return elements_.data() + first_; }
  T* begin() { return data(); }
  T* end() { return data() + count_; }
  std::size_t size() const { return count_; }
  double at(std::size_t i) const { return static_cast<double>(to_float(data()[i])); }

 private:
  std::vector<T> elements_;
  std::size_t count_, first_;
};

inline double to_double(double value) { return value; }
template <class T>
double to_double(T value) {
  return static_cast<double>(to_float(value));
}

template <class T>
void expect_close(double expected, T found, double magnitude = 1) {
  const double error = std::abs(to_double(found) - expected);
  const double allowed =
      2e-5 * std::max(magnitude, std::abs(expected)) + (sizeof(T) == 2 ? std::abs(expected) / 256 : 0);
  ASSERT_LE(error, allowed) << expected << " " << to_double(found);
}

// Runs check.template operator()<T>() this many times in all for fp32 and bf16.
template <class Check>
void for_elements(int times, const Check& check) {
  for (int i = 0; i < times && !testing::Test::HasFatalFailure(); ++i) {
    SCOPED_TRACE(i);
    if (i % 2 == 0)
      check.template operator()<float>();
    else
      check.template operator()<Bf16>();
  }
}

inline int random_columns() {
  if (one_in(100)) return between(1000, 20000);
  return one_in(2) ? between(1, 40) * 8 : between(1, 300);
}

inline double activated(const ActivationRule& rule, double x) {
  switch (rule.kind) {
    case ActivationKind::silu: return x / (1 + std::exp(-x));
    case ActivationKind::gelu: return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
    case ActivationKind::gelu_tanh:
      return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x)));
    case ActivationKind::swiglu: {
      const double least = std::min(x, 1.0 * rule.limit);
      return least / (1 + std::exp(-rule.slope * least));
    }
    case ActivationKind::relu: break;
  }
  return std::max(x, 0.0);
}

// What the activation's value is multiplied by.
inline double times(const ActivationRule& rule, double x) {
  return rule.kind == ActivationKind::swiglu ? std::clamp(x, -1.0 * rule.limit, 1.0 * rule.limit) + 1 : x;
}

inline ActivationRule random_rule() { return {static_cast<ActivationKind>(between(0, 4)), 0.75f, 1.702f}; }

}  // namespace motley::cuda
