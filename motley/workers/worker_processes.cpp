#include "motley/workers/worker_processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"

namespace motley {
namespace {

// In the child, where another thread may have held any lock at the fork: system calls only.
[[noreturn]] void become_worker(char* const* arguments, char* const* environment, int control, pid_t driver) {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != driver) ::_exit(1);  // it died before the line above
  ::fcntl(control, F_SETFD, 0);           // all others close
  ::execve(arguments[0], arguments, environment);
  ::_exit(127);
}

}  // namespace

WorkerProcess::WorkerProcess(const std::filesystem::path& program, const Variables& variables)
    : control_(ByteStream(), max_message_bytes) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw environment_error("cannot make a control connection");
  control_ = MessageStream(ByteStream(FileDescriptor(ends[0])), max_message_bytes);
  const FileDescriptor theirs(ends[1]);

  std::vector<std::string> words{program.string(), "--control-fd", std::to_string(theirs.get())};
  std::vector<std::string> settings = environment_with(variables);
  const std::vector<char*> arguments = pointers_to(words), environment = pointers_to(settings);
  const pid_t driver = ::getpid();
  process_ = ::fork();
  if (process_ == 0) become_worker(arguments.data(), environment.data(), theirs.get(), driver);
  if (process_ < 0) throw environment_error("cannot start a worker process");
  // glibc 2.36 declares pidfd_open() for C only.
  exit_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, process_, 0)));
  if (exit_) return;
  const Error error = environment_error("cannot watch over a worker process");
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  throw error;
}

WorkerProcess::~WorkerProcess() {
  kill();
  while (!left_behind_ && !exit() && seconds_since(killed_at_.value_or(Clock::now())) < killed_s) {
    pollfd ended{exit_.get(), POLLIN, 0};
    ::poll(&ended, 1, 10);
  }
}

std::vector<pollfd> WorkerProcess::events() const {
  return {{control_.descriptor(), control_.events(), 0}, {exit_.get(), POLLIN, 0}};
}

std::optional<WorkerExit> WorkerProcess::exit() {
  if (exit_state_) return exit_state_;
  siginfo_t how{};
  const int result = ::waitid(P_PIDFD, static_cast<id_t>(exit_.get()), &how, WEXITED | WNOHANG);
  if (result == 0 && how.si_pid != 0)
    exit_state_ =
        WorkerExit{how.si_code == CLD_EXITED ? WorkerExit::How::code : WorkerExit::How::signal, how.si_status};
  else if (result != 0 && errno == ECHILD)
    exit_state_ = WorkerExit{};  // the program ignores SIGCHLD, or waits for children that are not its own
  return exit_state_;
}

void WorkerProcess::kill() {
  if (exit_state_) return;
  ::kill(process_, SIGKILL);
  if (!killed_at_) killed_at_ = Clock::now();
}

}  // namespace motley
