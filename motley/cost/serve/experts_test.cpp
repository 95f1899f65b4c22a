// What steps of mixtures of experts cost: those that are taken are read, all are held, and a token computes with k.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
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

// How much longer than the mean the last of the ranks takes, where the whole experts that they hold are in proportion
// to their bandwidth, and each token chooses by chance: simulated, 26, 13, 5 and 1 % for two equal ranks of 128 experts
// of which a token takes 8, 31, 15, 7 and 2 % for shares of 2 : 1, and 35, 18, 5 and 0 % for 32 of which it takes 4.
TEST(WholeExperts, ReachUnlikeNumbersByChance) {
  const auto excess = [](const Experts& experts, const std::vector<std::int64_t>& held, double tokens) {
    const double share = touched_share(experts, decoding(tokens), {{}});
    const auto time_of = [&](std::int64_t of_rank) {  // of all experts that are touched 1
      const double each = static_cast<double>(experts.count) / static_cast<double>(of_rank);
      const double unit = each * static_cast<double>(of_rank) / (share * static_cast<double>(experts.count));
      return UncertainTime{share * unit, touched_deviation(experts, of_rank, share) * unit};
    };
    UncertainTime last = time_of(held[0]);
    for (std::size_t rank = 1; rank < held.size(); ++rank) last = larger_of(last, time_of(held[rank]));
    return 100 * (last.mean_s - 1);
  };
  const auto expect = [&](const Experts& experts, const std::vector<std::int64_t>& held,
                          const std::vector<double>& percent) {
    for (std::size_t i = 0; i < percent.size(); ++i)
      EXPECT_NEAR(excess(experts, held, std::pow(4, static_cast<double>(i))), percent[i], 3) << held[0] << ", " << i;
  };
  expect({.count = 128, .active = 8}, {64, 64}, {26, 13, 5, 1});
  expect({.count = 128, .active = 8}, {85, 43}, {31, 15, 7, 2});
  expect({.count = 32, .active = 4}, {16, 16}, {35, 18, 5, 0});
}

// By drawing: three unlike times.
TEST(WholeExperts, LargerOfIsTheMeanOfLargestOnes) {
  std::mt19937 random(5);
  const std::vector<UncertainTime> times = {{3, 1}, {2, 2}, {3.5, 0.5}};
  UncertainTime last = times[0];
  for (const UncertainTime& time : {times[1], times[2]}) last = larger_of(last, time);
  double sum = 0;
  constexpr int draws = 200000;
  for (int i = 0; i < draws; ++i) {
    double largest = 0;
    for (const UncertainTime& time : times)
      largest = std::max(largest, std::normal_distribution(time.mean_s, time.deviation_s)(random));
    sum += largest;
  }
  EXPECT_NEAR(last.mean_s, sum / draws, 0.03);
  EXPECT_EQ(larger_of({2, 0}, {3, 0}).mean_s, 3);
  EXPECT_EQ(larger_of({3, 0}, {2, 0}).mean_s, 3);
}

ServePlan whole_experts_plan() {
  ServePlan plan = mixture_plan();
  plan.stages[0].expert_shares = {2, 2, 3, 1};
  predict_memory(plan);
  return plan;
}

TEST(WholeExperts, CountWithTheRankThatHoldsThem) {
  const ServePlan plan = whole_experts_plan();
  const StepTimes times(plan, {});
  const std::vector<Rank>& ranks = times.group(0).ranks;
  for (const auto& [rank, held] : {std::pair(0, 2), std::pair(2, 3), std::pair(3, 1)}) {
    const BlockWork& work = ranks[static_cast<std::size_t>(rank)].blocks.front();
    EXPECT_EQ(work.expert_bytes, held * expert_elements * 2);
    EXPECT_EQ(work.held_experts, held);
    expect_close(work.expert_flops, 2 * 2 * expert_elements * held / 8);
    EXPECT_EQ(work.bytes, block_bytes(plan.model.arch, 0, times.group(0).shards[static_cast<std::size_t>(rank)],
                                      plan.stages[0].weight_type));
  }
}

