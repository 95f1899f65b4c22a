#include "motley/plan/served.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/plan/example_test.hpp"

namespace motley {
namespace {

std::vector<std::string> reasons(const ServePlan& plan) {
  std::vector<std::string> all;
  for (const auto& [place, what, hint] : not_served(plan)) all.push_back(place + ": " + what + " | " + hint);
  return all;
}

TEST(NotServed, WholeStagesOfFp32AndBf16AreServed) {
  EXPECT_THAT(reasons(garage_plan()), testing::IsEmpty());
  ServePlan plan = garage_plan();
  plan.stages[1].weight_type = plan.stages[1].kv_type = DType::bf16;
  EXPECT_THAT(reasons(plan), testing::IsEmpty());
  plan.stages[1].kv_type = DType::q8_0;
  EXPECT_THAT(reasons(plan), testing::IsEmpty());
}

TEST(NotServed, NamesWhatIsInTheWayAndTheOptionWithoutIt) {
  ServePlan plan = garage_plan();
  plan.stages[0].role = StageRole::prefill;
  plan.stages[1].weight_type = plan.stages[1].kv_type = DType::fp16;
  plan.stages[2].kv_type = DType::fp16;
  plan.routes[0].path[1].layers = {4, 6};
  EXPECT_THAT(reasons(plan), testing::ElementsAre(
                                 "stages[0].role: stages that only prefill are not served yet | plan with --no-roles",
                                 "stages[1].weight_type: workers do not compute in fp16 yet | "
                                 "plan with --weight-type fp32, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, "
                                 "mxfp4, iq4_nl, iq4_xs or file",
                                 "stages[1].kv_type: workers do not compute in fp16 yet | "
                                 "plan with --weight-type fp32, bf16 or q8_0",
                                 "stages[2].kv_type: workers do not compute in fp16 yet | "
                                 "plan with --kv-type fp32, bf16 or q8_0",
                                 "routes[0].path[1]: the route runs a part of stage \"r0/s1\" alone, which is not "
                                 "served yet | plan without --partial-ranges"));
}

}  // namespace
}  // namespace motley
