#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "motley/cost/form/cases_test.hpp"
#include "motley/cost/serve/flow.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/serve/serve_forms.hpp"
#include "motley/cost/serve/step.hpp"
#include "motley/cost/serve/step_time.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

// D1 as a plan: 6 layers on the big machine, 2 on the small one, both with degree 2.
ServePlan d1_plan() {
  ServePlan plan;
  plan.model = d1_model();
  plan.cluster = d1_cluster();
  plan.workload = d1_workload();
  plan.stages = {
      {.id = "a", .layers = {0, 6}, .devices = {"m0/0", "m0/1"}, .shares = {}, .embedding = true, .kv_tokens = 1024},
      {.id = "b", .layers = {6, 8}, .devices = {"m1/0", "m1/1"}, .shares = {}, .head = true, .kv_tokens = 1024}};
  for (auto& stage : plan.stages) stage.weight_type = stage.kv_type = DType::fp16;
  plan.routes = {{.id = "r0", .path = {{"a", {0, 6}}, {"b", {6, 8}}}}};
  return plan;
}

TensorGroup group_of(const ServePlan& plan, const std::string& stage_id) {
  const Stage& stage = plan.stage(stage_id);
  std::vector<int> devices;
  for (const auto& name : stage.devices) devices.push_back(plan.cluster.find_device(name));
  return make_group(plan.cluster, plan.model.arch, devices, stage.shares, stage.weight_type, stage.kv_type, plan.step);
}

ServePoint point_of(const ServePlan& plan, std::int64_t sequences) {
  return {plan.workload.mean_prompt_tokens(), plan.workload.mean_output_tokens(), sequences, plan.step};
}

TEST(Term, SumsAndMaximaEvaluate) {
  const Term tree = sum_of("all", {leaf("a", 1), max_of("b", {leaf("c", 2), leaf("d", 3)})});
  EXPECT_EQ(tree.value, 4);
  EXPECT_NO_THROW(check_consistent(tree));
  Term wrong = tree;
  wrong.children[0].value = 2;
  EXPECT_THROW(check_consistent(wrong), Error);
  const Value json = explain_json(tree);
  EXPECT_EQ(json.find("total_s")->as_number(), 4);
  const Value& b = json.find("terms")->as_array()[1];
  EXPECT_EQ(b.find("name")->as_string(), "b");
  EXPECT_EQ(b.find("seconds")->as_number(), 3);
  EXPECT_EQ(b.find("share")->as_number(), 0.75);
  EXPECT_EQ(b.find("of")->as_string(), "max");
  EXPECT_EQ(b.find("terms")->as_array().size(), 2u);
}

TEST(Group, CollectivesTakeTheBetterAlgorithm) {
  const ServePlan plan = d1_plan();
  TensorGroup group = group_of(plan, "a");
  EXPECT_DOUBLE_EQ(group.link.latency_s, 5e-6);
  EXPECT_EQ(group.link.bandwidth_bytes_per_s, 24e9);
  // Two ranks: direct is one round of the whole vector, ring two rounds of halves.
  expect_close(all_reduce_s(group, 24e6), 5e-6 + 1e-3);
  group.devices = {0, 1, 2, 3};  // as if there were four: small vectors go direct, large ones round the ring
  expect_close(all_reduce_s(group, 24e3), 5e-6 + 3e-6);
  expect_close(all_reduce_s(group, 24e6), 6 * (5e-6 + 0.25e-3));
  expect_close(all_gather_s(group, 24e6), 5e-6 + 0.75e-3);
  group.devices = {0};
  EXPECT_EQ(all_reduce_s(group, 24e6), 0);
  EXPECT_EQ(all_gather_s(group, 24e6), 0);
}

// Reading the layers of a mixed file takes as long as their own bytes say; room is kept for the largest where it is
// open which layers a stage gets.
TEST(Group, BlocksOfAMixedFileHaveTheirOwnBytes) {
  ServePlan plan = d1_plan();
  plan.model = llama_of(256, 8, 4, 4, 512, 1000);
  Architecture& arch = plan.model.arch;
  std::map<std::string, DType> types;
  for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch))) types[tensor.name] = DType::q4_k;
  types["model.layers.7.mlp.down_proj.weight"] = DType::q6_k;
  set_tensor_types(arch, types);
  for (Stage& stage : plan.stages) stage.weight_type = DType::file;
  const TensorGroup group = group_of(plan, "a");
  // A block of 256 columns of each row is q6_k in one layer of eight.
  const std::int64_t more = 256 * (210 - 144), small = block_bytes(arch, 0, group.shards[0], DType::file);
  ASSERT_EQ(group.ranks[0].blocks.size(), 2u);
  EXPECT_EQ(group.ranks[0].blocks[0].bytes, small);
  EXPECT_EQ(group.ranks[0].blocks[1].bytes, small + more);
  EXPECT_EQ(largest_block_bytes(group.ranks[0]), small + more);
  const std::int64_t kv = kv_cache_bytes(arch, 0, group.shards[0], DType::fp16, 16, plan.step.block_tokens);
  TensorGroup tight = group;
  for (Rank& rank : tight.ranks) rank.memory_bytes = rank.fixed_bytes[0] + 3 * (small + more + kv);
  EXPECT_EQ(most_layers_in_memory(arch, tight, {}, {16}, plan.step), 3);
  for (Rank& rank : tight.ranks) --rank.memory_bytes;
  EXPECT_EQ(most_layers_in_memory(arch, tight, {}, {16}, plan.step), 2) << "any of the layers may be the large one";
  const LayerRoom room = layer_room(arch, tight, {16}, plan.step);
  EXPECT_EQ(room.size, (std::vector<std::int64_t>{small + kv, small + more + kv}));
  EXPECT_EQ(room.capacity[0], 3 * (small + more + kv) - 1);
}

