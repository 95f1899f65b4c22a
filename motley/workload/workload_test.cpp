#include "motley/workload/workload.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <filesystem>

#include "motley/base/reference_test.hpp"

namespace motley {
namespace {

Workload workload_of(const std::string& toml) {
  return read<Workload>(parse_toml("format = \"motley.workload/1\"\n" + toml, "w.toml"), "w.toml");
}

// Files of one test, in a folder of their own.
class WorkloadFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::temp_directory_path() / ("motley_workload_test_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  Workload read_with(const std::string& toml) {
    write_file(folder / "w.toml", "format = \"motley.workload/1\"\n" + toml);
    return read_workload(folder / "w.toml");
  }
  // The message without the folder, and the hint.
  std::pair<std::string, std::string> error_of(const std::string& toml) {
    try {
      read_with(toml);
    } catch (const Error& error) {
      std::string what = error.what();
      const std::string prefix = folder.string() + "/";
      for (auto at = what.find(prefix); at != std::string::npos; at = what.find(prefix)) what.erase(at, prefix.size());
      return {what, error.hint()};
    }
    return {"no error", ""};
  }

  std::filesystem::path folder;
};

const std::string full = R"(
[[class]]
name = "chat"
rate = "4 /s"
prompt_tokens = 512
output_tokens = { mean = 128.5, p50 = 100, p99 = 900 }
deadline = { first_token = "2 s", per_token = "100 ms", total = "10 s" }
[[class]]
name = "code"
rate = "1 /s"
prompt_tokens = 2048
output_tokens = 32
[arrival]
process = "gamma"
cv = 2.5
[training]
sequence_length = 2048
global_batch = 1024
micro_batch = 1
precision = "bf16"
states = { master = 0, moments = 4 }
optimizer = "sgd"
executor = "fsdp"
)";

TEST(Workload, ReadsEveryKey) {
  const Workload workload = workload_of(full);
  ASSERT_EQ(workload.classes.size(), 2u);
  const RequestClass& chat = workload.classes[0];
  EXPECT_EQ(chat.rate_per_s, 4);
  EXPECT_EQ(chat.prompt_tokens.mean, 512);
  EXPECT_EQ(chat.output_tokens, (Length{128.5, 100, 900, ""}));
  EXPECT_EQ(chat.deadline, (Deadline{2, 0.1, 10}));
  EXPECT_EQ(workload.arrival, (Arrival{ArrivalProcess::gamma, 2.5, ""}));
  EXPECT_EQ(workload.training, (Training{2048, 1024, 1, DType::bf16, StateBytes{2, 2, 0, 4}, "sgd", Executor::fsdp}));
  EXPECT_DOUBLE_EQ(workload.mean_prompt_tokens(), (4 * 512 + 2048) / 5.0);
  EXPECT_DOUBLE_EQ(workload.mean_output_tokens(), (4 * 128.5 + 32) / 5.0);
  EXPECT_EQ(workload.total_rate_per_s(), 5);
}

TEST(Workload, WritesWhatItReads) {
  for (const Workload& workload : {workload_of(full), default_workload()}) {
    const std::string written = to_json(write(workload), 2);
    const auto back = read<Workload>(parse_json(written, "x"), "x");
    EXPECT_EQ(back, workload);
    EXPECT_EQ(to_json(write(back), 2), written);
  }
}

TEST(Workload, Default) {
  const Workload workload = default_workload();
  EXPECT_EQ(workload.mean_prompt_tokens(), 512);
  EXPECT_EQ(workload.mean_output_tokens(), 128);
  EXPECT_EQ(workload.total_rate_per_s(), 0);
  EXPECT_EQ(to_json(write(workload)),
            R"({"format":"motley.workload/1","class":[{"name":"chat","prompt_tokens":512.0,"output_tokens":128.0}]})");
}

TEST(Workload, ExamplesAreRead) {
  const Workload workload = read_workload(MOTLEY_SOURCE_DIR "/examples/garage/workload.toml");
  ASSERT_EQ(workload.classes.size(), 1u);
  EXPECT_GT(workload.mean_output_tokens(), 0);
}

TEST(Workload, WithoutRatesClassesCountEqually) {
  const Workload workload = workload_of(
      "class = [{name=\"a\", prompt_tokens=100, output_tokens=10}, {name=\"b\", prompt_tokens=300, output_tokens=20}]");
  EXPECT_EQ(workload.mean_prompt_tokens(), 200);
  EXPECT_EQ(workload.mean_output_tokens(), 15);
}

TEST(Workload, AnyLengthsSurviveWritingAndReading) {
  EXPECT_TRUE(rc::check("lengths and rates", [] {
    Workload workload;
    const auto positive = [] {
      return static_cast<double>(*rc::gen::inRange<std::int64_t>(1, 1LL << 40)) / *rc::gen::element(1.0, 3.0, 7e3, 1e9);
    };
    RequestClass& described = workload.classes.emplace_back();
    described.name = "a";
    described.rate_per_s = positive();
    described.prompt_tokens.mean = positive();
    described.output_tokens = {positive(), 1 + positive(), 0, ""};
    described.deadline.per_token_s = positive();
    RC_ASSERT(read<Workload>(parse_json(to_json(write(workload)), "x"), "x") == workload);
  }));
}

