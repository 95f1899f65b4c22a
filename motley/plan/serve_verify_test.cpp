#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "motley/plan/example_test.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

void PrintTo(const Violation& violation, std::ostream* out) {
  *out << violation.place << ": " << violation.what << " | " << violation.hint;
}

namespace {

// One thing is broken; exactly these violations are found, by place and what.
struct Breakage {
  const char* name;
  void (*change)(ServePlan&);
  std::vector<std::pair<std::string, std::string>> expected;
};

void expect_violations(const ServePlan& plan, const std::vector<std::pair<std::string, std::string>>& expected) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& violation : verify(plan)) {
    found.emplace_back(violation.place, violation.what);
    EXPECT_FALSE(violation.hint.empty()) << violation.what;
  }
  EXPECT_EQ(found, expected);
}

// Leaves the laptop idle: two stages, for room to break things.
void drop_laptop(ServePlan& plan) {
  plan.unused = {{"laptop/0", "test"}};
  plan.predicted.memory_bytes.erase("laptop/0");
}

// One device more: "attic/0".
void add_attic(ServePlan& plan) {
  MachineDescription attic;
  attic.name = "attic";
  attic.devices = {"laptop core"};
  plan.cluster.description.machines.push_back(attic);
  plan.cluster = resolve(plan.cluster.description, "test");
}

TEST(Verify, SoundPlansHaveNoViolations) {
  expect_violations(garage_plan(), {});
  expect_violations(box_plan(), {});
}

TEST(Verify, APredictionMayBeLeftOut) {
  ServePlan plan = garage_plan();
  plan.predicted = {};
  expect_violations(plan, {});
}

// Copies count with the bytes that a stage of these layers would hold, and have to fit.
TEST(Verify, StandbyWeightsTakeMemory) {
  ServePlan plan = garage_plan();
  for (auto& type : plan.cluster.types) type.memory_bytes *= 4;
  const Stage own = plan.stages[2];
  Stage all = own;
  all.layers = {0, 8};
  all.embedding = true;
  plan.stages[2].standby_weights = {{{4, 6}}, {{0, 4}}};
  predict_memory(plan);
  expect_violations(plan, {});
  const auto weights = [&](const Stage& stage) { return stage_memory(plan, stage)[0].device.weights; };
  const TierMemory memory = stage_memory(plan, plan.stages[2])[0].device;
  EXPECT_EQ(memory.standby, weights(all) - weights(own));
  EXPECT_EQ(memory.weights, weights(own));
  plan.cluster.types[static_cast<std::size_t>(plan.cluster.devices[5].type)].memory_bytes = memory.total() - 1;
  predict_memory(plan);
  ASSERT_EQ(verify(plan).size(), 1u);
  EXPECT_EQ(verify(plan)[0].place, "laptop/0");
}

// In the host's memory, which has to be there; a processor's is one with its own.
TEST(Verify, StandbyWeightsOfTheHostCountThere) {
  ServePlan plan = garage_plan();
  for (auto& type : plan.cluster.types) type.memory_bytes *= 4;
  const auto memory = [&] { return stage_memory(plan, plan.stages[2])[0]; };
  plan.stages[2].standby_weights = {{{0, 6}}};
  const std::int64_t copies = memory().device.standby;
  plan.stages[2].standby_weights[0].tier = StandbyTier::host;
  const int device = plan.cluster.find_device("laptop/0");
  ASSERT_EQ(tiers_of(plan.cluster, device).is_processor, true);
  EXPECT_EQ(memory().device.standby, copies);
  EXPECT_EQ(memory().host.total(), 0);

  DeviceType& type = plan.cluster.types[static_cast<std::size_t>(plan.cluster.devices[device].type)];
  type.vendor = "nvidia";
  EXPECT_EQ(memory().device.standby, 0);
  EXPECT_EQ(memory().host.standby, copies);
}

