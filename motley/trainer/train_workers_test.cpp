// What the workers of a run report, with links that a test writes.
#include "motley/trainer/train_workers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "motley/workers/scripted_handle_test.hpp"

namespace motley {
namespace {

using testing::HasSubstr;

// Its workers are there at once.
class ScriptedFleet final : public Fleet {
 public:
  explicit ScriptedFleet(std::vector<Script>& scripts) : scripts_(scripts) {}
  std::unique_ptr<WorkerStart> begin(const std::vector<std::string>& starting, const std::vector<std::string>&,
                                     const WorkerReads&) override {
    return std::make_unique<Start>(starting, scripts_);
  }
  bool is_here() const override { return true; }

 private:
  struct Start final : WorkerStart {
    Start(std::vector<std::string> of, std::vector<Script>& with) : devices(std::move(of)), scripts(with) {}
    bool take(Workers& come) override {
      for (std::size_t i = 0; i < devices.size(); ++i)
        come.push_back({.device = devices[i], .stage = {}, .handle = std::make_unique<ScriptedHandle>(scripts[i])});
      return true;
    }
    std::vector<std::string> devices;
    std::vector<Script>& scripts;
  };
  std::vector<Script>& scripts_;
};

class TrainWorkersTest : public testing::Test {
 protected:
  // Two stages: box/0, then box/1.
  TrainWorkersTest() {
    plan_.model = read_model(MOTLEY_SOURCE_DIR "/data/models/tales");
    const std::string cluster =
        "format = \"motley.cluster/1\"\n[[machine]]\nname = \"box\"\ndevices = [\"one*2\"]\n[[device_type]]\n"
        "name = \"one\"\nvendor = \"cpu\"\nmemory = \"1 GiB\"\nmemory_bandwidth = \"8 GB/s\"\n"
        "flops = { fp32 = \"40 GFLOP/s\" }\n";
    plan_.cluster = resolve(read<ClusterDescription>(parse_toml(cluster, "box.toml"), "box.toml"), "box.toml");
    plan_.workload.training = Training{.sequence_length = 4, .global_batch = 2, .states = {}};
    plan_.replicas = {{.share = 1,
                       .micro_batches = 1,
                       .stages = {{.layers = {0, 4}, .devices = {"box/0"}, .strategies = {{.layers = {0, 4}}}},
                                  {.layers = {4, 8}, .devices = {"box/1"}, .strategies = {{.layers = {4, 8}}}}}}};
    for (Script& script : scripts_) script.answer = [](const Message& message) { return well(message); };
  }

  static JobMessage well(const Message& message) {
    const TrainMessage asked = decode_train(message);
    if (const auto* step = std::get_if<TrainStep>(&asked))
      return encode_train(TrainStepDone{.step = step->step, .loss = 2});
    if (std::holds_alternative<TrainSave>(asked)) return encode_train(TrainSaved{});
    return encode_train(TrainReady{.weight_bytes = 10});
  }
  // The answer to a step; all other messages are answered well.
  void at_step(std::size_t worker, const std::function<std::optional<Message>()>& answer) {
    scripts_[worker].answer = [answer](const Message& message) {
      return std::holds_alternative<TrainStep>(decode_train(message)) ? answer() : well(message);
    };
  }

  void start() {
    const auto stopped = [this] {
      if (at_each_look_) at_each_look_();
      return false;
    };
    workers_.emplace(
        plan_, fleet_,
        TrainWorkersOptions{
            .loaded = [this](double part) { loaded_.push_back(part); }, .stopped = stopped, .patience_s = 0.4});
  }
  std::vector<TrainStepDone> step(std::uint64_t number) {
    return workers_->run({.step = number, .tokens = 8}, {{.sequences = 2, .inputs = {1}, .targets = {2}}});
  }
  std::string lost(std::uint64_t number) {
    try {
      step(number);
    } catch (const WorkerLost& error) {
      return error.what();
    }
    return "none is lost";
  }