TEST(Group, FlopsFollowTheTypeOfTheProducts) {
  DeviceType type;
  type.name = "x";
  type.flop_per_s = {{"fp16", 100.0}, {"fp32", 10.0}};
  EXPECT_EQ(product_flop_per_s(type, DType::bf16), 100) << "16 bits are 16 bits";
  EXPECT_EQ(product_flop_per_s(type, DType::int8), 100) << "8-bit weights are multiplied in 16 bits";
  EXPECT_EQ(product_flop_per_s(type, DType::fp32), 10);
  type.flop_per_s = {{"fp16", 100.0}};
  EXPECT_EQ(product_flop_per_s(type, DType::fp32), 50);
  type.flop_per_s = {{"int8", 100.0}};
  EXPECT_THROW(product_flop_per_s(type, DType::bf16), Error);
}

// Shards of a group add up to the whole block, and the slowest rank is the one with the largest share.
TEST(Group, RanksAddUpToTheBlock) {
  ServePlan plan = d1_plan();
  plan.stages[0].shares = {0.75, 0.25};
  const TensorGroup group = group_of(plan, "a");
  const Architecture& arch = plan.model.arch;
  expect_close(group.ranks[0].blocks[0].flops + group.ranks[1].blocks[0].flops, block_flops(arch, 0, 0));
  expect_close(group.ranks[0].blocks[0].attention_flops + group.ranks[1].blocks[0].attention_flops,
               block_flops(arch, 0, 1) - block_flops(arch, 0, 0));
  expect_close(group.ranks[0].blocks[0].kv_bytes + group.ranks[1].blocks[0].kv_bytes,
               static_cast<double>(kv_bytes_per_token(arch, 0, DType::fp16)));
  plan.stages[0].kv_type = DType::q8_0;
  const TensorGroup eight = group_of(plan, "a");
  for (const std::size_t rank : {0, 1})
    expect_close(eight.ranks[rank].blocks[0].kv_bytes, group.ranks[rank].blocks[0].kv_bytes * 34 / 64);  // of fp16
  expect_close(group.ranks[0].head_flops + group.ranks[1].head_flops, head_flops(arch));
  EXPECT_GT(group.ranks[0].blocks[0].bytes, 2 * group.ranks[1].blocks[0].bytes);
}

TEST(Group, RanksOfUnlikeTypesOrSizesAreTheirOwn) {
  const ServePlan plan = d1_plan();
  const TensorGroup mixed = make_group(plan.cluster, plan.model.arch, {0, 2}, {}, DType::fp16, DType::fp16, {});
  EXPECT_EQ(mixed.ranks[0].memory_bandwidth_bytes_per_s, 768e9);
  EXPECT_EQ(mixed.ranks[1].memory_bandwidth_bytes_per_s, 448e9);
  // 4001 grains of vocabulary: one rank has more of them, and nothing else.
  const Model odd = llama_of(4096, 8, 32, 32, 11008, 32008);
  const TensorGroup uneven = make_group(plan.cluster, odd.arch, {0, 1}, {}, DType::fp16, DType::fp16, {});
  EXPECT_EQ(uneven.ranks[0].blocks[0].bytes, uneven.ranks[1].blocks[0].bytes);
  EXPECT_EQ(uneven.ranks[0].head_bytes - uneven.ranks[1].head_bytes, 8 * 4096 * 2);
}

// From m0 to m1 4 GB/s, back 2 GB/s; inside m0 the second device sends at half the rate of the first.
ServePlan one_way_plan() {
  ServePlan plan = d1_plan();
  ClusterDescription description = plan.cluster.description;
  NetworkMatrix matrix{std::vector(4, std::vector(4, 1e-4)), std::vector(4, std::vector(4, 4e9))};
  for (const int from : {2, 3})
    for (const int to : {0, 1}) matrix.bandwidth_bytes_per_s[from][to] = 2e9;
  matrix.bandwidth_bytes_per_s[0][1] = 24e9;
  matrix.bandwidth_bytes_per_s[1][0] = 12e9;
  for (int device = 0; device < 4; ++device)
    matrix.latency_s[device][device] = matrix.bandwidth_bytes_per_s[device][device] = 0;
  description.network.matrix = matrix;
  plan.cluster = resolve(description, "one way");
  return plan;
}

TEST(Group, ItsLinkIsTheSlowestOfBothDirections) {
  const ServePlan plan = one_way_plan();
  EXPECT_EQ(group_of(plan, "a").link.bandwidth_bytes_per_s, 12e9);
  EXPECT_EQ(
      make_group(plan.cluster, plan.model.arch, {1, 0}, {}, DType::fp16, DType::fp16, {}).link.bandwidth_bytes_per_s,
      12e9);
}

TEST(Forms, HopsGoOnAndTokensComeBack) {
  const ServePlan plan = one_way_plan();
  const TensorGroup a = group_of(plan, "a"), b = group_of(plan, "b");
  const double prompt = 128 * 8192, token = 8192;
  for (const std::string name : {"motley", "hexgen"}) {
    const auto form = make_form({.form = name}, plan.cluster, plan.model.arch, point_of(plan, 1));
    const double steps = name == "motley" ? 31 : 32;
    const auto copies_s = [&](double bytes) { return name == "motley" ? usual_copies_s(bytes) : 0; };
    expect_close(form->hop(a, b).latency.prefill_s, 1e-4 + prompt / 4e9 + copies_s(prompt));
    expect_close(form->hop(b, a).latency.prefill_s, 1e-4 + prompt / 2e9 + copies_s(prompt));
    expect_close(form->hop(a, b).latency.decode_s, steps * (1e-4 + token / 4e9 + copies_s(token)));
    expect_close(form->hop(b, a).latency.decode_s, steps * (1e-4 + token / 2e9 + copies_s(token)));
    const PathPrice price = price_path(*form, {{&a, {true, false}, {6}}, {&b, {false, true}, {2}}});
    const StagePrice stages = form->block(a, 0) * 6 + form->ends(a, {true, false}) + form->hop(a, b) +
                              form->block(b, 0) * 2 + form->ends(b, {false, true});
    expect_close(price.latency.sum(), stages.latency.sum() + form->token_return(b, a).sum());
  }
  const auto form = make_form({}, plan.cluster, plan.model.arch, point_of(plan, 1));
  expect_close(form->token_return(b, a).sum(), 31 * (1e-4 + 8 / 2e9));
  expect_close(form->token_return(a, b).sum(), 31 * (1e-4 + 8 / 4e9));
}

