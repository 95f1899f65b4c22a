#include "motley/report/status_report.hpp"

#include <gmock/gmock.h>

#include "motley/base/error.hpp"
#include "motley/report/rank_bytes.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

Value answer_of_a_server() {
  return parse_json(R"({"state": "serving", "epoch": 2, "uptime_s": 90, "failure": null, "held": 1,
    "generated_tokens": 10, "prompt_tokens": 20, "routes": [{"waiting": 1, "running": 2}, {"waiting": 3, "running": 4}],
    "plan": {"model": {"name": "tales"}, "predicted": {"tokens_per_s": 100}},
    "members": [{"name": "attic", "address": "10.0.0.5", "devices": [
       {"device": "attic/0", "memory_bytes": 1024, "out_of_service": null},
       {"device": "attic/1", "memory_bytes": 1024, "out_of_service": "the driver has lost the GPU"}]}],
    "if_lost": [{"machine": "attic", "fits": false},
                {"device": "box/1", "fits": true, "tokens_per_s": 50, "loaded_bytes": 2048}],
    "workers": [{"device": "box/1", "stage": "r0/s0", "rank": 0, "process": 77, "busy_share": 0.5,
                 "weight_bytes": 4096}]})",
                    "the answer");
}

std::string complaint_about(const Value& answer) {
  try {
    status_report(answer);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    return error.what();
  }
  return "";
}

TEST(StatusReport, ShowsPlanRequestsMachinesAndWorkers) {
  const std::string text = status_report(answer_of_a_server());
  EXPECT_THAT(text, HasSubstr("model     tales\nstate     serving, plan number 2, up for 90"));
  EXPECT_THAT(text, HasSubstr("requests  6 running, 4 waiting, 1 held until a plan takes effect\n"));
  EXPECT_THAT(text, HasSubstr("machines  1 machine\n  attic at 10.0.0.5, 2.00 KiB\n"
                              "    attic/1 is out of service: the driver has lost the GPU\n"));
  EXPECT_THAT(text, HasSubstr("does not fit"));
  EXPECT_THAT(text, HasSubstr("50%"));
  EXPECT_THAT(text, HasSubstr("box/1   r0/s0     0       77   50%  4.00 KiB\n"));
}

TEST(StatusReport, ShowsTheGpusOfAMachine) {
  Value answer = answer_of_a_server();
  answer.set("members", parse_json(R"([{"name": "attic", "address": "10.0.0.5", "devices": [
    {"device": "attic/2", "type": "NVIDIA T4", "uuid": "GPU-2", "memory_bytes": 1024, "total_bytes": 2048}]}])",
                                   "the answer"));
  EXPECT_THAT(status_report(answer),
              HasSubstr("  attic at 10.0.0.5, 1.00 KiB\n    attic/2, NVIDIA T4, 1.00 KiB of 2.00 KiB\n"));
}

TEST(StatusReport, AnAnswerOfAnotherKindIsThePeersFault) {
  for (const char* field : {"state", "epoch", "plan", "routes", "held", "workers", "uptime_s"}) {
    Value answer = answer_of_a_server();
    answer.set(field, Value::object({}));
    EXPECT_NE(complaint_about(answer), "") << field;
  }
  EXPECT_THAT(complaint_about(Value(3)), HasSubstr("the server's answer has no \"plan\""));
  Value answer = answer_of_a_server();
  answer.set("if_lost", Value(1));
  EXPECT_NE(complaint_about(answer), "");
  answer.set("if_lost", Value(Value::Array{Value(1)}));
  EXPECT_NE(complaint_about(answer), "");
}

TEST(LossesReport, IsEmptyWithoutLosses) { EXPECT_EQ(losses_report(Value::array(), 10), ""); }

TEST(RankBytes, AreThoseOfTheModelsArithmetic) {
  const Architecture arch = read_model(MOTLEY_SOURCE_DIR "/data/models/tales").arch;
  const ModelPart whole = whole_model(arch);
  const auto ranks = rank_bytes(arch, whole, 2, {}, DType::bf16, DType::bf16, {1024}, {});
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].weights, weight_bytes(arch, whole, ranks[0].shard, DType::bf16));
  EXPECT_EQ(rank_bytes_json(ranks).find("ranks")->as_array().size(), 2u);
  EXPECT_THAT(rank_bytes_report(ranks), HasSubstr("kv heads"));
}

}  // namespace
}  // namespace motley
