// Real processes of a group that are killed, started, stopped and continued, their coordinator among them; every
// committed result is checked (tests/programs/churn_member.cpp).
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/base/random.hpp"

extern char** environ;

namespace motley::churn {

// A child whose standard output is read; killed when this object goes.
class ChildProcess {
 public:
  ChildProcess(const std::vector<std::string>& command, const std::string& errors) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe");
    output_ = ends[0];
    ::fcntl(output_, F_SETFL, O_NONBLOCK);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    std::vector<char*> words;
    for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    const int failed = ::posix_spawn(&pid_, words[0], &actions, nullptr, words.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    if (failed != 0) throw std::runtime_error(fmt::format("cannot start {}", command[0]));
  }
  ~ChildProcess() {
    kill();
    ::close(output_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Returns once every thread stands still.
  void stop() const {
    siginfo_t told{};
    ::kill(pid_, SIGSTOP);
    ::waitid(P_PID, static_cast<id_t>(pid_), &told, WSTOPPED);
  }

  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  void signal(int number) const { ::kill(pid_, number); }
  bool ended() {
    if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) == pid_) pid_ = -1;
    return pid_ <= 0;
  }
  int output() const { return output_; }

  // The whole lines that have come since.
  std::vector<std::string> lines() {
    std::array<char, 4096> piece;
    for (;;) {
      const ssize_t got = ::read(output_, piece.data(), piece.size());
      if (got <= 0) break;
      text_.append(piece.data(), static_cast<std::size_t>(got));
    }
    std::vector<std::string> lines;
    for (std::size_t end = 0; (end = text_.find('\n')) != std::string::npos; text_.erase(0, end + 1))
      lines.push_back(text_.substr(0, end));
    return lines;
  }

 private:
  pid_t pid_ = -1;
  int output_ = -1;
  std::string text_;
};

struct ChurnOptions {
  std::string program;  // churn-member
  std::string folder;   // for the log
  int events = 20;
  std::size_t most_processes = 8;
  std::size_t elements = 1024;
  int pause_ms = 5;
  std::uint64_t seed = 1;
  double patience_s = 30;  // without a commit: a hang
};

struct ChurnReport {
  std::string failure;  // empty: none
  int kills = 0, joins = 0, stops = 0, coordinator_kills = 0;
  std::uint64_t steps = 0, checked = 0;
  std::vector<double> recovery_s;  // from a kill to the next commit in a later epoch
};

class ChurnGroup {
 public:
  explicit ChurnGroup(ChurnOptions options) : options_(std::move(options)), random_(options_.seed, 2) {
    log_ = (std::filesystem::path(options_.folder) / "ledger").string();
    errors_ = (std::filesystem::path(options_.folder) / "errors").string();
    start_coordinator("127.0.0.1:0");
  }

  struct Living {
    std::string id;
    std::unique_ptr<ChildProcess> process;
    std::uint64_t last_step = 0;
    double stopped_until_s = 0;
  };

  ChurnReport& report() { return report_; }
  std::vector<Living>& members() { return members_; }
  std::uint64_t epoch() const { return epoch_; }
  double last_commit_s() const { return last_commit_s_; }

  void start_member() {
    const std::string id = fmt::format("m{}", started_++);
    members_.push_back(
        {id, std::make_unique<ChildProcess>(
                 std::vector<std::string>{options_.program, "member", address_, id, std::to_string(options_.elements),
                                          std::to_string(options_.pause_ms)},
                 errors_)});
  }

  void restart_coordinator() {
    coordinator_.reset();
    start_coordinator(address_);
  }

  // Reads what members say, until `done` or the time passes. False: it passed.
  bool watch(double seconds, const std::function<bool()>& done) {
    const double until_s = now_s() + seconds;
    for (;;) {
      for (Living& member : members_) {
        if (member.stopped_until_s > 0 && now_s() > member.stopped_until_s) {
          member.stopped_until_s = 0;
          member.process->signal(SIGCONT);
        }
        for (const std::string& line : member.process->lines()) hear(member, line);
      }
      if (done() || !report_.failure.empty()) return true;
      if (now_s() > until_s) return false;
      std::vector<pollfd> waiting;
      for (const Living& member : members_) waiting.push_back({member.process->output(), POLLIN, 0});
      ::poll(waiting.data(), waiting.size(), 10);
    }
  }

