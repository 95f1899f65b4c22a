// The driver's side of a deployment, with agents and workers that a test writes message by message.
#include "motley/fleet/agent_machines.hpp"

#include <gmock/gmock.h>
#include <poll.h>

#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <set>

#include "motley/checkpoint/chunk_cache.hpp"
#include "motley/checkpoint/large_model_test.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/fleet/cluster_of.hpp"
#include "motley/fleet/hand_agent_test.hpp"
#include "motley/workers/control_connection.hpp"
#include "motley/workers/remote_workers.hpp"
#include "motley/workers/toy_plan_test.hpp"
#include "motley/workers/worker_preparation.hpp"

namespace motley {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class AgentMachinesTest : public LargeModelTest {
 protected:
  explicit AgentMachinesTest(double silence_s = 60, double kept_out_s = 0)
      : machines_({.listen = "127.0.0.1:0",
                   .access = with_secret,
                   .own_name = "desk",
                   .silence_s = silence_s,
                   .kept_out_s = kept_out_s,
                   .report = [this](const std::string& what, const std::string& detail) { told_(what, detail); }}) {}

  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const MachineStatus& member : machines_.list()) all.insert(member.name);
    return all;
  }
  // Waits on what says that the list has changed.
  bool become(const std::set<std::string>& expected) {
    for (const Instant until = soon(); names() != expected;) {
      pollfd waiting{machines_.changed(), POLLIN, 0};
      if (::poll(&waiting, 1, poll_timeout_ms(until)) != 1) return false;
      machines_.clear_changed();
    }
    return true;
  }
  bool tells(const std::string& part) {
    for (const Instant until = soon(); seconds_until(until) > 0;
         std::this_thread::sleep_for(std::chrono::milliseconds(2)))
      for (const std::string& line : told_.lines())
        if (line.find(part) != std::string::npos) return true;
    return false;
  }
  // Why an agent is not welcome.
  std::string refusal_of(const std::string& name, const std::string& run = "1", const std::string& of = this_version) {
    try {
      HandAgent(machines_, name, run, of);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      return error.what();
    }
    return "welcome";
  }

  ToldLines told_;
  AgentMachines machines_;
};

TEST_F(AgentMachinesTest, AMemberJoinsWithWhatItOffers) {
  HandAgent agent(machines_, "box");
  EXPECT_EQ(names(), std::set<std::string>());
  agent.report(2);
  ASSERT_TRUE(become({"box"}));
  EXPECT_EQ(machines_.list(), (std::vector<MachineStatus>{{"box", "127.0.0.1", some_devices(2)}}));
  HandAgent attic(machines_, "attic");
  attic.report();
  ASSERT_TRUE(become({"attic", "box"}));
  EXPECT_EQ(machines_.list().front().name, "attic");
  EXPECT_THAT(told_.lines(), Contains("joined: box at 127.0.0.1: 1.00 MiB of toy, 1.00 MiB of toy"));
}

TEST_F(AgentMachinesTest, ADeviceWithoutMemoryOrSpeedIsRefused) {
  const auto is_refused = [&](const std::vector<OfferedDevice>& devices) {
    HandAgent agent(machines_, "box");
    agent.send(AgentReport{devices});
    return agent.has_ended();
  };
  const auto with = [](auto change) {
    std::vector<OfferedDevice> devices = some_devices(2);
    change(devices[1]);
    return devices;
  };
  EXPECT_TRUE(is_refused({}));
  EXPECT_TRUE(is_refused(with([](OfferedDevice& device) { device.memory_bytes = 0; })));
  EXPECT_TRUE(is_refused(with([](OfferedDevice& device) { device.memory_bytes = -1; })));
  EXPECT_TRUE(is_refused(with([](OfferedDevice& device) { device.threads = 0; })));
  for (const double rate : std::vector<double>{0, -1, NAN, INFINITY}) {
    EXPECT_TRUE(is_refused(with([&](OfferedDevice& device) { device.bytes_per_s = rate; })));
    EXPECT_TRUE(is_refused(with([&](OfferedDevice& device) { device.flop_per_s = rate; })));
  }
  // More than any device has.
  EXPECT_TRUE(is_refused(with([](OfferedDevice& device) { device.memory_bytes = INT64_MAX; })));
  EXPECT_TRUE(is_refused(with([](OfferedDevice& device) { device.bytes_per_s = 1e300; })));
  EXPECT_TRUE(is_refused(with([](OfferedDevice& device) { device.flop_per_s = 1e300; })));
  EXPECT_TRUE(is_refused(with([](OfferedDevice& device) { device.flop_per_s = 5e-324; })));
  EXPECT_TRUE(is_refused(with([](OfferedDevice& device) { device.threads = INT32_MAX; })));
  EXPECT_TRUE(is_refused(with([](OfferedDevice& device) { device.kind.assign(1000, 'x'); })));
  EXPECT_EQ(names(), std::set<std::string>());
  EXPECT_TRUE(tells("lost: box broke the protocol: a device without memory or speed"));
  EXPECT_TRUE(tells("lost: box broke the protocol: no device has 8388608 TiB, "));
}