// The rank of three experts, and a little more for chance; step by step as by the closed form.
TEST(WholeExperts, TheLastRankSetsTheTime) {
  const ServePlan plan = whole_experts_plan(), columns = mixture_plan();
  const StepTimes times(plan, {});
  const StepCost cost({}, plan.cluster, plan.model.arch);
  for (const StepLoad& load : {decoding(1), decoding(16), StepLoad{.tokens = 512}}) {
    const BlockTime block = cost.block_time(times.group(0), 0, load);
    double slowest = 0;
    for (const Rank& rank : times.group(0).ranks)
      slowest = std::max(slowest, cost.read_bytes(rank.blocks.front(), load) / effective_bandwidth(rank));
    expect_close(block.products.memory_s, slowest);
    EXPECT_GE(block.imbalance_s, 0);
    const double stage_s = times.stage({0, 0, 3}, 0).seconds(load);
    expect_close(stage_s,
                 20 * cost.block_s(times.group(0), 0, load) + cost.ends_s(times.group(0), {.first = true}, load));
    EXPECT_GT(stage_s, StepTimes(columns, {}).stage({0, 0, 3}, 0).seconds(load));
  }
  EXPECT_GT(cost.block_time(times.group(0), 0, decoding(1)).imbalance_s, 0);
  EXPECT_EQ(cost.block_time(StepTimes(columns, {}).group(0), 0, decoding(1)).imbalance_s, 0);
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

TEST(WholeExperts, AreExplained) {
  const ServePlan plan = whole_experts_plan();
  const StepTimes times(plan, {});
  const ServePoint point{100, 11, 4, plan.step};
  const Term stage =
      make_form({}, plan.cluster, plan.model.arch, point)->explain_stage(times.group(0), {}, {20}, "stage");
  check_consistent(stage);
  const double touched = 2 * (1 - std::pow(0.75, std::pow(4, 0.87)));
  const Term& experts = find_term(stage, {"decode", "20 layers", "products", "memory", "experts"});
  EXPECT_NE(experts.note.find(fmt::format("of {:.1f} of 2", touched)), std::string::npos) << experts.note;
  EXPECT_GT(find_term(stage, {"decode", "20 layers", "imbalance of experts"}).value, 0);
}

// 100 tokens in and 201 out, eight sequences a step: four tokens of prompts for each step. One step in 25 has a whole
// prompt, and the others none: of 128 experts they read fewer than steps of 12 tokens each would. Half of that counts.
TEST(MixtureCost, OfStepsUnderLoadFewHaveAPrompt) {
  ServePlan plan = mixture_plan();
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/qwen3-30b-a3b");
  const StepTimes times(plan, {});
  const TensorGroup& group = times.group(0);
  const ServePoint point{.prompt_tokens = 100, .output_tokens = 201, .sequences = 8, .step = plan.step, .loaded = true};
  const auto form = make_form({}, plan.cluster, plan.model.arch, point);
  const StepCost cost({}, plan.cluster, plan.model.arch);
  const auto step = [](double of_prompt) {
    const double context = 200.5, tokens = 8 + of_prompt;
    return StepLoad{.tokens = tokens,
                    .context = (8 * context + of_prompt * 50) / tokens,
                    .cached = 8 * context + (of_prompt > 0 ? 50 : 0),
                    .logits = 8 + of_prompt / 100};
  };
  const auto block_s = [&](const StepLoad& load) { return cost.block_time(group, 0, load).seconds(); };
  const double with_s = block_s(step(100)), without_s = block_s(step(0)), mean_s = 0.04 * with_s + 0.96 * without_s;
  const double alike_s = block_s(step(4));
  ASSERT_LT(mean_s, 0.9 * alike_s);
  const StagePrice price = form->block(group, 0);
  expect_close(price.load_s, 25 * (cost.block_s(group, 0, step(4)) - (alike_s - mean_s) / 2));
  expect_close(price.latency.decode_s, 8 * price.load_s);
  const Term stage = form->explain_stage(group, {.first = true}, {20}, "stage");
  check_consistent(stage);
  expect_close(stage.value, (price * 20 + form->ends(group, {.first = true})).latency.sum());
  expect_close(find_term(stage, {"decode", "20 layers", "without a prompt, of 8.0 tokens"}).value, 96 * 20 * without_s);
}

// Of eight experts steps of 12 tokens read hardly more than those of 8.
TEST(MixtureCost, StepsAreAlikeWhereThatTakesLess) {
  const ServePlan plan = mixture_plan();
  const StepTimes times(plan, {});
  for (const std::int64_t max_tokens : {64, 4096}) {
    const ServePoint point{.prompt_tokens = 4000,
                           .output_tokens = 201,
                           .sequences = 8,
                           .step = {.max_tokens = max_tokens},
                           .loaded = true};
    const Term stage =
        make_form({}, plan.cluster, plan.model.arch, point)->explain_stage(times.group(0), {}, {20}, "stage");
    EXPECT_GT(find_term(stage, {"decode", "20 layers", "products"}).value, 0) << max_tokens;
  }
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
