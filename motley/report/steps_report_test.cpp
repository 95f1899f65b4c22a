#include "motley/report/steps_report.hpp"

#include <gmock/gmock.h>

#include "motley/base/value.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

TEST(StepsReport, ShowsEachStageAndWhatStreams) {
  Stage streams;
  streams.id = "s1";
  StageSteps plain{.route = "r0",
                   .stage = "s0",
                   .one_token_s = 0.001,
                   .sequences_s = 0.002,
                   .full_s = 0.003,
                   .tokens_at_no_cost = 12.4};
  StageSteps streamed = plain;
  streamed.stage = "s1";
  streamed.tokens_at_no_cost.reset();
  const std::string text = steps_report({plain, streamed}, {.max_tokens = 64, .max_sequences = 4});
  EXPECT_THAT(text, HasSubstr("4 sequences"));
  EXPECT_THAT(text, HasSubstr("64 tokens"));
  EXPECT_THAT(text, HasSubstr(" 12 "));
  EXPECT_THAT(text, HasSubstr("measured"));
  EXPECT_EQ(to_json(steps_json({plain})), R"([{"route":"r0","stage":"s0","one_token_s":0.001,)"
                                          R"("max_sequences_s":0.002,"full_step_s":0.003,"tokens_at_no_cost":12.4}])");
}

}  // namespace
}  // namespace motley
