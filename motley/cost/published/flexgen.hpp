// The cost form `flexgen`: what the released code of FlexGen (FMInference/FlexLLMGen, commit 004ffef) computes for a
// policy, with its constants, which its authors fitted to a T4 in Google's cloud. docs/concepts/planner-offload.md has
// the formulas and where they differ from the paper's.
//
// A block of batch x batches sequences goes through the layers together. All figures are affine in the nine shares.
#pragma once

#include "motley/cost/form/form.hpp"
#include "motley/model/offload.hpp"

namespace motley {

// Bytes/s and FLOP/s.
struct FlexgenRates {
  double upload, download_kv, download_hidden;
  double disk_read, disk_write_kv, disk_write_hidden, disk_write_decode;
  double products_prefill, products_decode, attention_prefill, attention_decode;
  double host_flops;
  double c1, c2, c3;  // of attention on the host by batch and hidden size
};
// The released ones; `flexgen.disk_read_gib_s` of the settings beats the fitted 0.473.
FlexgenRates flexgen_rates(const CostOptions& options);

struct FlexgenCase {
  double layers = 0, hidden = 0, ffn = 0, heads = 0;
  double prompt = 0, output = 0;                            // tokens
  double device_bytes = 0, host_bytes = 0, disk_bytes = 0;  // before the headroom
  double weight_factor = 1;                                 // of fp16; a quarter with 4 bits
  FlexgenRates rates = {};
};
inline constexpr double flexgen_headroom = 0.8;  // of every tier, that a policy may use

struct FlexgenPolicy {
  double batch = 1, batches = 1;
  TierShares weights, kv, activations;
};

// Seconds of one layer and the whole block.
struct FlexgenPhase {
  double upload = 0, download = 0, disk_read = 0, disk_write = 0, compute = 0;
};
struct FlexgenTimes {
  FlexgenPhase prefill, decode;
  double prefill_layer_s = 0, decode_layer_s = 0;
  double total_s = 0;
  double tokens_per_s = 0;
};
FlexgenTimes flexgen_times(const FlexgenCase& input, const FlexgenPolicy& policy);

// Peak bytes.
struct FlexgenMemory {
  double device_prefill = 0, device_decode = 0, host_prefill = 0, host_decode = 0, disk = 0;
};
FlexgenMemory flexgen_memory(const FlexgenCase& input, const FlexgenPolicy& policy);

}  // namespace motley
