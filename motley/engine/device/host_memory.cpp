#include "motley/engine/device/host_memory.hpp"

#include <sys/mman.h>

#include "motley/base/error.hpp"
#include "motley/base/rounding.hpp"

namespace motley {

std::span<std::byte> bytes_of(const at::Tensor& host) {
  MOTLEY_CHECK(host.is_cpu() && host.is_contiguous());
  return {static_cast<std::byte*>(host.mutable_data_ptr()), host.nbytes()};
}

std::int64_t allocated_bytes(const at::Tensor& tensor) {
  constexpr std::int64_t line = 64;
  return round_up(static_cast<std::int64_t>(tensor.storage().nbytes()), line);
}

void advise_large_pages(const at::Tensor& host) {
  constexpr std::uintptr_t page = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(host.const_data_ptr());
  const std::uintptr_t first = round_up(begin, page), last = (begin + host.nbytes()) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

}  // namespace motley
