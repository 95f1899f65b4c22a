#include "motley/engine/kv_cache.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/engine/cpu_kernels.hpp"
#include "motley/engine/scalar_type.hpp"

namespace motley {
namespace {

using at::Tensor;

struct Elements {
  Tensor elements, scales;
};

// In main memory pages that the kernel makes once they are written: to write hundreds of megabytes of zeros would be
// most of what it takes to go over to another plan.
Tensor zeros(at::IntArrayRef sizes, at::ScalarType type, at::Device device) {
  const auto options = at::TensorOptions(type).device(device);
  if (!device.is_cpu()) return at::zeros(sizes, options);
  const std::size_t bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  if (bytes == 0) return at::zeros(sizes, options);
  void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED)
    throw Error(
        ErrorCode::environment,
        fmt::format("the machine does not give {} for keys and values", human_bytes(static_cast<double>(bytes))),
        "end what uses the memory, or offer less of it (`--memory`)");
  return at::from_blob(
      pages, sizes, [bytes](void* start) { ::munmap(start, bytes); }, options);
}

// The int8 elements of one allocation come first, then their scales.
Elements quantised_elements(at::IntArrayRef sizes, const CacheShape& shape, at::Device device) {
  MOTLEY_CHECK(shape.head_dim % kv_scale_values == 0);
  const std::int64_t count = shape.blocks * shape.kv_heads * shape.head_dim * shape.block_tokens;
  const Tensor bytes = zeros({bytes_of(DType::q8_0, count)}, at::kByte, device);
  return {bytes.narrow(0, 0, count).view(at::kChar).view(sizes),
          bytes.narrow(0, count, bytes.size(0) - count)
              .view(at::kHalf)
              .view({shape.blocks, shape.kv_heads, shape.head_dim / kv_scale_values, shape.block_tokens})};
}

}  // namespace

LayerCache empty_cache(DType type, const CacheShape& shape, at::Device device) {
  const std::int64_t keys[] = {shape.blocks, shape.kv_heads, shape.head_dim, shape.block_tokens};
  const std::int64_t values[] = {shape.blocks, shape.kv_heads, shape.block_tokens, shape.head_dim};
  if (type == DType::q8_0) {
    const Elements of_keys = quantised_elements(keys, shape, device),
                   of_values = quantised_elements(values, shape, device);
    return {of_keys.elements, of_values.elements, of_keys.scales, of_values.scales};
  }
  return {zeros(keys, scalar_type(type), device), zeros(values, scalar_type(type), device)};
}

}  // namespace motley
