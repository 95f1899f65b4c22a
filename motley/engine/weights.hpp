// The weights of one rank, read from the checkpoint: only its layers and its slices.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "motley/checkpoint/checkpoint.hpp"
#include "motley/engine/ops.hpp"
#include "motley/engine/stage_model.hpp"

namespace motley {

struct LinearWeights {
  at::Tensor weight;  // [outputs, inputs]
  at::Tensor bias;    // [outputs]; may be undefined
};

struct BlockWeights {
  NormWeights attention_norm, q_norm, k_norm, ffn_norm;
  LinearWeights q, k, v, o, gate, up, down;
};

struct StageWeights {
  std::vector<BlockWeights> blocks;
  at::Tensor embedding;      // [rows of vocabulary, embedding dim]
  at::Tensor position;       // [position rows, hidden]
  at::Tensor projection_in;  // [hidden, embedding dim]
  NormWeights final_norm;
  at::Tensor projection_out;  // [embedding dim, hidden]
  at::Tensor head;            // [rows of vocabulary, embedding dim]; the embedding itself where they are tied
  std::int64_t bytes = 0;     // really allocated
};

// Bytes that an allocation of this tensor takes: the allocator rounds to cache lines.
std::int64_t allocated_bytes(const at::Tensor& tensor);

// Copies the slice of a tensor into `to` (any device; fp32 or bf16; as many elements as the slice). Throws an input
// error where the checkpoint has none, or one of another shape than `tensor` promises, or of a type other than F32,
// BF16 and F16.
void read_tensor(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, at::Tensor to);

// `progress` gets the fraction of the bytes that are loaded.
StageWeights load_weights(const StageSpec& spec, const Shard& shard, const Checkpoint& checkpoint, at::Device device,
                          const std::function<void(double)>& progress);

}  // namespace motley
