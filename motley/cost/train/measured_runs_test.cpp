#include "bench/training/measured_runs.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "motley/cost/train/train_cost.hpp"

namespace motley {
namespace {

std::vector<MeasuredRun> all_runs() { return read_measured_runs(MOTLEY_SOURCE_DIR "/data/training"); }

double boundary_overhead_s(const std::vector<MeasuredRun>& runs, const std::string& site) {
  std::vector<const MeasuredRun*> of_site;
  for (const auto& run : runs)
    if (run.site == site) of_site.push_back(&run);
  return fit_boundary_overhead_s(of_site);
}

TEST(MeasuredRuns, AreSoundPlans) {
  const auto runs = all_runs();
  ASSERT_EQ(runs.size(), 11u);
  for (const auto& run : runs) {
    const auto violations = verify(run.plan);
    EXPECT_TRUE(violations.empty()) << run.name << ": " << violations.front().what;
    EXPECT_GT(run.iteration_s, 0) << run.name;
  }
  const auto& mixed = runs[1].plan;
  EXPECT_EQ(mixed.replicas.front().stages.size(), 4u);
  EXPECT_EQ(mixed.replicas.front().stages[1].layers, (LayerRange{4, 11}));
  EXPECT_EQ(mixed.replicas.front().micro_batches, 128);
  // Bytes of a block in layer_sizes.csv.
  EXPECT_EQ(4 * block_parameters(mixed.model.arch, 0), 50384896);
  EXPECT_EQ(4 * block_parameters(runs[2].plan.model.arch, 0), 314705920);
}

// What is reached; the table is bench/train_measured's.
TEST(MeasuredRuns, AreForetoldWithOneConstantPerCluster) {
  const auto runs = all_runs();
  double sum = 0, worst = 0;
  std::vector<double> predicted;
  for (const auto& run : runs) {
    const auto options = measured_runs_options(boundary_overhead_s(runs, run.site));
    predicted.push_back(price_train(run.plan, options).iteration_s);
    const double error = std::abs(predicted.back() / run.iteration_s - 1);
    sum += error;
    worst = std::max(worst, error);
  }
  EXPECT_LT(sum / static_cast<double>(runs.size()), 0.07);
  EXPECT_LT(worst, 0.16);
  for (std::size_t a = 0; a < runs.size(); ++a)
    for (std::size_t b = 0; b < runs.size(); ++b)
      if (runs[a].site == runs[b].site && same_job(runs[a], runs[b]) && runs[a].iteration_s < runs[b].iteration_s) {
        EXPECT_LT(predicted[a], predicted[b]) << runs[a].name << " and " << runs[b].name;
      }
}

TEST(MeasuredRuns, ConstantCountsOncePerBoundary) {
  for (const auto& run : all_runs()) {
    const double without_s = price_train(run.plan, measured_runs_options(0)).iteration_s;
    const TrainCost with = price_train(run.plan, measured_runs_options(0.5));
    const auto boundaries = static_cast<double>(run.plan.replicas.front().stages.size() - 1);
    EXPECT_NEAR(with.iteration_s, without_s + 0.5 * boundaries, 1e-9 * with.iteration_s) << run.name;
    EXPECT_NEAR(with.tree.value, with.iteration_s, 1e-9 * with.iteration_s) << run.name;
  }
}

// On slow links the hops decide: without any constant, waiting for them explains what overlap leaves open.
TEST(MeasuredRuns, StagesWaitForSlowHops) {
  for (const auto& run : all_runs()) {
    if (run.site != "mit") continue;
    EXPECT_LT(price_train(run.plan, {}).iteration_s, 0.8 * run.iteration_s) << run.name;
    EXPECT_NEAR(price_train(run.plan, measured_runs_options(0)).iteration_s, run.iteration_s, 0.07 * run.iteration_s)
        << run.name;
  }
}

TEST(MeasuredRuns, BadRowsAreNamed) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "measured-runs";
  const std::filesystem::path source = MOTLEY_SOURCE_DIR "/data/training";
  const std::string header =
      "case,site,model,layers,dp,replicas,micro_batch,global_batch,iter_s,grad_sync_s,max_mem_bytes\n";
  const auto message = [&](const std::string& row) -> std::string {
    std::filesystem::create_directories(folder);
    for (const char* name : {"layer_profiles.csv", "network_fits.csv"})
      std::filesystem::copy_file(source / name, folder / name, std::filesystem::copy_options::overwrite_existing);
    std::ofstream(folder / "measured_iterations.csv") << header << row << "\n";
    try {
      read_measured_runs(folder);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  using testing::HasSubstr;
  EXPECT_EQ(message("a,mit,OPT-350,12/14,1,1x(RTX-3090:2>Titan-RTX:2),2,256,120,0,1"), "");
  EXPECT_THAT(message("a,mit,OPT-350,12/13,1,1x(RTX-3090:2>Titan-RTX:2),2,256,120,0,1"), HasSubstr("layers = 12/13"));
  EXPECT_THAT(message("a,mit,OPT-350,12/14,1,RTX-3090,2,256,120,0,1"), HasSubstr("replicas"));
  EXPECT_THAT(message("a,mit,OPT-350,12/14,1,1x(RTX-3090:2>RTX-9:2),2,256,120,0,1"), HasSubstr("RTX-9"));
  EXPECT_THAT(message("a,mit,OPT-350,12/14,1,1x(RTX-3090:2>Titan-RTX:2),2,256,soon,0,1"), HasSubstr("iter_s"));
  EXPECT_THAT(message("a,mit,OPT-350"), HasSubstr("measured_iterations.csv:2"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace motley
