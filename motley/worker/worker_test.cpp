#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <numeric>
#include <string_view>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/comm/authority/authority.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/engine/device/device_errors.hpp"
#include "motley/engine/stage/assignment.hpp"
#include "motley/engine/stage/load_ahead.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/plan/worker_part.hpp"
#include "motley/worker/job.hpp"
#include "motley/worker/worker.hpp"
#include "motley/workers/launch.hpp"
#include "motley/workers/remote_workers.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

const std::string model_folder = MOTLEY_SOURCE_DIR "/data/models/tales";

struct StageOf {
  std::int64_t layers;
  std::vector<double> shares;  // one per rank
};

// The tales model over devices box/0, box/1, ... in the order of the stages; one route.
ServePlan plan_of(const std::vector<StageOf>& stages, DType type = DType::fp32, const std::string& memory = "64 MiB") {
  ServePlan plan;
  plan.model = read_model(model_folder);
  plan.cluster = resolve(read<ClusterDescription>(parse_toml(R"(format = "motley.cluster/1"
name = "test"
[[machine]]
name = "box"
devices = ["core*8"]
link = { latency = "10 us", bandwidth = "1 GB/s" }
[[device_type]]
name = "core"
vendor = "cpu"
memory = ")" + memory + R"("
memory_bandwidth = "1 GB/s"
flops = { fp32 = "1 GFLOP/s", bf16 = "1 GFLOP/s" }
reserve = "0 B"
)",
                                                             "test.toml"),
                                                  "test.toml"),
                         "test.toml");
  plan.workload = default_workload();
  plan.step = {.max_tokens = 64, .max_sequences = 4, .block_tokens = 16};
  plan.routes = {{.id = "r0", .path = {}}};
  std::int64_t layer = 0;
  int device = 0;
  for (const StageOf& of : stages) {
    Stage stage{.id = "s" + std::to_string(plan.stages.size()),
                .layers = {layer, layer + of.layers},
                .devices = {},
                .shares = of.shares,
                .embedding = layer == 0,
                .head = layer + of.layers == plan.model.arch.layers,
                .kv_tokens = 256,
                .weight_type = type,
                .kv_type = type};
    for (std::size_t rank = 0; rank < of.shares.size(); ++rank)
      stage.devices.push_back("box/" + std::to_string(device++));
    plan.routes[0].path.push_back({stage.id, stage.layers});
    plan.stages.push_back(stage);
    layer += of.layers;
  }
  return plan;
}

// Worker processes of a plan, each a fork of this one that runs run_worker().
class Deployment {
 public:
  struct Worker {
    std::string device;
    pid_t process = -1;
    std::unique_ptr<ControlConnection> control;
    WorkerAddress at = {};
  };

  // Their rows travel in shared memory ("shm"), over TCP ("tcp"), or under TLS ("tls"), where the workers also call
  // their driver.
  enum class First { launch, nothing };
  Deployment(const ServePlan& plan, const std::string& transport, First first = First::launch) {
    if (transport == "tls")
      call(plan);
    else
      for (const std::string& device : worker_devices(plan)) start(device, transport == "shm" ? "box" : "");
    if (first == First::launch) launch(plan, 1);
  }
  // On these backends, one for each device of the plan: programs, since a device's threads do not survive a fork.
  Deployment(const ServePlan& plan, const std::vector<std::string>& backends) {
    const std::vector<std::string> devices = worker_devices(plan);
    for (std::size_t i = 0; i < devices.size(); ++i) start(devices[i], "box", backends.at(i));
    launch(plan, 1);
  }
  ~Deployment() {
    for (Worker& worker : workers) {
      worker.control.reset();
      if (worker.process > 0) exit_status(worker);
    }
  }

  // The next message that is not Progress.
  static Message answer(Worker& worker) {
    for (;;) {
      auto message = worker.control->receive();
      if (!message) throw Error(ErrorCode::peer, "the worker ended");
      if (!std::holds_alternative<Progress>(*message) && !std::holds_alternative<Alive>(*message)) return *message;
    }
  }
  void wait_until_ready() {
    for (Worker& worker : workers) {
      const Message message = answer(worker);
      if (const auto* failure = std::get_if<Failure>(&message)) FAIL() << failure->message;
      ASSERT_TRUE(std::holds_alternative<Ready>(message));
    }
  }
  // A plan whose devices are theirs.
  void launch(const ServePlan& plan, std::uint64_t epoch, const CacheHandover& handover = {}) {
    Launch launch{
        .plan_json = {}, .epoch = epoch, .devices = worker_devices(plan), .workers = {}, .handover = handover};
    const auto worker_of = [&](const std::string& device) -> Worker& {
      return *std::ranges::find(workers, device, &Worker::device);
    };
    for (const std::string& device : launch.devices) launch.workers.push_back(worker_of(device).at);
    for (const Stage& stage : plan.stages) {
      launch.plan_json = to_json(write(part_of(plan, stage)));
      for (const std::string& device : stage.devices) worker_of(device).control->send(launch);
    }
  }
  void send(const Step& step) {
    for (Worker& worker : workers) worker.control->send(step);
  }
  // Of every worker, in the order of the stages and ranks.
  std::vector<StepResult> results() {
    std::vector<StepResult> all;
    for (Worker& worker : workers) all.push_back(std::get<StepResult>(answer(worker)));
    return all;
  }

