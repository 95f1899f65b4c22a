#include "motley/engine/kv_cache.hpp"

#include "motley/base/error.hpp"
#include "motley/engine/cpu_kernels.hpp"
#include "motley/engine/scalar_type.hpp"

namespace motley {
namespace {

using at::Tensor;

struct Elements {
  Tensor elements, scales;
};

// The int8 elements of one allocation come first, then their scales.
Elements quantised_elements(at::IntArrayRef sizes, const CacheShape& shape, at::Device device) {
  MOTLEY_CHECK(shape.head_dim % kv_scale_values == 0);
  const std::int64_t count = shape.blocks * shape.kv_heads * shape.head_dim * shape.block_tokens;
  const Tensor bytes = at::zeros({bytes_of(DType::q8_0, count)}, at::TensorOptions(at::kByte).device(device));
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
  const auto options = at::TensorOptions(scalar_type(type)).device(device);
  return {at::zeros(keys, options), at::zeros(values, options)};
}

}  // namespace motley