TEST(Forms, ChunksOfAPromptFollowOneAnother) {
  const ServePlan plan = d1_plan();
  const TensorGroup a = group_of(plan, "a"), b = group_of(plan, "b");
  ServePoint point = point_of(plan, 1);
  point.chunk_tokens = 32;  // 4 of them
  const auto form = make_form({}, plan.cluster, plan.model.arch, point);
  const PathPrice price = price_path(*form, {{&b, {true, false}, {6}}, {&a, {false, true}, {2}}});
  const StagePrice first = form->block(b, 0) * 6 + form->ends(b, {true, false}) + form->hop(b, a);
  const StagePrice last = form->block(a, 0) * 2 + form->ends(a, {false, true});
  EXPECT_GT(first.chunk_s, last.chunk_s);
  expect_close(price.more_chunks_s, 3 * first.chunk_s);
  expect_close(price.first_token_s(), first.latency.prefill_s + last.latency.prefill_s + 3 * first.chunk_s);
  EXPECT_LT(first.chunk_s, first.latency.prefill_s) << "the way through the network keeps no device busy";
}

TEST(Forms, TheBestChunkIsWhereAPromptIsReadSoonest) {
  // In a pipeline of s equal stages whose steps of c tokens take a + b c: (P / c - 1 + s) (a + b c).
  const auto best = [](double stages, double fixed_s) {
    ServePoint point{.prompt_tokens = 1000, .step = {.max_tokens = 512}};
    return at_best_chunk(point,
                         [&](const ServePoint& at) {
                           return (std::ceil(1000 / at.chunk_tokens) - 1 + stages) * (fixed_s + 1e-3 * at.chunk_tokens);
                         })
        .chunk_tokens;
  };
  EXPECT_EQ(best(1, 0.1), 500) << "one stage: as few chunks as its steps allow";
  EXPECT_EQ(best(1, 0), 500) << "of equal times the larger";
  EXPECT_NEAR(best(16, 0.016), std::sqrt(1000 * 16 / 15.0), 8);
  EXPECT_GE(best(1000, 0), 16);
}

// ---- hexgen: H = 4096, B = 2, s_in = 128, s_out = 32, q = 1 ----

constexpr double layer_weight_bytes = 12.0 * 4096 * 4096 * 2;

TEST(Hexgen, ALayerHasMoreThanTheFormsTwelveHiddenSquared) {
  EXPECT_EQ(block_parameters(read_model("llama-2-70b").arch, 0) - 2 * 8192, 855638016);
}

TEST(Hexgen, Formula1And2OfAStage) {
  const ServePlan plan = d1_plan();
  const auto form = make_form({.form = "hexgen"}, plan.cluster, plan.model.arch, point_of(plan, 1));
  const double compute = 32 * layer_weight_bytes / (2 * 768e9) + 24.0 * (128 + 32) * 4096 * 4096 / (2 * 154.8e12);
  const double prefill = 4 * (5e-6 + 128.0 * 4096 * 2 / (2 * 24e9));
  const double decode = 4 * 32 * (5e-6 + 4096.0 * 2 / (2 * 24e9));
  const StagePrice block = form->block(group_of(plan, "a"), 0);
  expect_close(block.latency.sum(), compute + prefill + decode);
  expect_close(block.load_s, compute + prefill + decode);
  expect_close(form->explain_stage(group_of(plan, "a"), {}, {6}, "a").value, 6 * (compute + prefill + decode));
}

// Of three ranks the one that sends slowest counts: the first to both others.
TEST(Hexgen, TheAllReduceIsThatOfTheSlowestSender) {
  ServePlan plan = one_way_plan();
  NetworkMatrix& matrix = *plan.cluster.description.network.matrix;
  matrix.bandwidth_bytes_per_s = std::vector(4, std::vector(4, 8e9));
  matrix.bandwidth_bytes_per_s[0][1] = matrix.bandwidth_bytes_per_s[0][2] = 1e9;
  const auto form = make_form({.form = "hexgen"}, plan.cluster, plan.model.arch, point_of(plan, 1));
  TensorGroup group = group_of(plan, "a");
  const auto prefill_s = [&](std::vector<int> devices) {
    group.devices = std::move(devices);
    const double compute = 24.0 * 128 * 4096 * 4096 / (static_cast<double>(group.degree()) * 154.8e12);
    return form->block(group, 0).latency.prefill_s - compute;
  };
  expect_close(prefill_s({0, 1, 2}), 4 * 2 * (1e-4 + 128.0 * 4096 * 2 / 3 / 1e9));
}

TEST(Hexgen, Formula3OfAHop) {
  const ServePlan plan = d1_plan();
  const auto form = make_form({.form = "hexgen"}, plan.cluster, plan.model.arch, point_of(plan, 1));
  const double expected = (1e-4 + 128.0 * 4096 * 2 / 1.25e9) + 32 * (1e-4 + 4096.0 * 2 / 1.25e9);
  expect_close(form->hop(group_of(plan, "a"), group_of(plan, "b")).latency.sum(), expected);
}

TEST(Hexgen, Formula4OfTheMemory) {
  const ServePlan plan = d1_plan();
  Architecture deep = plan.model.arch;
  deep.layers = 1000;
  for (const double batch : {1.0, 64.0}) {
    const auto form =
        make_form({.form = "hexgen", .settings = {{"hexgen.batch", batch}}}, plan.cluster, deep, point_of(plan, 1));
    const double tokens = batch * (128 + 32), gib = 1024.0 * 1024 * 1024;
    const double expected = (16 * gib - 4 * tokens * 4096 * 2) / (layer_weight_bytes / 2 + 2 * tokens * 4096 * 2 / 2);
    EXPECT_EQ(form->most_layers(group_of(plan, "b"), {}, 1), static_cast<std::int64_t>(std::floor(expected)));
  }
}