  TrainPlan plan_;
  std::vector<Script> scripts_{2};
  ScriptedFleet fleet_{scripts_};
  std::vector<double> loaded_;
  std::function<void()> at_each_look_;
  std::optional<TrainWorkers> workers_;  // last: it ends the links
};

TEST_F(TrainWorkersTest, StartsAndRunsSteps) {
  scripts_[0].to_driver = {Progress{"weights", 1}};
  scripts_[1].to_driver = {Progress{"weights", 0.5}};
  start();
  EXPECT_EQ(loaded_, (std::vector<double>{0.5, 0.75}));
  EXPECT_EQ(workers_->devices(), (std::vector<std::string>{"box/0", "box/1"}));
  EXPECT_EQ(workers_->allocated().at(1).weight_bytes, 10);
  EXPECT_EQ(step(1).at(1).step, 1U);
  EXPECT_EQ(step(2).at(0).loss, 2);
}

TEST_F(TrainWorkersTest, InputsGoToTheFirstStageAndTargetsToTheLast) {
  std::vector<TrainStep> sent;
  for (Script& script : scripts_)
    script.answer = [&sent](const Message& message) {
      const TrainMessage asked = decode_train(message);
      if (const auto* step = std::get_if<TrainStep>(&asked)) sent.push_back(*step);
      return well(message);
    };
  start();
  step(1);
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[0].inputs, std::vector<std::int32_t>{1});
  EXPECT_TRUE(sent[0].targets.empty());
  EXPECT_TRUE(sent[1].inputs.empty());
  EXPECT_EQ(sent[1].targets, std::vector<std::int32_t>{2});
}

TEST_F(TrainWorkersTest, WorkersThatDisagreeEndTheRun) {
  at_step(1, [] { return encode_train(TrainStepDone{.loss = 3, .update = TrainStepDone::Update::done}); });
  start();
  try {
    step(0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "step 0: box/1 has a loss of 3, and box/0 of 2");
  }
}

TEST_F(TrainWorkersTest, ReportsWhyAWorkerCannotStart) {
  scripts_[1].answer = [](const Message&) { return Failure{2, "no weights", "give weights"}; };
  try {
    start();
    FAIL();
  } catch (const WorkerLost& error) {
    EXPECT_STREQ(error.what(), "box/1 (rank 0 of stage r0/s1): no weights");
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_EQ(error.hint(), "give weights");
  }
  for (const Script& script : scripts_) EXPECT_TRUE(script.exit);
}

// The neighbour reports first.
TEST_F(TrainWorkersTest, NamesTheCauseOfALoss) {
  at_step(0, [&] {
    scripts_[1].exit = killed;
    scripts_[1].known = deadline_in(0.03);
    return Failure{5, "lost rank 1", ""};
  });
  at_step(1, [] { return std::nullopt; });
  start();
  EXPECT_EQ(lost(1), "the worker of box/1 (rank 0 of stage r0/s1) was killed by signal 9");
}

TEST_F(TrainWorkersTest, NamesAMachineThatIsGone) {
  at_step(1, [&] {
    scripts_[1].exit = WorkerExit{WorkerExit::How::machine, 0};
    return std::nullopt;
  });
  start();
  EXPECT_EQ(lost(1), "the worker of box/1 (rank 0 of stage r0/s1) is on a machine that is gone");
}

TEST_F(TrainWorkersTest, NamesASilentWorker) {
  at_step(1, [&] { return std::nullopt; });
  start();
  scripts_[1].to_driver = {Alive{}};
  EXPECT_THAT(lost(1), HasSubstr("the worker of box/1 (rank 0 of stage r0/s1) has been silent for 0."));
}

// box/1 computes without processor time; box/0 waits for it.
TEST_F(TrainWorkersTest, NamesAWorkerThatHangsAlthoughItSendsAlive) {
  for (std::size_t i = 0; i < 2; ++i) at_step(i, [] { return std::nullopt; });
  start();
  const Instant begun = Clock::now();
  at_each_look_ = [&] {
    const double for_s = seconds_since(begun);
    scripts_[0].to_driver = {Alive{{.step = 1, .doing = Doing::receiving, .peer = 1, .for_s = for_s}}};
    scripts_[1].to_driver = {Alive{{.step = 1, .doing = Doing::computing, .for_s = for_s, .processor_s = 0.01}}};
  };
  EXPECT_THAT(lost(1), HasSubstr("box/1 (rank 0 of stage r0/s1) hangs in step 1: it computes, but has had no processor "
                                 "time for 0."));
}

// As above, but its processor time grows.
TEST_F(TrainWorkersTest, WaitsForAWorkerThatComputes) {
  at_step(1, [] { return std::nullopt; });
  start();
  const Instant begun = Clock::now();
  at_each_look_ = [&] {
    const double for_s = seconds_since(begun);
    scripts_[1].to_driver = {
        Alive{{.step = 1, .doing = Doing::computing, .for_s = for_s, .processor_s = 0.01 * for_s}}};
    if (for_s > 0.6) scripts_[1].to_driver.push_back(encode_train(TrainStepDone{.step = 1, .loss = 2}));
  };
  EXPECT_EQ(lost(1), "none is lost");
}

TEST_F(TrainWorkersTest, UnexpectedMessagesAreTheWorkersFault) {
  start();
  workers_->look();
  const auto refused = [&](const Message& message) -> std::string {
    scripts_[1].to_driver = {message};
    try {
      workers_->look();
    } catch (const WorkerLost& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refused(encode_train(TrainSlice{.name = "x", .bytes = {}})),
            "box/1 (rank 0 of stage r0/s1): a part of a checkpoint, and none is written");
  EXPECT_EQ(refused(Listening{{}}), "box/1 (rank 0 of stage r0/s1): an unexpected message");
}

}  // namespace
}  // namespace motley
