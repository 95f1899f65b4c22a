// For tests: two sound plans.
#pragma once

#include "motley/plan/serve_plan.hpp"

namespace motley {

inline void predict_memory(ServePlan& plan) {
  plan.predicted.memory_bytes.clear();
  for (const auto& stage : plan.stages) {
    const auto memory = stage_memory(plan, stage);
    for (std::size_t rank = 0; rank < memory.size(); ++rank)
      plan.predicted.memory_bytes[stage.devices[rank]] = memory[rank];
  }
}

// The tales model over six small devices: two equal ranks, three unequal ones, a single device.
inline ServePlan garage_plan() {
  ServePlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  plan.cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/garage/cluster.toml");
  plan.workload = default_workload();
  plan.step = {.max_tokens = 64, .max_sequences = 8, .block_tokens = 16};
  plan.stages = {
      {.id = "r0/s0",
       .layers = {0, 3},
       .devices = {"bench/0", "bench/1"},
       .shares = {},
       .embedding = true,
       .kv_tokens = 512},
      {.id = "r0/s1",
       .layers = {3, 6},
       .devices = {"shelf/0", "shelf/1", "shelf/2"},
       .shares = {0.5, 0.25, 0.25},
       .kv_tokens = 512},
      {.id = "r0/s2", .layers = {6, 8}, .devices = {"laptop/0"}, .shares = {}, .head = true, .kv_tokens = 480}};
  for (auto& stage : plan.stages) stage.weight_type = stage.kv_type = DType::fp32;
  plan.routes = {{.id = "r0", .path = {{"r0/s0", {0, 3}}, {"r0/s1", {3, 6}}, {"r0/s2", {6, 8}}}}};
  predict_memory(plan);
  return plan;
}

// Llama-2-70B over the box of 4 A6000, 2 A5000, 2 A4000.
inline ServePlan box_plan() {
  ServePlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/llama-2-70b");
  plan.cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/clusters/motivating-box.toml");
  plan.workload = default_workload();
  plan.stages = {{.id = "r0/s0",
                  .layers = {0, 52},
                  .devices = {"box/0", "box/1", "box/2", "box/3"},
                  .shares = {},
                  .embedding = true,
                  .kv_tokens = 4096},
                 {.id = "r0/s1", .layers = {52, 70}, .devices = {"box/4", "box/5"}, .shares = {}, .kv_tokens = 4096},
                 {.id = "r0/s2",
                  .layers = {70, 80},
                  .devices = {"box/6", "box/7"},
                  .shares = {},
                  .head = true,
                  .kv_tokens = 4096}};
  plan.routes = {{.id = "r0", .path = {{"r0/s0", {0, 52}}, {"r0/s1", {52, 70}}, {"r0/s2", {70, 80}}}}};
  predict_memory(plan);
  return plan;
}

}  // namespace motley
