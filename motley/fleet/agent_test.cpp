// The agent of a machine: against a real deployment, with workers that only count (tests/programs/fake_worker.cpp), and
// against a driver that a test writes message by message, with workers that are scripts.
#include "motley/agent/agent.hpp"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <deque>
#include <fstream>
#include <future>
#include <mutex>

#include "motley/agent/gpu_state_test.hpp"
#include "motley/checkpoint/chunk_cache.hpp"
#include "motley/checkpoint/large_model_test.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/fleet/agent_machines.hpp"
#include "motley/fleet/deployment_group.hpp"
#include "motley/fleet/hand_agent_test.hpp"
#include "motley/workers/control_listener.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

// Lines that an agent or a driver reports.
class Reports {
 public:
  std::function<void(const std::string&, const std::string&)> sink() {
    return [this](const std::string& what, const std::string& detail) {
      const std::lock_guard lock(mutex_);
      text_ += what + ": " + detail + "\n";
    };
  }
  bool has(const std::string& part) const {
    for (const Instant until = soon(); seconds_until(until) > 0;
         std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
      const std::lock_guard lock(mutex_);
      if (text_.find(part) != std::string::npos) return true;
    }
    return false;
  }
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

// An agent on a thread of its own.
class RunningAgent {
 public:
  explicit RunningAgent(AgentOptions options)
      : options_(std::move(options)),
        ended_(std::async(std::launch::async, [this] { return run_agent(options_, stop_.descriptor()); })) {}
  ~RunningAgent() { stop_.notify(); }
  RunningAgent(const RunningAgent&) = delete;
  RunningAgent& operator=(const RunningAgent&) = delete;

  void stop() const { stop_.notify(); }
  // What run_agent() returned; throws what it threw.
  bool result() {
    if (ended_.wait_for(std::chrono::seconds(30)) == std::future_status::ready) return ended_.get();
    throw Error(ErrorCode::negative, "it has not ended");
  }

 private:
  Wakeup stop_;
  const AgentOptions options_;
  std::future<bool> ended_;
};

class AgentTest : public LargeModelTest {
 protected:
  AgentTest() {
    change_byte(write_large(), chunk_bytes);
    manifest_ = make_manifest(folder);
  }
  void TearDown() override { EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a worker is left"; }

  AgentOptions options(const Invitation& invitation) {
    AgentOptions options;
    options.invitation = invitation;
    options.name = "box";
    options.devices = {{"toy", 1 << 20, 1e9, 1e9, 1}};
    options.worker_program = program_beside("fake-worker");
    options.cache = folder / "cache";
    options.state = folder / "state";
    options.report = agent_says_.sink();
    return options;
  }
  // As a worker program; whatever connection it inherits, it does not read.
  fs::path script(const std::string& line) {
    const fs::path file = folder / "worker.sh";
    std::ofstream(file) << "#!/bin/sh\n" << line << "\n";
    ::chmod(file.c_str(), 0700);
    return file;
  }
  std::vector<ChunkId> missing(const std::vector<ChunkId>& wanted) const {
    return ChunkCache(folder / "cache" / "weights", manifest_).missing(wanted);
  }

  ModelManifest manifest_;
  Reports agent_says_;
  DeploymentGroup group_{"lab", "127.0.0.1:0"};
};

// ---- in a deployment ----

class DeployedAgentTest : public AgentTest {
 protected:
  AgentOptions options() { return AgentTest::options(group_.invitation(machines_.address())); }
  bool lists(std::size_t count) {
    for (const Instant until = soon(); machines_.list().size() != count;) {
      pollfd waiting{machines_.changed(), POLLIN, 0};
      if (::poll(&waiting, 1, poll_timeout_ms(until)) != 1) return false;
      machines_.clear_changed();
    }
    return true;
  }
  Workers start(std::uint64_t epoch, const std::vector<ChunkId>& chunks = {{0, 1}}, Workers earlier = {}) {
    return start_with_chunks(
        machines_, toy_plan({{1}}), epoch, [&](const std::string&) { return chunks; }, earlier);
  }
  static bool is_ready(WorkerHandle& handle) {
    for (const Instant until = soon(); seconds_until(until) > 0 && !handle.ended();) {
      auto events = handle.events();
      ::poll(events.data(), events.size(), poll_timeout_ms(until));
      for (const Message& message : handle.receive())
        if (std::holds_alternative<Ready>(message)) return true;
    }
    return false;
  }