  // Kills a worker that does not end; that shows as its signal.
  static int exit_status(Worker& worker) {
    int status = 0;
    const Instant deadline = deadline_in(20);
    while (::waitpid(worker.process, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) ::kill(worker.process, SIGKILL);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    worker.process = -1;
    return status;
  }

  std::vector<Worker> workers;

 private:
  static CallDriver call_of(const std::string& device) {
    CallDriver self;
    self.device = device;
    self.model_folder = model_folder;
    self.listen = "127.0.0.1:0";
    self.key = "secret";
    return self;
  }

  void call(const ServePlan& plan) {
    const Authority authority = Authority::create("test");
    const auto access_of = [&](const std::string& name) {
      return RelayAccess{.key = "secret", .identity = authority.issue(name), .encryption = Encryption::always};
    };
    // Processes are forked before the listener has threads, and hear its address afterwards.
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe(pipe.data()), 0);
    for (const std::string& device : worker_devices(plan)) {
      const pid_t process = ::fork();
      if (process == 0) {
        std::array<char, 64> address{};  // the same for all, each write being whole
        if (::read(pipe[0], address.data(), address.size()) <= 0) ::_exit(1);
        for (int descriptor = 3; descriptor < 1024; ++descriptor) ::close(descriptor);
        ::_exit(run_calling_worker(address.data(), device, access_of(device)));
      }
      workers.push_back({device, process, nullptr});
    }
    WorkerCalls calls;
    calls.expect(worker_devices(plan), 1);
    const ControlListener listener("127.0.0.1:0", access_of(std::string(coordinator_name)),
                                   {{workers_service, calls.service()}});
    std::array<char, 64> address{};
    listener.address().copy(address.data(), address.size() - 1);
    for (std::size_t i = 0; i < workers.size(); ++i)
      ASSERT_EQ(::write(pipe[1], address.data(), address.size()), std::ssize(address));
    ::close(pipe[0]);
    ::close(pipe[1]);
    for (Worker& worker : workers) {
      std::optional<CalledWorker> called;
      for (const Instant until = deadline_in(20); !called && Clock::now() < until; called = calls.take(worker.device))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ASSERT_TRUE(called) << worker.device;
      CalledWorker& heard = *called;
      EXPECT_TRUE(heard.control.encrypted());
      worker.at.address = heard.fabric_address;
      worker.control = std::make_unique<ControlConnection>(std::move(heard.control));
    }
  }

  static int run_calling_worker(const std::string& driver, const std::string& device, const RelayAccess& access) {
    try {
      Fabric fabric({.key = access.key,
                     .identity = access.identity,
                     .encryption = access.encryption,
                     .shared_memory = SharedMemoryUse::never});
      ControlConnection control(call_driver(driver, {.device = device, .start = 1, .fabric_address = fabric.address()},
                                            access, deadline_in(20)));
      serve_driver(control, call_of(device), fabric);
    } catch (const Error& error) {
      return static_cast<int>(error.code());
    }
  }

  void start(const std::string& device, const std::string& host, const std::string& backend = {}) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    const pid_t process = ::fork();
    if (process == 0) {
      // No exec closes the descriptors that are not for this worker.
      for (int descriptor = 3; descriptor < 1024; ++descriptor)
        if (descriptor != ends[1]) ::close(descriptor);
      if (!backend.empty()) {
        ::fcntl(ends[1], F_SETFD, 0);
        ::setenv("MOTLEY_TEST_DEVICES", MOTLEY_APART_DEVICES, 1);
        const std::string number = std::to_string(ends[1]);
        ::execl(program_beside("motley-worker").c_str(), "motley-worker", "--control-fd", number.c_str(), nullptr);
        ::_exit(127);
      }
      ControlConnection control(ends[1]);
      ::_exit(run_worker(control));
    }
    ::close(ends[1]);
    workers.push_back({device, process, std::make_unique<ControlConnection>(ends[0])});
    CallDriver call = call_of(device);
    if (!backend.empty()) call.backend = backend;
    workers.back().control->send(call);
    workers.back().at = {std::get<Listening>(answer(workers.back())).address, host};
  }
};

std::vector<std::int32_t> some_tokens(std::int32_t count) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) tokens[static_cast<std::size_t>(i)] = 10 + i * 37 % 1900;
  return tokens;
}

StepSequence greedy_sequence(std::uint64_t id, std::int64_t position, std::vector<std::int32_t> tokens) {
  StepSequence sequence{.sequence = id,
                        .position = position,
                        .count = std::ssize(tokens),
                        .tokens = std::move(tokens),
                        .blocks = std::vector<std::int32_t>(8),
                        .sampling = Sampling{}};
  std::iota(sequence.blocks.begin(), sequence.blocks.end(), static_cast<std::int32_t>(8 * id));
  sequence.sampling->temperature = 0;
  return sequence;
}

// A prompt in two chunks, then greedy tokens; sequence 0 and sequence 1 as two micro-batches that are under way
// together.
std::vector<std::vector<std::int32_t>> generate(Deployment& deployment, int count) {
  constexpr std::int32_t prompt = 40, chunk = 29;
  std::vector<std::vector<std::int32_t>> known{some_tokens(prompt), some_tokens(prompt)};
  std::ranges::reverse(known[1]);
  std::vector<std::int64_t> position{0, 0};
  std::uint64_t number = 0;
  for (int round = 0; round <= count; ++round) {
    for (std::uint64_t id = 0; id < 2; ++id) {
      const std::int64_t end = round == 0 ? chunk : std::ssize(known[id]);
      StepSequence sequence =
          greedy_sequence(id, position[id], {known[id].begin() + position[id], known[id].begin() + end});
      if (round == 0) sequence.sampling.reset();
      position[id] = end;
      deployment.send(Step{++number, 0, {sequence}});
    }
    for (std::uint64_t id = 0; id < 2; ++id) {
      std::size_t tokens = 0;
      for (const StepResult& result : deployment.results()) {
        EXPECT_EQ(result.step, number - 1 + id);
        EXPECT_GE(result.compute_s, 0);
        EXPECT_GE(result.wait_s, 0);
        tokens += result.tokens.size();
        for (const SampledToken& token : result.tokens) {
          EXPECT_EQ(token.sequence, id);
          known[id].push_back(token.token);
        }
      }
      EXPECT_EQ(tokens, round == 0 ? 0U : 1U);  // from one worker alone
    }
  }
  for (auto& tokens : known) tokens.erase(tokens.begin(), tokens.begin() + prompt);
  return known;
}

std::vector<std::vector<std::int32_t>> generate(const ServePlan& plan, const std::string& transport) {
  Deployment deployment(plan, transport);
  deployment.wait_until_ready();
  if (::testing::Test::HasFatalFailure()) return {};
  return generate(deployment, 12);
}