TEST(Hexgen, PricesAPlan) {
  // The front of D1 has the layouts 7/1, 6/2, 5/3: 0.091683 s and 0.056196 s for the second, with the small machine
  // first.
  ServePlan plan = d1_plan();
  plan.stages[0].layers = {2, 8};
  plan.stages[1].layers = {0, 2};
  plan.routes[0].path = {{"b", {0, 2}}, {"a", {2, 8}}};
  const ServeCost cost = price_serve(plan, {.form = "hexgen"});
  EXPECT_NEAR(cost.latency_s, 0.091683, 5e-7);
  EXPECT_NEAR(cost.bottleneck_s, 0.056196, 5e-7);
  expect_close(cost.requests_per_s, 1 / cost.bottleneck_s);
  expect_close(cost.tree.value, cost.latency_s);
  EXPECT_EQ(cost.routes.front().batch, 1);
  const ServeCost batched = price_serve(plan, {.form = "hexgen", .settings = {{"hexgen.batch", 4}}});
  EXPECT_EQ(batched.routes.front().batch, 4);
  expect_close(batched.requests_per_s, 4 / batched.bottleneck_s);
}

// ---- motley's own ----

// Overheads off, so that what is left can be written down.
CostOptions bare() {
  return {.form = "motley", .settings = {{"motley.layer_overhead_s", 0}, {"motley.step_overhead_s", 0}}};
}

TEST(Motley, DecodeReadsWeightsAndKeysOrMultiplies) {
  const ServePlan plan = d1_plan();
  const TensorGroup group = group_of(plan, "a");
  const Architecture& arch = plan.model.arch;
  const double weights = static_cast<double>(block_bytes(arch, 0, group.shards[0], DType::fp16));
  const double context = 128 + 32 / 2.0;
  const double reduce = 4096.0 * 2;
  for (const std::int64_t q : {1, 4000}) {
    const auto form = make_form(bare(), plan.cluster, arch, point_of(plan, q));
    const double n = static_cast<double>(q);
    const double memory = weights / (768e9 * 0.8);
    const double compute = n * block_flops(arch, 0, 0) / 2 / (154.8e12 * 0.6);
    const double keys =
        n * context * (2 * 16 * 128 * 2) / (768e9 * 0.8);      // which one token each reads, hardly computes
    const double all_reduce = 2 * (5e-6 + n * reduce / 24e9);  // direct beats the ring between two
    const StagePrice block = form->block(group, 0);
    expect_close(block.latency.decode_s, 31 * (std::max(memory, compute) + keys + all_reduce));
    expect_close(block.load_s, block.latency.prefill_s + block.latency.decode_s / n);
    EXPECT_EQ(memory > compute, q == 1);
  }
}

TEST(Motley, PrefillGoesInChunks) {
  ServePlan plan = d1_plan();
  plan.workload = workload_of(1000, 1);
  plan.step.max_tokens = 512;
  const TensorGroup group = group_of(plan, "a");
  const auto form = make_form(bare(), plan.cluster, plan.model.arch, point_of(plan, 1));
  const double compute = 500 * block_flops(plan.model.arch, 0, 500) / 2 / (154.8e12 * 0.6);
  const double all_reduce = 2 * std::min(5e-6 + 500 * 8192 / 24e9, 2 * (5e-6 + 500 * 8192 / 48e9));
  expect_close(form->block(group, 0).latency.prefill_s, compute + all_reduce);
  EXPECT_EQ(form->chunks(), 2);
  expect_close(form->block(group, 0).load_s, 2 * (compute + all_reduce));
  EXPECT_EQ(form->block(group, 0).latency.decode_s, 0) << "the first token comes from prefill";
}

// 400 of 1,000 tokens are computed, which attend to 800 on average.
TEST(Motley, WhatIsThereOfAPromptIsNotComputed) {
  ServePlan plan = d1_plan();
  plan.workload = workload_of(1000, 1);
  plan.workload.classes[0].cached_share = 0.6;
  plan.step.max_tokens = 512;
  const TensorGroup group = group_of(plan, "a");
  ServePoint point = point_of(plan, 1);
  point.cached_tokens = plan.workload.mean_cached_tokens();
  EXPECT_EQ(point.cached_tokens, 600);
  const auto form = make_form(bare(), plan.cluster, plan.model.arch, point);
  const double compute = 400 * block_flops(plan.model.arch, 0, 800) / 2 / (154.8e12 * 0.6);
  const double all_reduce = 2 * std::min(5e-6 + 400 * 8192 / 24e9, 2 * (5e-6 + 400 * 8192 / 48e9));
  expect_close(form->block(group, 0).latency.prefill_s, compute + all_reduce);
  EXPECT_EQ(form->chunks(), 1);
  EXPECT_EQ(tokens_through(plan.workload), 400);
}

// 32 sequences decode in a step; for every decode 128 / 31 tokens of prompts are read with them.
TEST(Motley, StepsOfManyRequestsCarryPromptsAndDecodes) {
  ServePlan plan = d1_plan();
  const TensorGroup group = group_of(plan, "a");
  const Architecture& arch = plan.model.arch;
  ServePoint point = point_of(plan, 32);
  point.loaded = true;
  const StagePrice block = make_form(bare(), plan.cluster, arch, point)->block(group, 0);
  const double prompt = 32 * 128.0 / 31, tokens = 32 + prompt;
  const double weights = static_cast<double>(block_bytes(arch, 0, group.shards[0], DType::fp16));
  const double products = std::max(weights / (768e9 * 0.8), tokens * block_flops(arch, 0, 0) / 2 / (154.8e12 * 0.6));
  const double context = (32 * 144 + prompt * 64) / tokens;
  const double cached = 32 * 144 + prompt / 128 * 64;  // a step reads more than one prompt
  const double attention =
      std::max(cached * (2 * 16 * 128 * 2) / (768e9 * 0.8),
               tokens * (block_flops(arch, 0, context) - block_flops(arch, 0, 0)) / 2 / (154.8e12 * 0.6));
  const double all_reduce = 2 * std::min(5e-6 + tokens * 8192 / 24e9, 2 * (5e-6 + tokens * 8192 / 48e9));
  const double step = products + attention + all_reduce;
  expect_close(block.latency.decode_s, 31 * step);
  expect_close(block.load_s, 31 * step / 32);

  // What a step cannot hold goes in more steps: all tokens of a request in steps of 64.
  point.step.max_tokens = 64;
  const StagePrice full = make_form(bare(), plan.cluster, arch, point)->block(group, 0);
  expect_close(full.load_s, full.latency.decode_s / 31 * (128 + 31) / 64);
  // Who only prefills fills steps with prompts, who only decodes has none in them.
  point.phase = Phase::prefill;
  const StagePrice prefill = make_form(bare(), plan.cluster, arch, point)->block(group, 0);
  EXPECT_GT(prefill.load_s, 0);
  EXPECT_EQ(prefill.latency.decode_s, 0);
  point.phase = Phase::decode;
  ServePoint apart = point;
  apart.loaded = false;
  expect_close(make_form(bare(), plan.cluster, arch, point)->block(group, 0).load_s,
               make_form(bare(), plan.cluster, arch, apart)->block(group, 0).load_s);
}

