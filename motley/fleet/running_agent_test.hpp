// An agent on a thread of a test, and what it says.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "motley/agent/agent.hpp"
#include "motley/checkpoint/chunk_cache.hpp"
#include "motley/checkpoint/large_model_test.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/wakeup.hpp"
#include "motley/fleet/deployment_group.hpp"

namespace motley {

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
  std::filesystem::path script(const std::string& line) {
    const std::filesystem::path file = folder / "worker.sh";
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

}  // namespace motley
