#include "motley/workers/worker_processes.hpp"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "motley/base/clock.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

class WorkerProcessTest : public ::testing::Test {
 protected:
  WorkerProcessTest() {
    std::string name = fs::temp_directory_path() / "motley-worker-process-XXXXXX";
    folder_ = ::mkdtemp(name.data());
    program_ = folder_ / "program";
    std::ofstream(program_) << "#!/bin/sh\nexec sleep 60\n";
    fs::permissions(program_, fs::perms::owner_all);
  }
  ~WorkerProcessTest() override { fs::remove_all(folder_); }

  fs::path folder_, program_;
};

TEST_F(WorkerProcessTest, EndsWithItsOwner) {
  int process = 0;
  {
    const WorkerProcess worker(program_);
    process = worker.process();
    EXPECT_EQ(::kill(process, 0), 0);
  }
  EXPECT_EQ(::kill(process, 0), -1) << "it has been waited for, too";
}

TEST_F(WorkerProcessTest, HasTheVariablesThatItIsGivenAndTheRest) {
  ::setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
  ::setenv("CUDA_VISIBLE_DEVICES_TOO", "stays", 1);
  const fs::path told = folder_ / "told";
  std::ofstream(program_) << "#!/bin/sh\nenv | grep -E '^CUDA_(DEVICE|VISIBLE)' | sort > " << told.string() << "\n";
  {
    WorkerProcess worker(program_, gpu_variables("GPU-7"));
    const Instant until = deadline_in(20);
    while (!worker.exit() && seconds_until(until) > 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ::unsetenv("CUDA_VISIBLE_DEVICES_TOO");
  std::ostringstream text;
  text << std::ifstream(told).rdbuf();
  EXPECT_EQ(text.str(), "CUDA_DEVICE_ORDER=PCI_BUS_ID\nCUDA_VISIBLE_DEVICES=GPU-7\nCUDA_VISIBLE_DEVICES_TOO=stays\n");
}

// As where a call to the driver of a lost device does not return: the end of a process that another process traces is
// not told to its parent.
TEST_F(WorkerProcessTest, IsLeftBehindWhereItDoesNotEnd) {
  auto worker = std::make_unique<WorkerProcess>(program_);
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t tracer = ::fork();
  if (tracer == 0) {
    const char traces = ::ptrace(PTRACE_SEIZE, worker->process(), nullptr, nullptr) == 0 ? 1 : 0;
    if (::write(ready[1], &traces, 1) == 1) ::pause();
    ::_exit(0);
  }
  char traces = 0;
  EXPECT_EQ(::read(ready[0], &traces, 1), 1);
  worker.reset();  // returns
  ::kill(tracer, SIGKILL);
  ::waitpid(tracer, nullptr, 0);
  for (const int end : ready) ::close(end);
  if (traces == 0) GTEST_SKIP() << "no process may trace another here";
}

}  // namespace
}  // namespace motley