TEST_F(WorkloadFiles, LengthsComeFromATrace) {
  write_file(folder / "t.csv", "class,prompt_tokens\nchat, 100\nother,7\nchat,300\r\n\n");
  const Workload workload = read_with("class = [{name=\"chat\", prompt_tokens={trace=\"t.csv\"}, output_tokens=5}]");
  EXPECT_EQ(workload.classes[0].prompt_tokens, (Length{200, 200, 298, (folder / "t.csv").string()}));
  const Workload stated =
      read_with("class = [{name=\"chat\", prompt_tokens={mean=7, p50=6, p99=8, trace=\"t.csv\"}, output_tokens=5}]");
  EXPECT_EQ(stated.classes[0].prompt_tokens, (Length{7, 6, 8, (folder / "t.csv").string()})) << "what it says counts";
  const auto back = read<Workload>(parse_json(to_json(write(workload)), "x"), "x");
  EXPECT_EQ(back, workload);
}

TEST_F(WorkloadFiles, ArrivalsComeFromATrace) {
  write_file(folder / "t.csv",
             "arrival_s,prompt_tokens,output_tokens,class\n0,100,10,chat\n1,50,1,code\n2,300,30,chat\n");
  const Workload workload = read_with("arrival = {process=\"trace\", file=\"./t.csv\"}");
  ASSERT_EQ(workload.classes.size(), 2u);
  EXPECT_EQ(workload.classes[0].name, "chat");
  EXPECT_EQ(workload.classes[0].output_tokens.mean, 20);
  EXPECT_DOUBLE_EQ(workload.classes[0].rate_per_s, 2.0 / 3);
  EXPECT_DOUBLE_EQ(workload.total_rate_per_s(), 1);
  EXPECT_DOUBLE_EQ(workload.mean_prompt_tokens(), 150);
  EXPECT_EQ(workload.arrival.file, (folder / "t.csv").string());

  const Workload named = read_with(
      "class = [{name=\"code\"}, {name=\"chat\", deadline={total=\"1 s\"}}]\narrival = {process=\"trace\", "
      "file=\"t.csv\"}");
  EXPECT_EQ(named.classes[0].prompt_tokens.mean, 50);
  EXPECT_EQ(named.classes[1].deadline.total_s, 1);

  const auto requests = read_trace(folder / "t.csv");
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[2], (TraceRequest{2, 300, 30, "chat"}));
}

TEST_F(WorkloadFiles, ErrorsNamePlaceCauseAndFix) {
  struct BadFile {
    std::string toml, what, hint;
  };
  const std::string chat = "[[class]]\nname = \"chat\"\n";
  const BadFile cases[] = {
      {"", "w.toml:1: [[class]] or [training] is missing", "add a [[class]]"},
      {"[[class]]\nprompt_tokens = 1", "w.toml:2: class[0]: `name` is missing", "Unique."},
      {chat + "prompt_tokens = 1", "w.toml:2: class[0]: `output_tokens` is missing", "give it, as in output_tokens"},
      {chat + "output_tokens = 1", "w.toml:2: class[0]: `prompt_tokens` is missing", "give it, as in prompt_tokens"},
      {chat + "prompt_token = 1", "w.toml:4: class[0].prompt_token: unknown key", "did you mean `prompt_tokens`?"},
      {chat + "prompt_tokens = 0", "w.toml:4: class[0].prompt_tokens: 0 is out of range", "accepted: above 0"},
      {chat + "prompt_tokens = \"many\"",
       "w.toml:4: class[0].prompt_tokens: expected a number of tokens or a table, found a string", "write 512"},
      {chat + "prompt_tokens = { p99 = 5 }", "w.toml:4: class[0].prompt_tokens: `mean` is missing", "give a mean"},
      {chat + "prompt_tokens = { mean = 5, p50 = 9, p99 = 8 }",
       "w.toml:4: class[0].prompt_tokens: p99 must not be below p50", "exchange or correct"},
      {chat + "rate = 4", "w.toml:4: class[0].rate: a number needs its unit", "write it as a string such as \"4 /s\""},
      {chat + "deadline = { total = \"0 s\" }", "w.toml:4: class[0].deadline.total: 0 s is out of range",
       "accepted: above 0"},
      {"class = [{name=\"a\", prompt_tokens=1, output_tokens=1}, {name=\"a\", prompt_tokens=1, output_tokens=1}]",
       "w.toml:2: class[1]: class \"a\" is described twice", "give unique names"},
      {"class = [{name=\"a\", rate=\"1 /s\", prompt_tokens=1, output_tokens=1}, {name=\"b\", prompt_tokens=1, "
       "output_tokens=1}]",
       "w.toml:2: class[1]: class \"a\" has a rate and class \"b\" lacks", "give every class a rate"},
      {"arrival = { process = \"posson\" }",
       "w.toml:2: arrival.process: \"posson\" is not one of constant, poisson, gamma, trace",
       "did you mean \"poisson\"?"},
      {"arrival = { process = \"trace\" }", "w.toml:2: arrival: `file` is missing", "process = \"trace\" needs"},
      {"arrival = { process = \"poisson\", cv = 2 }", "w.toml:2: arrival: `cv` is for process = \"gamma\"",
       "set process"},
      {"arrival = { file = \"t.csv\" }", "w.toml:2: arrival: `file` is for process = \"trace\"", "set process"},
      {"training = { sequence_length = 8 }", "w.toml:2: training: `global_batch` is missing", "Sequences per step."},
      {"training = { sequence_length = 8, global_batch = 2, micro_batch = 3 }",
       "w.toml:2: training: micro_batch must not be larger than global_batch", "reduce micro_batch"},
      {"training = { sequence_length = 8, global_batch = 2, precision = \"p16\" }",
       "w.toml:2: training.precision: \"p16\" is not one of fp32, bf16, fp16", "did you mean \"fp16\"?"},
  };
  for (const auto& [toml, what, hint] : cases) {
    SCOPED_TRACE(toml);
    const auto [found, found_hint] = error_of(toml);
    EXPECT_EQ(found, what);
    EXPECT_EQ(found_hint.substr(0, hint.size()), hint);
  }
}

