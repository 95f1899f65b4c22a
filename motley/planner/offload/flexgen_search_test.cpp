#include "motley/planner/offload/flexgen_search.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "motley/base/clock.hpp"

namespace motley {
namespace {

constexpr double gibi = 1073741824.0;

struct Shape {
  const char* name;
  double layers, hidden, heads;
};
constexpr Shape opt_6_7b{"6.7b", 32, 4096, 32}, opt_30b{"30b", 48, 7168, 56}, opt_175b{"175b", 96, 12288, 96};

FlexgenCase on_t4(const Shape& shape, double prompt, double weight_factor = 1) {
  return {.layers = shape.layers,
          .hidden = shape.hidden,
          .ffn = 4 * shape.hidden,
          .heads = shape.heads,
          .prompt = prompt,
          .output = 32,
          .device_bytes = 15 * gibi,
          .host_bytes = 204 * gibi,
          .disk_bytes = 1500 * gibi,
          .weight_factor = weight_factor,
          .rates = flexgen_rates({})};
}

// FlexGen's own search: batches 1, 2, 3, 4, then doubled; the largest number of batches by doubling and bisection; then
// numbers from 1 upward, up to the first that is slower.
FlexgenFound greedy(const FlexgenCase& input) {
  FlexgenFound best;
  for (std::int64_t batch = 1;; batch = batch < 4 ? batch + 1 : 2 * batch) {
    if (!best_shares(input, batch, 1)) return best;
    std::int64_t most = 1;
    while (best_shares(input, batch, 2 * most)) most *= 2;
    std::int64_t fails = 2 * most;
    while (fails - most > 1) {
      const std::int64_t middle = (most + fails) / 2;
      (best_shares(input, batch, middle) ? most : fails) = middle;
    }
    double last = 0;
    for (std::int64_t batches = 1; batches <= most; ++batches) {
      const auto found = best_shares(input, batch, batches);
      if (!found || found->tokens_per_s < last) break;
      last = found->tokens_per_s;
      if (last > best.tokens_per_s) best = *found;
    }
  }
}

void expect_fits(const FlexgenCase& input, const FlexgenPolicy& policy) {
  const FlexgenMemory memory = flexgen_memory(input, policy);
  constexpr double slack = 1 + 1e-7;
  EXPECT_LE(std::max(memory.device_prefill, memory.device_decode), slack * flexgen_headroom * input.device_bytes);
  EXPECT_LE(std::max(memory.host_prefill, memory.host_decode), slack * flexgen_headroom * input.host_bytes);
  EXPECT_LE(memory.disk, slack * flexgen_headroom * input.disk_bytes);
}

TEST(FlexgenSearch, IsNeverWorseThanFlexgensOwn) {
  double gained = 0;
  for (const Shape& shape : {opt_6_7b, opt_30b, opt_175b})
    for (const double prompt : {256, 512, 1024})
      for (const double factor : {1.0, 0.25}) {
        const FlexgenCase input = on_t4(shape, prompt, factor);
        const Instant start = Clock::now();
        const auto found = search_flexgen(input);
        const double elapsed_s = std::chrono::duration<double>(Clock::now() - start).count();
        ASSERT_TRUE(found);
        expect_fits(input, found->policy);
        const FlexgenFound own = greedy(input);
        EXPECT_GE(found->tokens_per_s, own.tokens_per_s * (1 - 1e-7));
        EXPECT_LT(elapsed_s, 1);
        gained = std::max(gained, found->tokens_per_s / own.tokens_per_s - 1);
      }
  EXPECT_GT(gained, 0.02);
}

TEST(FlexgenSearch, IsAsGoodAsEveryShapeOfABlock) {
  for (const auto& [shape, prompt, factor] : {std::tuple(opt_30b, 512.0, 1.0), std::tuple(opt_175b, 512.0, 0.25)}) {
    const FlexgenCase input = on_t4(shape, prompt, factor);
    double best = 0;
    for (std::int64_t batch = 1; best_shares(input, batch, 1); ++batch)
      for (std::int64_t batches = 1;; ++batches) {
        const auto found = best_shares(input, batch, batches);
        if (!found) break;
        best = std::max(best, found->tokens_per_s);
      }
    EXPECT_NEAR(search_flexgen(input)->tokens_per_s, best, 1e-7 * best);
  }
}

TEST(FlexgenSearch, KeepsAllOnADeviceThatHoldsIt) {
  FlexgenCase input = on_t4(opt_6_7b, 512);
  input.device_bytes = 16 * gibi;
  const auto found = search_flexgen(input);
  ASSERT_TRUE(found);
  for (const TierShares& shares : {found->policy.weights, found->policy.kv, found->policy.activations})
    EXPECT_NEAR(shares.device, 1, 1e-6);
}

TEST(FlexgenSearch, MoreOfAnythingIsNeverWorse) {
  for (const Shape& shape : {opt_6_7b, opt_30b, opt_175b}) {
    const FlexgenCase input = on_t4(shape, 512);
    const double before = search_flexgen(input)->tokens_per_s;
    const auto expect_no_worse = [&](auto member) {
      FlexgenCase more = input;
      more.*member *= 1.3;
      EXPECT_GE(search_flexgen(more)->tokens_per_s, before * (1 - 1e-7));
    };
    expect_no_worse(&FlexgenCase::device_bytes);
    expect_no_worse(&FlexgenCase::host_bytes);
    expect_no_worse(&FlexgenCase::disk_bytes);
    for (const auto rate : {&FlexgenRates::upload, &FlexgenRates::disk_read, &FlexgenRates::download_kv,
                            &FlexgenRates::host_flops, &FlexgenRates::products_decode}) {
      FlexgenCase more = input;
      more.rates.*rate *= 1.3;
      EXPECT_GE(search_flexgen(more)->tokens_per_s, before * (1 - 1e-7));
    }
  }
}

// Shares in steps of 5 %: none is better than the program's, and the best is close to it.
TEST(FlexgenSearch, SharesBeatAGrid) {
  FlexgenCase input = on_t4({"tiny", 8, 1024, 16}, 64);
  input.device_bytes = 0.3 * gibi;
  input.host_bytes = 0.25 * gibi;
  input.disk_bytes = 4 * gibi;
  const auto found = best_shares(input, 8, 4);
  ASSERT_TRUE(found);
  constexpr int steps = 20;
  std::vector<TierShares> grid;
  for (int device = 0; device <= steps; ++device)
    for (int host = 0; device + host <= steps; ++host)
      grid.push_back({device / double{steps}, host / double{steps}, (steps - device - host) / double{steps}});
  double best = 0;
  for (const TierShares& weights : grid)
    for (const TierShares& kv : grid)
      for (int device = 0; device <= steps; ++device) {
        const FlexgenPolicy policy{8, 4, weights, kv, {device / double{steps}, 1 - device / double{steps}, 0}};
        const FlexgenMemory memory = flexgen_memory(input, policy);
        if (std::max(memory.device_prefill, memory.device_decode) > flexgen_headroom * input.device_bytes ||
            std::max(memory.host_prefill, memory.host_decode) > flexgen_headroom * input.host_bytes ||
            memory.disk > flexgen_headroom * input.disk_bytes)
          continue;
        best = std::max(best, flexgen_times(input, policy).tokens_per_s);
      }
  EXPECT_LE(best, found->tokens_per_s * (1 + 1e-9));
  EXPECT_GE(best, 0.9 * found->tokens_per_s);
}

}  // namespace
}  // namespace motley