TEST(Verify, EachBreakageIsFoundAlone) {
  const Breakage cases[] = {
      {"unknown device",
       [](ServePlan& plan) {
         plan.stages[2].devices[0] = "laptop/1";
         drop_laptop(plan);
       },
       {{"stages[2].devices[0]", "the cluster has no device \"laptop/1\""}}},
      {"device in two stages",
       [](ServePlan& plan) {
         plan.stages[2].devices[0] = "bench/0";
         plan.predicted.memory_bytes.clear();
         drop_laptop(plan);
         plan.cluster.types[0].memory_bytes *= 2;
       },
       {{"stages[2].devices[0]", "\"bench/0\" already belongs to stage \"r0/s0\""}}},
      {"device twice in a stage",
       [](ServePlan& plan) {
         plan.stages[0].devices[1] = "bench/0";
         plan.unused = {{"bench/1", "test"}};
         plan.predicted.memory_bytes.erase("bench/1");
       },
       {{"stages[0].devices[1]", "\"bench/0\" is listed twice in this stage"}}},
      {"stage without devices",
       [](ServePlan& plan) {
         plan.stages[2].devices.clear();
         drop_laptop(plan);
       },
       {{"stages[2]", "the stage has no device"}}},
      {"stage id twice",
       [](ServePlan& plan) {
         plan.stages[0].id = plan.stages[1].id = "s";
         plan.stages[0].layers = plan.stages[1].layers = {0, 6};
         plan.stages[1].embedding = true;
         plan.routes[0].path = {{"s", {0, 6}}, {"r0/s2", {6, 8}}};
         plan.predicted.memory_bytes.clear();
         for (auto& type : plan.cluster.types) type.memory_bytes *= 4;
       },
       {{"stages[1]", "the id \"s\" is given twice"}}},
      {"stage without id",
       [](ServePlan& plan) {
         plan.stages[1].id = "";
         plan.routes[0].path[1].stage = "";
       },
       {{"stages[1]", "the stage has no id"}}},
      {"layers out of range",
       [](ServePlan& plan) {
         plan.stages[2].layers = {6, 9};
       },
       {{"stages[2].layers", "[6, 9) is out of range"}}},
      {"copies of layers that there are not",
       [](ServePlan& plan) {
         plan.stages[2].standby_weights = {{{7, 9}}};
       },
       {{"stages[2].standby_weights[0].layers", "[7, 9) is out of range"}}},
      {"copies of own layers",
       [](ServePlan& plan) {
         plan.stages[1].standby_weights = {{{0, 1}}, {{5, 7}}};
       },
       {{"stages[1].standby_weights[1].layers", "the stage holds layers of [5, 7) already: [3, 6)"}}},
      {"copies twice",
       [](ServePlan& plan) {
         plan.stages[1].standby_weights = {{{0, 2}}, {{1, 3}}};
       },
       {{"stages[1].standby_weights[1].layers", "the stage holds layers of [1, 3) already: [0, 2)"}}},
      {"no layer",
       [](ServePlan& plan) {
         add_attic(plan);
         plan.stages.push_back(
             {.id = "idle", .layers = {8, 8}, .devices = {"attic/0"}, .shares = {}, .kv_tokens = 512});
       },
       {{"stages[3].layers", "[8, 8) holds no layer"}, {"stages[3]", "no route uses stage \"idle\""}}},
      {"stage without a route",
       [](ServePlan& plan) {
         add_attic(plan);
         plan.stages.push_back(
             {.id = "idle", .layers = {7, 8}, .devices = {"attic/0"}, .shares = {}, .kv_tokens = 512});
       },
       {{"stages[3]", "no route uses stage \"idle\""}}},
      {"wrong number of shares",
       [](ServePlan& plan) {
         plan.stages[1].shares = {0.5, 0.5};
       },
       {{"stages[1].shares", "2 shares for 3 devices"}}},
      {"shares that do not sum to 1",
       [](ServePlan& plan) {
         plan.stages[1].shares = {0.5, 0.25, 0.24};
       },
       {{"stages[1].shares", "the shares sum to 0.99, not to 1"}}},
      {"a share of nothing",
       [](ServePlan& plan) {
         plan.stages[1].shares = {0.5, 0.5, 0};
       },
       {{"stages[1].shares", "the share 0 is not a positive number"}}},
      {"a share that is not a number",
       [](ServePlan& plan) {
         plan.stages[1].shares = {0.5, 0.5, std::nan("")};
       },
       {{"stages[1].shares", "the share nan is not a positive number"}}},
      {"no room for KV",
       [](ServePlan& plan) { plan.stages[1].kv_tokens = 0; },
       {{"stages[1].kv_tokens", "the stage has no room for keys and values (0 tokens)"}}},
      {"less than a block",
       [](ServePlan& plan) { plan.stages[1].kv_tokens = 15; },
       {{"stages[1].kv_tokens", "15 tokens are less than one block of 16"}}},
      {"weight type",
       [](ServePlan& plan) { plan.stages[0].weight_type = DType::int4; },
       {{"stages[0].weight_type", "int4 weights are not supported"}}},
      {"KV type",
       [](ServePlan& plan) { plan.stages[0].kv_type = DType::int8; },
       {{"stages[0].kv_type", "int8 keys and values are not supported"}}},
      {"KV blocks that are not whole",
       [](ServePlan& plan) { plan.stages[1].kv_type = DType::q8_0; },
       {{"stages[1].kv_type",
         "q8_0 keys and values come in blocks of 32 along a head, and the model's head_dim is 24"}}},
      {"prediction",
       [](ServePlan& plan) { plan.predicted.memory_bytes["bench/1"].device.kv += 1; },
       {{"predicted.memory_bytes.bench/1.kv", "589825 bytes are predicted, the arithmetic says 589824"}}},
      {"prediction of another tier",
       [](ServePlan& plan) { plan.predicted.memory_bytes["bench/1"].disk.weights = 5; },
       {{"predicted.memory_bytes.bench/1.disk.weights", "5 bytes are predicted, the arithmetic says 0"}}},
      {"prediction for another device",
       [](ServePlan& plan) { plan.predicted.memory_bytes["attic/0"] = {}; },
       {{"predicted.memory_bytes.attic/0", "memory is predicted for a device that no stage uses"}}},
      {"no routes",
       [](ServePlan& plan) { plan.routes.clear(); },
       {{"routes", "the plan has no route"},
        {"stages[0]", "no route uses stage \"r0/s0\""},
        {"stages[1]", "no route uses stage \"r0/s1\""},
        {"stages[2]", "no route uses stage \"r0/s2\""}}},
      {"route without path",
       [](ServePlan& plan) {
         plan.routes.push_back({"r1", {}, 1});
       },
       {{"routes[1].path", "the route has no stage"}}},
      {"route id twice",
       [](ServePlan& plan) { plan.routes.push_back(plan.routes[0]); },
       {{"routes[1]", "the id \"r0\" is given twice"}}},
      {"weight of nothing",
       [](ServePlan& plan) { plan.routes[0].weight = 0; },
       {{"routes[0].weight", "the weight 0 is not a positive number"}}},
      {"weight that is not a number",
       [](ServePlan& plan) { plan.routes[0].weight = std::numeric_limits<double>::quiet_NaN(); },
       {{"routes[0].weight", "the weight nan is not a positive number"}}},
      {"unknown stage",
       [](ServePlan& plan) {
         plan.routes.push_back(plan.routes[0]);
         plan.routes[1].id = "r1";
         plan.routes[1].path[1].stage = "r0/s7";
       },
       {{"routes[1].path[1]", "the plan has no stage \"r0/s7\""}}},
      {"hop outside its stage",
       [](ServePlan& plan) {
         plan.routes[0].path[0].layers = {0, 4};
         plan.routes[0].path[1].layers = {4, 6};
       },
       {{"routes[0].path[0].layers", "[0, 4) is not inside the layers [0, 3) of stage \"r0/s0\""}}},
      {"hop before its stage",
       [](ServePlan& plan) {
         plan.routes[0].path[0].layers = {0, 2};
         plan.routes[0].path[1].layers = {2, 6};
       },
       {{"routes[0].path[1].layers", "[2, 6) is not inside the layers [3, 6) of stage \"r0/s1\""}}},
      {"layer left out",
       [](ServePlan& plan) {
         plan.routes[0].path[1].layers = {4, 6};
       },
       {{"routes[0].path[1].layers", "[4, 6) begins at layer 4, but layer 3 is next"}}},
      {"route ends early",
       [](ServePlan& plan) {
         plan.routes[0].path[2].layers = {6, 7};
       },
       {{"routes[0].path", "the route ends after layer 7 of 8"}}},
      {"hop without layers",
       [](ServePlan& plan) {
         plan.routes[0].path[1].layers = {3, 3};
       },
       {{"routes[0].path[1].layers", "[3, 3) computes no layer"}}},
      {"embedding missing",
       [](ServePlan& plan) {
         plan.stages[0].embedding = false;
         predict_memory(plan);
       },
       {{"stages[0].embedding", "stage \"r0/s0\" lacks the embedding"}}},
      {"needless embedding",
       [](ServePlan& plan) {
         plan.stages[1].embedding = true;
         predict_memory(plan);
         plan.predicted = {};
         for (auto& type : plan.cluster.types) type.memory_bytes *= 2;
       },
       {{"stages[1].embedding", "stage \"r0/s1\" holds the embedding but is not the first stage of a route"}}},
      {"head missing",
       [](ServePlan& plan) {
         plan.stages[2].head = false;
         predict_memory(plan);
       },
       {{"stages[2].head", "stage \"r0/s2\" lacks the head"}}},
      {"needless head",
       [](ServePlan& plan) {
         plan.stages[1].head = true;
         plan.predicted = {};
         for (auto& type : plan.cluster.types) type.memory_bytes *= 2;
       },
       {{"stages[1].head", "stage \"r0/s1\" holds the head but is not the last stage of a route"}}},
      {"forgotten device",
       [](ServePlan& plan) { add_attic(plan); },
       {{"attic/0", "the device is neither in a stage nor listed as unused"}}},
      {"used and unused",
       [](ServePlan& plan) {
         plan.unused = {{"bench/0", "test"}};
       },
       {{"unused[0]", "\"bench/0\" is listed as unused but belongs to stage \"r0/s0\""}}},
      {"unused twice",
       [](ServePlan& plan) {
         add_attic(plan);
         plan.unused = {{"attic/0", "test"}, {"attic/0", "test"}};
       },
       {{"unused[1]", "\"attic/0\" is listed twice"}}},
      {"unknown unused device",
       [](ServePlan& plan) {
         plan.unused = {{"bench/9", "test"}};
       },
       {{"unused[0]", "the cluster has no device \"bench/9\""}}},
      {"a type of activations that do not leave",
       [](ServePlan& plan) { plan.routes[0].path[2].activation_type = DType::int8; },
       {{"routes[0].path[2].activation_type", "no activations leave this stage on the route"}}},
      {"a type that activations are not sent in",
       [](ServePlan& plan) { plan.routes[0].path[1].activation_type = DType::fp16; },
       {{"routes[0].path[1].activation_type", "activations cannot be sent in fp16"}}},
      {"two types between the same stages",
       [](ServePlan& plan) {
         plan.routes.push_back(plan.routes[0]);
         plan.routes[1].id = "r1";
         plan.routes[1].path[0].activation_type = DType::int8;
       },
       {{"routes[1].path[0].activation_type",
         "another route sends from stage \"r0/s0\" to \"r0/s1\" in another type"}}},
      {"link that is not described",
       [](ServePlan& plan) {
         plan.cluster.description.machines[2].site = "road";
         plan.cluster = resolve(plan.cluster.description, "test");
       },
       {{"routes[0].path[1]",
         "nothing describes the link between the sites \"default\" and \"road\" (shelf/0 to laptop/0)"}}},
      {"link inside a stage that is not described",
       [](ServePlan& plan) {
         add_attic(plan);
         plan.cluster.description.machines.back().site = "road";
         plan.cluster = resolve(plan.cluster.description, "test");
         plan.stages[2].devices.push_back("attic/0");
         plan.predicted = {};
       },
       {{"routes[0].path[1]",
         "nothing describes the link between the sites \"default\" and \"road\" (shelf/0 to attic/0)"},
        {"routes[0].path[2]",
         "nothing describes the link between the sites \"default\" and \"road\" (laptop/0 to attic/0)"}}},
  };
  for (const auto& [name, change, expected] : cases) {
    SCOPED_TRACE(name);
    ServePlan plan = garage_plan();
    change(plan);
    expect_violations(plan, expected);
  }
}