  void run() {
    start_member();
    start_member();
    if (!watch(options_.patience_s, [&] { return report_.steps > 2; })) return fail("the group does not begin");
    for (int event = 0; event < options_.events && report_.failure.empty(); ++event) {
      one_event();
      const double pause_s = 0.1 * random_.uniform();
      watch(pause_s, [] { return false; });
    }
    const std::uint64_t goal = report_.steps + 3;
    if (!watch(options_.patience_s, [&] { return report_.steps >= goal; })) fail("no commit after the last event");
  }

 private:
  void fail(const std::string& what) {
    if (report_.failure.empty()) report_.failure = what;
  }

  void start_coordinator(const std::string& address) {
    for (int attempt = 0; attempt < 200; ++attempt) {
      coordinator_ = std::make_unique<ChildProcess>(
          std::vector<std::string>{options_.program, "coordinator", address, log_}, errors_);
      // A restarted one may have to wait for the kernel to give its port back.
      while (!coordinator_->ended()) {
        for (const std::string& line : coordinator_->lines())
          if (line.starts_with("serving ")) {
            address_ = line.substr(8);
            return;
          }
        pollfd waiting{coordinator_->output(), POLLIN, 0};
        ::poll(&waiting, 1, 50);
      }
    }
    fail("the coordinator does not start");
  }

  void hear(Living& member, const std::string& line) {
    std::istringstream words(line);
    std::string word, chain;
    std::uint64_t step = 0, epoch = 0, size = 0;
    double at_s = 0;
    words >> word;
    if (word == "stuck") return fail(fmt::format("{}: {}", member.id, line));
    words >> step >> epoch >> size >> chain >> at_s;
    if (word != "commit") return fail(fmt::format("{}: {}", member.id, line));
    ++report_.checked;
    const std::string what = fmt::format("{} {} {}", epoch, size, chain);
    const auto [known, is_new] = committed_.emplace(step, what);
    if (known->second != what)
      return fail(
          fmt::format("{} committed step {} as \"{}\", another as \"{}\"", member.id, step, what, known->second));
    member.last_step = step;
    if (!is_new) return;
    ++report_.steps;
    epoch_ = std::max(epoch_, epoch);
    last_commit_s_ = at_s;
    if (killed_s_ > 0 && epoch > killed_epoch_) {
      report_.recovery_s.push_back(at_s - killed_s_);
      killed_s_ = 0;
    }
  }

  // Members that hold the state: without at least one other none may be killed.
  std::vector<std::size_t> holders() const {
    std::vector<std::size_t> list;
    for (std::size_t i = 0; i < members_.size(); ++i)
      if (members_[i].stopped_until_s == 0 && members_[i].last_step + 1 >= committed_.rbegin()->first)
        list.push_back(i);
    return list;
  }

  void one_event() {
    const double kind = random_.uniform();
    const auto able = holders();
    if (kind < 0.04) {
      ++report_.coordinator_kills;
      return restart_coordinator();
    }
    if (able.size() >= 3 && kind < 0.06) {
      ++report_.stops;
      Living& victim = members_[able[random_.below(able.size())]];
      victim.process->signal(SIGSTOP);
      victim.stopped_until_s = now_s() + 0.5 + 1.5 * random_.uniform();
      return;
    }
    if (members_.size() >= options_.most_processes || (able.size() >= 3 && kind < 0.55)) {
      if (able.size() >= 2) return kill_one(able[random_.below(able.size())]);
      watch(options_.patience_s, [&] { return holders().size() >= 2; });
      return;
    }
    ++report_.joins;
    start_member();
  }

  void kill_one(std::size_t victim) {
    ++report_.kills;
    for (const std::string& line : members_[victim].process->lines()) hear(members_[victim], line);
    killed_epoch_ = epoch_;
    killed_s_ = now_s();
    members_[victim].process->kill();
    for (const std::string& line : members_[victim].process->lines()) hear(members_[victim], line);
    members_.erase(members_.begin() + static_cast<std::ptrdiff_t>(victim));
    if (!watch(options_.patience_s, [&] { return killed_s_ == 0; })) fail("no commit after a kill: a hang");
  }

  ChurnOptions options_;
  RandomStream random_;
  std::string log_, errors_, address_;
  std::unique_ptr<ChildProcess> coordinator_;
  std::vector<Living> members_;
  int started_ = 0;
  std::map<std::uint64_t, std::string> committed_;
  std::uint64_t epoch_ = 0, killed_epoch_ = 0;
  double killed_s_ = 0, last_commit_s_ = 0;
  ChurnReport report_;
};

}  // namespace motley::churn
