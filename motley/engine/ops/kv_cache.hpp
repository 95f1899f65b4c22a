// What one layer keeps of sequences: keys and values in blocks of tokens, or the states of a delta net.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>

#include "motley/base/dtype.hpp"
#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/ops/kv_scales.hpp"
#include "motley/model/architecture.hpp"

namespace motley {

struct HostPages;  // of main memory, as the kernel gives them

// Of q8_0 the elements are int8, and each 32 of a token's head share a scale in fp16, as in GGUF's blocks of this type.
struct LayerCache {
  at::Tensor
      keys;  // [blocks, kv_heads, head_dim, block_tokens]: sixteen tokens' dot products at a time need no shuffling
  at::Tensor values;             // [blocks, kv_heads, block_tokens, head_dim]
  at::Tensor key_scales = {};    // [blocks, kv_heads, head_dim / 32, block_tokens]; undefined but of q8_0
  at::Tensor value_scales = {};  // alike
  std::shared_ptr<HostPages> key_pages = {},
                             value_pages = {};  // what holds keys and values, where nothing else is there
  // Of a delta net, by the sequence's slot; both fp32, undefined where attention is.
  at::Tensor state = {};      // [slots, value heads, key dim, value dim]
  at::Tensor convolved = {};  // [slots, channels, width - 1]: the convolution's last inputs; of q, k and v
  std::int64_t block_tokens() const { return values.size(2); }
};

struct CacheShape {
  std::int64_t blocks, kv_heads, head_dim, block_tokens;
};

// All zeros. Keys, with their scales, are one allocation, and so are values. `head_dim` is whole blocks of `type`.
LayerCache empty_cache(DType type, const CacheShape& shape, const ComputeDevice& device);

// Of a delta net, with a slot for each sequence, all zeros.
LayerCache empty_states(const DeltaNet& delta, std::int64_t key_heads, std::int64_t slots, const ComputeDevice& device);

// The same blocks in a cache of another size: those that it has no room for are lost, new ones are zeros. In main
// memory nothing is copied. No other may hold the tensors.
LayerCache resized(LayerCache cache, DType type, const CacheShape& shape, const ComputeDevice& device);

// Blocks `from` become blocks `to`, int64 on the cache's device; of none is both.
void copy_blocks(const LayerCache& cache, const at::Tensor& from, const at::Tensor& to);

}  // namespace motley