TEST(Verify, TooManyRanksForTheHeads) {
  ServePlan plan = garage_plan();
  MachineDescription rack;
  rack.name = "rack";
  rack.devices = {"laptop core*9"};
  plan.cluster.description.machines.push_back(rack);
  plan.cluster = resolve(plan.cluster.description, "test");
  plan.stages[2].devices.clear();
  for (int slot = 0; slot < 9; ++slot) plan.stages[2].devices.push_back("rack/" + std::to_string(slot));
  plan.predicted = {};
  plan.unused = {{"laptop/0", "test"}};
  const auto violations = verify(plan);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_EQ(violations[0].place, "stages[2].devices");
  EXPECT_NE(violations[0].what.find("9"), std::string::npos) << violations[0].what;
}

TEST(Verify, MemoryOverTheLimitIsShownByCause) {
  ServePlan plan = garage_plan();
  plan.stages[1].kv_tokens = 4096;
  predict_memory(plan);
  const auto violations = verify(plan);
  ASSERT_EQ(violations.size(), 3u);
  EXPECT_EQ(violations[0].place, "shelf/0");
  const TierMemory memory = stage_memory(plan, plan.stages[1])[0].device;
  EXPECT_EQ(memory.kv, 4096 * 3 * 2 * 2 * 24 * 4);
  EXPECT_NE(violations[0].what.find("KV 4.50 MiB"), std::string::npos) << violations[0].what;
  EXPECT_NE(violations[0].what.find(std::to_string(memory.total() - memory.limit) + " bytes too many"),
            std::string::npos)
      << violations[0].what;
  EXPECT_NE(violations[0].hint.find("stages[1]"), std::string::npos);
}

