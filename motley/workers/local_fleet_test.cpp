#include "motley/workers/local_fleet.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "motley/base/error.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> devices_of(const Workers& workers) {
  std::vector<std::string> devices;
  for (const Worker& worker : workers) devices.push_back(worker.device);
  return devices;
}

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

class LocalFleetTest : public testing::Test {
 protected:
  Workers start(LocalFleet& fleet, const std::vector<std::string>& devices, Workers earlier = {}) {
    return start_workers(fleet, devices, {.model = "step_ms=1", .rows = {}}, earlier);
  }
  LocalFleet fleet_{{.program = program_beside("fake-worker")}};
};

TEST_F(LocalFleetTest, WorkersListenAndAreInTheOrderThatWasAskedFor) {
  const Workers workers = start(fleet_, {"box/1", "attic/0", "box/0"});
  EXPECT_THAT(devices_of(workers), ElementsAre("box/1", "attic/0", "box/0"));
  for (const Worker& worker : workers) {
    EXPECT_THAT(worker.at.address, HasSubstr("127.0.0.1:"));
    EXPECT_EQ(worker.at.host, workers[0].at.host) << "they share memory, whatever machines the plan names";
    EXPECT_FALSE(worker.at.host.empty());
  }
  LocalFleet apart({.program = program_beside("fake-worker"), .transport = "tcp"});
  EXPECT_EQ(start(apart, {"box/0"}).at(0).at.host, "");
}

TEST_F(LocalFleetTest, ThoseThatRunStayAndTheRestIsReplaced) {
  Workers workers = start(fleet_, {"box/0", "box/1", "box/2"});
  std::vector<int> processes;
  for (const Worker& worker : workers) processes.push_back(worker.handle->process());
  ::kill(processes[1], SIGKILL);
  while (!workers[1].handle->exit()) ::usleep(1000);
  workers = start(fleet_, {"box/2", "box/1"}, std::move(workers));
  EXPECT_THAT(devices_of(workers), ElementsAre("box/2", "box/1"));
  EXPECT_EQ(workers[0].handle->process(), processes[2]);
  EXPECT_NE(workers[1].handle->process(), processes[1]);
  EXPECT_EQ(::kill(processes[0], 0), -1) << "it has no part in the next plan";
}

TEST_F(LocalFleetTest, WhatEndsBeforeItListensIsNamed) {
  Workers earlier = start(fleet_, {"box/0"});
  const std::string script = testing::TempDir() + "ending_worker.sh";
  std::ofstream(script) << "#!/bin/sh\nexit 3\n";
  ::chmod(script.c_str(), 0700);
  LocalFleet fleet({.program = script});
  try {
    start_workers(fleet, {"box/0", "box/1"}, {}, earlier);
    ADD_FAILURE() << "started";
  } catch (const WorkersNotStarted& error) {
    EXPECT_STREQ(error.what(), "the worker of box/1 exited with code 3");
    EXPECT_THAT(error.loss.devices, ElementsAre("box/1"));
  }
  EXPECT_EQ(earlier.size(), 1u) << "it may stay";
  ::unlink(script.c_str());
}

// The key is in neither: users that may look at processes see them.
TEST_F(LocalFleetTest, TheKeyIsNoArgumentAndInNoEnvironment) {
  const Workers workers = start(fleet_, {"box/0"});
  const std::string process = "/proc/" + std::to_string(workers[0].handle->process());
  const std::string arguments = text_of(process + "/cmdline");
  EXPECT_THAT(arguments, HasSubstr("--control-fd"));
  EXPECT_EQ(std::ranges::count(arguments, '\0'), 3);
  EXPECT_EQ(text_of(process + "/environ"), text_of("/proc/self/environ"));
}

TEST_F(LocalFleetTest, RefusesWhatItCannotRun) {
  const auto code_of = [&](LocalFleetOptions options) {
    try {
      LocalFleet fleet(std::move(options));
      start(fleet, {"box/0"});
    } catch (const Error& error) {
      EXPECT_FALSE(error.hint().empty());
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of({.program = "/nowhere/motley-worker"}), ErrorCode::environment);
  EXPECT_EQ(code_of({.program = program_beside("fake-worker"), .transport = "pigeon"}), ErrorCode::input);
  EXPECT_EQ(code_of({.program = program_beside("fake-worker"), .threads = 0}), ErrorCode::input);
}

}  // namespace
}  // namespace motley
