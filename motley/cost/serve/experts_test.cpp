// What steps of mixtures of experts cost: those that are taken are read, all are held, and a token computes with k.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/pass.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/cost/serve/step_time.hpp"
#include "motley/plan/example_test.hpp"

namespace motley {
namespace {

StepLoad decoding(double tokens) { return {.tokens = tokens, .logits = tokens}; }

// 8 of 128: four independent tokens would take 128 (1 - (15/16)^4) = 29.12.
TEST(TouchedShare, IsThatOfHandComputedSteps) {
  const Experts experts{.count = 128, .active = 8};
  EXPECT_NEAR(128 * touched_share(experts, decoding(4)), 128 * (1 - std::pow(15.0 / 16, 3.340351678)), 1e-6);
  EXPECT_NEAR(128 * touched_share(experts, {.tokens = 4}), 128 * (1 - std::pow(15.0 / 16, 2.828427125)), 1e-6);
  EXPECT_NEAR(128 * touched_share(experts, {.tokens = 20, .logits = 4}),
              128 * (1 - std::pow(15.0 / 16, 3.340351678 + 8)), 1e-6)
      << "four that decode, and a chunk of 16";
  const std::vector<RoutingGamma> chance = {{}};
  EXPECT_NEAR(128 * touched_share(experts, decoding(4), chance), 29.12304688, 1e-6);
  EXPECT_EQ(touched_share({}, decoding(4)), 1) << "one FFN for all";
}

// As 2, 2^1.5 and 2^2 tokens.
TEST(TouchedShare, GammaHoldsUpToItsNumberOfTokens) {
  const Experts experts{.count = 32, .active = 4};
  const std::vector<RoutingGamma> gamma = {{"mixture", 4, 0.5, 1}, {"mixture", 16, 0.25, 1}};
  const auto untouched = [&](double tokens) { return 1 - touched_share(experts, decoding(tokens), gamma); };
  EXPECT_NEAR(untouched(4), std::pow(7.0 / 8, 2), 1e-12);
  EXPECT_NEAR(untouched(16), std::pow(7.0 / 8, std::pow(2, 1.5)), 1e-12);
  EXPECT_NEAR(untouched(64), std::pow(7.0 / 8, 4), 1e-12) << "the last one holds beyond";
  EXPECT_NEAR(1 - touched_share(experts, {.tokens = 64}, gamma), std::pow(7.0 / 8, 64), 1e-12);
}

RC_GTEST_PROP(TouchedShare, GrowsFromKAndStaysBelowChance, ()) {
  const std::int64_t count = *rc::gen::inRange<std::int64_t>(2, 600);
  const Experts experts{.count = count, .active = *rc::gen::inRange<std::int64_t>(1, count)};
  std::vector<RoutingGamma> gamma;
  for (const std::int64_t tokens : {4, 16, 64})
    gamma.push_back({"mixture", tokens, *rc::gen::inRange(1, 101) / 100.0, *rc::gen::inRange(1, 101) / 100.0});
  if (*rc::gen::arbitrary<bool>()) gamma.clear();
  const double active_share = static_cast<double>(experts.active) / static_cast<double>(count);
  for (const double decodes : {0.0, 1.0}) {
    double before = active_share;
    RC_ASSERT(std::abs(touched_share(experts, {.tokens = 1, .logits = decodes}, gamma) - active_share) < 1e-12);
    for (double tokens = 1; tokens < 300; tokens *= 1.3) {
      const double share = touched_share(experts, {.tokens = tokens, .logits = decodes * tokens}, gamma);
      RC_ASSERT(share >= before - 1e-12);
      RC_ASSERT(share <= 1 - std::pow(1 - active_share, tokens) + 1e-12);
      before = share;
    }
  }
}

// Mixtral over four A6000, and two pairs of smaller cards.
ServePlan mixture_plan() {
  ServePlan plan = box_plan();
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/mixtral-8x7b");
  const LayerRange layers[] = {{0, 20}, {20, 27}, {27, 32}};
  for (std::size_t i = 0; i < 3; ++i) plan.stages[i].layers = plan.routes[0].path[i].layers = layers[i];
  predict_memory(plan);
  return plan;
}

constexpr double expert_elements = 3.0 * 4096 * 14336, attention_elements = 2.0 * 4096 * (4096 + 1024);

TEST(MixtureCost, HoldsAllExpertsAndComputesWithThoseThatATokenTakes) {
  const ServePlan plan = mixture_plan();
  const StepTimes times(plan, {});
  const BlockWork& work = times.group(1).ranks.front().blocks.front();
  EXPECT_EQ(work.expert_bytes, 8 * expert_elements / 2 * 2) << "half of each, in 16 bits";
  EXPECT_EQ(work.bytes, block_bytes(plan.model.arch, 0, times.group(1).shards.front(), plan.stages[1].weight_type));
  EXPECT_EQ(work.expert_flops, 2 * 2 * expert_elements / 2);
  EXPECT_EQ(work.flops, work.expert_flops + 2 * (attention_elements / 2 + 8 * 4096));
}

// A stage that streams its weights brings all experts, whichever are taken.
TEST(MixtureCost, StreamsWholeLayers) {
  const ServePlan plan = mixture_plan();
  const StepTimes times(plan, {});
  const TensorGroup group = make_group(plan.cluster, plan.model.arch, {0}, {}, DType::bf16, DType::bf16, plan.step);
  StreamedStage stage;
  stage.tiers.host.upload_bytes_per_s = 1e9;
  stage.counts = {.weights = {.host = 2}, .kv = {.device = 2}, .activations = {.device = 1}};
  stage.kinds = {2};
  const StepCost cost({}, plan.cluster, plan.model.arch);
  const PassSeconds pass = pass_seconds(cost, group, {}, stage, decoding(1), 1);
  expect_close(pass.weights[1][static_cast<std::size_t>(Resource::upload)],
               static_cast<double>(group.ranks.front().blocks.front().bytes) / 1e9);
}

const Term& find_term(const Term& term, const std::vector<std::string>& path) {
  const Term* at = &term;
  for (const std::string& name : path) {
    const auto found =
        std::ranges::find_if(at->children, [&](const Term& child) { return child.name.ends_with(name); });
    if (found == at->children.end()) throw Error(ErrorCode::internal, "no term " + name);
    at = &*found;
  }
  return *at;
}

TEST(MixtureCost, ExplainsExpertsAsAPartOfTheirOwn) {
  const ServePlan plan = mixture_plan();
  const StepTimes times(plan, {});
  const TensorGroup& group = times.group(0);
  const ServePoint point{100, 11, 4, plan.step};
  const Term stage = make_form({}, plan.cluster, plan.model.arch, point)->explain_stage(group, {}, {20}, "stage");
  check_consistent(stage);
  const double touched = 1 - std::pow(0.75, std::pow(4, 0.87));
  const Rank& rank = group.ranks.front();
  const Term& experts = find_term(stage, {"decode", "20 layers", "products", "memory", "experts"});
  expect_close(experts.value, 10 * 20 * touched * (8 * expert_elements / 4 * 2) / effective_bandwidth(rank));
  EXPECT_NE(experts.note.find(fmt::format("of {:.1f} of 8", 8 * touched)), std::string::npos) << experts.note;
  const Term& others = find_term(stage, {"decode", "20 layers", "products", "memory", "other weights"});
  const double other_bytes = static_cast<double>(rank.blocks.front().bytes) - rank.blocks.front().expert_bytes;
  expect_close(others.value, 10 * 20 * other_bytes / effective_bandwidth(rank));
  const Term& computed = find_term(stage, {"decode", "20 layers", "products", "compute", "experts"});
  expect_close(computed.value, 10 * 20 * 4 * 2 * 2 * expert_elements / 4 / effective_flop_per_s(rank));
}

// By the closed form and step by step; that of another model changes nothing.
TEST(MixtureCost, TakesTheGammaThatTheProfileHasOfTheModel) {
  ServePlan plan = mixture_plan();
  const RouteChain chain{0, 0, plan.routes[0].path.size()};
  const double uncounted_s = price_serve(plan, {}).latency_s,
               step_s = StepTimes(plan, {}).stage(chain, 0).seconds(decoding(4));
  plan.profile.gamma = {{.model = "another", .sequences = 0.1, .prompt = 0.1}};
  EXPECT_EQ(price_serve(plan, {}).latency_s, uncounted_s);
  plan.profile.gamma.push_back({.model = plan.model.name, .sequences = 0.1, .prompt = 0.1});
  EXPECT_LT(price_serve(plan, {}).latency_s, uncounted_s);
  const StepTimes times(plan, {});
  const StepCost cost(with_gamma({}, plan.profile, plan.model.name), plan.cluster, plan.model.arch);
  const StepLoad load = decoding(4);
  expect_close(times.stage(chain, 0).seconds(load),
               20 * cost.block_s(times.group(0), 0, load) + cost.ends_s(times.group(0), {.first = true}, load));
  EXPECT_LT(times.stage(chain, 0).seconds(load), step_s);
}

}  // namespace
}  // namespace motley
