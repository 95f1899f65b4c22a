#include "motley/trainer/record/run_record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace motley {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class RunFolder : public ::testing::Test {
 protected:
  RunFolder() {
    fs::remove_all(run_);
    fs::create_directories(run_);
  }
  ~RunFolder() override { fs::remove_all(run_); }

  std::string error_of_reading() const {
    try {
      read_train_run(run_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      return error.what();
    }
    return "";
  }
  void write_record() const {
    const RunRecord record{
        .model = "m", .data = "d", .steps = 2, .total_steps = 2, .plan = Value::object({{"kind", "train"}})};
    write_file(run_record_path(run_), to_json(write(record)));
  }

  const fs::path run_ = fs::path(::testing::TempDir()) / "motley-run-record-test";
  const std::string step_ =
      R"({"step": 1, "loss": 2, "grad_norm": 3, "learning_rate": 0.1, "tokens": 5, "seconds": 6})";
};

TEST_F(RunFolder, WithoutARunIsRefused) {
  EXPECT_THAT(error_of_reading(), HasSubstr("holds no run: run.json is missing"));
  write_record();
  EXPECT_THAT(error_of_reading(), HasSubstr("has no steps yet: metrics.jsonl is empty or missing"));
  write_file(metrics_path(run_), step_);  // not written to its end
  EXPECT_THAT(error_of_reading(), HasSubstr("has no steps yet"));
}

TEST_F(RunFolder, IsReadUpToTheLastWholeLine) {
  write_record();
  write_file(metrics_path(run_), step_ + "\n" + R"({"step": 2, "lo)");
  const TrainRun run = read_train_run(run_);
  EXPECT_EQ(run.record.steps, 2);
  EXPECT_EQ(run.metrics, (std::vector<StepMetrics>{{1, 2, 3, 0.1, 5, 6, {}}}));
  EXPECT_FALSE(run.timeline);
}

TEST_F(RunFolder, NamesTheLineThatIsWrong) {
  write_record();
  write_file(metrics_path(run_), step_ + "\n{}\n");
  EXPECT_THAT(error_of_reading(), HasSubstr("metrics.jsonl:2"));
  write_file(metrics_path(run_), step_ + "\n");
  write_file(timeline_path(run_), R"({"format": "motley.timeline/1", "step": -1})");
  EXPECT_THAT(error_of_reading(), HasSubstr("timeline.json"));
}

}  // namespace
}  // namespace motley