TEST(Worker, EveryLayoutGivesTheTokensOfOneProcess) {
  const auto expected = generate(plan_of({{8, {1}}}), "shm");
  ASSERT_EQ(expected.size(), 2U);
  EXPECT_NE(expected[0], expected[1]);
  EXPECT_EQ(generate(plan_of({{3, {0.5, 0.5}}, {5, {1}}}), "shm"), expected);
  EXPECT_EQ(generate(plan_of({{2, {0.5, 0.5}}, {4, {0.5, 0.25, 0.25}}, {2, {1}}}), "shm"), expected);
  EXPECT_EQ(generate(plan_of({{3, {1}}, {5, {0.5, 0.25, 0.25}}}), "tcp"), expected);
  EXPECT_EQ(generate(plan_of({{3, {0.5, 0.5}}, {5, {1}}}), "tcp"), expected);
  EXPECT_EQ(generate(plan_of({{3, {1}}, {5, {0.5, 0.5}}}), "tls"), expected);
}

// A prompt of 40 tokens in chunks, each with more rows than the buffer of logits has.
std::vector<float> score(const ServePlan& plan, const std::vector<std::int64_t>& chunks) {
  Deployment deployment(plan, "shm");
  deployment.wait_until_ready();
  const std::vector<std::int32_t> tokens = some_tokens(41);
  std::vector<float> logprobs;
  std::int64_t position = 0;
  for (const std::int64_t count : chunks) {
    const auto first = tokens.begin() + position;
    StepSequence sequence = greedy_sequence(0, position, {first, first + count});
    sequence.sampling->logprobs = 0;
    sequence.scoring = Scoring{{first + 1, first + 1 + count}, 2};
    deployment.send(Step{static_cast<std::uint64_t>(position + 1), 0, {sequence}});
    for (const StepResult& result : deployment.results()) {
      for (const SampledToken& token : result.tokens) {
        const TokenScore& last = result.scores.at(0).scores.back();
        EXPECT_EQ(last.top.at(0), (TokenLogprob{token.token, token.logprob})) << "the same row";
      }
      for (const SequenceScores& scores : result.scores)
        for (const TokenScore& one : scores.scores) logprobs.push_back(one.logprob);
    }
    position += count;
  }
  EXPECT_EQ(logprobs.size(), 40U);
  return logprobs;
}

TEST(Worker, ScoresOfAPromptDoNotDependOnChunksAndStages) {
  const auto expected = score(plan_of({{8, {1}}}), {40});
  EXPECT_EQ(score(plan_of({{8, {1}}}), {7, 1, 32}), expected);
  EXPECT_EQ(score(plan_of({{3, {1}}, {5, {1}}}), {23, 17}), expected);
  const auto cut = score(plan_of({{3, {0.5, 0.5}}, {5, {0.5, 0.25, 0.25}}}), {23, 17});  // other sums
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(cut.at(i), expected[i], 1e-3F);
}

TEST(Worker, StagesOfDifferentTypesUnderstandEachOther) {
  const auto mixed = [](DType first, DType second, std::vector<double> shares) {
    ServePlan plan = plan_of({{4, {1}}, {4, std::move(shares)}});
    plan.stages[0].weight_type = first;
    plan.stages[1].weight_type = second;
    return plan;
  };
  const auto expected = generate(mixed(DType::bf16, DType::fp32, {1}), "shm");
  ASSERT_EQ(expected.size(), 2U);
  EXPECT_EQ(generate(mixed(DType::bf16, DType::fp32, {0.5, 0.5}), "tcp"), expected);
  // Sums of two bf16 terms are not those of one process; but they are the same whatever they travel on.
  EXPECT_EQ(generate(mixed(DType::fp32, DType::bf16, {0.5, 0.5}), "tcp"),
            generate(mixed(DType::fp32, DType::bf16, {0.5, 0.5}), "shm"));
}

// Neighbours find out whether both can reach the other's memory: with one byte of each pair, which all workers send.
TEST(Worker, StagesOnUnlikeDevicesOfAMachineMeetInAnyOrder) {
  const ServePlan plan = plan_of({{3, {1}}, {3, {1}}, {2, {1}}});
  constexpr int tokens = 3;
  const auto generated = [&](const std::vector<std::string>& backends) {
    Deployment deployment(plan, backends);
    deployment.wait_until_ready();
    return HasFatalFailure() ? std::vector<std::vector<std::int32_t>>() : generate(deployment, tokens);
  };
  const auto expected = generated({"cpu", "cpu", "cpu"});
  ASSERT_EQ(expected.size(), 2U);
  const char* standins = std::getenv("MOTLEY_STANDINS");
  const int starts = standins != nullptr && std::string_view(standins) == "all" ? 17 : 1;
  for (int start = 0; start < starts; ++start) {
    std::vector<std::string> backends{"apart:0", "apart:1", "cpu"};
    do EXPECT_EQ(generated(backends), expected) << backends[0] << " " << backends[1] << " " << backends[2];
    while (std::ranges::next_permutation(backends).found);
  }
}

// A row is rounded by itself, whatever else is in its step and whichever worker receives it.
TEST(Worker, ActivationsMayBeSentInOtherTypes) {
  const auto sending = [](ServePlan plan, DType type) {
    for (std::size_t hop = 0; hop + 1 < plan.routes[0].path.size(); ++hop)
      plan.routes[0].path[hop].activation_type = type;
    return plan;
  };
  for (const DType type : {DType::int8, DType::bf16}) {
    SCOPED_TRACE(name_of(type));
    const auto expected = generate(sending(plan_of({{3, {1}}, {5, {1}}}), type), "shm");
    EXPECT_EQ(generate(sending(plan_of({{3, {0.5, 0.5}}, {5, {0.5, 0.25, 0.25}}}), type), "shm"), expected);
    EXPECT_EQ(generate(sending(plan_of({{3, {1}}, {5, {0.5, 0.5}}}), type), "tcp"), expected);
  }
}

TEST(Worker, AllocatesWhatThePlanForesaw) {
  const ServePlan plan = plan_of({{3, {0.75, 0.25}}, {5, {1}}}, DType::bf16);
  Deployment deployment(plan, "shm");
  for (Deployment::Worker& worker : deployment.workers) {
    const auto ready = std::get<Ready>(Deployment::answer(worker));
    const TierMemory planned = assignment_of(plan, worker.device).memory;
    EXPECT_EQ(ready.weight_bytes, planned.weights) << worker.device;
    EXPECT_EQ(ready.kv_bytes, planned.kv) << worker.device;
    EXPECT_EQ(ready.activation_bytes, planned.activations) << worker.device;
  }
}

