#include "motley/cli/own_agent.hpp"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/cli/command.hpp"

namespace motley::cli {
namespace {

constexpr double restart_s = 1;               // before the agent is started again
constexpr std::chrono::seconds end_grace(2);  // for it to end once the deployment has

int signal_event = -1;

void on_signal(int) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(signal_event, &one, sizeof one);
}

}  // namespace

EarlySignals::EarlySignals() {
  signal_event = wake_.descriptor();
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

EndOnSignal::EndOnSignal(const EarlySignals& signals, std::function<void()> end)
    : thread_([this, signal = signals.descriptor(), end = std::move(end)](const std::stop_token& stop) {
        std::array<pollfd, 2> waiting{pollfd{signal, POLLIN, 0}, pollfd{wake_.descriptor(), POLLIN, 0}};
        while (::poll(waiting.data(), waiting.size(), -1) < 0 && errno == EINTR) {
        }
        if (stop.stop_requested() && waiting[0].revents == 0) return;
        int code = static_cast<int>(ErrorCode::interrupted);
        try {
          end();
        } catch (const Error& error) {
          code = report_error(error);
        }
        std::_Exit(code);
      }) {}

EndOnSignal::~EndOnSignal() {
  thread_.request_stop();
  wake_.notify();
}

OwnAgent::OwnAgent(std::string link, std::vector<std::string> arguments)
    : link_(std::move(link)),
      arguments_(std::move(arguments)),
      thread_([this](const std::stop_token& stop) { run(stop); }) {}

OwnAgent::~OwnAgent() {
  thread_.request_stop();
  wake_.notify();
  std::unique_lock lock(mutex_);
  if (!ended_.wait_for(lock, end_grace, [this] { return child_ <= 0; })) ::kill(child_, SIGKILL);
}

void OwnAgent::kill() {
  thread_.request_stop();
  wake_.notify();
  const std::lock_guard lock(mutex_);
  if (child_ > 0) ::kill(child_, SIGKILL);
}

// Its status; until this is known its number is no other process's.
int OwnAgent::wait_for(int child) {
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
void OwnAgent::run(const std::stop_token& stop) {
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
    ::poll(&waiting, 1, static_cast<int>(restart_s * 1e3));
  }
}

int OwnAgent::start() const {
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(), "join", "-q"};
  words.insert(words.end(), arguments_.begin(), arguments_.end());
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

}  // namespace motley::cli
