// Kills and joins among real processes on loopback: churn PROGRAM [events] [seed], PROGRAM being churn-member.
#include <unistd.h>

#include <filesystem>

#include "motley/comm/churn_test.hpp"

int main(int argc, char** argv) {
  using namespace motley::churn;
  if (argc < 2) {
    fmt::print(stderr, "usage: churn PROGRAM [events] [seed]\n");
    return 2;
  }
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("motley-churn-{}", ::getpid());
  std::filesystem::create_directory(folder);
  ChurnOptions options;
  options.program = argv[1];
  options.folder = folder.string();
  options.events = argc > 2 ? std::stoi(argv[2]) : 1000;
  options.seed = argc > 3 ? std::stoull(argv[3]) : 1;
  const double start_s = monotonic_s();
  ChurnReport report;
  {
    ChurnGroup group(options);
    group.run();
    report = group.report();
  }
  std::sort(report.recovery_s.begin(), report.recovery_s.end());
  const auto quantile = [&](double share) {
    const auto& times = report.recovery_s;
    return times.empty()
               ? 0
               : times[std::min(times.size() - 1, static_cast<std::size_t>(share * static_cast<double>(times.size())))];
  };
  fmt::print(
      "{} kills, {} joins, {} stops, {} kills of the coordinator in {:.0f} s; {} steps committed, {} results "
      "checked\nrecovery from a kill to the next commit: median {:.3f} s, p99 {:.3f} s, longest {:.3f} s\n{}\n",
      report.kills, report.joins, report.stops, report.coordinator_kills, monotonic_s() - start_s, report.steps,
      report.checked, quantile(0.5), quantile(0.99), quantile(1),
      report.failure.empty() ? "0 hangs, 0 wrong sums" : "FAILED: " + report.failure);
  if (report.failure.empty()) std::filesystem::remove_all(folder);
  return report.failure.empty() ? 0 : 1;
}