TEST(Worker, FewerKeysAndValuesFitWhereMemoryIsShort) {
  const ServePlan plan = plan_of({{3, {1}}, {5, {1}}});
  const Assignment part = assignment_of(plan, "box/0");
  const std::int64_t needed = part.memory.total();  // its type reserves nothing
  const auto tokens_with = [&](std::int64_t free_bytes) -> std::int64_t {
    try {
      check_free_memory(plan, "box/0", part, free_bytes);
    } catch (const MemoryShort& error) {
      return error.kv_tokens;
    }
    return -1;
  };
  EXPECT_EQ(tokens_with(needed), -1);
  EXPECT_EQ(tokens_with(needed - 1), 240);  // whole blocks of 16
  EXPECT_EQ(tokens_with(needed - part.memory.kv / 2), 128);
  EXPECT_EQ(tokens_with(needed - part.memory.kv * 3 / 4), 64);
  EXPECT_THROW(tokens_with(needed - part.memory.kv * 3 / 4 - 1), Error);  // not those of a whole step
  EXPECT_THROW(tokens_with(0), Error);
  try {
    fail_without_memory(plan, "box/0", part);
  } catch (const MemoryShort& error) {
    EXPECT_EQ(error.kv_tokens, 224);
    EXPECT_STREQ(error.what(), "box/0 ran out of memory: keys and values of 224 tokens in place of 256");
  }
}

TEST(Worker, WaitsForAnotherLaunchWhereMemoryIsShort) {
  ServePlan plan = plan_of({{8, {1}}}, DType::fp32, "1000000 GiB");
  plan.stages[0].kv_tokens = std::int64_t{16} << 30;
  Deployment deployment(plan, "tcp");
  const auto interrupted = std::get<Interrupted>(Deployment::answer(deployment.workers[0]));
  EXPECT_EQ(interrupted.epoch, 1u);
  EXPECT_THAT(interrupted.message, testing::HasSubstr("in place of 17179869184"));
  EXPECT_GT(interrupted.kv_tokens, 0);
  EXPECT_LT(interrupted.kv_tokens, plan.stages[0].kv_tokens);
  plan.stages[0].kv_tokens = 256;
  deployment.launch(plan, 2);
  EXPECT_EQ(std::get<Ready>(Deployment::answer(deployment.workers[0])).epoch, 2u);
  deployment.send(Step{1, 0, {greedy_sequence(0, 0, some_tokens(3))}});
  EXPECT_EQ(deployment.results()[0].tokens.size(), 1U);
}

TEST(Worker, EndsInsideACollectiveWhenTheDriverLeaves) {
  for (const std::string transport : {"shm", "tcp"}) {
    Deployment deployment(plan_of({{8, {0.5, 0.5}}}), transport);
    deployment.wait_until_ready();
    Deployment::Worker& waiting = deployment.workers[0];
    waiting.control->send(Step{1, 0, {greedy_sequence(0, 0, some_tokens(3))}});  // the other rank hears nothing of it
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const Instant start = Clock::now();
    waiting.control.reset();
    EXPECT_EQ(Deployment::exit_status(waiting), 0);
    EXPECT_LT(seconds_since(start), 1);
  }
}