TEST(Verify, EveryByteCountsAndSoDoesTheReserve) {
  ServePlan plan = garage_plan();
  plan.predicted = {};
  DeviceType& type = plan.cluster.types[plan.cluster.devices[plan.cluster.find_device("laptop/0")].type];
  type.reserve_bytes = 1000;
  const TierMemory memory = stage_memory(plan, plan.stages[2])[0].device;
  EXPECT_EQ(memory.reserve, 1000);
  type.memory_bytes = memory.total();
  expect_violations(plan, {});
  type.memory_bytes -= 1;
  const auto violations = verify(plan);
  ASSERT_EQ(violations.size(), 1u);
  EXPECT_NE(violations[0].what.find("(1 bytes too many)"), std::string::npos) << violations[0].what;
}

TEST(Frames, HoldHiddenStatesOrLogitsWhicheverAreMore) {
  ServePlan plan = garage_plan();
  plan.model.arch.hidden = 100;
  plan.model.arch.vocabulary = 1000;
  plan.step.max_tokens = 512;
  plan.step.max_sequences = 32;
  EXPECT_EQ(largest_frame_bytes(plan), 512 * 100 * 4);
  plan.step.max_sequences = 64;
  EXPECT_EQ(largest_frame_bytes(plan), 64 * 1000 * 4);
}

