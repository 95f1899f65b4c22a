#include "motley/workers/worker_processes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iterator>

#include "motley/base/environment_error.hpp"
#include "motley/workers/worker_links.hpp"

namespace motley {
namespace {

using Clock = std::chrono::steady_clock;

void check_program(const std::filesystem::path& program) {
  if (::access(program.c_str(), X_OK) != 0)
    throw Error(ErrorCode::environment,
                fmt::format("the worker program {} cannot be run: {}", program.string(), std::strerror(errno)),
                "build it: `./dev build`");
}

// In the child, where another thread may have held any lock at the fork: system calls only.
[[noreturn]] void become_worker(const char* program, char* const* arguments, std::span<const int> inherited,
                                pid_t driver) {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != driver) ::_exit(1);  // it died before the line above
  for (const int descriptor : inherited) ::fcntl(descriptor, F_SETFD, 0);
  ::execv(program, arguments);
  ::_exit(127);
}

// "cuda" stands for the GPU of the device's slot.
std::string backend_of(const std::string& device, const std::string& backend) {
  return backend == "cuda" ? "cuda:" + device.substr(device.rfind('/') + 1) : backend;
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

std::string control_frame(const Message& message) {
  const std::string bytes = encode(message);
  const auto length = static_cast<std::uint32_t>(bytes.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + bytes;
}

WorkerProcess::WorkerProcess(std::string device, std::string stage, int rank, const std::filesystem::path& program,
                             std::span<const int> inherited)
    : device_(std::move(device)), stage_(std::move(stage)), rank_(rank) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw environment_error("cannot make a control connection");
  control_ = Descriptor(ends[0]);
  const Descriptor theirs(ends[1]);

  std::vector<int> kept(inherited.begin(), inherited.end());
  kept.push_back(theirs.get());
  std::array<std::string, 3> words{program.string(), "--control-fd", std::to_string(theirs.get())};
  const std::array<char*, 4> arguments{words[0].data(), words[1].data(), words[2].data(), nullptr};
  const pid_t driver = ::getpid();
  process_ = ::fork();
  if (process_ == 0) become_worker(words[0].c_str(), arguments.data(), kept, driver);
  if (process_ < 0) throw environment_error("cannot start a worker process");
  // glibc 2.36 declares pidfd_open() for C only.
  exit_ = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, process_, 0)));
  if (exit_.get() >= 0) return;
  const Error error = environment_error("cannot watch over a worker process");
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  throw error;
}

WorkerProcess::~WorkerProcess() {
  if (look_for_exit()) return;
  kill();
  ::waitpid(process_, nullptr, 0);
}

std::string WorkerProcess::name() const { return fmt::format("{} (rank {} of stage {})", device_, rank_, stage_); }

void WorkerProcess::send(std::string_view frame) {
  if (connection_ended_) return;  // what follows from that is found when reading
  unsent_ += frame;
  write_some();
}

void WorkerProcess::write_some() {
  std::size_t sent = 0;
  while (sent < unsent_.size()) {
    const ssize_t n = ::send(control_.get(), unsent_.data() + sent, unsent_.size() - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) sent = unsent_.size();  // the other end is gone: reading tells
    if (n < 0) break;
    sent += static_cast<std::size_t>(n);
  }
  unsent_.erase(0, sent);
}

std::vector<Message> WorkerProcess::read_messages() {
  std::array<char, 64 << 10> piece;
  while (!connection_ended_) {
    const ssize_t n = ::recv(control_.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0)
      connection_ended_ = true;
    else
      received_.append(piece.data(), static_cast<std::size_t>(n));
  }
  std::vector<Message> messages;
  std::size_t taken = 0;
  for (std::uint32_t length = 0; received_.size() - taken >= sizeof length; taken += sizeof length + length) {
    std::memcpy(&length, received_.data() + taken, sizeof length);
    if (length > max_message_bytes)
      throw Error(ErrorCode::peer, fmt::format("malformed message: a length of {} bytes", length));
    if (received_.size() - taken - sizeof length < length) break;
    messages.push_back(decode(std::string_view(received_).substr(taken + sizeof length, length)));
  }
  received_.erase(0, taken);
  return messages;
}

void WorkerProcess::end_connection() {
  control_ = Descriptor();
  connection_ended_ = true;
  unsent_.clear();
}

std::string WorkerProcess::Exit::text() const {
  if (number < 0) return "ended";
  return by_signal ? fmt::format("was killed by signal {}", number) : fmt::format("exited with code {}", number);
}

const std::optional<WorkerProcess::Exit>& WorkerProcess::look_for_exit() {
  if (exit_state_) return exit_state_;
  siginfo_t how{};
  const int result = ::waitid(P_PIDFD, static_cast<id_t>(exit_.get()), &how, WEXITED | WNOHANG);
  if (result == 0 && how.si_pid != 0)
    exit_state_ = Exit{how.si_code != CLD_EXITED, how.si_status};
  else if (result != 0 && errno == ECHILD)
    exit_state_ = Exit{};  // the program ignores SIGCHLD, or waits for children that are not its own
  return exit_state_;
}

void WorkerProcess::kill() {
  if (!exit_state_) ::kill(process_, SIGKILL);
}

WorkerProcesses start_workers(const ServePlan& plan, const LaunchOptions& options) {
  check_program(options.program);
  PlanLinks links = link_workers(plan, link_kind(options.transport));  // closed here when every worker has its own

  WorkerProcesses workers;
  for (const Stage& stage : plan.stages)
    for (std::size_t rank = 0; rank < stage.devices.size(); ++rank) {
      const std::string& device = stage.devices[rank];
      std::vector<int> inherited = descriptors_of(links.of_device[device].stage);
      std::ranges::copy(descriptors_of(links.of_device[device].crossings), std::back_inserter(inherited));
      workers.push_back(
          std::make_unique<WorkerProcess>(device, stage.id, static_cast<int>(rank), options.program, inherited));
    }

  Launch launch{.plan_json = to_json(write(plan)),
                .model_folder = options.model_folder.string(),
                .device = {},
                .backend = {},
                .threads = options.threads,
                .stage = {},
                .crossings = {}};
  for (const auto& worker : workers) {
    launch.device = worker->device();
    launch.backend = backend_of(worker->device(), options.backend);
    launch.stage = links.of_device[worker->device()].stage;
    launch.crossings = links.of_device[worker->device()].crossings;
    worker->send(control_frame(launch));
  }
  return workers;
}

void end_workers(WorkerProcesses& workers, double grace_s) {
  for (const auto& worker : workers) worker->end_connection();
  const auto deadline = Clock::now() + std::chrono::duration<double>(grace_s);
  for (const auto& worker : workers) {
    pollfd ended{worker->exit_descriptor(), POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    ::poll(&ended, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
  }
  for (const auto& worker : workers)
    if (!worker->look_for_exit()) worker->kill();
  for (const auto& worker : workers)
    while (!worker->look_for_exit()) {
      pollfd ended{worker->exit_descriptor(), POLLIN, 0};
      ::poll(&ended, 1, -1);
    }
}

}  // namespace motley
