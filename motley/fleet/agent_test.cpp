// The agent of a machine against a real deployment, with workers that only count (tests/programs/fake_worker.cpp).
#include <gmock/gmock.h>
#include <poll.h>

#include <future>

#include "motley/fleet/agent_machines.hpp"
#include "motley/fleet/running_agent_test.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

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

}  // namespace
}  // namespace motley