TEST(Motley, EndsPayEmbeddingHeadAndOverhead) {
  const ServePlan plan = d1_plan();
  const TensorGroup group = group_of(plan, "a");
  const auto form = make_form(bare(), plan.cluster, plan.model.arch, point_of(plan, 1));
  const double token = 4096.0 * 2, prompt = 128 * token;
  const double head_bytes = static_cast<double>(
      weight_bytes(plan.model.arch, {.layers = {}, .embedding = false, .head = true}, group.shards[0], DType::fp16));
  const double head = head_bytes / (768e9 * 0.8);
  const double logits = 5e-6 + 0.5 * 32000 * 4 / 24e9;
  const double gather = 31 * (5e-6 + 0.5 * token / 24e9), gather_prompt = 5e-6 + 0.5 * prompt / 24e9;
  expect_close(form->ends(group, {false, false}).latency.decode_s, gather);
  expect_close(form->ends(group, {false, false}).latency.prefill_s, gather_prompt);
  expect_close(form->ends(group, {true, false}).latency.decode_s, 31 * (5e-6 + token / 24e9));
  expect_close(form->ends(group, {false, true}).latency.decode_s, gather + 31 * (head + logits));
  expect_close(form->ends(group, {false, true}).latency.prefill_s, gather_prompt + head + logits);
  const auto slow =
      make_form({.form = "motley", .settings = {{"motley.step_overhead_s", 1}, {"motley.layer_overhead_s", 2}}},
                plan.cluster, plan.model.arch, point_of(plan, 1));
  expect_close(slow->ends(group, {}).latency.decode_s - form->ends(group, {}).latency.decode_s, 31);
  expect_close(slow->block(group, 0).latency.prefill_s - form->block(group, 0).latency.prefill_s, 2);
}

TEST(Motley, DevicesBringTheirOverheadsAndClustersTheirDriver) {
  ServePlan plan = d1_plan();
  const ServeCost before = price_serve(plan, bare());
  plan.cluster.types[0].overhead = Overhead{.layer_s = 1e-3, .step_s = 2e-3};
  const TensorGroup a = group_of(plan, "a"), b = group_of(plan, "b");
  const StepCost step({}, plan.cluster, plan.model.arch);
  expect_close(step.layer_overhead_s(a), 1e-3);
  expect_close(step.step_overhead_s(a), 2e-3);
  expect_close(step.layer_overhead_s(b), 20e-6);
  expect_close(StepCost(bare(), plan.cluster, plan.model.arch).layer_overhead_s(a), 0);  // the form's setting beats it

  plan.cluster.description.driver = DriverCost{.step_s = 5e-3, .request_s = 7e-3};
  const ServeCost after = price_serve(plan, bare());
  const double link_s = 31 * (1e-4 + 8 / 1.25e9);  // which the driver takes the place of
  expect_close(after.latency_s, before.latency_s + 32 * 5e-3 + 7e-3 - link_s);
  expect_close(after.bottleneck_s, before.bottleneck_s);
  expect_close(after.tree.value, after.latency_s);
}

// The driver is at a third machine, one millisecond from the first stage and two from the last.
TEST(Motley, TokensGoByTheDriverWhereverItIs) {
  ServePlan plan = d1_plan();
  const ServeCost before = price_serve(plan, bare());
  ClusterDescription description = plan.cluster.description;
  MachineDescription third = description.machines[0];
  third.name = "far";
  description.machines.push_back(third);
  description.links = {{{"m0", "far"}, {.latency_s = 1e-3, .bandwidth_bytes_per_s = 1e9}},
                       {{"m1", "far"}, {.latency_s = 2e-3, .bandwidth_bytes_per_s = 1e9}}};
  description.driver = DriverCost{.machine = "far"};
  plan.cluster = resolve(description, "test");
  const double link_s = 31 * (1e-4 + 8 / 1.25e9);  // which the driver takes the place of
  const ServeCost far = price_serve(plan, bare());
  expect_close(far.latency_s, before.latency_s - link_s + 32 * (3e-3 + 2 * 8 / 1e9));
  expect_close(far.tree.value, far.latency_s);
  // At the first stage it is as if nothing were said, but that the first token goes there, too.
  plan.cluster.description.driver->machine = "m0";
  expect_close(price_serve(plan, bare()).latency_s, before.latency_s + link_s / 31);
  expect_close(StepTimes(plan, {}).back({.hops = 2}).seconds(1), 1e-4 + 8 / 1.25e9);
}

TEST(Motley, ProductsReadAndComputeInTurnWhereTheTypeSaysSo) {
  ServePlan plan = d1_plan();
  const StepLoad load{8, 100, 800, 8};
  const StepCost step({}, plan.cluster, plan.model.arch);
  const Roofline at_once = step.block_time(group_of(plan, "a"), 0, load).products;
  expect_close(at_once.seconds(), std::max(at_once.memory_s, at_once.compute_s));
  plan.cluster.types[0].efficiency.in_turn = true;
  expect_close(step.block_time(group_of(plan, "a"), 0, load).products.seconds(), at_once.memory_s + at_once.compute_s);
  const ServeCost cost = price_serve(plan, bare());
  expect_close(cost.tree.value, cost.latency_s);
}