  Reports driver_says_;
  AgentMachines machines_{
      {.listen = "127.0.0.1:0",
       .access = group_.access(),
       .silence_s = 60,
       .objection = [this](const std::string& member) { return group_.admission().member_objection(member); },
       .report = driver_says_.sink()}};
};

TEST_F(DeployedAgentTest, FetchesWeightsStartsWorkersAndEndsWithTheDeployment) {
  RunningAgent agent(options());
  ASSERT_TRUE(lists(1));
  EXPECT_EQ(machines_.list()[0].name, "box");
  machines_.offer_weights(manifest_, folder);
  Workers workers = start(1);
  EXPECT_TRUE(is_ready(*workers.at(0).handle));
  EXPECT_TRUE(missing({{0, 1}}).empty());
  EXPECT_EQ(missing({{0, 0}, {0, 2}}).size(), 2u) << "no more than the worker reads";

  workers.clear();
  workers = start(2, {{0, 1}, {0, 2}});  // an earlier worker of the device makes room
  EXPECT_TRUE(is_ready(*workers.at(0).handle));
  EXPECT_TRUE(missing({{0, 2}}).empty());
  machines_.end(20);
  EXPECT_TRUE(agent.result());
  EXPECT_TRUE(agent_says_.has("ended: the deployment has ended"));
}

TEST_F(DeployedAgentTest, FetchesMoreForAWorkerThatStays) {
  RunningAgent agent(options());
  ASSERT_TRUE(lists(1));
  machines_.offer_weights(manifest_, folder);
  Workers workers = start(1);
  EXPECT_TRUE(is_ready(*workers.at(0).handle));
  const int process = workers[0].handle->process();
  fs::rename(folder / "model.safetensors", folder / "moved");
  try {
    start(2, {{0, 1}, {0, 2}}, std::move(workers));
    ADD_FAILURE() << "started";
  } catch (const WorkersNotStarted& error) {
    EXPECT_THAT(error.what(), HasSubstr("box/0 cannot be started: chunk 2 of model.safetensors came damaged"));
  }
  fs::rename(folder / "moved", folder / "model.safetensors");
  workers = start(3);
  EXPECT_NE(workers[0].handle->process(), process) << "it was given up with the failed start";
  const int second = workers[0].handle->process();
  EXPECT_TRUE(is_ready(*workers[0].handle));
  workers = start(4, {{0, 1}, {0, 2}}, std::move(workers));
  EXPECT_TRUE(is_ready(*workers[0].handle));
  EXPECT_EQ(workers[0].handle->process(), second);
  EXPECT_TRUE(missing({{0, 2}}).empty());
}

TEST_F(DeployedAgentTest, LeavesAsAskedOnceItsWorkersAreNotNeeded) {
  RunningAgent agent(options());
  ASSERT_TRUE(lists(1));
  machines_.offer_weights(manifest_, folder);
  Workers workers = start(1);
  ASSERT_TRUE(is_ready(*workers[0].handle));
  agent.stop();
  ASSERT_TRUE(lists(0));
  EXPECT_FALSE(workers[0].handle->exit()) << "the driver first plans without it";
  workers.clear();
  EXPECT_FALSE(agent.result());
  EXPECT_TRUE(driver_says_.has("left: box has closed its connection"));
}

TEST_F(DeployedAgentTest, TellsHowAWorkerEnded) {
  AgentOptions killed = options();
  killed.worker_program = script("kill -9 $$");
  const auto cause = [&] {
    try {
      start(1);
    } catch (const WorkersNotStarted& error) {
      EXPECT_EQ(error.loss.devices, std::vector<std::string>{"box/0"});
      EXPECT_FALSE(error.loss.gone);
      return std::string(error.what());
    }
    return std::string("started");
  };
  machines_.offer_weights(manifest_, folder);
  {
    RunningAgent agent(killed);
    ASSERT_TRUE(lists(1));
    EXPECT_EQ(cause(), "box/0 cannot be started: exit code 0, signal 9");
    agent.stop();
    EXPECT_FALSE(agent.result());
  }
  ASSERT_TRUE(lists(0));
  AgentOptions nothing = options();
  nothing.worker_program = folder / "no such program";
  RunningAgent agent(nothing);
  ASSERT_TRUE(lists(1));
  EXPECT_EQ(cause(), "box/0 cannot be started: exit code 127, signal 0");
}

TEST_F(DeployedAgentTest, WeightsThatCannotBeFetchedAreTold) {
  machines_.offer_weights(manifest_, folder);
  fs::rename(folder / "model.safetensors", folder / "moved");
  RunningAgent agent(options());
  ASSERT_TRUE(lists(1));
  try {
    start(1);
    ADD_FAILURE() << "started";
  } catch (const WorkersNotStarted& error) {
    EXPECT_THAT(error.what(), HasSubstr("box/0 cannot be started: chunk 1 of model.safetensors came damaged"));
  }
  fs::rename(folder / "moved", folder / "model.safetensors");
  const Workers workers = start(2);
  EXPECT_TRUE(is_ready(*workers[0].handle));
}

// ---- weights from each other ----

class SharingAgentsTest : public DeployedAgentTest {
 protected:
  AgentOptions other() {
    AgentOptions attic = options();
    attic.name = "attic";
    attic.cache = folder / "attic cache";
    attic.state = folder / "attic state";
    attic.report = attic_says_.sink();
    return attic;
  }
  Workers start_on(const std::string& machine, std::uint64_t epoch, const std::vector<ChunkId>& chunks) {
    ServePlan plan = toy_plan({{1}});
    plan.stages[0].devices = {machine + "/0"};
    ClusterDescription description = plan.cluster.description;
    description.machines.front().name = machine;
    plan.cluster = resolve(std::move(description), "toys.toml");
    Workers earlier;
    for (const Instant until = soon();;) try {
        return start_with_chunks(
            machines_, plan, epoch, [&](const std::string&) { return chunks; }, earlier);
      } catch (const WorkersNotStarted&) {
        if (seconds_until(until) < 0) throw;  // before that, it may not know yet who holds what
      }
  }

