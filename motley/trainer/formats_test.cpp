#include <gtest/gtest.h>

#include "motley/base/reference_test.hpp"
#include "motley/trainer/checkpoint_folder.hpp"
#include "motley/trainer/train_run.hpp"

namespace motley {
namespace {

TEST(CheckpointRecord, ReferenceIsCurrent) {
  expect_reference_is_current("checkpoint.md", schema<CheckpointRecord>().doc());
}

TEST(RunRecord, ReferenceIsCurrent) {
  expect_text_is_current("run.md", document_markdown(schema<RunRecord>().doc()) +
                                       document_markdown(schema<StepMetrics>().doc()) +
                                       document_markdown(schema<StepTimeline>().doc()));
}

}  // namespace
}  // namespace motley
