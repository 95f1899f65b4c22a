#include "motley/text/text_processes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"
#include "motley/text/codec_source.hpp"

namespace motley {
namespace {

constexpr std::size_t max_answer_bytes = std::size_t{1} << 30;

// A copy that was asked more than this keeps a hundred times as much memory, and is not asked again.
constexpr std::size_t most_kept_bytes = std::size_t{1} << 20;

constexpr TextWork no_bounds{"", "", 0, 0};
constexpr TextWork loading{"loading the tokenizer", "copy the file again from where the model came from", 120,
                           std::uint64_t{8} << 30};

// A message: this, the lengths of the parts (32 bits each), the parts.
struct Head {
  std::uint32_t parts = 0, bytes = 0;
  double seconds = 0;
  std::uint64_t memory = 0;
};
static_assert(sizeof(Head) == 24);

struct SocketPair {
  FileDescriptor ours, theirs;
};

SocketPair socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw environment_error("cannot make a connection to Python");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

// False: the other side is gone. `passed` is given to it along with the bytes, unless it is negative.
bool send_bytes(const FileDescriptor& connection, std::string_view bytes, int passed = -1) {
  while (!bytes.empty()) {
    iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    if (passed >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &passed, sizeof(int));
    }
    const ssize_t sent = ::sendmsg(connection.get(), &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
    passed = -1;
  }
  return true;
}

std::size_t size_of(const TextParts& parts) {
  std::size_t size = parts.size() * sizeof(std::uint32_t);
  for (const std::string& part : parts) size += part.size();
  return size;
}

bool send_message(const FileDescriptor& connection, const TextWork& work, const TextParts& parts, int passed = -1) {
  const std::size_t size = size_of(parts);
  if (size > std::numeric_limits<std::uint32_t>::max())
    throw input_error(fmt::format("{} bytes are too much for the tokenizer at once", size), "send less text");
  const Head head{static_cast<std::uint32_t>(parts.size()), static_cast<std::uint32_t>(size), work.seconds, work.bytes};
  std::string message(reinterpret_cast<const char*>(&head), sizeof head);
  message.reserve(sizeof head + size);
  for (const std::string& part : parts) {
    const auto length = static_cast<std::uint32_t>(part.size());
    message.append(reinterpret_cast<const char*>(&length), sizeof length);
  }
  for (const std::string& part : parts) message += part;
  return send_bytes(connection, message, passed);
}

bool receive_bytes(const FileDescriptor& connection, char* to, std::size_t count) {
  while (count > 0) {
    const ssize_t taken = ::recv(connection.get(), to, count, MSG_WAITALL);
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) return false;
    to += taken;
    count -= static_cast<std::size_t>(taken);
  }
  return true;
}

// None: the other side is gone, or sends what it never should.
std::optional<TextParts> receive_message(const FileDescriptor& connection) {
  Head head;
  if (!receive_bytes(connection, reinterpret_cast<char*>(&head), sizeof head)) return std::nullopt;
  if (head.bytes > max_answer_bytes || head.parts == 0 || head.parts > head.bytes / sizeof(std::uint32_t))
    return std::nullopt;
  std::string body(head.bytes, '\0');
  if (!receive_bytes(connection, body.data(), body.size())) return std::nullopt;
  TextParts parts;
  std::string_view left = std::string_view(body).substr(head.parts * sizeof(std::uint32_t));
  for (std::size_t i = 0; i < head.parts; ++i) {
    std::uint32_t length = 0;
    std::memcpy(&length, body.data() + i * sizeof length, sizeof length);
    if (length > left.size()) return std::nullopt;
    parts.emplace_back(left.substr(0, length));
    left.remove_prefix(length);
  }
  return parts;
}

// What was asked for, without its kind. Throws the failure that it is.
TextParts result_of(TextParts answer, const TextWork& work) {
  const std::string kind = answer.front();
  if (kind.empty()) {
    answer.erase(answer.begin());
    return answer;
  }
  answer.resize(3);
  if (kind == "input") throw input_error(answer[1], answer[2]);
  if (kind == "memory")
    throw input_error(fmt::format("{} asked for more than {} MiB", work.doer, work.bytes >> 20), work.hint);
  if (kind == "packages")
    throw Error(ErrorCode::environment,
                fmt::format("a Python package is missing or has a wrong version in {}: {}",
                            python_environment().string(), answer[1]),
                environment_hint);
  throw Error(ErrorCode::internal, answer[1]);
}

// Of a process that ended before it answered.
Error overrun(const TextWork& work, Instant start) {
  if (seconds_since(start) >= work.seconds)
    return input_error(fmt::format("{} took longer than {:.0f} s", work.doer, work.seconds), work.hint);
  return input_error(
      fmt::format("{} ended its process, as where it needs more than {} MiB", work.doer, work.bytes >> 20), work.hint);
}

// Its standard input is `connection`, from which it takes its program. It sees the standard library and the project's
// environment, neither the user's packages nor Python's variables.
pid_t spawn_python(const FileDescriptor& connection) {
  std::array<std::string, 5> words = {
      python_environment() / "bin/python3", "-I", "-B", "-c",
      fmt::format("import socket; connection = socket.socket(fileno=0); exec(connection.recv({}, socket.MSG_WAITALL))",
                  std::strlen(process_source))};
  std::array<char*, 6> arguments{};
  for (std::size_t i = 0; i < words.size(); ++i) arguments[i] = words[i].data();
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, connection.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t process = 0;
  const int failed = ::posix_spawn(&process, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  errno = failed;
  if (failed != 0) throw environment_error(fmt::format("cannot start {}", words[0]), environment_hint);
  return process;
}

}  // namespace

TextProcesses::TextProcesses(std::function<TextParts()> first) : first_(std::move(first)) { start(); }

TextProcesses::~TextProcesses() { end(); }

void TextProcesses::start() {
  SocketPair pair = socket_pair();
  process_ = spawn_python(pair.theirs);
  original_ = std::move(pair.ours);
  pair.theirs = FileDescriptor();
  const auto ask = [&](const TextWork& work, const TextParts& request) {
    std::optional<TextParts> answer;
    if (send_message(original_, work, request)) answer = receive_message(original_);
    return answer ? std::optional(result_of(*std::move(answer), work)) : std::nullopt;
  };
  try {
    if (!send_bytes(original_, process_source) || !ask(no_bounds, {"load", codec_source, gguf_source}))
      throw Error(ErrorCode::environment,
                  fmt::format("{} ended as soon as it was started", (python_environment() / "bin/python3").string()),
                  environment_hint);
    const TextParts request = first_();
    const Instant start = Clock::now();
    std::optional<TextParts> answer = ask(loading, request);
    if (!answer) throw overrun(loading, start);
    answer_ = *std::move(answer);
  } catch (...) {
    end();
    throw;
  }
}

// Copies end when they find that their connections are closed.
void TextProcesses::end() {
  original_ = FileDescriptor();
  idle_.clear();
  if (process_ == 0) return;
  ::kill(process_, SIGKILL);
  ::waitpid(process_, nullptr, 0);
  process_ = 0;
}

FileDescriptor TextProcesses::idle_copy() {
  const std::lock_guard lock(mutex_);
  if (!idle_.empty()) {
    FileDescriptor copy = std::move(idle_.back());
    idle_.pop_back();
    return copy;
  }
  SocketPair pair = socket_pair();
  if (!send_message(original_, no_bounds, {"copy"}, pair.theirs.get())) {  // it was ended
    end();
    start();
    send_message(original_, no_bounds, {"copy"}, pair.theirs.get());
  }
  return std::move(pair.ours);
}

TextParts TextProcesses::call(const TextWork& work, const TextParts& request) {
  const Instant start = Clock::now();
  FileDescriptor copy = idle_copy();
  if (!send_message(copy, work, request)) {  // it was ended while it was idle, and maybe others
    {
      const std::lock_guard lock(mutex_);
      idle_.clear();
    }
    copy = idle_copy();
    send_message(copy, work, request);
  }
  std::optional<TextParts> answer = receive_message(copy);
  if (!answer) throw overrun(work, start);
  if (size_of(request) <= most_kept_bytes && (answer->front().empty() || answer->front() == "input")) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(copy));
  }
  return result_of(*std::move(answer), work);
}

}  // namespace motley