TEST(Motley, AttentionHasSharesOfItsOwn) {
  ServePlan plan = d1_plan();
  const StepLoad prompt{512, 256, 256, 1}, decode{4, 1000, 4000, 4};
  const StepCost step({}, plan.cluster, plan.model.arch);
  Efficiency& share = plan.cluster.types[0].efficiency;
  const double compute_s = step.block_time(group_of(plan, "a"), 0, prompt).attention.compute_s;
  const double memory_s = step.block_time(group_of(plan, "a"), 0, decode).attention.memory_s;
  expect_close(compute_s, 512 * (block_flops(plan.model.arch, 0, 256) - block_flops(plan.model.arch, 0, 0)) / 2 /
                              (154.8e12 * 0.6));
  expect_close(memory_s, 4000 * (2 * 16 * 128 * 2) / (768e9 * 0.8));
  share.attention_compute = share.compute / 3;
  share.attention_bandwidth = share.bandwidth / 2;
  const BlockTime slower = step.block_time(group_of(plan, "a"), 0, prompt);
  expect_close(slower.attention.compute_s, 3 * compute_s);
  expect_close(slower.seconds(), slower.products.seconds() + slower.attention.compute_s);
  expect_close(step.block_time(group_of(plan, "a"), 0, decode).attention.memory_s, 2 * memory_s);
}

TEST(Motley, ElementWiseOperationsGoByTheirBytes) {
  ServePlan plan = d1_plan();
  const StepLoad prompt{512, 256, 256, 1};
  const StepCost step({}, plan.cluster, plan.model.arch);
  const BlockTime within = step.block_time(group_of(plan, "a"), 0, prompt);
  EXPECT_EQ(within.elementwise_s, 0) << "part of the products' share";
  plan.cluster.types[0].efficiency.elementwise = 0.4;
  const BlockTime apart = step.block_time(group_of(plan, "a"), 0, prompt);
  // Of one of two ranks: two norms and two sums of the hidden size, half of the rotated heads and of the FFN.
  const double elements = 2 * 2 * 4096 + 2 * 3 * 4096 + 2 * (16 + 16) * 128 + 3 * 11008 / 2;
  expect_close(apart.elementwise_s, 512 * 2 * elements / (768e9 * 0.4));
  expect_close(apart.seconds(), within.seconds() + apart.elementwise_s);
}

TEST(Motley, QuantisedWeightsAreReadMoreSlowlyThanOthers) {
  ServePlan plan = d1_plan();
  plan.stages[0].weight_type = DType::q8_0;
  const StepLoad decode{1, 100, 100, 1};
  const StepCost step({}, plan.cluster, plan.model.arch);
  const TensorGroup group = group_of(plan, "a");
  const double bytes = static_cast<double>(block_bytes(plan.model.arch, 0, group.shards[0], DType::q8_0));
  EXPECT_LT(bytes, static_cast<double>(block_bytes(plan.model.arch, 0, group.shards[0], DType::fp16)));
  expect_close(step.block_time(group, 0, decode).products.memory_s, bytes / (768e9 * 0.8 * 0.8));
  plan.cluster.types[0].efficiency.quantised_bandwidth = 0.5;
  expect_close(step.block_time(group_of(plan, "a"), 0, decode).products.memory_s, bytes / (768e9 * 0.5));
  expect_close(
      step.block_time(group_of(plan, "b"), 0, decode).products.memory_s,
      static_cast<double>(block_bytes(plan.model.arch, 0, group_of(plan, "b").shards[0], DType::fp16)) / (448e9 * 0.8));
}

// Types whose speed is not known: the plan is priced with shares 1.7 and 1.23 times as large, and as small.
TEST(Motley, FiguresLieBetweenSlowAndFastTypes) {
  ServePlan plan = d1_plan();
  plan.predicted.tokens_per_s = 2 * price_serve(plan, {}).tokens_per_s;
  plan.predicted.latency_s = price_serve(plan, {}).latency_s;
  EXPECT_EQ(uncertainties(plan, {}).size(), 2u) << "nothing is said of what these types reach";
  for (DeviceType& type : plan.cluster.types) type.efficiency.basis = type.training.basis = Basis::given;
  EXPECT_TRUE(uncertainties(plan, {}).empty());
  EXPECT_FALSE(with_ranges(plan, {}).tokens_per_s_range);

  plan.cluster.types[0].efficiency.basis = Basis::generation;
  plan.cluster.types[0].training.basis = Basis::guess;
  ServePlan slow = plan, fast = plan;
  slow.cluster.types[0].efficiency.compute = 0.6 / 1.7;
  slow.cluster.types[0].efficiency.bandwidth = 0.8 / 1.23;
  fast.cluster.types[0].efficiency.compute = 1;  // of 1.02
  fast.cluster.types[0].efficiency.bandwidth = 0.8 * 1.23;
  const std::vector<TypeUncertainty> uncertain = uncertainties(plan, {});
  ASSERT_EQ(uncertain.size(), 1u);
  EXPECT_EQ(uncertain[0].type, plan.cluster.types[0].name);
  EXPECT_EQ(uncertain[0].basis, Basis::generation) << "what serving rests on";
  expect_close(uncertain[0].tokens_per_s.low, price_serve(slow, {}).tokens_per_s);
  expect_close(uncertain[0].tokens_per_s.high, price_serve(fast, {}).tokens_per_s);
  const ServePrediction predicted = with_ranges(plan, {});
  expect_close(predicted.tokens_per_s_range->low, 2 * price_serve(slow, {}).tokens_per_s);
  expect_close(predicted.latency_s_range->high, price_serve(slow, {}).latency_s);
  EXPECT_FALSE(with_ranges(plan, {.form = "hexgen"}).latency_s_range) << "it knows no shares";
}

