#include "motley/fleet/local_agent.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::chrono::seconds end_grace(2);  // for it to end once the deployment has

}  // namespace

LocalAgent::LocalAgent(std::vector<std::string> command, std::string link, double restart_s)
    : command_(std::move(command)),
      link_(std::move(link)),
      restart_s_(restart_s),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

LocalAgent::~LocalAgent() {
  thread_.request_stop();
  wake_.notify();
  std::unique_lock lock(mutex_);
  if (!ended_.wait_for(lock, end_grace, [this] { return child_ <= 0; })) ::kill(child_, SIGKILL);
}

void LocalAgent::kill() {
  thread_.request_stop();
  wake_.notify();
  const std::lock_guard lock(mutex_);
  if (child_ > 0) ::kill(child_, SIGKILL);
}

// Its status; until this is known its number is not another process's.
int LocalAgent::wait_for(int child) {
  siginfo_t how{};
  while (::waitid(P_PID, static_cast<id_t>(child), &how, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
  }
  const std::lock_guard lock(mutex_);
  child_ = 0;
  ended_.notify_all();
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

// The kernel ends the child with this thread.
void LocalAgent::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    pid_t child = 0;
    {
      const std::lock_guard lock(mutex_);
      if (stop.stop_requested()) return;
      child_ = child = start();
    }
    const int status = child > 0 ? wait_for(child) : 0;
    refused_ = child < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ErrorCode::input));
    if (refused_) return;
    pollfd waiting{wake_.descriptor(), POLLIN, 0};
    ::poll(&waiting, 1, static_cast<int>(restart_s_ * 1e3));
  }
}

int LocalAgent::start() const {
  std::vector<std::string> words = command_;
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<std::string> settings{"MOTLEY_LINK=" + link_};
  std::vector<char*> environment{settings.front().data()};
  for (char** variable = environ; *variable != nullptr; ++variable) environment.push_back(*variable);
  environment.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setpgid(0, 0);  // Ctrl-C is for the parent, which ends the deployment
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  ::execve(arguments[0], arguments.data(), environment.data());
  ::_exit(127);
}

}  // namespace motley
