#include "motley/plan/same_model.hpp"

#include <gmock/gmock.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

Model tales() { return read_model(MOTLEY_SOURCE_DIR "/data/models/tales"); }

template <class Plan>
std::string complaint_about(const Plan& plan, const Model& model) {
  try {
    require_same_model(plan, model, "mine");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(SameModel, MayComeInAnotherFormAndWithOtherSettings) {
  ServePlan plan;
  plan.model = tales();
  Model model = plan.model;
  model.arch.eos_tokens = {5};
  model.arch.checkpoint_type = DType::q8_0;
  model.arch.pad_token = 3;
  EXPECT_EQ(complaint_about(plan, model), "");
  TrainPlan training;
  training.model = tales();
  model.arch.pad_token = training.model.arch.pad_token;
  EXPECT_EQ(complaint_about(training, model), "");
}

TEST(SameModel, AnotherOneIsNamedByWhatDiffers) {
  ServePlan plan;
  plan.model = tales();
  Model model = plan.model;
  model.arch.layers += 1;
  EXPECT_THAT(complaint_about(plan, model), HasSubstr("mine has another model than the plan: 9 layers"));
  model = plan.model;
  model.arch.tied_embeddings = !model.arch.tied_embeddings;
  EXPECT_THAT(complaint_about(plan, model), HasSubstr("mine has a head that"));
  TrainPlan training;
  training.model = tales();
  EXPECT_THAT(complaint_about(training, model), HasSubstr("mine has a head that"));
}

TEST(SameModel, TypesOfTensorsCountWhereThePlanTakesThemFromTheFile) {
  ServePlan plan;
  plan.model = tales();
  plan.stages.resize(1);
  Model model = plan.model;
  model.arch.tensor_types["a"] = DType::q4_k;
  plan.stages[0].weight_type = DType::bf16;
  EXPECT_EQ(complaint_about(plan, model), "");
  plan.stages[0].weight_type = DType::file;
  EXPECT_THAT(complaint_about(plan, model), HasSubstr("holds its tensors in other types"));
}

TEST(SameModel, WithADigestItIsThatFile) {
  ServePlan plan;
  plan.model = tales();
  Model model = plan.model;
  plan.model.digest = "abc";
  model.digest = "";
  EXPECT_EQ(complaint_about(plan, model), "");
  model.digest = "abd";
  EXPECT_THAT(complaint_about(plan, model), HasSubstr("its digest is abd, the plan's is abc"));
}

TEST(SameModel, AContextThatThePlanChoseIsNoDifference) {
  ServePlan plan;
  plan.model = tales();
  const Model model = plan.model;
  set_context(plan.model, plan.model.arch.context / 2);
  EXPECT_EQ(complaint_about(plan, model), "");
}

}  // namespace
}  // namespace motley