TEST(Motley, HopsAndTheTokensWayBack) {
  const ServePlan plan = d1_plan();
  const TensorGroup a = group_of(plan, "a"), b = group_of(plan, "b");
  const auto form = make_form(bare(), plan.cluster, plan.model.arch, point_of(plan, 4));
  const double bytes = 4 * 4096.0 * 2;
  expect_close(form->hop(a, b).latency.decode_s, 31 * (1e-4 + bytes / 1.25e9 + usual_copies_s(bytes)));
  expect_close(form->hop(a, b).latency.prefill_s, 1e-4 + 128 * 8192 / 1.25e9 + usual_copies_s(128 * 8192));
  // Latency keeps no device busy.
  expect_close(form->hop(a, b).load_s, 128 * 8192 / 1.25e9 + 31 * bytes / 1.25e9 / 4);
  expect_close(form->token_return(b, a).sum(), 31 * (1e-4 + 4 * 8 / 1.25e9));
}

TEST(Motley, MemoryIsThatOfTheModel) {
  const ServePlan plan = d1_plan();
  const TensorGroup group = group_of(plan, "b");
  const StageEnds last{false, true};
  Architecture deep = plan.model.arch;
  deep.layers = 1000;
  const std::int64_t tokens = 16000;
  const std::int64_t most = most_layers_in_memory(deep, group, last, {tokens}, plan.step);
  const auto bytes = [&](std::int64_t layers) {
    const ModelPart part{.layers = {0, layers}, .embedding = false, .head = true};
    return weight_bytes(deep, part, group.shards[0], DType::fp16) +
           layers * kv_cache_bytes(deep, 0, group.shards[0], DType::fp16, tokens, plan.step.block_tokens) +
           activation_bytes(deep, part, group.shards[0], DType::fp16, plan.step) + (std::int64_t{1} << 30);
  };
  EXPECT_GT(most, 10);
  EXPECT_LE(bytes(most), std::int64_t{16} << 30);
  EXPECT_GT(bytes(most + 1), std::int64_t{16} << 30);
}

TEST(Motley, RequestsAtDifferentTokensHoldTheirMeanAndAMargin) {
  const ServePoint point{.prompt_tokens = 100.5, .output_tokens = 20, .step = d1_plan().step};
  EXPECT_EQ(kv_tokens_of(point, 1), 128) << "121 tokens in blocks of 16";
  // 118.5 = 100.5 + 21 / 2 of output + 15 / 2 of its last block; 9.5 less than at the end.
  EXPECT_EQ(kv_tokens_of(point, 4), 496) << "4 x 118.5 + 2 x 9.5 = 493";
  EXPECT_EQ(kv_tokens_of(point, 400), 47600) << "400 x 118.5 + 20 x 9.5 = 47590";
  for (const double tokens : {128.0, 493.0, 47590.0})
    EXPECT_NEAR(requests_in(point, tokens), tokens < 200 ? 1 : tokens < 500 ? 4 : 400, 1e-9);
  EXPECT_EQ(requests_in(point, 0), 0);
  EXPECT_EQ(kv_tokens_of({96, 40, 1, point.step, Phase::prefill}, 1), 112) << "who prefills holds the first token, too";
  EXPECT_EQ(kv_tokens_of({96, 40, 1, point.step, Phase::prefill}, 4), 448) << "4 x 104.5 + 2 x 7.5 = 433, in blocks";
}

TEST(Motley, APlansLatencyIsTheSumOfItsParts) {
  const ServePlan plan = d1_plan();
  const ServeCost cost = price_serve(plan, {});
  const auto form = make_form({}, plan.cluster, plan.model.arch, point_of(plan, 1));
  const TensorGroup a = group_of(plan, "a"), b = group_of(plan, "b");
  const StagePrice stage_a = form->block(a, 0) * 6 + form->ends(a, {true, false}) + form->hop(a, b);
  const StagePrice stage_b = form->block(b, 0) * 2 + form->ends(b, {false, true});
  const double latency = stage_a.latency.sum() + stage_b.latency.sum() + form->token_return(b, a).sum();
  expect_close(cost.latency_s, latency);
  expect_close(cost.bottleneck_s, std::max(stage_a.load_s, stage_b.load_s));
  expect_close(cost.requests_per_s, 1 / latency);
  expect_close(cost.tokens_per_s, 32 / latency);
  expect_close(cost.tree.value, latency);
  ASSERT_EQ(cost.tree.children.size(), 4u);  // stage, hop, stage, token return
  EXPECT_EQ(cost.tree.children[1].name, "a > b");
  expect_close(cost.routes[0].first_token_s + 31 * cost.routes[0].per_token_s, latency);
}

// With more in flight than keeps the busiest stage busy, requests wait for it: then throughput is its rate.
TEST(Motley, RequestsInFlightFillThePipelineAndThenWait) {
  ServePlan plan = d1_plan();
  for (auto& stage : plan.stages) stage.kv_tokens = 1 << 20;
  double before = 0;
  for (const std::int64_t batch : {1, 2, 4, 8, 16}) {
    plan.routes.front().batch = batch;
    const ServeCost cost = price_serve(plan, {});
    EXPECT_GE(cost.requests_per_s, before);
    EXPECT_LE(cost.requests_per_s, 1 / cost.bottleneck_s * (1 + 1e-12));
    expect_close(cost.requests_per_s * cost.latency_s, static_cast<double>(batch));  // Little
    before = cost.requests_per_s;
  }
  const CostOptions one_group{.form = "motley", .settings = {{"motley.batch", 16}, {"motley.micro_batches", 16}}};
  const ServeCost cost = price_serve(plan, one_group);
  expect_close(cost.requests_per_s, 1 / cost.bottleneck_s);
  EXPECT_EQ(cost.tree.children.back().name, "waiting");
}

