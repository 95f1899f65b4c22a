#include "bench/training/published_runs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "motley/cost/train/train_price.hpp"

namespace motley {
namespace {

std::vector<PublishedRun> published_runs() {
  return read_published_runs(MOTLEY_SOURCE_DIR "/data/training/foundry.csv");
}

TEST(PublishedRuns, ArePlansOfWholeNodes) {
  const auto runs = published_runs();
  ASSERT_EQ(runs.size(), 98u);
  for (const auto& run : runs) {
    const Training& training = training_of(run.plan.workload);
    const TrainReplica& replica = run.plan.replicas.front();
    EXPECT_EQ(training.global_batch, training.micro_batch * replica.micro_batches) << run.name;
    for (const auto& violation : verify(run.plan))
      EXPECT_NE(violation.what.find("but the device has"), std::string::npos) << run.name << ": " << violation.what;
  }
  // 1,024 sequences of 2,048 tokens at 135,490 tokens/s.
  EXPECT_EQ(runs.front().name, "70b 2048 x 128 h100_80gb");
  EXPECT_NEAR(runs.front().iteration_s, 15.4783, 1e-4);
  EXPECT_EQ(runs.front().plan.cluster.devices.size(), 128u);
  EXPECT_EQ(runs.front().plan.model.arch.kinds.front().ffn, 32768);
  const double path = runs.front().plan.cluster.link(0, 1).bandwidth_bytes_per_s;
  EXPECT_EQ(path, 450e9);
}

// What is reached with the shares of the catalogue; the table is bench/train_fit's.
TEST(PublishedRuns, AreForetold) {
  struct Runs {
    std::vector<double> ratios, speeds, measured;  // FLOP/s of the model, predicted and measured
  };
  std::map<std::string, Runs> types;
  for (const auto& run : published_runs()) {
    const TrainCost cost = price_motley_train(run.plan, {});
    Runs& of_type = types[run.device_type];
    of_type.ratios.push_back(cost.iteration_s / run.iteration_s);
    of_type.speeds.push_back(cost.mfu);
    of_type.measured.push_back(cost.mfu * of_type.ratios.back());
  }
  ASSERT_EQ(types.size(), 3u);
  for (auto& [type, runs] : types) {
    int pairs = 0, kept = 0;
    for (std::size_t i = 0; i < runs.ratios.size(); ++i)
      for (std::size_t j = 0; j < runs.ratios.size(); ++j)
        if (runs.measured[j] >= 1.15 * runs.measured[i]) {
          ++pairs;
          kept += runs.speeds[j] > runs.speeds[i] ? 1 : 0;
        }
    EXPECT_GE(kept, 0.95 * pairs) << type;
    double error = 0;
    for (const double ratio : runs.ratios) error += std::abs(ratio - 1) / static_cast<double>(runs.ratios.size());
    EXPECT_LT(error, 0.05) << type;
    std::sort(runs.ratios.begin(), runs.ratios.end());
    const double median = runs.ratios[runs.ratios.size() / 2];
    EXPECT_GT(median, 0.97) << type;
    EXPECT_LT(median, 1.03) << type;
  }
}

TEST(PublishedRuns, ExplainShowsTheParts) {
  const auto runs = published_runs();
  const TrainCost cost = price_motley_train(runs.front().plan, {});
  const Term& replica = cost.tree.children.front().children.front();
  const auto compute = std::find_if(replica.children.begin(), replica.children.end(),
                                    [](const Term& term) { return term.name == "compute"; });
  ASSERT_NE(compute, replica.children.end());
  std::vector<std::string> names;
  for (const Term& term : compute->children) names.push_back(term.name);
  EXPECT_EQ(names, (std::vector<std::string>{"products", "attention", "element-wise", "launches"}));
  check_consistent(cost.tree);
}

}  // namespace
}  // namespace motley
