// Division that rounds up, of integers that are not negative.
#pragma once

#include <concepts>
#include <type_traits>

namespace motley {

template <std::integral T>
constexpr T ceil_div(T amount, std::type_identity_t<T> unit) {
  return (amount + unit - 1) / unit;
}

// The next multiple of `unit`, or the amount itself.
template <std::integral T>
constexpr T round_up(T amount, std::type_identity_t<T> unit) {
  return ceil_div(amount, unit) * unit;
}

}  // namespace motley