  Reports attic_says_;
};

TEST_F(SharingAgentsTest, TheSecondFetchesFromTheFirst) {
  machines_.offer_weights(manifest_, folder);
  RunningAgent box(options());
  RunningAgent attic(other());
  ASSERT_TRUE(lists(2));
  Workers workers = start_on("box", 1, {{0, 1}, {0, 2}});
  workers.clear();
  fs::rename(folder / "model.safetensors", folder / "moved");  // the driver cannot send them any more
  workers = start_on("attic", 2, {{0, 1}, {0, 2}});
  EXPECT_TRUE(is_ready(*workers.at(0).handle));
  EXPECT_TRUE(driver_says_.has("fetched: attic/0 has its"));
  EXPECT_TRUE(driver_says_.has(" from box")) << driver_says_.text();
  EXPECT_TRUE(ChunkCache(folder / "attic cache" / "weights", manifest_).missing({{0, 1}, {0, 2}}).empty());
}

TEST_F(SharingAgentsTest, AMemberThatSendsWrongBytesIsNamed) {
  machines_.offer_weights(manifest_, folder);
  RunningAgent box(options());
  RunningAgent attic(other());
  ASSERT_TRUE(lists(2));
  start_on("box", 1, {{0, 1}, {0, 2}}).clear();
  for (const std::uint64_t chunk : {1, 2})
    change_byte(folder / "cache" / "weights" / manifest_.digest() / "model.safetensors", chunk * chunk_bytes + 9);
  fs::rename(folder / "model.safetensors", folder / "moved");
  auto started = std::async(std::launch::async, [&] { return start_on("attic", 2, {{0, 1}, {0, 2}}); });
  EXPECT_TRUE(driver_says_.has("weights: attic does without box: chunk ")) << driver_says_.text();
  fs::rename(folder / "moved", folder / "model.safetensors");
  const Workers workers = started.get();
  EXPECT_TRUE(is_ready(*workers.at(0).handle));
  EXPECT_TRUE(attic_says_.has("weights: none come from box: chunk "));
}

// ---- who may join ----

TEST_F(DeployedAgentTest, AnotherTokenOrAuthorityIsRefusedAtOnce) {
  const auto error_of = [&](const Invitation& invitation) {
    AgentOptions wrong = options();
    wrong.invitation = invitation;
    try {
      RunningAgent(wrong).result();
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::peer || error.code() == ErrorCode::input) << error.what();
      return std::string(error.what());
    }
    return std::string("none");
  };
  Invitation invitation = options().invitation;
  invitation.token.back() = invitation.token.back() == '0' ? '1' : '0';
  EXPECT_NE(error_of(invitation), "none");
  EXPECT_THAT(error_of(invitation), ::testing::Not(HasSubstr(invitation.token)));
  invitation = options().invitation;
  invitation.authority = DeploymentGroup("lab", "127.0.0.1:0").invitation("127.0.0.1:1").authority;
  EXPECT_NE(error_of(invitation), "none");
  invitation = options().invitation;
  invitation.group = "another";
  EXPECT_NE(error_of(invitation), "none");
  EXPECT_TRUE(machines_.list().empty());
}

TEST_F(DeployedAgentTest, RejoinsByItsFolderWhenItsTokenDoesNotCountAnyMore) {
  AgentOptions rejoining = options();
  {
    const RunningAgent first(rejoining);
    ASSERT_TRUE(lists(1));
  }
  ASSERT_TRUE(lists(0));
  group_.admission().revoke_tokens();
  RunningAgent again(rejoining);
  ASSERT_TRUE(lists(1));
  AgentOptions stranger = options();
  stranger.invitation = rejoining.invitation;
  stranger.name = "attic";
  try {
    RunningAgent(stranger).result();
    ADD_FAILURE() << "it has joined";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the token has been revoked"));
    EXPECT_THAT(error.hint(), HasSubstr("motley deployment invite"));
  }
  machines_.end(5);
  EXPECT_TRUE(again.result());
  for (const auto& file : fs::directory_iterator(rejoining.state))
    EXPECT_NE(file.path().extension(), ".identity") << "which is of no use any more";
}

TEST_F(DeployedAgentTest, ARevokedMemberIsToldAndStaysOut) {
  RunningAgent agent(options());
  ASSERT_TRUE(lists(1));
  group_.admission().revoke("box", {});
  machines_.remove("box", "has been revoked");
  machines_.remove("stranger", "has been revoked");
  EXPECT_TRUE(lists(0));
  const auto error_of = [](RunningAgent& refused) {
    try {
      refused.result();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(error_of(agent), HasSubstr("the member \"box\" has been revoked"));
  EXPECT_TRUE(driver_says_.has("lost: box has been revoked"));
  RunningAgent again(options());  // with a new link
  EXPECT_THAT(error_of(again), HasSubstr("the member \"box\" has been revoked"));
}

TEST_F(DeployedAgentTest, AnotherMachineOfItsNameIsRefused) {
  const RunningAgent first(options());
  ASSERT_TRUE(lists(1));
  AgentOptions second = options();
  second.state = folder / "another machine's";
  try {
    RunningAgent(second).result();
    ADD_FAILURE() << "it has joined";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_THAT(error.what(), HasSubstr("another machine is called \"box\""));
  }
}

TEST_F(DeployedAgentTest, ACacheThatCannotBeWrittenEndsIt) {
  machines_.offer_weights(manifest_, folder);
  std::ofstream(folder / "cache") << "a file";
  try {
    RunningAgent(options()).result();
    ADD_FAILURE() << "it has ended without an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::environment) << error.what();
  }
}

TEST_F(AgentTest, WaitsForADriverUntilItIsStopped) {
  Invitation invitation = group_.invitation("127.0.0.1:1");
  RunningAgent without_driver(options(invitation));
  EXPECT_TRUE(agent_says_.has("waiting: the driver at 127.0.0.1:1 does not answer"));
  invitation.coordinator = "127.0.0.1:1";
  RunningAgent without_coordinator(options(invitation));
  EXPECT_TRUE(agent_says_.has("waiting: no answer from 127.0.0.1:1"));
  without_driver.stop();
  without_coordinator.stop();
  EXPECT_FALSE(without_driver.result());
  EXPECT_FALSE(without_coordinator.result());
}

// ---- against a driver that a test writes ----

// Takes agents' connections, one after another, in the order in which they come.
class HandDriver {
 public:
  explicit HandDriver(const RelayAccess& access)
      : listener_(std::make_unique<ControlListener>(
            "127.0.0.1:0", access,
            std::map<std::string, ControlService>{
                {agents_service,
                 {.admit = [](const LinkHello&, const std::string&) { return std::string(); },
                  .take =
                      [this](const LinkHello& hello, ByteStream stream) {
                        const std::lock_guard lock(mutex_);
                        words_.push_back(hello.word);
                        streams_.push_back(
                            std::make_unique<BlockingMessageStream>(std::move(stream), max_agent_message_bytes));
                        taken_.notify();
                      }}}})) {}

  const std::string& address() const { return listener_->address(); }
  // The next connection, and the word of its agent.
  std::pair<std::unique_ptr<BlockingMessageStream>, std::string> next() {
    for (const Instant until = soon(); seconds_until(until) > 0;) {
      {
        const std::lock_guard lock(mutex_);
        taken_.clear();
        if (!streams_.empty()) {
          std::pair taken(std::move(streams_.front()), words_.front());
          streams_.pop_front();
          words_.pop_front();
          return taken;
        }
      }
      pollfd waiting{taken_.descriptor(), POLLIN, 0};
      ::poll(&waiting, 1, poll_timeout_ms(until));
    }
    throw Error(ErrorCode::peer, "no agent has connected");
  }
  // There is no answer any more.
  void go() { listener_.reset(); }

  static void send(BlockingMessageStream& stream, const AgentMessage& message) {
    stream.send(encode_agent(message), soon());
  }
  // The next message that is more than a sign of life.
  template <class M>
  static M receive(BlockingMessageStream& stream) {
    for (;;) {
      const auto bytes = stream.receive(soon());
      if (!bytes) throw Error(ErrorCode::peer, "it has closed the connection");
      const AgentMessage message = decode_agent(*bytes);
      if (const auto* asked = std::get_if<M>(&message)) return *asked;
      if (!std::holds_alternative<AgentAlive>(message)) throw Error(ErrorCode::peer, "another message");
    }
  }

 private:
  std::mutex mutex_;
  std::deque<std::unique_ptr<BlockingMessageStream>> streams_;
  std::deque<std::string> words_;
  Wakeup taken_;
  std::unique_ptr<ControlListener> listener_;  // last: its threads use the rest
};

class DrivenAgentTest : public AgentTest {
 protected:
  AgentOptions options() {
    AgentOptions driven = AgentTest::options(group_.invitation(driver_.address()));
    driven.worker_program = script("exec sleep 1000");
    return driven;
  }
  static bool has_worker() { return ::waitpid(-1, nullptr, WNOHANG) == 0; }
  static bool becomes(bool worker) {
    for (const Instant until = soon(); has_worker() != worker;
         std::this_thread::sleep_for(std::chrono::milliseconds(2)))
      if (seconds_until(until) < 0) return false;
    return true;
  }

  HandDriver driver_{group_.access()};
};

TEST_F(DrivenAgentTest, ReportsItsDevicesAndShowsThatItIsAlive) {
  const RunningAgent agent(options());
  const auto [stream, word] = driver_.next();
  EXPECT_EQ(HandDriver::receive<AgentReport>(*stream).devices, options().devices);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(decode_agent(*stream->receive(soon())), AgentMessage(AgentAlive{}));
}

// Which GPU it is only the agent knows: to the worker it is the first and only one.
TEST_F(DrivenAgentTest, AWorkerSeesTheGpuOfItsSlot) {
  const fs::path told = folder / "told";
  ::setenv("MOTLEY_FAKE_WORKER_TELLS", told.c_str(), 1);
  AgentOptions with_gpus = options();
  with_gpus.worker_program = program_beside("fake-worker");
  OfferedDevice gpu{.kind = "NVIDIA T4",
                    .memory_bytes = 1 << 20,
                    .vendor = "nvidia",
                    .backend = "cuda:0",
                    .uuid = "GPU-0",
                    .total_bytes = 1 << 20,
                    .free_bytes = 1 << 20};
  with_gpus.devices = {gpu, gpu};
  with_gpus.devices[1].slot = 2;
  with_gpus.devices[1].uuid = "GPU-2";
  const RunningAgent agent(with_gpus);
  const auto [stream, word] = driver_.next();
  HandDriver::receive<AgentReport>(*stream);
  HandDriver::send(*stream, Weights{manifest_});
  HandDriver::send(*stream, StartWorker{"box/2", 1, {}});
  std::string line;
  for (const Instant until = soon(); line.empty() && seconds_until(until) > 0;
       std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
    std::ifstream in(told);
    if (!std::getline(in, line) || in.eof()) line.clear();
  }
  ::unsetenv("MOTLEY_FAKE_WORKER_TELLS");
  EXPECT_EQ(line, "box/2 on cuda:0 sees GPU-2");
}

TEST_F(DrivenAgentTest, KeepsItsWorkersWhileItCallsAgain) {
  const RunningAgent agent(options());
  auto [stream, word] = driver_.next();
  HandDriver::receive<AgentReport>(*stream);
  HandDriver::send(*stream, Weights{manifest_});
  HandDriver::send(*stream, StartWorker{"box/0", 1, {}});
  HandDriver::receive<Fetched>(*stream);
  ASSERT_TRUE(becomes(true));
  stream.reset();
  std::tie(stream, word) = driver_.next();
  HandDriver::receive<AgentReport>(*stream);
  EXPECT_TRUE(has_worker());
}

TEST_F(DrivenAgentTest, EndsItsWorkersWhenTheDriverIsGoneForALease) {
  AgentOptions impatient = options();
  impatient.lease_s = 0.2;
  RunningAgent agent(impatient);
  auto [stream, word] = driver_.next();
  HandDriver::receive<AgentReport>(*stream);
  HandDriver::send(*stream, Weights{manifest_});
  HandDriver::send(*stream, StartWorker{"box/0", 1, {}});
  HandDriver::receive<Fetched>(*stream);
  ASSERT_TRUE(becomes(true));
  driver_.go();
  stream.reset();
  EXPECT_TRUE(agent_says_.has("lease: the driver has been gone for 0 s: the workers end"));
  EXPECT_TRUE(becomes(false));
  agent.stop();
  EXPECT_FALSE(agent.result());
}

TEST_F(DrivenAgentTest, EndsAWorkerThatDoesNotLeave) {
  RunningAgent agent(options());
  const auto [stream, word] = driver_.next();
  HandDriver::receive<AgentReport>(*stream);
  HandDriver::send(*stream, Weights{manifest_});
  HandDriver::send(*stream, StartWorker{"box/0", 3, {}});
  HandDriver::receive<Fetched>(*stream);
  ASSERT_TRUE(becomes(true));
  HandDriver::send(*stream, EndWorker{"box/0", 2});  // another one
  HandDriver::send(*stream, EndWorker{"box/1", 3});
  HandDriver::send(*stream, StartWorker{"box/7", 3, {}});  // and what comes after it is not read
  std::pair next = driver_.next();
  HandDriver::receive<AgentReport>(*next.first);
  EXPECT_TRUE(has_worker());
  HandDriver::send(*next.first, EndWorker{"box/0", 3});
  EXPECT_TRUE(becomes(false));

  HandDriver::send(*next.first, StartWorker{"box/0", 4, {}});
  HandDriver::receive<Fetched>(*next.first);
  ASSERT_TRUE(becomes(true));
  HandDriver::send(*next.first, End{});
  EXPECT_TRUE(agent.result());
  EXPECT_FALSE(has_worker());
}

TEST_F(DrivenAgentTest, SurvivesADriverThatLies) {
  RunningAgent agent(options());
  ModelManifest outside = manifest_;
  outside.files[0].name = "../outside";
  const std::vector<std::vector<AgentMessage>> lies = {
      {Weights{manifest_}, StartWorker{"box/0", 1, {{0, 3}}}},
      {Weights{manifest_}, StartWorker{"box/0", 1, {{1, 0}}}},
      {Weights{manifest_}, StartWorker{"box/1", 1, {}}},
      {Weights{manifest_}, StartWorker{"attic/0", 1, {}}},
      {Weights{outside}},
      {AgentReport{}},
      {Leave{}},
  };
  for (const std::vector<AgentMessage>& messages : lies) {
    const auto [stream, word] = driver_.next();
    HandDriver::receive<AgentReport>(*stream);
    for (const AgentMessage& message : messages) HandDriver::send(*stream, message);
    EXPECT_THROW(HandDriver::receive<End>(*stream), Error);
  }
  EXPECT_FALSE(has_worker());
  EXPECT_THAT(agent_says_.text(), HasSubstr("driver: broke the protocol: a chunk that the model does not have"));
  const auto [stream, word] = driver_.next();
  HandDriver::receive<AgentReport>(*stream);
  HandDriver::send(*stream, End{});
  EXPECT_TRUE(agent.result());
}

TEST_F(DrivenAgentTest, WithoutWeightsNoWorkerStarts) {
  const RunningAgent agent(options());
  const auto [stream, word] = driver_.next();
  HandDriver::receive<AgentReport>(*stream);
  HandDriver::send(*stream, StartWorker{"box/0", 1, {}});
  EXPECT_EQ(HandDriver::receive<WorkerEnded>(*stream).cause, "the driver has not said which weights are served");
}

// Started again it shows the same number, so that its driver lets it take its own place.
TEST_F(DrivenAgentTest, IsKnownAgainByItsFolder) {
  const auto word_of = [&](const AgentOptions& options) {
    const RunningAgent agent(options);
    const auto [stream, word] = driver_.next();
    HandDriver::receive<AgentReport>(*stream);
    return word;
  };
  const std::string word = word_of(options());
  EXPECT_EQ(word_of(options()), word);
  AgentOptions other = options();
  other.name = "attic";
  EXPECT_NE(word_of(other), word);
}

// ---- what cannot be ended or used ----

// As where a call to the driver of a lost device does not return: the end of a process that another process traces is
// not told to its parent, until that lets go of it.
class Tracer {
 public:
  explicit Tracer(pid_t traced) {
    std::array<int, 2> ready{};
    EXPECT_EQ(::pipe(ready.data()), 0);
    process_ = ::fork();
    if (process_ == 0) {
      const char traces = ::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) == 0 ? 1 : 0;
      if (::write(ready[1], &traces, 1) == 1) ::pause();
      ::_exit(0);
    }
    char traces = 0;
    EXPECT_EQ(::read(ready[0], &traces, 1), 1);
    traces_ = traces == 1;
    for (const int end : ready) ::close(end);
  }
  ~Tracer() { let_go(); }
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  bool traces() const { return traces_; }
  void let_go() {
    if (process_ < 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(std::exchange(process_, -1), nullptr, 0);
  }

 private:
  pid_t process_ = -1;
  bool traces_ = false;
};

class WatchingAgentTest : public DrivenAgentTest {
 protected:
  AgentOptions options() {
    AgentOptions watching = DrivenAgentTest::options();
    watching.devices.front().uuid = "GPU-0";
    OfferedDevice& second = watching.devices.emplace_back(watching.devices.front());
    second.slot = 1;
    second.uuid = "GPU-1";
    watching.patience_s = 0.3;
    watching.watch = {.library = MOTLEY_NVML_STUB, .poll_s = 0.02};
    return watching;
  }
  std::unique_ptr<BlockingMessageStream> connect() {
    auto [stream, word] = driver_.next();
    HandDriver::receive<AgentReport>(*stream);
    HandDriver::send(*stream, Weights{manifest_});
    return std::move(stream);
  }
  // The next message that is not about weights.
  template <class M>
  static M next(BlockingMessageStream& stream) {
    for (;;) {
      const auto bytes = stream.receive(soon());
      if (!bytes) throw Error(ErrorCode::peer, "it has closed the connection");
      const AgentMessage message = decode_agent(*bytes);
      if (const auto* asked = std::get_if<M>(&message)) return *asked;
      if (!std::holds_alternative<AgentAlive>(message) && !std::holds_alternative<Fetched>(message))
        throw Error(ErrorCode::peer, "another message");
    }
  }
  static WorkerStarted start(BlockingMessageStream& stream, const std::string& device, std::uint64_t number) {
    HandDriver::send(stream, StartWorker{device, number, {}});
    return next<WorkerStarted>(stream);
  }

  GpuStateFile gpus_{2};
};

TEST_F(WatchingAgentTest, AWorkerThatCannotBeEndedTakesItsDeviceAlone) {
  const RunningAgent agent(options());
  const auto stream = connect();
  Tracer tracer(start(*stream, "box/0", 1).process);
  if (!tracer.traces()) GTEST_SKIP() << "no process may trace another here";
  HandDriver::send(*stream, StartWorker{"box/0", 2, {}});
  start(*stream, "box/1", 3);  // meanwhile
  const auto state = next<DeviceState>(*stream);
  EXPECT_EQ(state.device, "box/0");
  EXPECT_THAT(state.cause, HasSubstr("cannot be ended"));
  for (const std::uint64_t number : {2, 4}) {
    if (number == 4) HandDriver::send(*stream, StartWorker{"box/0", number, {}});
    const auto ended = next<WorkerEnded>(*stream);
    EXPECT_EQ(ended.start, number);
    EXPECT_THAT(ended.cause, HasSubstr("out of service: process "));
  }
  next<AgentAlive>(*stream);
  tracer.let_go();
  EXPECT_EQ(next<DeviceState>(*stream), (DeviceState{"box/0", ""}));
  start(*stream, "box/0", 5);
}

TEST_F(WatchingAgentTest, AWorkerWaitsForTheMemoryOfTheOneBeforeIt) {
  const RunningAgent agent(options());
  const auto stream = connect();
  const int process = start(*stream, "box/0", 1).process;
  gpus_.set(0, "processes", Value::array({process})).set(0, "free_bytes", 1 << 20);
  ::kill(process, SIGKILL);
  EXPECT_EQ(next<WorkerEnded>(*stream).signal, SIGKILL);
  HandDriver::send(*stream, StartWorker{"box/0", 2, {}});
  EXPECT_EQ(start(*stream, "box/1", 3).start, 3u) << "the other is asked for first, and waits";
  gpus_.set(0, "processes", Value::array()).set(0, "free_bytes", std::int64_t{20} << 30);
  EXPECT_EQ(next<WorkerStarted>(*stream).start, 2u);
}

TEST_F(WatchingAgentTest, ADeviceThatIsLostIsToldToEveryDriver) {
  const RunningAgent agent(options());
  auto stream = connect();
  gpus_.set(1, "error", 15);
  const auto lost = next<DeviceState>(*stream);
  EXPECT_EQ(lost.device, "box/1");
  EXPECT_THAT(lost.cause, HasSubstr("the driver has lost the GPU"));
  HandDriver::send(*stream, StartWorker{"box/1", 1, {}});
  EXPECT_THAT(next<WorkerEnded>(*stream).cause, HasSubstr("out of service: the driver has lost the GPU"));
  stream.reset();
  stream = connect();
  EXPECT_EQ(next<DeviceState>(*stream), lost);
  start(*stream, "box/0", 2);
}

// ---- its own copy of the model ----

TEST_F(DrivenAgentTest, ReadsItsOwnCopyWhereThatIsWhatIsServed) {
  AgentOptions own = options();
  own.model = folder;
  const RunningAgent agent(own);
  const auto [stream, word] = driver_.next();
  HandDriver::receive<AgentReport>(*stream);
  HandDriver::send(*stream, Weights{manifest_});
  HandDriver::send(*stream, StartWorker{"box/0", 1, {{0, 0}}});
  EXPECT_TRUE(becomes(true)) << "nothing is fetched: no machine gives it";
}

TEST_F(DrivenAgentTest, FetchesWhereItsOwnCopyIsAnotherOrNone) {
  for (const bool is_there : {true, false}) {
    AgentOptions own = options();
    own.model = folder;
    own.name = is_there ? "box" : "attic";  // the end of a deployment is the end of a name in it
    if (is_there)
      change_byte(folder / "model.safetensors", 2 * chunk_bytes);
    else
      fs::remove(folder / "model.safetensors");
    RunningAgent agent(own);
    const auto [stream, word] = driver_.next();
    HandDriver::receive<AgentReport>(*stream);
    HandDriver::send(*stream, Weights{manifest_});
    HandDriver::send(*stream, StartWorker{own.name + "/0", 1, {}});
    HandDriver::receive<Fetched>(*stream);
    EXPECT_TRUE(agent_says_.has(is_there ? "does not hold what is served: they are fetched" : "they are fetched"));
    HandDriver::send(*stream, End{});
    EXPECT_TRUE(agent.result());
  }
}

}  // namespace
}  // namespace motley
