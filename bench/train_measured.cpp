// The form `motley` against measured training steps: seconds predicted and measured.
//
//   plain     hops overlap, no constant
//   blocking  stages wait for their hops, no constant
//   fitted    and one constant per cluster, seconds per step and boundary between stages
//   left out  the same, fitted without the run itself
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/training/measured_runs.hpp"
#include "motley/cost/train/train_cost.hpp"

namespace {

using namespace motley;

std::vector<const MeasuredRun*> of_site(const std::vector<MeasuredRun>& runs, const std::string& site,
                                        const MeasuredRun* left_out = nullptr) {
  std::vector<const MeasuredRun*> chosen;
  for (const MeasuredRun& run : runs)
    if (run.site == site && &run != left_out) chosen.push_back(&run);
  return chosen;
}

struct Errors {
  double sum = 0, worst = 0;
  int count = 0;
  void add(double error) {
    sum += std::abs(error);
    worst = std::max(worst, std::abs(error));
    ++count;
  }
  std::string text() const { return fmt::format("{:.1f} % / {:.1f} %", 100 * sum / count, 100 * worst); }
};

}  // namespace

int main() {
  const auto runs = read_measured_runs(MOTLEY_SOURCE_DIR "/data/training");
  fmt::print("{:<32}{:>10}{:>10}{:>8}{:>10}{:>8}{:>10}{:>8}{:>10}{:>8}\n", "run", "measured", "plain", "%", "blocking",
             "%", "fitted", "%", "left out", "%");
  Errors errors[4];
  std::vector<double> fitted;
  for (const auto& run : runs) {
    const double seconds[4] = {
        price_train(run.plan, {}).iteration_s, price_train(run.plan, measured_runs_options(0)).iteration_s,
        price_train(run.plan, measured_runs_options(fit_boundary_overhead_s(of_site(runs, run.site)))).iteration_s,
        price_train(run.plan, measured_runs_options(fit_boundary_overhead_s(of_site(runs, run.site, &run))))
            .iteration_s};
    fitted.push_back(seconds[2]);
    fmt::print("{:<32}{:>10.4f}", run.name, run.iteration_s);
    for (int i = 0; i < 4; ++i) {
      const double error = seconds[i] / run.iteration_s - 1;
      errors[i].add(error);
      fmt::print("{:>10.4f}{:>+8.1f}", seconds[i], 100 * error);
    }
    fmt::print("\n");
  }
  fmt::print("mean / worst: plain {}, blocking {}, fitted {}, left out {}\n", errors[0].text(), errors[1].text(),
             errors[2].text(), errors[3].text());

  std::set<std::string> sites;
  for (const auto& run : runs) sites.insert(run.site);
  for (const auto& site : sites) {
    int pairs = 0, kept = 0, rivals = 0, rivals_kept = 0;
    for (std::size_t a = 0; a < runs.size(); ++a)
      for (std::size_t b = 0; b < runs.size(); ++b) {
        if (runs[a].site != site || runs[b].site != site || runs[a].iteration_s >= runs[b].iteration_s) continue;
        ++pairs;
        kept += fitted[a] < fitted[b] ? 1 : 0;
        if (!same_job(runs[a], runs[b])) continue;
        ++rivals;
        rivals_kept += fitted[a] < fitted[b] ? 1 : 0;
      }
    fmt::print("{}: {:.1f} ms per boundary; in their order {} of {} pairs of plans for the same job, {} of all {}\n",
               site, 1e3 * fit_boundary_overhead_s(of_site(runs, site)), rivals_kept, rivals, kept, pairs);
  }
}
