#include "motley/workers/child_answer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "motley/base/clock.hpp"
#include "motley/comm/net/file_descriptor.hpp"

namespace motley {
namespace {

constexpr std::size_t most_answer_bytes = std::size_t{1} << 20;
constexpr double killed_child_s = 5;  // for the process to end

// A process of its own group, which is ended with it.
class Child {
 public:
  explicit Child(const ChildQuestion& question) : question_(question), until_(deadline_in(question.within_s)) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw environment_error("cannot make a pipe");
    output_ = FileDescriptor(ends[0]);
    const FileDescriptor theirs(ends[1]);
    spawn(theirs.get());
    // glibc 2.36 declares pidfd_open() for C only.
    exit_ = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, process_, 0)));
    if (exit_) return;
    const Error error = environment_error("cannot watch over " + name_of(question));
    end();
    throw error;
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  std::string answer() {
    std::string text;
    std::array<char, 4096> buffer{};
    for (;;) {
      if (!wait_for(output_.get(), POLLIN, until_)) throw late();
      const ssize_t count = ::read(output_.get(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return text;
      text.append(buffer.data(), static_cast<std::size_t>(count));
      if (text.size() > most_answer_bytes)
        throw child_failure(question_, fmt::format("answers with more than {} bytes", most_answer_bytes));
    }
  }
  // After its answer.
  int exit_code() {
    if (!wait_for(exit_.get(), POLLIN, until_)) throw late();
    siginfo_t how{};
    if (::waitid(P_PIDFD, static_cast<id_t>(exit_.get()), &how, WEXITED | WNOHANG) != 0 || how.si_pid == 0)
      throw child_failure(question_, "has ended, and nothing tells how");
    process_ = 0;
    if (how.si_code != CLD_EXITED)
      throw child_failure(question_, fmt::format("was killed by signal {}", how.si_status));
    return how.si_status;
  }

 private:
  // Without the signals that this thread has blocked, and silent but for its answer.
  void spawn(int output) {
    std::vector<std::string> words{question_.program.string()};
    words.insert(words.end(), question_.arguments.begin(), question_.arguments.end());
    std::vector<std::string> settings = environment_with(question_.environment);
    const std::vector<char*> arguments = pointers_to(words), environment = pointers_to(settings);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    const int failed =
        ::posix_spawn(&process_, words[0].c_str(), &actions, &attributes, arguments.data(), environment.data());
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    if (failed == 0) return;
    process_ = 0;
    errno = failed;
    throw environment_error("cannot start " + words[0], "build it with `./dev build`");
  }

  Error late() const {
    return child_failure(question_, fmt::format("has not ended within {:.0f} s", question_.within_s));
  }

  // One in a call to the driver of a lost device cannot be killed: it is left behind.
  void end() {
    if (process_ <= 0) return;
    ::kill(-process_, SIGKILL);
    if (exit_ && !wait_for(exit_.get(), POLLIN, deadline_in(killed_child_s))) return;
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }

  const ChildQuestion& question_;
  const Instant until_;
  FileDescriptor output_, exit_;
  pid_t process_ = 0;
};

}  // namespace

ChildAnswer ask_child(const ChildQuestion& question) {
  Child child(question);
  std::string text = child.answer();
  return {.text = std::move(text), .code = child.exit_code()};
}

std::string name_of(const ChildQuestion& question) {
  return fmt::format("{} {}", question.program.filename().string(), fmt::join(question.arguments, " "));
}

Error child_failure(const ChildQuestion& question, const std::string& what) {
  return {ErrorCode::environment, fmt::format("{}, which {}, {}", name_of(question), question.purpose, what),
          question.hint};
}

std::vector<std::string> environment_with(const Variables& variables) {
  std::vector<std::string> all;
  for (char** inherited = environ; *inherited != nullptr; ++inherited) {
    const std::string_view text = *inherited;
    const auto is_replaced = [&](const auto& variable) { return text.substr(0, text.find('=')) == variable.first; };
    if (std::ranges::none_of(variables, is_replaced)) all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace motley
