#include "motley/cost/serve/step.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

// Devices 0-1 in m0, 2-3 in m1.
Profile profile_of() {
  Profile profile;
  profile.layer_rate = {{"big", 1, {100, 60, 40}}, {"Big", 2, {180, 110}}};
  profile.link_tokens = {{"big", "small", 500}, {"m0", "m1", 300}};
  profile.link_rate = {{"small", "big", {1000, 3000}, {10, 20}}};
  return profile;
}

TEST(MeasuredRates, AreThoseOfTypeDegreeAndLayers) {
  const Cluster cluster = d1_cluster();
  const Profile profile = profile_of();
  EXPECT_EQ(measured_tokens_per_s(profile, cluster, {0}, 1), 100);
  EXPECT_EQ(measured_tokens_per_s(profile, cluster, {1}, 3), 40);
  EXPECT_EQ(measured_tokens_per_s(profile, cluster, {0, 1}, 2), 110);
  EXPECT_EQ(measured_tokens_per_s(profile, cluster, {2}, 1), std::nullopt);
  EXPECT_EQ(measured_tokens_per_s(profile, cluster, {0, 2}, 1), std::nullopt);  // unlike types
  EXPECT_THROW(measured_tokens_per_s(profile, cluster, {0}, 4), Error);
}

TEST(MeasuredLinks, MachinesComeBeforeTypesAndDirectionsDiffer) {
  const Cluster cluster = d1_cluster();
  const Profile profile = profile_of();
  ASSERT_NE(measured_link(profile, cluster, 0, 3).tokens, nullptr);
  EXPECT_EQ(measured_link(profile, cluster, 0, 3).tokens->tokens_per_s, 300);
  EXPECT_EQ(measured_link(profile, cluster, 3, 0).tokens, nullptr);
  ASSERT_NE(measured_link(profile, cluster, 3, 0).rate, nullptr);
  EXPECT_EQ(measured_link(profile, cluster, 0, 1).tokens, nullptr);
  EXPECT_EQ(measured_link({}, cluster, 0, 3).tokens, nullptr);
}

TEST(MeasuredLinks, RatesAreLinearBetweenSizes) {
  const LinkRate rate = profile_of().link_rate[0];
  EXPECT_EQ(bytes_per_s(rate, 1), 10);
  EXPECT_EQ(bytes_per_s(rate, 1000), 10);
  EXPECT_EQ(bytes_per_s(rate, 2000), 15);
  EXPECT_EQ(bytes_per_s(rate, 3000), 20);
  EXPECT_EQ(bytes_per_s(rate, 1e9), 20);
}

TEST(StepCost, ChunksWithoutLogitsPayNoHead) {
  const Cluster cluster = d1_cluster();
  const Model model = d1_model();
  const StepCost cost({}, cluster, model.arch);
  const TensorGroup group = make_group(cluster, model.arch, {0, 1}, {}, DType::bf16, DType::bf16, {});
  const StepLoad chunk{.tokens = 64, .context = 32, .cached = 32, .logits = 0};
  EXPECT_EQ(cost.ends_s(group, {.first = false, .last = true}, chunk), cost.ends_s(group, {}, chunk));
  StepLoad last = chunk;
  last.logits = 1;
  EXPECT_GT(cost.ends_s(group, {.first = false, .last = true}, last), cost.ends_s(group, {}, last));
}

TEST(StepCost, APartOfALogitIsAPartOfItsGathering) {
  const Cluster cluster = d1_cluster();
  const Model model = d1_model();
  const StepCost cost({}, cluster, model.arch);
  const TensorGroup group = make_group(cluster, model.arch, {0, 1}, {}, DType::bf16, DType::bf16, {});
  const double one_s = 5e-6 + 0.5 * 32000 * 4 / 24e9;
  EXPECT_DOUBLE_EQ(cost.gather_logits_s(group, {.logits = 1}), one_s);
  EXPECT_DOUBLE_EQ(cost.gather_logits_s(group, {.logits = 0.25}), one_s / 4);
  EXPECT_DOUBLE_EQ(cost.gather_logits_s(group, {.logits = 4}), 5e-6 + 4 * 0.5 * 32000 * 4 / 24e9);
}

}  // namespace
}  // namespace motley
