#include "motley/plan/serve_plan.hpp"

#include <gtest/gtest.h>

#include <filesystem>

#include "motley/base/reference_test.hpp"
#include "motley/plan/example_test.hpp"

namespace motley {
namespace {

TEST(Plan, ReadsWhatItWritesByteForByte) {
  ServePlan full = garage_plan();
  full.predicted.slo_attainment = 0.1 + 0.2;
  full.search = {"serve", "slo", "motley", 7, SearchStatus::gap, 1.0 / 3, 1e-9, 0.125, 12345};
  full.unused = {{"laptop/0", "too far"}};
  full.stages[0].role = StageRole::prefill;
  full.stages[1].kv_type = DType::bf16;
  full.routes[0].weight = 0.7;
  full.routes[0].path[0].activation_type = DType::int8;
  full.workload.classes[0].rate_per_s = 1.0 / 7;
  for (const ServePlan& plan : {garage_plan(), box_plan(), full}) {
    const std::string written = to_json(write(plan), 2);
    const ServePlan back = read_plan<ServePlan>(parse_json(written, "plan.json"), "plan.json");
    EXPECT_TRUE(back == plan);
    EXPECT_EQ(to_json(write(back), 2), written);
  }
}

TEST(Plan, KeysAreThoseOfTheInterface) {
  const Value plan = write(garage_plan());
  const auto keys = [](const Value& table) {
    std::vector<std::string> names;
    for (const auto& [name, value] : table.as_object()) names.push_back(name);
    return names;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(keys(plan), (Names{"format", "kind", "written_by", "model", "cluster", "workload", "step", "stages",
                               "routes", "predicted", "unused", "search"}));
  EXPECT_EQ(*plan.find("format"), Value("motley.plan/1"));
  EXPECT_EQ(*plan.find("kind"), Value("serve"));
  EXPECT_EQ(keys(*plan.find("model")), (Names{"name", "config", "digest"}));
  EXPECT_EQ(*plan.find("cluster")->find("format"), Value("motley.cluster/1"));
  EXPECT_EQ(*plan.find("workload")->find("format"), Value("motley.workload/1"));
  const Value& stage = plan.find("stages")->as_array()[1];
  EXPECT_EQ(keys(stage), (Names{"id", "role", "layers", "devices", "shares", "embedding", "head", "kv_tokens",
                                "weight_type", "kv_type"}));
  EXPECT_EQ(to_json(*stage.find("layers")), "[3,6]");
  EXPECT_EQ(to_json(*stage.find("role")), "\"any\"");
  const Value& route = plan.find("routes")->as_array()[0];
  EXPECT_EQ(
      to_json(route),
      R"({"id":"r0","path":[{"stage":"r0/s0","layers":[0,3]},{"stage":"r0/s1","layers":[3,6]},{"stage":"r0/s2","layers":[6,8]}],"weight":1.0,"batch":1})");
  const Value& memory = *plan.find("predicted")->find("memory_bytes")->find("bench/0");
  EXPECT_EQ(keys(memory), (Names{"weights", "kv", "activations", "reserve", "limit"}));
  EXPECT_EQ(*memory.find("limit"), Value(std::int64_t{4} << 20));
}

TEST(Plan, MayBeWrittenByHandWithDefaultsLeftOut) {
  Value plan = write(garage_plan());
  for (const char* key : {"written_by", "step", "predicted", "unused", "search"})
    std::erase_if(plan.as_object(), [&](const auto& member) { return member.first == key; });
  plan.set(
      "routes",
      parse_json(
          R"([{"id":"r0","path":[{"stage":"r0/s0","layers":[0,3]},{"stage":"r0/s1","layers":[3,6]},{"stage":"r0/s2","layers":[6,8]}]}])",
          "x"));
  const ServePlan back = read_plan<ServePlan>(plan, "plan.json");
  EXPECT_EQ(back.step, StepLimits{});
  EXPECT_EQ(back.routes[0].weight, 1);
  EXPECT_TRUE(back.predicted.memory_bytes.empty());
}

// The device's own memory stands among the keys of the device, the other tiers in tables of theirs where they are used.
TEST(Plan, MemoryOfOtherTiersIsWrittenWhereThereIsAny) {
  ServePlan plan = garage_plan();
  const std::string before = to_json(write(plan));
  EXPECT_EQ(before.find("\"host\""), std::string::npos);
  DeviceMemory& memory = plan.predicted.memory_bytes.begin()->second;
  memory.host = {.weights = 4096, .limit = 1 << 20};
  const Value written = write(plan);
  EXPECT_NE(to_json(written).find("\"host\""), std::string::npos);
  EXPECT_EQ(read_plan<ServePlan>(written, "plan").predicted.memory_bytes, plan.predicted.memory_bytes);
  memory.host = {};
  EXPECT_EQ(to_json(write(plan)), before);
}

TEST(Plan, StagesAreFoundByTheirIds) {
  const ServePlan plan = garage_plan();
  EXPECT_EQ(&plan.stage("r0/s1"), &plan.stages[1]);
  EXPECT_THROW(plan.stage("r0/s9"), Error);
}

// The tales model, counted by hand: 8 layers, hidden 192, 8 heads of 24, 4 KV heads, FFN 512, vocabulary 2048, fp32.
TEST(Plan, StageMemoryIsTheArithmeticOfTheModel) {
  const ServePlan plan = garage_plan();
  const auto memory = stage_memory(plan, plan.stages[1]);
  ASSERT_EQ(memory.size(), 3u);
  // Shares 2 : 1 : 1 of 8 query heads, 4 KV heads and 512 FFN columns; two norms of 192.
  const auto weights = [](std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn) {
    return 3 * 4 * (2 * heads * 24 * 192 + 2 * kv_heads * 24 * 192 + 3 * ffn * 192 + 2 * 192);
  };
  EXPECT_EQ(memory[0].device.weights, weights(4, 2, 256));
  EXPECT_EQ(memory[1].device.weights, weights(2, 1, 128));
  EXPECT_EQ(memory[2], memory[1]);
  EXPECT_EQ(memory[0].device.kv, 3 * 2 * plan.stages[1].kv_tokens * 2 * 24 * 4);
  EXPECT_EQ(memory[0].device.reserve, 0);
  EXPECT_EQ(memory[0].device.limit, static_cast<std::int64_t>(3.5 * 1024 * 1024));
  const Shard shard = make_shards(plan.model.arch, 3, plan.stages[1].shares)[0];
  EXPECT_EQ(memory[0].device.activations,
            activation_bytes(plan.model.arch, {.layers = {0, 3}}, shard, DType::fp32, plan.step));
}

// The garage is an example because its memories leave no simpler plan: devices on their own hold fewer layers than
// there are.
TEST(Plan, TheGarageNeedsTensorParallelStages) {
  ServePlan plan = garage_plan();
  std::int64_t layers_alone = 0;
  for (const auto& device : plan.cluster.devices) {
    const auto fits = [&](std::int64_t layers) {
      const Stage alone{.id = "alone",
                        .layers = {0, layers},
                        .devices = {device.name},
                        .shares = {},
                        .kv_tokens = 512,
                        .weight_type = DType::fp32,
                        .kv_type = DType::fp32};
      const TierMemory memory = stage_memory(plan, alone)[0].device;
      return memory.total() <= memory.limit;
    };
    std::int64_t layers = 0;
    while (fits(layers + 1)) ++layers;
    layers_alone += layers;
  }
  EXPECT_LT(layers_alone, plan.model.arch.layers);
}

std::string error_of(Value plan) {
  try {
    read_plan<ServePlan>(parse_json(to_json(plan, 1), "plan.json"), "plan.json");
  } catch (const Error& error) {
    std::string what = error.what();
    // The line is that of the printed document; the place says the rest.
    const auto colon = what.find(": ");
    return what.substr(colon + 2) + " | " + error.hint();
  }
  return "no error";
}

Value& member(Value& value, const std::string& key) {
  for (auto& [name, child] : value.as_object())
    if (name == key) return child;
  throw input_error("no member " + key);
}

TEST(Plan, ErrorsNamePlaceCauseAndFix) {
  const Value good = write(garage_plan());
  Value plan = good;
  plan.set("kind", "train");
  EXPECT_EQ(error_of(plan),
            "kind: this is a plan of kind \"train\", not \"serve\" | make one with `motley plan serve`");
  plan = good;
  plan.set("format", "motley.plan/2");
  EXPECT_EQ(error_of(plan),
            "format: version \"motley.plan/2\" is not supported | give a file with format = \"motley.plan/1\"");
  plan = good;
  plan.set("stagse", Value::array());
  EXPECT_EQ(error_of(plan), "stagse: unknown key | did you mean `stages`?");
  plan = good;
  member(plan, "stages").as_array()[0].set("layers", Value::array({0, 1, 2}));
  EXPECT_EQ(error_of(plan).substr(0, 63), "stages[0].layers: expected two layer numbers, found a list | wr");
  plan = good;
  member(plan, "stages").as_array()[0].set("layers", Value::array({-1, 2}));
  EXPECT_EQ(error_of(plan), "stages[0].layers[0]: -1 is out of range | accepted: at least 0");
  plan = good;
  member(plan, "stages").as_array()[2].set("weight_type", "f32");
  EXPECT_EQ(error_of(plan),
            "stages[2].weight_type: \"f32\" is not one of fp32, bf16, fp16, int8, int4, q8_0, q4_0, q4_1, "
            "q5_0, q5_1, q4_k, q5_k, q6_k, mxfp4, iq4_nl, iq4_xs, file | did you mean \"fp32\"?");
  plan = good;
  member(plan, "step").set("block_tokens", 0);
  EXPECT_EQ(error_of(plan), "step.block_tokens: 0 is out of range | accepted: at least 1, at most 65536");
  plan = good;
  member(plan, "cluster").set("machine", Value::array());
  EXPECT_EQ(error_of(plan), "cluster: the cluster has no machine | add a [[machine]] with name and devices");
  plan = good;
  member(member(plan, "model"), "config").set("num_hidden_layers", "eight");
  EXPECT_NE(error_of(plan).find("num_hidden_layers"), std::string::npos);
  plan = good;
  member(member(plan, "workload"), "class").as_array()[0].set("prompt_tokens", Value::object({{"trace", "x.csv"}}));
  EXPECT_EQ(error_of(plan),
            "workload: class \"chat\" has no mean lengths | a plan does not read traces: give `mean` with `trace`");
}

TEST(Plan, ReadsFiles) {
  const auto path =
      std::filesystem::temp_directory_path() / ("motley_plan_test_" + std::to_string(::getpid()) + ".json");
  write_file(path, to_json(write(garage_plan()), 2));
  EXPECT_TRUE(read_plan_file<ServePlan>(path) == garage_plan());
  std::filesystem::remove(path);
}

TEST(Plan, ReferenceIsCurrent) { expect_reference_is_current("plan.md", schema<ServePlan>().doc()); }

}  // namespace
}  // namespace motley