TEST_F(AgentMachinesTest, AGpuThatCannotBeOneIsRefused) {
  OfferedDevice gpu{.kind = "NVIDIA RTX A6000",
                    .memory_bytes = std::int64_t{40} << 30,
                    .slot = 2,
                    .vendor = "nvidia",
                    .backend = "cuda:0",
                    .uuid = "GPU-1",
                    .total_bytes = std::int64_t{48} << 30,
                    .free_bytes = std::int64_t{47} << 30};
  const auto refusal = [&](auto change) {
    OfferedDevice device = gpu;
    change(device);
    HandAgent agent(machines_, "box");
    agent.send(AgentReport{{some_device, device}});
    return agent.has_ended();
  };
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.slot = 0; })) << "another device's";
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.slot = 64; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.slot = -1; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.uuid.clear(); }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.uuid = "0,1"; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.vendor = "cpu"; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.vendor = "abacus"; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.backend.assign(1000, 'x'); }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.memory_bytes = device.total_bytes; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.free_bytes = INT64_MAX; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.kernels = -1; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.bytes_per_s = 1e12; })) << "one rate alone";
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.rates = "{}"; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.peers = {{{.slot = 64, .bytes_per_s = 1e9}}}; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.peers = {{{.slot = 0, .bytes_per_s = -1}}}; }));
  EXPECT_TRUE(refusal([](OfferedDevice& device) { device.kind = "abacus"; })) << "nothing tells its rates";
  EXPECT_EQ(names(), std::set<std::string>());
  HandAgent agent(machines_, "box");
  agent.send(AgentReport{{some_device, gpu}});
  EXPECT_TRUE(become({"box"}));
  EXPECT_EQ(machines_.offered({}).devices.back().name, "box/2");
}

TEST_F(AgentMachinesTest, AnAddressThatIsNoneIsRefused) {
  for (const std::string& address : {std::string("nowhere"), std::string("10.0.0.7:port"), std::string(1000, '1')}) {
    HandAgent agent(machines_, "box");
    agent.send(AgentReport{{some_device}, address, ""});
    EXPECT_TRUE(agent.has_ended()) << address;
  }
}

// Whatever it calls its devices: their types are told apart by number.
TEST_F(AgentMachinesTest, KindsOfDevicesNameNothing) {
  HandAgent box(machines_, "box"), box_1(machines_, "box-1");
  OfferedDevice odd = some_device;
  odd.kind = "A6000*4, toy of box/1\n[[machine]]";
  OfferedDevice second = odd;
  second.slot = 1;
  box.send(AgentReport{{odd, second}});
  box_1.send(AgentReport{{odd}});
  ASSERT_TRUE(become({"box", "box-1"}));
  const Cluster cluster = cluster_of(machines_.list(), {}, assumed_network());
  EXPECT_EQ(cluster.devices.size(), 3u);
  EXPECT_EQ(cluster.types.size(), 3u);
}

TEST_F(AgentMachinesTest, TheSameReportAgainIsNoNews) {
  HandAgent agent(machines_, "box");
  for (int i = 0; i < 100; ++i) agent.report();
  agent.send(Leave{});
  for (int i = 0; i < 100; ++i) agent.send(Leave{});
  ASSERT_TRUE(tells("leaving: box"));
  agent.send(HeldChunks{{{0, 0, 1}}});  // of no model: the end, so that all before it has been heard
  EXPECT_TRUE(agent.has_ended());
  const auto lines = told_.lines();
  EXPECT_EQ(std::ranges::count_if(lines, [](const auto& line) { return line.starts_with("joined"); }), 1);
  EXPECT_EQ(std::ranges::count_if(lines, [](const auto& line) { return line.starts_with("leaving"); }), 1);
}

TEST_F(AgentMachinesTest, WhatAMachineOffersStays) {
  HandAgent agent(machines_, "box");
  agent.report(1);
  agent.report(2);
  EXPECT_TRUE(agent.has_ended());
  EXPECT_TRUE(tells("broke the protocol: another report"));
}

TEST_F(AgentMachinesTest, AnAgentThatBreaksTheProtocolIsLost) {
  HandAgent babbler(machines_, "babbler"), driver(machines_, "driver"), other(machines_, "other");
  babbler.stream().send("babble");
  driver.send(End{});
  other.send(WorkerEnded{"box/0", 1, 9, 0, ""});
  EXPECT_TRUE(babbler.has_ended() && driver.has_ended() && other.has_ended());
  EXPECT_TRUE(tells("lost: driver broke the protocol: a message that agents do not send"));
  EXPECT_TRUE(tells("lost: other broke the protocol: news of another machine's device"));
}

TEST_F(AgentMachinesTest, AnotherVersionIsRefused) {
  EXPECT_EQ(refusal_of("box", "1", "0.0.1"), "the driver at " + machines_.address() +
                                                 " refuses: it runs motley 0.0.1, and this deployment " + this_version +
                                                 ": install the same version");
}

TEST_F(AgentMachinesTest, AnOddNameIsRefusedByItsRule) {
  for (const std::string name : {"box/0", "box#1", "lab:3", "büro", "a\x1b[2Jb", ""})
    EXPECT_THAT(refusal_of(name), HasSubstr("a name has 1 to 63 letters, digits, `-`, `_` and `.`")) << name;
  EXPECT_THAT(refusal_of("default"), HasSubstr("the name is reserved"));
}

