// For tests: small clusters and models with round figures.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "motley/plan/serve_plan.hpp"

namespace motley {

inline Cluster cluster_of(const std::string& toml) {
  return resolve(read<ClusterDescription>(parse_toml(toml, "test cluster"), "test cluster"), "test cluster");
}

inline Model llama_of(std::int64_t hidden, std::int64_t layers, std::int64_t heads, std::int64_t kv_heads,
                      std::int64_t ffn, std::int64_t vocabulary) {
  Model model;
  model.name = "test model";
  model.config = Value::object({{"model_type", "llama"},
                                {"hidden_size", hidden},
                                {"num_hidden_layers", layers},
                                {"num_attention_heads", heads},
                                {"num_key_value_heads", kv_heads},
                                {"intermediate_size", ffn},
                                {"vocab_size", vocabulary},
                                {"max_position_embeddings", std::int64_t{4096}},
                                {"rms_norm_eps", 1e-5},
                                {"torch_dtype", "float16"}});
  model.arch = read_architecture(model.config, "test model");
  return model;
}

inline Workload workload_of(double prompt_tokens, double output_tokens) {
  Workload workload = default_workload();
  workload.classes[0].prompt_tokens = {.mean = prompt_tokens, .trace = {}};
  workload.classes[0].output_tokens = {.mean = output_tokens, .trace = {}};
  return workload;
}

// Acceptance case D1 of the published model: two machines with two devices each.
inline Cluster d1_cluster() {
  return cluster_of(R"(
format = "motley.cluster/1"
[[machine]]
name = "m0"
devices = ["big*2"]
[[machine]]
name = "m1"
devices = ["small*2"]
[[device_type]]
name = "big"
vendor = "nvidia"
memory = "48 GiB"
memory_bandwidth = "768 GB/s"
flops = { fp16 = "154.8 TFLOP/s" }
[[device_type]]
name = "small"
vendor = "nvidia"
memory = "16 GiB"
memory_bandwidth = "448 GB/s"
flops = { fp16 = "76.7 TFLOP/s" }
[network]
within_machine = { latency = "5 us", bandwidth = "24 GB/s" }
within_site = { latency = "100 us", bandwidth = "1.25 GB/s" }
)");
}

inline Model d1_model() { return llama_of(4096, 8, 32, 32, 11008, 32000); }
inline Workload d1_workload() { return workload_of(128, 32); }

// What two cards with the usual copies, 12 GB/s and 10 us each, add to a slower link between their machines.
inline double usual_copies_s(double bytes) { return 2 * (10e-6 + std::min(bytes, double{1 << 20}) / 12e9); }

// But for rounding.
inline void expect_close(double value, double expected) { EXPECT_NEAR(value, expected, 1e-9 * std::abs(expected)); }

}  // namespace motley
