#include "motley/cost/collective/genmodel_fit.hpp"

#include <gtest/gtest.h>

#include "motley/base/error.hpp"
#include "motley/cost/collective/genmodel_cases_test.hpp"
#include "motley/cost/form/cases_test.hpp"

namespace motley {
namespace {

// Direct exchanges on 2 to `most` ranks and rings, three sizes each; every time off by `noise` up or down in turn.
std::vector<MeasuredCollective> measured(int most, double noise) {
  std::vector<MeasuredCollective> list;
  int turn = 0;
  for (int ranks = 2; ranks <= most; ++ranks)
    for (const double bytes : {1e5, 1e7, 4e8})
      for (const bool ring : {false, true}) {
        MeasuredCollective one{ranks, ring ? std::vector<int>{} : std::vector<int>{ranks}, bytes, 0};
        const auto counts = ring ? ring_counts(ranks) : factored_counts({ranks}, p10.threshold);
        one.seconds = genmodel_seconds(counts, p10, bytes) * (1 + (turn++ % 3 - 1) * noise);
        list.push_back(one);
      }
  return list;
}

TEST(GenModelFit, FindsTheConstants) {
  const auto fit = fit_genmodel(measured(14, 0), "2026-11-01");
  EXPECT_NEAR(fit.alpha_s / p10.alpha_s, 1, 1e-6);
  EXPECT_NEAR(fit.transfer_s_per_byte / (2 * p10.beta_s_per_byte + p10.gamma_s_per_byte), 1, 1e-6);
  EXPECT_NEAR(fit.delta_s_per_byte / p10.delta_s_per_byte, 1, 1e-6);
  EXPECT_NEAR(fit.epsilon_s_per_byte / p10.epsilon_s_per_byte, 1, 1e-6);
  EXPECT_EQ(fit.threshold, 9);
  EXPECT_LT(fit.residual, 1e-9);
  EXPECT_EQ(fit.date, "2026-11-01");
  const auto constants = constants_of(fit, p10.beta_s_per_byte);
  EXPECT_NEAR(constants.gamma_s_per_byte / p10.gamma_s_per_byte, 1, 1e-5);
}

TEST(GenModelFit, NoIncastWhereNoneWasSeen) {
  const auto fit = fit_genmodel(measured(8, 0), "");
  EXPECT_EQ(fit.threshold, 0);
  EXPECT_EQ(fit.epsilon_s_per_byte, 0);
}

TEST(GenModelFit, NoiseIsReportedAndTooMuchRefused) {
  const auto fit = fit_genmodel(measured(14, 0.03), "2026-11-01");
  EXPECT_GT(fit.residual, 0.01);
  EXPECT_LT(fit.largest_error, 0.1);
  EXPECT_GT(fit.largest_error, fit.residual) << "the worst is worse than the mean";
  EXPECT_NO_THROW(constants_of(fit, p10.beta_s_per_byte));
  const auto bad = fit_genmodel(measured(14, 0.3), "2026-11-01");
  EXPECT_THROW(constants_of(bad, p10.beta_s_per_byte), Error);
}

TEST(GenModelFit, OneFanInDoesNotDetermineMemory) {
  std::vector<MeasuredCollective> rings;
  for (const double bytes : {1e5, 1e7, 1e8, 4e8})
    rings.push_back({8, {}, bytes, genmodel_seconds(ring_counts(8), p10, bytes)});
  EXPECT_THROW(fit_genmodel(rings, ""), Error);
  EXPECT_THROW(fit_genmodel({{4, {4}, 1e6, 1}, {2, {2}, 1e6, 1}}, ""), Error);
  EXPECT_THROW(fit_genmodel({{4, {4}, 1e6, 1}, {2, {2}, 1e6, 1}, {2, {2}, 2e6, 1}}, ""), Error);
  EXPECT_THROW(fit_genmodel({{4, {3}, 1e6, 1}, {2, {2}, 1e6, 1}, {2, {2}, 1e6, 1}, {2, {2}, 1e6, 1}}, ""), Error);
}

}  // namespace
}  // namespace motley