TEST_F(WorkloadFiles, AClassThatNoRequestIsOfIsNamed) {
  write_file(folder / "t.csv", "arrival_s,prompt_tokens,output_tokens,class\n0,1,1,chat\n");
  const auto [arrivals, arrivals_hint] =
      error_of("class = [{name=\"chat\"}, {name=\"code\"}]\narrival = {process=\"trace\", file=\"t.csv\"}");
  EXPECT_EQ(arrivals, "t.csv: the trace has no request of class \"code\"");
  EXPECT_EQ(arrivals_hint, "remove the class, or use the name in the trace");
  const auto [lengths, lengths_hint] =
      error_of("class = [{name=\"code\", prompt_tokens={trace=\"t.csv\"}, output_tokens=5}]");
  EXPECT_EQ(lengths, "t.csv:2: the trace has no request of class \"code\"");
  EXPECT_EQ(lengths_hint, "use the name in the trace");
}

TEST_F(WorkloadFiles, TraceErrorsNameTheLine) {
  const std::string toml = "class = [{name=\"chat\"}]\narrival = {process=\"trace\", file=\"t.csv\"}";
  const std::string header = "arrival_s,prompt_tokens,output_tokens,class\n";
  struct BadTrace {
    std::string csv, what, hint;
  };
  const BadTrace cases[] = {
      {"", "t.csv: is empty", "name the columns"},
      {header, "t.csv:1: the trace has no request", "write one line per"},
      {"arrival_s,promt_tokens\n", "t.csv:1: column \"promt_tokens\" is unknown", "did you mean `prompt_tokens`?"},
      {"arrival_s,arrival_s\n", "t.csv:1: column \"arrival_s\" appears twice", "keep one"},
      {"arrival_s,prompt_tokens\n", "t.csv:1: column `output_tokens` is missing",
       "the file has: arrival_s, prompt_tokens"},
      {header + "0,1,1,chat\n1,2,3\n", "t.csv:3: 3 cells under 4 columns", "give each line one cell"},
      {header + "0,1,1,chat,5\n", "t.csv:2: 5 cells under 4 columns", "give each line one cell"},
      {header + "0,100000001,1,chat", "t.csv:2: prompt_tokens: \"100000001\" is not a number of tokens",
       "give an integer"},
      {header + "x,1,1,chat", "t.csv:2: arrival_s: \"x\" is not a time in seconds", "give a number"},
      {header + "-1,1,1,chat", "t.csv:2: arrival_s: \"-1\" is not a time in seconds", "give a number"},
      {header + "nan,1,1,chat", "t.csv:2: arrival_s: \"nan\" is not a time in seconds", "give a number"},
      {header + "0,1.5,1,chat", "t.csv:2: prompt_tokens: \"1.5\" is not a number of tokens", "give an integer"},
      {header + "0,1,0,chat", "t.csv:2: output_tokens: \"0\" is not a number of tokens", "give an integer"},
      {header + "5,1,1,chat\n\n4,1,1,chat", "t.csv:4: arrival_s: 4 comes before the line above, 5", "sort"},
      {header + "0,1,1,", "t.csv:2: class: the cell is empty", "name the class"},
      {header + "0,1,1,chat\n1,2,3,code", "t.csv: class \"code\" is not in the workload", "add a [[class]]"},
      {header + "0,1,1,chta", "t.csv: class \"chta\" is not in the workload", "did you mean \"chat\"?"},
  };
  for (const auto& [csv, what, hint] : cases) {
    SCOPED_TRACE(csv);
    write_file(folder / "t.csv", csv);
    const auto [found, found_hint] = error_of(toml);
    EXPECT_EQ(found, what);
    EXPECT_EQ(found_hint.substr(0, hint.size()), hint);
  }
}

TEST(Workload, ReferenceIsCurrent) { expect_reference_is_current("workload.md", schema<Workload>().doc()); }

}  // namespace
}  // namespace motley