TEST(Verify, StagesMayBeSharedByRoutes) {
  ServePlan plan = garage_plan();
  plan.routes.push_back(plan.routes[0]);
  plan.routes[1].id = "r1";
  plan.routes[1].weight = 0.5;
  expect_violations(plan, {});
}

// The tales model on two alike devices: one prefills, the other decodes.
ServePlan split_plan() {
  ServePlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  plan.cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/garage/one-device.toml");
  plan.cluster.description.machines[0].count = 2;
  plan.cluster = resolve(plan.cluster.description, "test");
  plan.workload = default_workload();
  for (const auto& [id, device, role] :
       {std::tuple("p", "desk-0/0", StageRole::prefill), {"d", "desk-1/0", StageRole::decode}})
    plan.stages.push_back({.id = id,
                           .role = role,
                           .layers = {0, 8},
                           .devices = {device},
                           .shares = {},
                           .embedding = true,
                           .head = true,
                           .kv_tokens = 512});
  plan.routes = {{.id = "r0", .path = {{"p", {0, 8}}, {"d", {0, 8}}}}};
  return plan;
}

TEST(Verify, HopsMaySayWhatTheySend) {
  ServePlan plan = garage_plan();
  plan.routes[0].path[0].activation_type = DType::bf16;
  plan.routes[0].path[1].activation_type = DType::int8;
  expect_violations(plan, {});
}

