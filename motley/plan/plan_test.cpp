#include "motley/plan/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "motley/base/version.hpp"
#include "motley/plan/collective_programs.hpp"
#include "motley/plan/example_test.hpp"

namespace motley {
namespace {

// ---- a plan of every kind ----

template <class Plan>
Plan example();

template <>
ServePlan example() {
  return garage_plan();
}

template <>
TrainPlan example() {
  TrainPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  ClusterDescription cluster;
  cluster.machines.resize(1);
  cluster.machines[0].name = "box";
  cluster.machines[0].devices = {"RTX 3090"};
  plan.cluster = resolve(cluster, "cluster");
  plan.workload.training.emplace();
  plan.workload.training->sequence_length = 64;
  plan.workload.training->global_batch = 2;
  plan.replicas = {
      {.stages = {{.layers = {0, 8}, .devices = {"box/0"}, .strategies = {{.layers = {0, 8}, .recompute = true}}}}}};
  return plan;
}

template <>
RentPlan example() {
  RentPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  plan.workload = default_workload();
  plan.offers.classes = {{.name = "chat", .model = "", .demand_per_s = {}, .share = 1}};
  plan.offers.types["T4"] = {.usd_per_hour = 0.5, .available = {}, .domain = ""};
  plan.offers.configurations = {{.name = "one", .model = "", .devices = {{"T4", 1}}, .rate_per_s = {2}, .stages = {}}};
  plan.goal.budget_usd_per_hour = 1;
  plan.fleet = {{.configuration = "one", .devices = {{"T4", 1}}, .copies = 2, .usd_per_hour = 0.5}};
  plan.assignment = {{"chat", {{"one", 1}}}};
  plan.predicted.throughput_per_s = 4;
  plan.predicted.cost_usd_per_hour = 1;
  return plan;
}

template <>
ChainPlan example() {
  ChainPlan plan;
  plan.chain.budget_bytes = 10;
  plan.chain.sites = {
      {.name = "layers", .repeat = 2, .options = {{.name = "", .time_s = 1, .bytes = 3, .layout = ""}}}};
  plan.choice = {0, 0};
  plan.predicted = {.time_s = 2, .bytes = 6, .price_s_per_byte = {}};
  return plan;
}

template <>
CollectivePlan example() {
  CollectivePlan plan;
  plan.cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/garage/cluster.toml");
  plan.program = direct_program(
      {.operation = CollectiveOperation::all_reduce, .ranks = 6, .bytes = 6 * 64, .chunks = 1, .alignment = 4}, {});
  plan.program.layout = "direct";
  return plan;
}

template <>
OffloadPlan example<OffloadPlan>() {
  OffloadPlan plan;
  plan.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
  plan.cluster = read_cluster(MOTLEY_SOURCE_DIR "/examples/garage/one-device.toml");
  plan.workload = default_workload();
  plan.device = plan.cluster.devices.front().name;
  plan.kv_tokens = 64;
  plan.weight_type = plan.kv_type = DType::fp32;
  return plan;
}

template <class... Plans>
std::vector<AnyPlan> examples_of(std::type_identity<std::variant<Plans...>>) {
  return {example<Plans>()...};
}

std::vector<AnyPlan> examples() { return examples_of(std::type_identity<AnyPlan>()); }

// What goes wrong when `document` is read as text: "place: what | hint", without the file and its line.
template <class... Plans>
std::string complaint(const Value& document) {
  try {
    const Value read_back = parse_json(to_json(document), "plan.json");
    if constexpr (sizeof...(Plans) > 0)
      (void)read_plan<Plans...>(read_back, "plan.json");
    else
      (void)read_plan(read_back, "plan.json");
  } catch (const Error& error) {
    const std::string what = error.what();
    return what.substr(what.find(": ") + 2) + " | " + error.hint();
  }
  return "";
}

// ---- the one reader and the one writer ----

TEST(AnyPlan, OfEveryKindIsReadAsItWasWritten) {
  for (const AnyPlan& plan : examples()) {
    const std::string text = to_json(write(plan));
    const AnyPlan again = read_plan(parse_json(text, "plan.json"), "plan.json");
    EXPECT_TRUE(again == plan) << kind_of(plan).name;
    EXPECT_EQ(to_json(write(again)), text);
    EXPECT_TRUE(verify(plan).empty()) << kind_of(plan).name << ": " << verify(plan)[0].place << ": "
                                      << verify(plan)[0].what;
  }
}

TEST(AnyPlan, OfEveryKindBeginsAlike) {
  for (const AnyPlan& plan : examples()) {
    const Value document = write(plan);
    const auto& keys = document.as_object();
    EXPECT_EQ(keys[0], (Value::Member{"format", "motley.plan/1"}));
    EXPECT_EQ(keys[1], (Value::Member{"kind", kind_of(plan).name}));
    EXPECT_EQ(keys[2], (Value::Member{"written_by", program_version()}));
  }
}

// Plans that were recorded before plans named their writer, or written by hand.
TEST(AnyPlan, NeedsNoWriter) {
  for (const AnyPlan& plan : examples()) {
    Value document = write(plan);
    std::erase_if(document.as_object(), [](const auto& member) { return member.first == "written_by"; });
    EXPECT_TRUE(read_plan(document, "plan.json") == plan) << kind_of(plan).name;
  }
}

TEST(AnyPlan, KindIsOneOfThoseThatThereAre) {
  Value document = write(examples().front());
  document.set("kind", "trainn");
  EXPECT_EQ(complaint(document), "kind: \"trainn\" is not a kind of plan | did you mean \"train\"?");
  EXPECT_EQ(complaint<RentPlan>(document), "kind: \"trainn\" is not a kind of plan | did you mean \"train\"?");
  document.set("kind", "measured");
  EXPECT_EQ(complaint(document),
            "kind: \"measured\" is not a kind of plan | choose one of serve, train, rent, chain, collective, offload");
  document.set("written_by", "motley 91.0.0");
  EXPECT_EQ(complaint(document),
            "kind: \"measured\" is not a kind of plan: motley 91.0.0 wrote the file, and this is " + program_version() +
                " | choose one of serve, train, rent, chain, collective, offload (or read it with motley "
                "91.0.0 or later)");
  document.set("kind", 3);
  EXPECT_EQ(complaint(document), "kind: expected a string, found an integer | ");
  std::erase_if(document.as_object(), [](const auto& member) { return member.first == "kind"; });
  EXPECT_EQ(complaint(document), "`kind` is missing | choose one of serve, train, rent, chain, collective, offload");
}

TEST(AnyPlan, OtherKindsThanThoseAskedForAreRefused) {
  const Value rent = write(example<RentPlan>());
  EXPECT_EQ(complaint<ServePlan>(rent),
            "kind: this is a plan of kind \"rent\", not \"serve\" | make one with `motley plan serve`");
  EXPECT_EQ((complaint<ServePlan, TrainPlan>(rent)),
            "kind: this is a plan of kind \"rent\", not \"serve\" or \"train\" | make one with `motley plan serve` or "
            "`motley plan train`");
  EXPECT_EQ((complaint<ServePlan, TrainPlan, CollectivePlan>(rent)),
            "kind: this is a plan of kind \"rent\", not \"serve\", \"train\" or \"collective\" | make one with `motley "
            "plan serve`, `motley plan train` or `motley plan allreduce`");
  const auto either = read_plan<ServePlan, RentPlan>(rent, "plan.json");
  EXPECT_TRUE(std::get<RentPlan>(either) == example<RentPlan>());
}

TEST(AnyPlan, IsATableWithTheFormatOfPlans) {
  EXPECT_EQ(complaint(Value::array({1})), "expected a table (plan), found a list | ");
  EXPECT_EQ(complaint(write(read_cluster(MOTLEY_SOURCE_DIR "/examples/garage/cluster.toml"))),
            "format: this is a \"motley.cluster/1\" file, not \"motley.plan/1\" | give a file with "
            "format = \"motley.plan/1\"");
}

TEST(AnyPlan, UnknownKeysNameTheVersionThatWroteThem) {
  for (const AnyPlan& plan : examples()) {
    Value document = write(plan);
    document.set("searchh", 1);
    EXPECT_EQ(complaint(document), "searchh: unknown key | did you mean `search`?");
    document.set("written_by", "motley 91.0.0");
    EXPECT_EQ(complaint(document), "searchh: unknown key: motley 91.0.0 wrote the file, and this is " +
                                       program_version() +
                                       " | did you mean `search`? (or read it with motley 91.0.0 or later)");
    document.set("written_by", "motley 0.0.1");
    EXPECT_EQ(complaint(document), "searchh: unknown key | did you mean `search`?");
    for (const char* writer : {"another's planner", "motley", "motley 1.2", "motley 1.2.3.4", "motley x.1.2", ""}) {
      document.set("written_by", writer);
      EXPECT_EQ(complaint(document), "searchh: unknown key | did you mean `search`? (a newer version than " +
                                         program_version() + " may have written it)");
    }
    std::erase_if(document.as_object(), [](const auto& member) { return member.first == "written_by"; });
    EXPECT_EQ(complaint(document), "searchh: unknown key | did you mean `search`? (a newer version than " +
                                       program_version() + " may have written it)");
  }
}

// Descriptions inside a plan were written by the plan's writer.
TEST(AnyPlan, UnknownKeysInsideNameTheVersionToo) {
  Value document = write(example<ServePlan>());
  document.set("written_by", "motley 91.0.0");
  for (auto& [key, value] : document.as_object())
    if (key == "cluster") value.set("quantum_links", Value::array());
  EXPECT_THAT(complaint(document),
              testing::StartsWith("cluster.quantum_links: unknown key: motley 91.0.0 wrote the file, and this is "));
  document = write(example<ServePlan>());
  document.set("written_by", "motley 91.0.0");
  for (auto& [key, value] : document.as_object())
    if (key == "stages") value.as_array()[1].set("kv_type", "q3_k");
  EXPECT_THAT(complaint(document), testing::StartsWith("stages[1].kv_type: \"q3_k\" is not one of"));
  EXPECT_THAT(complaint(document), testing::HasSubstr("motley 91.0.0 wrote the file"));
}

}  // namespace
}  // namespace motley