// Its destructors would call a device that answers nothing any more.
TEST(Worker, ABrokenContextEndsTheProcessByThePeersCode) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const pid_t process = ::fork();
  if (process == 0) {
    ControlConnection driver(ends[1]);
    const std::string text = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`";
    fail(driver, std::make_exception_ptr(fault_error(fault_of({}, text, {.lives = false}), "box/0", 17, text)));
  }
  ::close(ends[1]);
  ControlConnection worker(ends[0]);
  const auto said = worker.receive();
  ASSERT_TRUE(said && std::holds_alternative<Failure>(*said));
  EXPECT_EQ(std::get<Failure>(*said).code, static_cast<int>(ErrorCode::peer));
  EXPECT_THAT(std::get<Failure>(*said).message,
              ::testing::StartsWith("box/0, at or before step 17: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED"));
  int status = 0;
  ::waitpid(process, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ErrorCode::peer));
}

TEST(Worker, EndsOnStopAndIgnoresCtrlC) {
  Deployment deployment(plan_of({{8, {1}}}), "shm");
  deployment.wait_until_ready();
  Deployment::Worker& worker = deployment.workers[0];
  ::kill(worker.process, SIGINT);
  deployment.send(Step{1, 0, {greedy_sequence(0, 0, some_tokens(3))}});
  EXPECT_EQ(deployment.results()[0].tokens.size(), 1U);
  worker.control->send(Stop{});
  EXPECT_EQ(Deployment::exit_status(worker), 0);
}

TEST(Worker, NamesThePeerThatDied) {
  const auto failure_of_last = [](const ServePlan& plan, const std::string& transport, std::size_t victim) {
    Deployment deployment(plan, transport);
    deployment.wait_until_ready();
    Deployment::Worker& other = deployment.workers[1 - victim];
    ::kill(deployment.workers[victim].process, SIGKILL);
    other.control->send(Step{1, 0, {greedy_sequence(0, 0, some_tokens(3))}});
    const auto interrupted = std::get<Interrupted>(Deployment::answer(other));
    EXPECT_EQ(interrupted.epoch, 1u);
    other.control->send(Step{2, 0, {greedy_sequence(0, 0, some_tokens(3))}});  // makes no sense any more
    other.control->send(Stop{});
    EXPECT_EQ(Deployment::exit_status(other), 0);
    return interrupted.message;
  };
  for (const std::string transport : {"shm", "tcp"}) {
    EXPECT_THAT(failure_of_last(plan_of({{8, {0.5, 0.5}}}), transport, 1),
                testing::AllOf(testing::StartsWith("stage s0: lost rank 1: "), testing::EndsWith("(box/1)")));
    EXPECT_THAT(
        failure_of_last(plan_of({{4, {1}}, {4, {1}}}), transport, 0),
        testing::AllOf(testing::StartsWith("rows from box/0 to box/1: lost rank 0: "), testing::EndsWith("(box/0)")));
  }
}

// ---- another launch ----

std::vector<Ready> launched_again(Deployment& deployment, const ServePlan& plan, std::uint64_t epoch,
                                  const CacheHandover& handover = {}) {
  deployment.launch(plan, epoch, handover);
  std::vector<Ready> all;
  for (Deployment::Worker& worker : deployment.workers) {
    Message message = Deployment::answer(worker);
    while (!std::holds_alternative<Ready>(message)) message = Deployment::answer(worker);
    all.push_back(std::get<Ready>(message));
    EXPECT_EQ(all.back().epoch, epoch);
  }
  return all;
}

// The token after these, which are computed from `position` on, in this many stages.
std::vector<std::int32_t> next_tokens(Deployment& deployment, std::uint64_t step,
                                      const std::vector<std::int32_t>& tokens, std::int64_t position = 0,
                                      std::int32_t stages = 0) {
  StepSequence sequence = greedy_sequence(0, position, {tokens.begin() + position, tokens.end()});
  sequence.stages = stages;
  const Step sent{step, 0, {sequence}};
  const std::size_t passed = stages == 0 ? deployment.workers.size() : static_cast<std::size_t>(stages);
  for (std::size_t i = 0; i < passed; ++i) deployment.workers[i].control->send(sent);
  std::vector<std::int32_t> chosen;
  for (std::size_t i = 0; i < passed; ++i) {
    const auto result = std::get<StepResult>(Deployment::answer(deployment.workers[i]));
    for (const SampledToken& token : result.tokens) chosen.push_back(token.token);
  }
  return chosen;
}

TEST(Worker, LaunchedAgainWithTheSamePartLoadsNothingAndKeepsItsCache) {
  const ServePlan plan = plan_of({{3, {1}}, {5, {1}}});
  Deployment deployment(plan, "tcp");
  deployment.wait_until_ready();
  std::vector<std::int32_t> tokens = some_tokens(30);
  tokens.push_back(next_tokens(deployment, 1, tokens).at(0));
  const auto expected = next_tokens(deployment, 2, tokens, 30);
  for (const Ready& ready : launched_again(deployment, plan, 2)) {
    EXPECT_EQ(ready.loaded_bytes, 0);
    EXPECT_EQ(ready.cache_epoch, 1u);
    EXPECT_GT(ready.weight_bytes, 0);
  }
  EXPECT_EQ(next_tokens(deployment, 1, tokens, 30), expected);
}

// Between two stages three layers move; the others keep theirs, and what the first has of the cache.
TEST(Worker, LaunchedWithAnotherPartLoadsWhatItLacks) {
  const ServePlan before = plan_of({{2, {1}}, {4, {1}}, {2, {1}}}), after = plan_of({{2, {1}}, {1, {1}}, {5, {1}}});
  Deployment deployment(before, "tls");
  deployment.wait_until_ready();
  std::vector<std::int32_t> tokens = some_tokens(30);
  tokens.push_back(next_tokens(deployment, 1, tokens).at(0));
  const auto expected = next_tokens(deployment, 2, tokens, 30);
  const std::int64_t layer = assignment_of(after, "box/1").memory.weights;
  const std::vector<Ready> ready = launched_again(deployment, after, 3);
  EXPECT_EQ(ready[0].loaded_bytes, 0);
  EXPECT_EQ(ready[1].loaded_bytes, 0);
  EXPECT_EQ(ready[2].loaded_bytes, 3 * layer);
  EXPECT_EQ(ready[1].weight_bytes, layer);
  EXPECT_EQ(ready[0].cache_epoch, 1u);
  EXPECT_EQ(ready[1].cache_epoch, 1u);
  EXPECT_EQ(ready[2].cache_epoch, 3u);
  EXPECT_EQ(next_tokens(deployment, 1, tokens, 0), expected);
  // Only the first two stages compute the prompt again: the third has it.
  EXPECT_EQ(next_tokens(deployment, 2, {tokens.begin(), tokens.end() - 1}, 0, 2), std::vector<std::int32_t>());
  EXPECT_EQ(next_tokens(deployment, 3, tokens, 30), expected);
}

// Layers that move take their keys and values along: no worker computes the prompt again. The second time two workers
// give to each other.
TEST(Worker, HandsOverKeysAndValues) {
  const ServePlan before = plan_of({{2, {1}}, {4, {1}}, {2, {1}}}), after = plan_of({{2, {1}}, {1, {1}}, {5, {1}}});
  ServePlan exchanged = after;
  std::swap(exchanged.stages[1].devices, exchanged.stages[2].devices);
  Deployment deployment(before, "tls");
  deployment.wait_until_ready();
  std::vector<std::int32_t> tokens = some_tokens(30);
  tokens.push_back(next_tokens(deployment, 1, tokens).at(0));
  const auto expected = next_tokens(deployment, 2, tokens, 30);
  const std::vector<std::int32_t> blocks{0, 1};  // of 30 tokens
  // Places are those of worker_devices(): in `exchanged` box/2 stands before box/1.
  const std::vector<CacheMove> moved{{3, 1, 2}, {4, 1, 2}, {5, 1, 2}};
  const std::vector<CacheMove> swapped{{2, 2, 1}, {3, 1, 2}, {4, 1, 2}, {5, 1, 2}, {6, 1, 2}, {7, 1, 2}};
  std::uint64_t epoch = 1;
  for (const auto& [plan, moves] : {std::pair(after, moved), std::pair(exchanged, swapped)}) {
    for (const Ready& ready : launched_again(deployment, plan, ++epoch, {moves, blocks}))
      EXPECT_EQ(ready.cache_epoch, 1u);
    EXPECT_EQ(next_tokens(deployment, epoch, tokens, 30), expected);
  }
}

// It was started after the epoch that the driver thinks of: that shows, and the rest goes on.
TEST(Worker, WhoDoesNotHaveALayerSaysSo) {
  const ServePlan plan = plan_of({{3, {1}}, {5, {1}}}), other = plan_of({{4, {1}}, {4, {1}}});
  Deployment deployment(plan, "tcp", Deployment::First::nothing);
  const std::vector<Ready> ready = launched_again(deployment, other, 4, {{{3, 1, 0}}, {0, 1}});
  EXPECT_EQ(ready[0].cache_epoch, 4u);
  EXPECT_EQ(next_tokens(deployment, 1, some_tokens(30)).size(), 1u);
}

TEST(Worker, RefusesToHandOverWhatIsNotThere) {
  const ServePlan plan = plan_of({{3, {1}}, {5, {1}}});
  for (const auto& [handover, cause] : {std::pair(CacheHandover{{{3, 0, 7}}, {0}}, "from worker 0 to worker 7 of 2"),
                                        std::pair(CacheHandover{{{0, 0, 1}}, {0}}, "layer 0 is not this worker's"),
                                        std::pair(CacheHandover{{{3, 0, 1}}, {-1}}, "a block below 0"),
                                        std::pair(CacheHandover{{{3, 0, 1}}, {4000}}, "of block 4000")}) {
    Deployment deployment(plan, "tcp");
    deployment.wait_until_ready();
    deployment.launch(plan, 2, handover);
    const Message message = Deployment::answer(deployment.workers[1]);
    ASSERT_TRUE(std::holds_alternative<Failure>(message)) << cause;
    EXPECT_THAT(std::get<Failure>(message).message, testing::HasSubstr(cause));
  }
}

TEST(Worker, WhatWasLoadedAheadIsNotLoadedAgain) {
  const ServePlan pair = plan_of({{8, {0.5, 0.5}}}), other = plan_of({{3, {1}}, {5, {1}}});
  for (const ServePlan& launched : {pair, other}) {
    Deployment deployment(pair, "tcp", Deployment::First::nothing);
    for (Deployment::Worker& worker : deployment.workers) {
      worker.control->send(Preload{.plan_json = to_json(write(pair))});
      EXPECT_TRUE(std::holds_alternative<Preloaded>(Deployment::answer(worker)));
    }
    for (const Ready& ready : launched_again(deployment, launched, 4)) {
      EXPECT_EQ(ready.loaded_bytes > 0, launched == other);
      EXPECT_EQ(ready.cache_epoch, 4u);
    }
    EXPECT_EQ(next_tokens(deployment, 1, some_tokens(30)).size(), 1u);
  }
}

// More blocks, fewer, and another degree.
TEST(Worker, KeepsTheBlocksThatBothPlansHaveRoomFor) {
  ServePlan plan = plan_of({{8, {1}}});
  Deployment deployment(plan, "tcp");
  deployment.wait_until_ready();
  std::vector<std::int32_t> tokens = some_tokens(30);
  tokens.push_back(next_tokens(deployment, 1, tokens).at(0));
  const auto expected = next_tokens(deployment, 2, tokens, 30);
  std::uint64_t epoch = 1;
  for (const std::int64_t kv_tokens : {1024, 160, 512}) {
    plan.stages[0].kv_tokens = kv_tokens;
    const Ready ready = launched_again(deployment, plan, ++epoch)[0];
    EXPECT_EQ(ready.loaded_bytes, 0);
    EXPECT_EQ(ready.cache_epoch, 1u);
    EXPECT_EQ(ready.kv_bytes, assignment_of(plan, "box/0").memory.kv);
    EXPECT_EQ(next_tokens(deployment, 1, tokens, 30), expected);
  }
  plan.stages[0].kv_type = DType::bf16;
  EXPECT_EQ(launched_again(deployment, plan, ++epoch)[0].cache_epoch, epoch);
}

TEST(Worker, ALaunchEndsWhatItWaitsFor) {
  const ServePlan pair = plan_of({{3, {1}}, {5, {1}}}), alone = plan_of({{8, {1}}});
  Deployment deployment(pair, "tcp");
  deployment.wait_until_ready();
  Deployment::Worker& first = deployment.workers[0];
  ::kill(deployment.workers[1].process, SIGSTOP);
  for (std::uint64_t step = 1; step < 4; ++step)
    first.control->send(Step{step, 0, {greedy_sequence(0, 0, some_tokens(40))}});
  deployment.launch(alone, 2);
  Message message = Deployment::answer(first);
  while (!std::holds_alternative<Ready>(message)) message = Deployment::answer(first);
  EXPECT_GT(std::get<Ready>(message).loaded_bytes, 0);
  first.control->send(Step{1, 0, {greedy_sequence(0, 0, some_tokens(3))}});
  EXPECT_EQ(std::get<StepResult>(Deployment::answer(first)).tokens.size(), 1u);
  ::kill(deployment.workers[1].process, SIGKILL);
}

TEST(Worker, RefusesALaunchOfAnEarlierEpoch) {
  const ServePlan plan = plan_of({{8, {1}}});
  Deployment deployment(plan, "tcp");
  deployment.wait_until_ready();
  deployment.launch(plan, 1);
  EXPECT_EQ(std::get<Failure>(Deployment::answer(deployment.workers[0])).message,
            "a launch of epoch 1 after one of epoch 1");
}

TEST(Worker, RefusesPartsInTheWrongOrder) {
  const ServePlan plan = plan_of({{3, {1}}, {5, {1}}});
  Deployment deployment(plan, "shm");
  deployment.wait_until_ready();
  Step step{1, 0, {greedy_sequence(0, 0, {1}), greedy_sequence(1, 0, {2})}};
  step.sequences[0].stages = 1;
  deployment.workers[0].control->send(step);
  EXPECT_EQ(std::get<Failure>(Deployment::answer(deployment.workers[0])).message,
            "step 1: parts that go further do not come first");
}

// What a worker of one device says to a launch, or to a message after it; and that it exits with the same code.
Failure failure_of(const ServePlan& plan, const std::function<void(ControlConnection&)>& act = {}) {
  Deployment deployment(plan, "shm");
  Deployment::Worker& worker = deployment.workers[0];
  if (act) {
    deployment.wait_until_ready();
    act(*worker.control);
  }
  const Message message = Deployment::answer(worker);
  const auto* failure = std::get_if<Failure>(&message);
  if (failure == nullptr) throw Error(ErrorCode::internal, "the worker did not fail");
  EXPECT_EQ(WEXITSTATUS(Deployment::exit_status(worker)), failure->code);
  return *failure;
}

TEST(Worker, RefusesStepsBeforeItsFirstLaunch) {
  const ServePlan plan = plan_of({{8, {1}}});
  Deployment deployment(plan, "tcp", Deployment::First::nothing);
  deployment.workers[0].control->send(Step{1, 0, {greedy_sequence(0, 0, {1})}});
  EXPECT_EQ(std::get<Failure>(Deployment::answer(deployment.workers[0])).message,
            "the driver sent a message that is not for workers, or not now");
}

// Also where the launch that follows is of another plan: what was loaded for nothing is let go.
TEST(Worker, LoadsWhatAnotherPlanNeedsBesideItsSteps) {
  const ServePlan before = plan_of({{2, {1}}, {4, {1}}, {2, {1}}}), after = plan_of({{2, {1}}, {1, {1}}, {5, {1}}}),
                  other = plan_of({{4, {1}}, {2, {1}}, {2, {1}}});
  for (const ServePlan& launched : {after, other}) {
    Deployment deployment(before, "tcp");
    deployment.wait_until_ready();
    const auto expected = next_tokens(deployment, 1, some_tokens(30));
    for (Deployment::Worker& worker : deployment.workers)
      worker.control->send(Preload{.plan_json = to_json(write(after))});
    for (Deployment::Worker& worker : deployment.workers)
      EXPECT_TRUE(std::holds_alternative<Preloaded>(Deployment::answer(worker)));
    EXPECT_EQ(next_tokens(deployment, 2, some_tokens(30)), expected);
    const std::vector<Ready> ready = launched_again(deployment, launched, 2);
    const std::int64_t layer = assignment_of(after, "box/1").memory.weights;
    EXPECT_EQ(ready[0].loaded_bytes, launched == after ? 0 : 2 * layer);
    EXPECT_EQ(ready[1].loaded_bytes, 0);
    EXPECT_EQ(ready[2].loaded_bytes, 0);
    EXPECT_EQ(next_tokens(deployment, 3, some_tokens(30)), expected);
  }
}

void lose(Deployment& deployment, std::ptrdiff_t worker) {
  Deployment::Worker& lost = deployment.workers[static_cast<std::size_t>(worker)];
  ::kill(lost.process, SIGKILL);
  Deployment::exit_status(lost);
  deployment.workers.erase(deployment.workers.begin() + worker);
}

// What stands by takes no part in steps, and is not read again where a later plan has the stage compute with it.
TEST(Worker, StandbyWeightsAreNotLoadedAgain) {
  ServePlan before = plan_of({{2, {1}}, {4, {1}}, {2, {1}}});
  before.stages[0].standby_weights = {{{2, 5}}};
  before.stages[2].standby_weights = {{{5, 6}}};
  ServePlan after = plan_of({{5, {1}}, {3, {1}}});
  after.stages[1].devices = {"box/2"};
  after.stages[1].standby_weights = {{{3, 5}}};
  Deployment deployment(before, "tcp");
  deployment.wait_until_ready();
  const auto expected = next_tokens(deployment, 1, some_tokens(30));
  const std::int64_t layer = assignment_of(plan_of({{2, {1}}, {1, {1}}, {5, {1}}}), "box/1").memory.weights;
  const auto held = [&](std::size_t worker, std::uint64_t epoch) {
    deployment.workers[worker].control->send(LoadStandby{epoch});
    const auto answer = std::get<StandbyHeld>(Deployment::answer(deployment.workers[worker]));
    EXPECT_EQ(answer.epoch, epoch);
    return answer.bytes;
  };
  EXPECT_EQ(held(0, 1), 3 * layer);
  EXPECT_EQ(held(1, 1), 0);
  EXPECT_EQ(held(2, 1), layer);
  EXPECT_EQ(held(2, 1), layer) << "asked twice";
  EXPECT_EQ(next_tokens(deployment, 2, some_tokens(30)), expected);

  lose(deployment, 1);
  std::vector<Ready> ready = launched_again(deployment, after, 2);
  EXPECT_EQ(ready[0].loaded_bytes, 0);
  EXPECT_EQ(ready[1].loaded_bytes, 0);
  EXPECT_EQ(ready[1].weight_bytes, assignment_of(after, "box/2").memory.weights);
  EXPECT_EQ(next_tokens(deployment, 1, some_tokens(30)), expected);
  EXPECT_EQ(held(1, 2), 2 * layer);
}

// The first and the last layer come with the embedding and the head, here one tensor.
TEST(Worker, StandbyWeightsHaveTheirEnds) {
  ServePlan before = plan_of({{3, {1}}, {5, {1}}});
  before.stages[0].standby_weights = {{{3, 8}}};
  const ServePlan after = plan_of({{8, {1}}});
  Deployment deployment(before, "tcp");
  deployment.wait_until_ready();
  const auto expected = next_tokens(deployment, 1, some_tokens(30));
  deployment.workers[0].control->send(LoadStandby{1});
  const auto held = std::get<StandbyHeld>(Deployment::answer(deployment.workers[0]));
  EXPECT_EQ(held.bytes, assignment_of(before, "box/0").memory.standby);
  lose(deployment, 1);
  EXPECT_EQ(launched_again(deployment, after, 2)[0].loaded_bytes, 0);
  EXPECT_EQ(next_tokens(deployment, 1, some_tokens(30)), expected);
}

// A launch ends what is being read: what is there by then counts, and nothing is asked for twice.
TEST(Worker, ALaunchMayInterruptStandbyWeights) {
  ServePlan before = plan_of({{3, {1}}, {5, {1}}});
  before.stages[0].standby_weights = {{{3, 8}}};
  const ServePlan after = plan_of({{8, {1}}});
  Deployment deployment(before, "tcp");
  deployment.wait_until_ready();
  const auto expected = next_tokens(deployment, 1, some_tokens(30));
  deployment.workers[0].control->send(LoadStandby{1});
  deployment.workers[0].control->send(LoadStandby{7});  // of no plan that was launched
  lose(deployment, 1);
  deployment.launch(after, 2);
  Message message = Deployment::answer(deployment.workers[0]);
  while (!std::holds_alternative<Ready>(message)) message = Deployment::answer(deployment.workers[0]);
  EXPECT_EQ(next_tokens(deployment, 1, some_tokens(30)), expected);
}

TEST(LoadAhead, NeedsRoomBesideThePresentPart) {
  const ServePlan before = plan_of({{2, {1}}, {6, {1}}}), after = plan_of({{5, {1}}, {3, {1}}});
  const Assignment now = assignment_of(before, "box/0"), next = assignment_of(after, "box/0");
  const std::int64_t lacking = next.memory.weights * 3 / 5;
  EXPECT_TRUE(has_room_beside(now, next, now.memory.total() + lacking));
  EXPECT_FALSE(has_room_beside(now, next, now.memory.total() + lacking - 1));
  const Assignment fewer = assignment_of(after, "box/1"), more = assignment_of(before, "box/1");
  EXPECT_TRUE(has_room_beside(more, fewer, more.memory.total())) << "it has all of it";
  const ServePlan pair = plan_of({{8, {0.5, 0.5}}});
  const Assignment half = assignment_of(pair, "box/0");
  EXPECT_FALSE(has_room_beside(now, half, now.memory.total() + half.memory.weights - 1)) << "cut otherwise";
}

TEST(Worker, RefusesAPlanThatItsMemoryDoesNotHold) {
  const Failure failure = failure_of(plan_of({{8, {1}}}, DType::fp32, "8 MiB"));
  EXPECT_EQ(failure.code, 2);
  EXPECT_EQ(failure.message.substr(0, 59), "box/0 has 8.00 MiB, but its part of stage s0 takes weights ");
  EXPECT_FALSE(failure.hint.empty());
}

TEST(Worker, RefusesWhatItsMachineHasNoMemoryFor) {
  ServePlan plan = plan_of({{8, {1}}}, DType::fp32, "900 TiB");
  plan.stages[0].kv_tokens = std::int64_t{1} << 32;
  plan.stages[0].offload = Offload{};  // whose cache stays as it is
  const Failure failure = failure_of(plan);
  EXPECT_EQ(failure.code, 3);
  EXPECT_EQ(failure.message.substr(0, 20), "box/0 takes weights ");
  EXPECT_NE(failure.message.find(", and its machine has "), std::string::npos);
  EXPECT_FALSE(failure.hint.empty());
}

TEST(Worker, RefusesWhatTheEngineCannotCompute) { EXPECT_EQ(failure_of(plan_of({{8, {1}}}, DType::fp16)).code, 2); }

TEST(Worker, RefusesStepsThatAreNone) {
  const ServePlan plan = plan_of({{8, {1}}});
  const auto refused = [&](const Step& step) {
    const Failure failure = failure_of(plan, [&](ControlConnection& control) { control.send(step); });
    EXPECT_EQ(failure.code, static_cast<int>(ErrorCode::peer));
    return failure.message;
  };
  EXPECT_EQ(refused({7, 3, {greedy_sequence(0, 0, {1})}}), "step 7: route 3 does not pass stage s0");
  EXPECT_EQ(refused({7, 0, {}}), "step 7 has no tokens");
  EXPECT_EQ(refused({7, 0, {greedy_sequence(0, 0, some_tokens(60)), greedy_sequence(1, 0, some_tokens(5))}}),
            "step 7: 5 tokens of sequence 1 after 60 others, at most 64 fit");
  EXPECT_NE(refused({7, 0, {greedy_sequence(40, 0, {1})}}), "");  // blocks that do not exist
}

TEST(Worker, RefusesMessagesOutOfPlace) {
  const Failure failure = failure_of(plan_of({{8, {1}}}), [](ControlConnection& control) { control.send(Ready{}); });
  EXPECT_EQ(failure.message, "the driver sent a message that is not for workers, or not now");
}

std::string error_of(const ServePlan& plan, const std::string& device) {
  try {
    assignment_of(plan, device);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    return error.what();
  }
  return "none";
}

TEST(Assignment, FindsStageRankAndNeighbours) {
  const ServePlan plan = plan_of({{3, {0.5, 0.5}}, {4, {0.5, 0.25, 0.25}}, {1, {1}}});
  const Assignment middle = assignment_of(plan, "box/3");
  EXPECT_EQ(middle.stage, &plan.stages[1]);
  EXPECT_EQ(middle.rank, 1);
  EXPECT_EQ(middle.degree, 3);
  ASSERT_TRUE(middle.places.at(0).has_value());
  EXPECT_EQ(middle.places[0]->previous, &plan.stages[0]);
  EXPECT_EQ(middle.places[0]->next, &plan.stages[2]);
  EXPECT_EQ(assignment_of(plan, "box/0").places[0]->previous, nullptr);
  EXPECT_EQ(assignment_of(plan, "box/5").places[0]->next, nullptr);
}

TEST(Assignment, RefusesPlansThatMakeNoSense) {
  const ServePlan plan = plan_of({{3, {1}}, {5, {1}}});
  EXPECT_EQ(error_of(plan, "box/0"), "none");
  EXPECT_EQ(error_of(plan, "box/7"), "device box/7 is in no stage of the plan");

  ServePlan twice = plan;
  twice.stages[1].devices = {"box/0"};
  EXPECT_EQ(error_of(twice, "box/0"), "device box/0 is in stage s0 and in stage s1");

  ServePlan part = plan;
  part.routes[0].path[0].layers = {0, 2};
  EXPECT_EQ(error_of(part, "box/0"), "route r0 uses a part of the layers of stage s0");

  ServePlan headless = plan;
  headless.stages[1].head = false;
  EXPECT_EQ(error_of(headless, "box/1"), "stage s1 is hop 1 of the 2 of route r0, and has no embedding and no head");

  ServePlan circle = plan;
  circle.routes[0].path.push_back(circle.routes[0].path[0]);
  EXPECT_EQ(error_of(circle, "box/1"), "stage s1 is hop 1 of the 3 of route r0, and has no embedding and head");
}

TEST(Assignment, MoreThanPlannedIsRefusedWithTheSum) {
  const TierMemory planned{
      .weights = 4 << 20, .kv = 1 << 20, .activations = 1 << 20, .reserve = 1 << 20, .limit = 8 << 20};
  EXPECT_NO_THROW(check_allocation("box/0", planned, {4 << 20, 1 << 20, 1 << 20}));
  try {
    check_allocation("box/0", planned, {5 << 20, 1 << 20, 1 << 20});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "box/0 allocated weights 5.00 MiB + KV cache 1.00 MiB + buffers 1.00 MiB + reserve 1.00 MiB = 8.00 MiB, but "
        "the plan predicts weights 4.00 MiB + KV cache 1.00 MiB + buffers 1.00 MiB + reserve 1.00 MiB = 7.00 MiB");
  }
}

}  // namespace
}  // namespace motley