TEST_F(AgentMachinesTest, TwoMachinesOfOneNameAreToldApart) {
  HandAgent agent(machines_, "box", "1");
  agent.report();
  ASSERT_TRUE(become({"box"}));
  for (const std::string name : {"box", "Box"})
    EXPECT_THAT(refusal_of(name, "2"), HasSubstr("another machine is called \"box\": choose another name"));
  EXPECT_THAT(refusal_of("BOX", "1"), HasSubstr("another machine is called \"box\": choose another name"));
  EXPECT_EQ(names(), std::set<std::string>{"box"});

  HandAgent again(machines_, "box", "1");  // started again: its earlier connection may look as if it stood
  EXPECT_TRUE(agent.has_ended());
  again.report(2);
  ASSERT_TRUE(become({"box"}));
  EXPECT_TRUE(tells("lost: box has connected again"));
  EXPECT_EQ(machines_.list().at(0).devices.size(), 2u);
}

TEST_F(AgentMachinesTest, AMachineThatIsGoneMayBeAnotherNow) {
  {
    HandAgent agent(machines_, "box", "1");
    agent.report();
    ASSERT_TRUE(become({"box"}));
  }
  ASSERT_TRUE(become({}));
  EXPECT_TRUE(tells("lost: box has closed its connection"));
  HandAgent other(machines_, "box", "2");
  other.report();
  EXPECT_TRUE(become({"box"}));
}

TEST_F(AgentMachinesTest, WhoLeavesIsListedNoMore) {
  HandAgent agent(machines_, "box");
  agent.report();
  ASSERT_TRUE(become({"box"}));
  agent.send(Leave{});
  EXPECT_TRUE(become({}));
  EXPECT_TRUE(tells("leaving: box"));
}

class ImpatientMachinesTest : public AgentMachinesTest {
 protected:
  ImpatientMachinesTest() : AgentMachinesTest(0.3) {}
};

TEST_F(ImpatientMachinesTest, ASilentAgentIsLost) {
  HandAgent agent(machines_, "box");
  agent.report();
  EXPECT_TRUE(tells("joined: box"));
  EXPECT_TRUE(tells("lost: box has been silent for "));
  EXPECT_TRUE(become({}));
  EXPECT_TRUE(agent.has_ended());
}

TEST_F(AgentMachinesTest, ShowsThatItIsAlive) {
  HandAgent agent(machines_, "box");
  const auto bytes = agent.stream().receive(soon());
  ASSERT_TRUE(bytes);
  EXPECT_EQ(decode_agent(*bytes), AgentMessage(AgentAlive{}));
}

// ---- devices that are out of service ----

