// The agent of a machine against a driver that a test writes message by message, with workers that are scripts.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <deque>
#include <fstream>
#include <mutex>

#include "motley/agent/gpu_state_test.hpp"
#include "motley/comm/net/message_stream.hpp"
#include "motley/fleet/hand_agent_test.hpp"
#include "motley/fleet/running_agent_test.hpp"
#include "motley/workers/control_listener.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

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