TEST(Verify, KeysAndValuesThatAreHandedOverHaveNoTypeOfActivations) {
  ServePlan plan = split_plan();
  plan.routes[0].path[0].activation_type = DType::int8;
  expect_violations(plan, {{"routes[0].path[0].activation_type", "no activations leave this stage on the route"}});
}

TEST(Verify, PrefillMayStandBeforeDecode) {
  expect_violations(split_plan(), {});
  ServePlan plan = split_plan();
  std::swap(plan.routes[0].path[0], plan.routes[0].path[1]);
  EXPECT_EQ(verify(plan).at(0).what, "[0, 8) begins at layer 0, but layer 8 is next");
  plan = split_plan();
  plan.stages[1].role = StageRole::any;
  EXPECT_EQ(verify(plan).at(0).place, "routes[0].path[1].layers");
  plan = split_plan();
  plan.routes[0].path[0].layers.end = 7;
  EXPECT_EQ(verify(plan).at(0).what, "[0, 8) begins at layer 0, but layer 7 is next");
  plan = split_plan();
  plan.routes[0].path[1].layers.first = 1;
  EXPECT_EQ(verify(plan).at(0).what, "[1, 8) begins at layer 1, but layer 0 is next");
  plan = split_plan();
  plan.stages[1].embedding = plan.stages[0].head = false;
  expect_violations(plan, {{"stages[0].head", "stage \"p\" lacks the head"},
                           {"stages[1].embedding", "stage \"d\" lacks the embedding"}});
}

TEST(Verify, ARouteNeedsStagesForBothRoles) {
  ServePlan plan = split_plan();
  plan.routes = {{.id = "r0", .path = {{"p", {0, 8}}}}, {.id = "r1", .path = {{"d", {0, 8}}}}};
  expect_violations(plan, {{"routes[0].path", "all stages of the route have the role `prefill`"},
                           {"routes[1].path[0]", "stage \"d\" has the role `decode`, and nothing before it prefills"}});
}

TEST(Verify, AnEmptyPlanIsNotSound) {
  ServePlan plan = garage_plan();
  plan.stages.clear();
  plan.routes.clear();
  const auto violations = verify(plan);
  ASSERT_GE(violations.size(), 2u);
  EXPECT_EQ(violations[0].what, "the plan has no stage");
  EXPECT_EQ(violations[1].what, "the plan has no route");
}

}  // namespace
}  // namespace motley
