// Kills and joins among real processes on loopback, and processes that are stopped in the middle of a large all_reduce:
// churn PROGRAM [events] [stops] [seed], PROGRAM being churn-member.
#include <unistd.h>

#include <filesystem>

#include "motley/comm/session/churn_test.hpp"

namespace {

using namespace motley::churn;

double quantile(std::vector<double> times, double share) {
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  return times[std::min(times.size() - 1, static_cast<std::size_t>(share * static_cast<double>(times.size())))];
}

void print_times(const char* what, const std::vector<double>& times_s) {
  fmt::print("{}: median {:.3f} s, p99 {:.3f} s, longest {:.3f} s\n", what, quantile(times_s, 0.5),
             quantile(times_s, 0.99), quantile(times_s, 1));
}

ChurnReport churn(const ChurnOptions& options) {
  const double start_s = motley::now_s();
  ChurnGroup group(options);
  group.run();
  const ChurnReport& report = group.report();
  fmt::print(
      "{} kills, {} joins, {} stops, {} kills of the coordinator in {:.0f} s; {} steps committed, {} results "
      "checked\n",
      report.kills, report.joins, report.stops, report.coordinator_kills, motley::now_s() - start_s, report.steps,
      report.checked);
  print_times("recovery from a kill to the next commit", report.recovery_s);
  return report;
}

// Four processes whose all_reduces of 8 MiB follow each other; one is stopped, left out, continued, and comes back as
// a new member. Returns what failed; empty: nothing.
std::string stop_and_continue(ChurnOptions options, int stops) {
  constexpr double patience_s = 30;
  options.elements = 1 << 21;
  options.pause_ms = 0;
  ChurnGroup group(options);
  for (int i = 0; i < 4; ++i) group.start_member();
  motley::RandomStream random(options.seed, 3);
  std::vector<double> without_s, back_s;
  for (int i = 0; i < stops; ++i) {
    const auto everybody_at_work = [&] {
      return std::ranges::all_of(group.members(), [&](const auto& member) { return member.last_step > 0; });
    };
    if (!group.watch(patience_s, everybody_at_work)) return "the group does not begin: " + group.report().failure;
    group.watch(0.05 + 0.2 * random.uniform(), [] { return false; });
    auto& victim = group.members()[random.below(group.members().size())];
    const std::uint64_t epoch = group.epoch();
    victim.process->signal(SIGSTOP);
    const double stopped_s = motley::now_s();
    if (!group.watch(patience_s, [&] { return group.epoch() > epoch; })) return "the others wait for ever";
    without_s.push_back(motley::now_s() - stopped_s);
    const std::uint64_t without = group.epoch(), step = victim.last_step;
    victim.process->signal(SIGCONT);
    const double continued_s = motley::now_s();
    if (!group.watch(patience_s, [&] { return group.epoch() > without && victim.last_step > step; }))
      return "the continued one does not come back";
    back_s.push_back(motley::now_s() - continued_s);
  }
  fmt::print("{} stops in the middle of an all_reduce of 8 MiB among 4, a lease of 1 s\n", stops);
  print_times("from the stop to the next commit of the others", without_s);
  print_times("from continuing to a commit with it", back_s);
  return group.report().failure;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: churn PROGRAM [events] [stops] [seed]\n");
    return 2;
  }
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("motley-churn-{}", ::getpid());
  std::string failure;
  const auto phase = [&](const char* name, const auto& run) {
    if (!failure.empty()) return;
    ChurnOptions options{.program = argv[1], .folder = folder / name};
    std::filesystem::create_directories(options.folder);
    options.events = argc > 2 ? std::stoi(argv[2]) : 1000;
    options.seed = argc > 4 ? std::stoull(argv[4]) : 1;
    failure = run(options);
  };
  phase("churn", [](const ChurnOptions& options) { return options.events > 0 ? churn(options).failure : ""; });
  phase("stops", [&](const ChurnOptions& options) {
    const int stops = argc > 3 ? std::stoi(argv[3]) : 50;
    return stops > 0 ? stop_and_continue(options, stops) : "";
  });
  fmt::print("{}\n", failure.empty() ? "0 hangs, 0 wrong sums" : "FAILED: " + failure);
  if (failure.empty()) std::filesystem::remove_all(folder);
  return failure.empty() ? 0 : 1;
}