// Prompts of 128 and 32 tokens of output, 152 on average and 160 at the end: the route has no more in flight than its
// weakest stage has room for, 8 x 152 + sqrt(8) x 8 = 1239.
TEST(Motley, TheWeakestStagesKvRoomLimitsTheBatch) {
  ServePlan plan = d1_plan();
  plan.routes[0].batch = 64;
  plan.stages[0].kv_tokens = 160 * 50;
  plan.stages[1].kv_tokens = 1232;
  const ServeCost limited = price_serve(plan, {});
  EXPECT_EQ(limited.routes[0].batch, 7);
  plan.routes[0].batch = 7;
  EXPECT_DOUBLE_EQ(price_serve(plan, {}).requests_per_s, limited.requests_per_s);
  for (auto& stage : plan.stages) stage.kv_tokens = 160 * 64;
  plan.routes[0].batch = 64;
  EXPECT_GT(price_serve(plan, {}).requests_per_s, 1.5 * limited.requests_per_s);
  // Two routes through the same stages divide its room.
  plan.stages[1].kv_tokens = 160 * 12;
  plan.routes.push_back(plan.routes[0]);
  plan.routes[1].id = "r1";
  plan.routes[1].batch = 32;
  const ServeCost shared = price_serve(plan, {});
  EXPECT_EQ(shared.routes[0].batch, 8);
  EXPECT_EQ(shared.routes[1].batch, 4);
}

TEST(Motley, ASharedStageCarriesAllItsRoutes) {
  // Two routes through stage b, one through a and one through c, a third machine like a's.
  ServePlan plan = d1_plan();
  ServePlan alone = plan;
  plan.cluster = cluster_of(R"(
format = "motley.cluster/1"
machine = [{ name = "m0", devices = ["A6000*2"] }, { name = "m1", devices = ["A6000*2"] }, { name = "m2", devices = ["A6000*2"] }]
)");
  alone.cluster = plan.cluster;
  plan.stages.push_back(plan.stages[0]);
  plan.stages[2].id = "c";
  plan.stages[2].devices = {"m2/0", "m2/1"};
  plan.routes.push_back({.id = "r1", .path = {{"c", {0, 6}}, {"b", {6, 8}}}});
  const CostOptions loaded{.form = "motley", .settings = {{"motley.batch", 64}}};
  const ServeCost one = price_serve(alone, loaded), two = price_serve(plan, loaded);
  EXPECT_EQ(two.routes.size(), 2u);
  EXPECT_GT(two.requests_per_s, 1.2 * one.requests_per_s) << "two machines share the larger stage";
  ServePoint point = point_of(plan, 64 / two.routes[0].micro_batches);
  point.loaded = true;
  const auto form = make_form({}, plan.cluster, plan.model.arch, point);
  const TensorGroup b = group_of(plan, "b");
  const double shared = (form->block(b, 0) * 2 + form->ends(b, {false, true})).load_s;
  EXPECT_LE(two.requests_per_s * shared, 1 + 1e-9) << "the shared stage works for both routes";
  plan.routes[1].weight = 3;
  const ServeCost skewed = price_serve(plan, loaded);
  expect_close(skewed.routes[1].requests_per_s, 3 * skewed.routes[0].requests_per_s);
  EXPECT_LT(skewed.requests_per_s, two.requests_per_s);
}

TEST(Motley, MicroBatchesDoubleFromWhatAStepHolds) {
  EXPECT_EQ(sequences_per_step(8, 2), 4);
  EXPECT_EQ(sequences_per_step(7, 2), 4);
  EXPECT_EQ(sequences_per_step(9, 4), 3);
  StepLimits step;
  step.max_sequences = 4;
  EXPECT_EQ(micro_batch_counts(16, step), (std::vector<std::int64_t>{4, 8, 16}));
  EXPECT_EQ(micro_batch_counts(3, step), (std::vector<std::int64_t>{1, 2}));
}

TEST(Motley, UnevenSharesAreAsSlowAsTheirSlowestRank) {
  ServePlan plan = d1_plan();
  const auto form = make_form(bare(), plan.cluster, plan.model.arch, point_of(plan, 1));
  const double even = form->block(group_of(plan, "a"), 0).latency.decode_s;
  plan.stages[0].shares = {0.75, 0.25};
  const TensorGroup uneven = group_of(plan, "a");
  const double slowest = form->block(uneven, 0).latency.decode_s;
  EXPECT_GT(slowest, 1.4 * even);
  EXPECT_LT(slowest, 1.6 * even);
}

TEST(Deadlines, ExcessIsTheLargestOfAllClasses) {
  Workload workload = workload_of(100, 11);
  RouteCost route{.route = "r", .latency_s = 3, .first_token_s = 1, .per_token_s = 0.2};
  EXPECT_EQ(deadline_excess(workload, route), 0) << "no deadline, no excess";
  workload.classes[0].deadline = {.first_token_s = 1, .per_token_s = 0.2, .total_s = 3};
  EXPECT_EQ(deadline_excess(workload, route), 0);
  workload.classes[0].deadline.total_s = 2;
  expect_close(deadline_excess(workload, route), 0.5);
  workload.classes[0].deadline.per_token_s = 0.1;
  expect_close(deadline_excess(workload, route), 1);
}

TEST(Deadlines, AClassWithLongPromptsWaitsLonger) {
  Workload workload = workload_of(100, 11);
  workload.classes.push_back(workload.classes[0]);
  workload.classes[1].prompt_tokens.mean = 300;
  workload.classes[1].deadline.first_token_s = 1;
  const RouteCost route{.route = "r", .latency_s = 3, .first_token_s = 1, .per_token_s = 0.2};  // of 200 on average
  expect_close(deadline_excess(workload, route), 0.5);
  workload.classes[1].deadline = {.total_s = 1.75};
  expect_close(deadline_excess(workload, route), 1);  // 1.5 s and ten tokens more
}

TEST(Forms, UnknownFormsAndSettingsAreRefused) {
  const ServePlan plan = d1_plan();
  const auto message = [&](const CostOptions& options) -> std::string {
    try {
      price_serve(plan, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      return error.message() + " " + error.hint();
    }
    return "";
  };
  EXPECT_THAT(message({.form = "guess"}), testing::HasSubstr("choose one of motley, hexgen"));
  EXPECT_THAT(message({.form = "motley", .settings = {{"hexgen.batch", 2}}}), testing::HasSubstr("hexgen.batch"));
  EXPECT_THAT(message({.form = "hexgen", .settings = {{"hexgen.batch", 0}}}), testing::HasSubstr("whole number"));
  EXPECT_THAT(message({.form = "hexgen", .settings = {{"hexgen.batch", 1.5}}}), testing::HasSubstr("whole number"));
}

}  // namespace
}  // namespace motley
