#include "motley/cost/published/flexgen.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

constexpr double gibi = 1073741824.0;

FlexgenCase opt_30b(double prompt) {
  return {.layers = 48,
          .hidden = 7168,
          .ffn = 28672,
          .heads = 56,
          .prompt = prompt,
          .output = 32,
          .device_bytes = 16 * gibi,
          .host_bytes = 208 * gibi,
          .disk_bytes = 1500 * gibi,
          .rates = flexgen_rates({})};
}
FlexgenCase opt_175b(double prompt, double disk_read_gib_s) {
  return {.layers = 96,
          .hidden = 12288,
          .ffn = 49152,
          .heads = 96,
          .prompt = prompt,
          .output = 32,
          .device_bytes = 16 * gibi,
          .host_bytes = 208 * gibi,
          .disk_bytes = 1500 * gibi,
          .rates = flexgen_rates({.settings = {{"flexgen.disk_read_gib_s", disk_read_gib_s}}})};
}
FlexgenPolicy policy(double batch, double batches, double wg, double wc, double cg, double cc, double hg, double hc) {
  return {batch, batches, {wg, wc, 1 - wg - wc}, {cg, cc, 1 - cg - cc}, {hg, hc, 1 - hg - hc}};
}

// The published policy of OPT-30B by hand: 48 x 3 sequences, percentages 20 80 0 100 0 100.
TEST(Flexgen, ArithmeticOfAPublishedPolicy) {
  const FlexgenTimes times = flexgen_times(opt_30b(512), policy(48, 3, 0.2, 0.8, 0, 1, 0, 1));
  EXPECT_NEAR(times.prefill.upload, 0.1476, 5e-5);
  EXPECT_NEAR(times.prefill.download, 2.2378, 5e-5);
  EXPECT_NEAR(times.prefill.compute, 4.3890, 5e-5);
  EXPECT_NEAR(times.prefill_layer_s, 4.3890, 5e-5);
  EXPECT_NEAR(times.decode.upload, 0.0714, 5e-5);
  EXPECT_NEAR(times.decode.compute, 0.2210, 5e-5);
  EXPECT_NEAR(times.decode_layer_s, 0.2924, 5e-5);
  EXPECT_NEAR(times.total_s, 645.76, 5e-3);
  EXPECT_NEAR(times.tokens_per_s, 7.14, 5e-3);
  const FlexgenMemory memory = flexgen_memory(opt_30b(512), policy(48, 3, 0.2, 0.8, 0, 1, 0, 1));
  EXPECT_NEAR(memory.device_prefill / gibi, 18.77, 5e-3);
  EXPECT_NEAR(memory.device_decode / gibi, 12.87, 5e-3);
  EXPECT_NEAR(memory.host_prefill / gibi, 140.83, 5e-3);
  EXPECT_NEAR(memory.host_decode / gibi, 144.51, 5e-3);
}

// What the released model says of published policies; docs/concepts/planner-offload.md has the measurements next to it.
TEST(Flexgen, PublishedPolicies) {
  EXPECT_NEAR(flexgen_times(opt_30b(256), policy(160, 2, 0.1, 0.9, 0, 1, 0, 1)).tokens_per_s, 12.97, 5e-3);
  EXPECT_NEAR(flexgen_times(opt_30b(1024), policy(20, 4, 0.04, 0.96, 0, 1, 0, 1)).tokens_per_s, 3.62, 5e-3);
  EXPECT_NEAR(flexgen_times(opt_30b(512), policy(8, 1, 0, 1, 1, 0, 1, 0)).tokens_per_s, 1.71, 5e-3);
  for (const auto& [rate, at_256, at_512, at_1024] :
       {std::tuple(0.473, 0.30, 0.15, 0.08), std::tuple(2.5, 1.295, 0.659, 0.340),
        std::tuple(2.8, 1.411, 0.717, 0.370)}) {
    const double within = rate < 1 ? 5e-3 : 5e-4;
    EXPECT_NEAR(flexgen_times(opt_175b(256, rate), policy(64, 8, 0, 0.5, 0, 0, 0, 1)).tokens_per_s, at_256, within);
    EXPECT_NEAR(flexgen_times(opt_175b(512, rate), policy(32, 8, 0, 0.5, 0, 0, 0, 1)).tokens_per_s, at_512, within);
    EXPECT_NEAR(flexgen_times(opt_175b(1024, rate), policy(12, 12, 0, 0.5, 0, 0, 0, 1)).tokens_per_s, at_1024, within);
  }
}

}  // namespace
}  // namespace motley