TEST_F(AgentMachinesTest, ADeviceIsOutOfServiceUntilItsAgentSaysOtherwise) {
  HandAgent box(machines_, "box");
  box.report(2);
  ASSERT_TRUE(become({"box"}));
  for (int i = 0; i < 100; ++i) box.send(DeviceState{"box/1", "the driver has lost the GPU"});
  EXPECT_TRUE(tells("device: box/1 is out of service: the driver has lost the GPU"));
  const std::map<std::string, std::string> lost{{"box/1", "the driver has lost the GPU"}};
  EXPECT_EQ(machines_.out_of_service(), lost);
  EXPECT_EQ(machines_.list().at(0).out_of_service, lost);
  EXPECT_EQ(machines_.list().at(0).devices.size(), 2u) << "names stay";
  box.send(DeviceState{"box/1", ""});
  EXPECT_TRUE(tells("device: box/1 is in service again"));
  EXPECT_TRUE(machines_.out_of_service().empty());
  box.send(DeviceState{"box/0", std::string(50'000, 'x')});
  EXPECT_TRUE(tells("device: box/0 is out of service: xxx"));
  EXPECT_EQ(told_.lines().size(), 4u) << "what it says twice is told once";
  EXPECT_LT(machines_.out_of_service().at("box/0").size(), 1000u);
}

TEST_F(AgentMachinesTest, NewsOfADeviceThatAMachineDoesNotOfferBreakTheProtocol) {
  for (const std::string device : {"box/1", "attic/0", "box", "box/00", ""}) {
    HandAgent agent(machines_, "box");
    agent.report();
    agent.send(DeviceState{device, "gone"});
    EXPECT_TRUE(agent.has_ended()) << device;
  }
  HandAgent early(machines_, "box");
  early.send(DeviceState{"box/0", "gone"});
  EXPECT_TRUE(early.has_ended());
  EXPECT_TRUE(machines_.out_of_service().empty());
}

// ---- weights ----

TEST_F(AgentMachinesTest, EveryAgentHearsWhichWeightsAreServed) {
  write_large();
  const ModelManifest manifest = make_manifest(folder);
  HandAgent early(machines_, "early");
  early.report();
  ASSERT_TRUE(become({"early"}));
  machines_.offer_weights(manifest, folder);
  EXPECT_EQ(early.receive<Weights>().manifest, manifest);
  EXPECT_EQ(HandAgent(machines_, "late").receive<Weights>().manifest, manifest);
}

class WeightsTest : public AgentMachinesTest {
 protected:
  WeightsTest() {
    change_byte(write_large(), chunk_bytes);
    manifest_ = make_manifest(folder);
    machines_.offer_weights(manifest_, folder);
  }
  BlockingMessageStream fetcher() const {
    return {call_service(machines_.address(), HandAgent::hello(weights_service, "box", ""), with_secret, soon()),
            max_agent_message_bytes};
  }
  // None: the connection has ended.
  static std::optional<std::string> answer(BlockingMessageStream& stream, std::string_view request) {
    try {
      stream.send(request, soon());
      const auto bytes = stream.receive(soon());
      return bytes ? std::optional(std::string(*bytes)) : std::nullopt;
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  ModelManifest manifest_;
};

TEST_F(WeightsTest, AreServedChunkByChunk) {
  BlockingMessageStream stream = fetcher();
  ChunkCache cache(folder / "cache", manifest_);
  for (const ChunkId& id : all_chunks(manifest_)) {
    const auto bytes = answer(stream, encode_request({id}));
    ASSERT_TRUE(bytes);
    cache.put(id, std::as_bytes(std::span(*bytes)));
  }
  EXPECT_EQ(make_manifest(cache.model()), manifest_);
}

TEST_F(WeightsTest, ARequestOutOfRangeEndsTheConnection) {
  for (const ChunkId& id : {ChunkId{0, 3}, ChunkId{1, 0}, ChunkId{0xffffffff, 0xffffffff}}) {
    BlockingMessageStream stream = fetcher();
    EXPECT_EQ(answer(stream, encode_request({id})), std::nullopt);
  }
  for (const std::string& nonsense : {std::string(), std::string("babble"), std::string(100'000, 'x')}) {
    BlockingMessageStream stream = fetcher();
    EXPECT_EQ(answer(stream, nonsense), std::nullopt);
  }
  BlockingMessageStream stream = fetcher();
  EXPECT_TRUE(answer(stream, encode_request({{0, 2}})));
}

TEST_F(WeightsTest, WhatCannotBeReadIsAnsweredWithNothing) {
  BlockingMessageStream stream = fetcher();
  std::filesystem::resize_file(folder / "model.safetensors", 2 * chunk_bytes);
  EXPECT_EQ(answer(stream, encode_request({{0, 2}})), "");
  EXPECT_EQ(answer(stream, encode_request({{0, 1}}))->size(), chunk_bytes);
  EXPECT_TRUE(tells("weights: " + (folder / "model.safetensors").string() + " cannot be read any more"));
}

// ---- weights from each other ----

TEST_F(WeightsTest, AgentsAreToldWhatAllOthersHold) {
  HandAgent box(machines_, "box"), attic(machines_, "attic"), desk(machines_, "desk");
  for (HandAgent* agent : {&box, &attic, &desk}) {
    agent->send(AgentReport{{some_device}, "", "127.0.0.1:7"});
    agent->send(HeldChunks{{{0, 0, 3}}});
  }
  const WeightsSource idle{"desk", "", {}};  // on the driver's machine: the driver sends the same by the same link
  const auto becomes = [](HandAgent& agent, const std::vector<WeightsSource>& expected) {
    std::vector<WeightsSource> told;
    do {
      told = agent.receive_sources().sources;
      std::ranges::sort(told, {}, &WeightsSource::name);
    } while (told != expected);
    return true;
  };
  EXPECT_TRUE(becomes(box, {{"attic", "127.0.0.1:7", {{0, 0, 3}}}, idle}));
  EXPECT_TRUE(becomes(attic, {{"box", "127.0.0.1:7", {{0, 0, 3}}}, idle}));
  EXPECT_TRUE(becomes(desk, {{"attic", "127.0.0.1:7", {{0, 0, 3}}}, {"box", "127.0.0.1:7", {{0, 0, 3}}}}));
  machines_.remove("attic", "has been revoked");
  EXPECT_TRUE(becomes(box, {idle}));
  box.send(HeldChunks{{{0, 1, 2}}});
  EXPECT_TRUE(becomes(desk, {{"box", "127.0.0.1:7", {{0, 1, 2}}}}));
}

TEST_F(WeightsTest, AMemberThatHoldsWhatDoesNotExistIsDropped) {
  for (const ChunkRange& range : {ChunkRange{0, 0, 4}, {0, 2, 2}, {1, 0, 1}, {0, 3, 0xffffffff}}) {
    HandAgent agent(machines_, "box");
    agent.report();
    agent.send(HeldChunks{{range}});
    EXPECT_TRUE(agent.has_ended());
  }
  EXPECT_TRUE(tells("lost: box broke the protocol: it holds a chunk that the model does not have"));
}

TEST_F(WeightsTest, ABadSourceIsNamed) {
  HandAgent agent(machines_, "box");
  agent.report();
  for (int i = 0; i < 100; ++i) agent.send(BadSource{"attic", "chunk 1 of model.safetensors came damaged"});
  agent.send(BadSource{"last", std::string(50'000, 'x')});
  EXPECT_TRUE(tells("weights: box does without attic: chunk 1 of model.safetensors came damaged"));
  EXPECT_TRUE(tells("weights: box does without last: xxx"));
  EXPECT_EQ(told_.lines().size(), 3u) << "each is named once";
  EXPECT_LT(told_.lines().back().size(), 1000u);
  agent.send(BadSource{"\x1b[2J", ""});
  EXPECT_TRUE(agent.has_ended());
}

// ---- the end ----

TEST_F(WeightsTest, TheEndIsToldAndNobodyJoinsAfterIt) {
  std::optional<HandAgent> agent(std::in_place, machines_, "box");
  agent->report();
  ASSERT_TRUE(become({"box"}));
  BlockingMessageStream stream = fetcher();
  ASSERT_TRUE(answer(stream, encode_request({{0, 2}})));
  auto ended = std::async(std::launch::async, [&] { machines_.end(20); });
  agent->receive<Weights>();
  agent->receive<End>();
  EXPECT_EQ(answer(stream, encode_request({{0, 2}})), std::nullopt);
  EXPECT_THAT(refusal_of("attic"), HasSubstr("the deployment has ended"));
  agent.reset();
  ended.get();
}

// ---- workers ----

class MachineWorkersTest : public AgentMachinesTest {
 protected:
  MachineWorkersTest() : plan_(on_members(toy_plan({{2, 1}}))) {
    plan_.stages[0].devices = {"left/0", "left/1"};
    plan_.stages[1].devices = {"right/0"};
    left_.emplace(machines_, "left").report(2);
    right_.emplace(machines_, "right").report(2);
    EXPECT_TRUE(become({"left", "right"}));
  }

  static ServePlan on_members(ServePlan plan) {
    ClusterDescription description = plan.cluster.description;
    const MachineDescription box = std::exchange(description.machines, {}).front();
    for (const char* name : {"left", "right"}) {
      MachineDescription& machine = description.machines.emplace_back(box);
      machine.name = name;
      machine.devices = {"toy*2"};
    }
    plan.cluster = resolve(std::move(description), "toys.toml");
    return plan;
  }
  std::future<Workers> start(std::uint64_t epoch = 5) {
    return std::async(std::launch::async,
                      [this, epoch] { return start_with_chunks(machines_, plan_, epoch, some_chunks, earlier_); });
  }
  static std::vector<ChunkId> some_chunks(const std::string& device) { return {{0, device == "left/0" ? 1u : 2u}}; }
  // As a worker that its agent has started: not before the driver awaits it.
  ControlConnection call(const std::string& device, std::uint64_t start = 1) const {
    const WorkerCall of_worker{device, start, "127.0.0.1:" + device.substr(device.size() - 1)};
    for (const Instant until = soon();;) {
      try {
        return ControlConnection(call_driver(machines_.address(), of_worker, with_secret, soon()));
      } catch (const Error& error) {
        if (std::string(error.what()).find("expects no worker") == std::string::npos || seconds_until(until) <= 0)
          throw;
      }
    }
  }
  static WorkerLoss loss_of(std::future<Workers>& started) {
    try {
      started.get();
    } catch (const WorkersNotStarted& error) {
      return error.loss;
    }
    return {Error(ErrorCode::negative, "they have started")};
  }
  // What the link brings next.
  static std::vector<Message> receive(WorkerHandle& handle) {
    for (const Instant until = soon(); seconds_until(until) > 0;) {
      auto events = handle.events();
      ::poll(events.data(), events.size(), poll_timeout_ms(until));
      handle.flush();
      if (auto messages = handle.receive(); !messages.empty() || handle.ended()) return messages;
    }
    return {};
  }
  static WorkerExit exit_of(WorkerHandle& handle) {
    receive(handle);
    return handle.exit().value_or(WorkerExit{});
  }

  std::optional<HandAgent> left_, right_;
  ServePlan plan_;
  Workers earlier_;
};

TEST_F(MachineWorkersTest, AreStartedByTheirAgentsAndLaunchedByTheDriver) {
  auto started = start();
  EXPECT_EQ(left_->receive<StartWorker>(), (StartWorker{"left/0", 1, {{0, 1}}}));
  EXPECT_EQ(left_->receive<StartWorker>(), (StartWorker{"left/1", 1, {{0, 2}}}));
  EXPECT_EQ(right_->receive<StartWorker>(), (StartWorker{"right/0", 1, {{0, 2}}}));
  left_->send(Fetched{"left/0", 1, 50, 100});
  ControlConnection third = call("right/0"), first = call("left/0"), second = call("left/1");
  Workers workers = started.get();
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_EQ(workers[1].device, "left/1");
  EXPECT_EQ(workers[1].rank, 1);
  EXPECT_EQ(workers[2].stage, "r0/s1");
  const auto message = second.receive();
  ASSERT_TRUE(message && std::holds_alternative<Launch>(*message));
  const Launch& launch = std::get<Launch>(*message);
  EXPECT_EQ(launch.epoch, 5u);
  EXPECT_EQ(launch.workers,
            (std::vector<WorkerAddress>{{"127.0.0.1:0", "left"}, {"127.0.0.1:1", "left"}, {"127.0.0.1:0", "right"}}));
  third.send(Progress{"weights", 1});
  EXPECT_EQ(receive(*workers[2].handle), std::vector<Message>{(Progress{"weights", 1})});
  EXPECT_TRUE(tells("fetching: 50 %"));

  workers[0].handle->close();
  EXPECT_EQ(left_->receive<EndWorker>(), (EndWorker{"left/0", 1}));
  EXPECT_TRUE(workers[0].handle->ended() && workers[0].handle->exit());
  workers.clear();
  EXPECT_EQ(left_->receive<EndWorker>(), (EndWorker{"left/1", 1}));
  EXPECT_EQ(right_->receive<EndWorker>(), (EndWorker{"right/0", 1}));
}

TEST_F(MachineWorkersTest, NoWorkerStartsOnADeviceThatIsOutOfService) {
  right_->send(DeviceState{"right/0", "the driver has lost the GPU"});
  ASSERT_TRUE(tells("device: right/0 is out of service"));
  auto started = start();
  const WorkerLoss loss = loss_of(started);
  EXPECT_STREQ(loss.cause.what(), "right/0 is out of service: the driver has lost the GPU");
  EXPECT_EQ(loss.devices, std::vector<std::string>{"right/0"});
  EXPECT_TRUE(loss.gone) << "to try again would not help";
}

// A member that repeats itself: each is told once, and what is more than there is ends it.
TEST_F(MachineWorkersTest, WhatWasFetchedIsToldOnce) {
  auto started = start();
  ControlConnection first = call("left/0"), second = call("left/1"), third = call("right/0");
  const Workers workers = started.get();
  for (int i = 0; i < 50; ++i) {
    left_->send(Fetched{"left/0", 1, 50 - static_cast<std::uint64_t>(i % 2), 100});
    right_->send(Fetched{"right/0", 1, 100, 100});
  }
  left_->send(Fetched{"left/0", 1, 60, 50});
  EXPECT_TRUE(left_->has_ended());
  EXPECT_TRUE(tells("lost: left broke the protocol: it has fetched more than there is"));
  EXPECT_TRUE(tells("fetched: right/0"));
  right_->send(End{});
  EXPECT_TRUE(right_->has_ended());
  EXPECT_LT(std::ranges::count_if(told_.lines(), [](const auto& line) { return line.starts_with("fetch"); }), 4);
}

TEST_F(MachineWorkersTest, TellHowTheyEnded) {
  auto started = start();
  ControlConnection first = call("left/0"), second = call("left/1"), third = call("right/0");
  const Workers workers = started.get();
  right_->send(WorkerEnded{"right/0", 0, 9, 0, ""});  // an earlier one
  left_->send(WorkerEnded{"left/0", 1, 9, 0, ""});
  left_->send(WorkerEnded{"left/1", 1, 0, 4, "it does not fit"});
  EXPECT_EQ(exit_of(*workers[0].handle).text(), "was killed by signal 9");
  EXPECT_EQ(exit_of(*workers[1].handle).text(), "exited with code 4");
  EXPECT_FALSE(workers[2].handle->exit());
  right_.reset();
  EXPECT_EQ(exit_of(*workers[2].handle).text(), "is on a machine that is gone");
}

TEST_F(MachineWorkersTest, DoNotStartWithoutAMember) {
  right_.reset();
  ASSERT_TRUE(become({"left"}));
  auto started = start();
  const WorkerLoss loss = loss_of(started);
  EXPECT_TRUE(loss.gone);
  EXPECT_EQ(loss.devices, std::vector<std::string>{"right/0"});
  EXPECT_STREQ(loss.cause.what(), "right is not there");
  EXPECT_EQ(left_->receive<StartWorker>().device, "left/0");
  EXPECT_EQ(left_->receive<StartWorker>().device, "left/1");
  EXPECT_EQ(left_->receive<EndWorker>(), (EndWorker{"left/0", 1}));
  EXPECT_EQ(left_->receive<EndWorker>(), (EndWorker{"left/1", 1}));
}

TEST_F(MachineWorkersTest, DoNotStartWhereAMemberGoesMeanwhile) {
  auto started = start();
  EXPECT_EQ(right_->receive<StartWorker>().device, "right/0");
  left_.reset();
  const WorkerLoss loss = loss_of(started);
  EXPECT_TRUE(loss.gone);
  EXPECT_EQ(loss.devices, (std::vector<std::string>{"left/0", "left/1"}));
  EXPECT_EQ(right_->receive<EndWorker>(), (EndWorker{"right/0", 1}));
}

// What its earlier connection was told is not known to an agent that was started again.
TEST_F(MachineWorkersTest, DoNotStartWhereAMemberConnectsAgainMeanwhile) {
  auto started = start();
  right_->receive<StartWorker>();
  HandAgent again(machines_, "right");
  again.report();
  const WorkerLoss loss = loss_of(started);
  EXPECT_TRUE(loss.gone);
  EXPECT_EQ(loss.devices, std::vector<std::string>{"right/0"});

  auto next = start(6);
  EXPECT_EQ(again.receive<EndWorker>(), (EndWorker{"right/0", 1}));
  EXPECT_EQ(again.receive<StartWorker>().start, 2u);
  ControlConnection first = call("left/0", 2), second = call("left/1", 2), third = call("right/0", 2);
  EXPECT_EQ(next.get().size(), 3u);
}

TEST_F(MachineWorkersTest, DoNotStartWhereAnAgentCannotStartOne) {
  auto started = start();
  left_->send(WorkerEnded{"left/1", 0, 9, 0, ""});  // of an earlier epoch
  EXPECT_EQ(left_->receive<StartWorker>().device, "left/0");
  EXPECT_EQ(left_->receive<StartWorker>().device, "left/1");
  left_->send(WorkerEnded{"left/1", 1, 0, 5, "no room for the weights"});
  const WorkerLoss loss = loss_of(started);
  EXPECT_FALSE(loss.gone);
  EXPECT_EQ(loss.devices, std::vector<std::string>{"left/1"});
  EXPECT_STREQ(loss.cause.what(), "left/1 cannot be started: no room for the weights");
  EXPECT_EQ(loss.cause.code(), ErrorCode::peer);

  auto killed = start(6);
  for (std::uint64_t number = 0; number != 2;) {
    const auto message = right_->receive();
    ASSERT_TRUE(message);
    if (const auto* again = std::get_if<StartWorker>(&*message)) number = again->start;
  }
  right_->send(WorkerEnded{"right/0", 2, 9, 0, ""});
  EXPECT_STREQ(loss_of(killed).cause.what(), "right/0 cannot be started: exit code 0, signal 9");
}

// The worker of left/0 is lost; the others are to go on.
TEST_F(MachineWorkersTest, StayWhereTheyCan) {
  auto started = start();
  ControlConnection first = call("left/0"), second = call("left/1"), third = call("right/0");
  earlier_ = started.get();
  left_->receive<StartWorker>(), left_->receive<StartWorker>(), right_->receive<StartWorker>();
  earlier_.erase(earlier_.begin());
  EXPECT_EQ(left_->receive<EndWorker>(), (EndWorker{"left/0", 1}));

  auto next = start(6);
  EXPECT_EQ(left_->receive<StartWorker>(), (StartWorker{"left/0", 2, {{0, 1}}}));
  EXPECT_EQ(left_->receive<FetchWeights>(), (FetchWeights{"left/1", 2, {{0, 2}}}));
  EXPECT_EQ(right_->receive<FetchWeights>(), (FetchWeights{"right/0", 2, {{0, 2}}}));
  ControlConnection again = call("left/0", 2);
  left_->send(Fetched{"left/1", 2, 50, 100});
  left_->send(Fetched{"left/1", 2, 100, 100});
  right_->send(Fetched{"right/0", 2, 0, 0});
  const Workers workers = next.get();
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_TRUE(earlier_.empty());
  EXPECT_EQ(std::get<Launch>(*second.receive()).epoch, 5u);
  const auto launch = std::get<Launch>(*second.receive());
  EXPECT_EQ(launch.epoch, 6u);
  EXPECT_EQ(launch.workers.at(1).address, "127.0.0.1:1");
  EXPECT_EQ(std::get<Launch>(*again.receive()).epoch, 6u);
}

TEST_F(MachineWorkersTest, EndWhereThePlanHasNoPartForThem) {
  auto started = start();
  ControlConnection first = call("left/0"), second = call("left/1"), third = call("right/0");
  earlier_ = started.get();
  left_->receive<StartWorker>(), left_->receive<StartWorker>(), right_->receive<StartWorker>();
  plan_ = on_members(toy_plan({{1}}));
  plan_.stages[0].devices = {"right/0"};
  auto next = start(6);
  EXPECT_EQ(left_->receive<EndWorker>(), (EndWorker{"left/0", 1}));
  EXPECT_EQ(left_->receive<EndWorker>(), (EndWorker{"left/1", 1}));
  EXPECT_EQ(right_->receive<FetchWeights>().start, 2u);
  right_->send(Fetched{"right/0", 2, 0, 0});
  EXPECT_EQ(next.get().size(), 1u);
}

TEST_F(MachineWorkersTest, AreNamedWhereTheyCannotStay) {
  auto started = start();
  ControlConnection first = call("left/0"), second = call("left/1"), third = call("right/0");
  earlier_ = started.get();
  left_->receive<StartWorker>(), left_->receive<StartWorker>(), right_->receive<StartWorker>();

  auto full = start(6);
  EXPECT_EQ(right_->receive<FetchWeights>().start, 2u);
  right_->send(WorkerEnded{"right/0", 2, 0, 5, "the disk is full"});
  WorkerLoss loss = loss_of(full);
  EXPECT_STREQ(loss.cause.what(), "right/0 cannot be started: the disk is full");
  EXPECT_EQ(loss.devices, std::vector<std::string>{"right/0"});
  EXPECT_EQ(earlier_.size(), 3u) << "they run";

  auto killed = start(7);
  EXPECT_EQ(right_->receive<FetchWeights>().start, 3u);
  right_->send(WorkerEnded{"right/0", 1, 9, 0, ""});
  loss = loss_of(killed);
  EXPECT_STREQ(loss.cause.what(), "right/0 (rank 0 of stage r0/s1) was killed by signal 9");
  EXPECT_FALSE(loss.gone);

  auto gone = start(8);
  left_->receive<FetchWeights>(), left_->receive<FetchWeights>();
  left_->receive<FetchWeights>(), left_->receive<FetchWeights>();
  left_->receive<FetchWeights>();
  left_.reset();
  loss = loss_of(gone);
  EXPECT_EQ(loss.devices, (std::vector<std::string>{"left/0", "left/1"}));
  EXPECT_TRUE(loss.gone);
}

// ---- while another plan is served ----

class MemberPreparationTest : public MachineWorkersTest {
 protected:
  // The worker of right/0 runs.
  std::unique_ptr<WorkerPreparation> prepare() {
    return std::make_unique<WorkerPreparation>(fleet_, plan_, std::set<std::string>{"right/0"}, WorkerReads{});
  }
  static bool gets_done(WorkerPreparation& preparation) {
    for (const Instant until = soon(); seconds_until(until) > 0;)
      if (preparation.done()) return true;
    return false;
  }
  static std::string error_of(WorkerPreparation& preparation) {
    try {
      gets_done(preparation);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  FleetOfChunks fleet_{machines_, some_chunks};
};

TEST_F(MemberPreparationTest, StartsLoadsAndFetchesWhatIsMissing) {
  auto preparation = prepare();
  EXPECT_EQ(left_->receive<StartWorker>(), (StartWorker{"left/0", 1, {{0, 1}}}));
  EXPECT_EQ(left_->receive<StartWorker>(), (StartWorker{"left/1", 1, {{0, 2}}}));
  EXPECT_EQ(right_->receive<FetchWeights>(), (FetchWeights{"right/0", 1, {{0, 2}}}));
  EXPECT_FALSE(preparation->done());
  ControlConnection first = call("left/0"), second = call("left/1");
  const auto preload = [&](ControlConnection& control) {
    auto read = std::async(std::launch::async, [&] { return control.receive(); });
    while (read.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) preparation->done();
    return std::get<Preload>(*read.get());
  };
  EXPECT_THAT(preload(first).plan_json, testing::HasSubstr("left/0"));
  EXPECT_THAT(preload(second).plan_json, testing::HasSubstr("left/1"));
  first.send(Preloaded{});
  second.send(Progress{"weights", 0.5});
  second.send(Preloaded{});
  EXPECT_FALSE(preparation->done());
  right_->send(Fetched{"right/0", 1, 7, 7});
  EXPECT_TRUE(gets_done(*preparation));
  earlier_ = preparation->take();
  preparation.reset();
  EXPECT_EQ(earlier_.size(), 2u);

  auto started = start();
  EXPECT_EQ(left_->receive<FetchWeights>().device, "left/0") << "its worker is there";
  left_->receive<FetchWeights>();
  EXPECT_EQ(right_->receive<StartWorker>(), (StartWorker{"right/0", 2, {{0, 2}}}));
  for (const std::string device : {"left/0", "left/1"}) left_->send(Fetched{device, 2, 0, 0});
  ControlConnection third = call("right/0", 2);
  EXPECT_EQ(started.get().size(), 3u);
  EXPECT_EQ(std::get<Launch>(*first.receive()).epoch, 5u);
}

TEST_F(MemberPreparationTest, LeavesNothingWhereItIsGivenUp) {
  auto preparation = prepare();
  left_->receive<StartWorker>(), left_->receive<StartWorker>();
  ControlConnection first = call("left/0");
  preparation.reset();
  std::set<std::string> ended{left_->receive<EndWorker>().device, left_->receive<EndWorker>().device};
  EXPECT_EQ(ended, (std::set<std::string>{"left/0", "left/1"}));
}

TEST_F(MemberPreparationTest, NamesWhatHindersIt) {
  auto preparation = prepare();
  left_->receive<StartWorker>(), left_->receive<StartWorker>();
  left_->send(WorkerEnded{"left/0", 1, 0, 5, "the disk is full"});
  EXPECT_EQ(error_of(*preparation), "left/0 cannot be started: the disk is full");

  preparation.reset();
  preparation = prepare();
  left_->receive<EndWorker>(), left_->receive<EndWorker>(), left_->receive<StartWorker>(),
      left_->receive<StartWorker>();
  ControlConnection first = call("left/0", 2), second = call("left/1", 2);
  second.send(Failure{2, "it does not fit", ""});
  EXPECT_THAT(error_of(*preparation), HasSubstr("left/1 cannot load: it does not fit"));

  preparation.reset();
  preparation = prepare();
  left_.reset();
  EXPECT_THAT(error_of(*preparation), HasSubstr("left is not there"));
}

TEST_F(MachineWorkersTest, DoNotStartAtTheEnd) {
  auto started = start();
  left_->receive<StartWorker>();
  machines_.end(0);
  EXPECT_EQ(loss_of(started).cause.code(), ErrorCode::interrupted);
}

}  // namespace
}  // namespace motley
