#include "motley/trainer/step_speed.hpp"

#include <algorithm>
#include <numeric>

namespace motley {
namespace {

constexpr std::size_t known_from = 4, known_steps = 32, latest_steps = 2;
constexpr double slow_from = 8, slow_until = 2, apart = 2;
constexpr double least_s = 0.1;  // of the latest together

double median_of(std::vector<double> values) {
  if (values.empty()) return 1;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

// A step counts as usual once it is not among the latest any more, if the worker is not slow then.
std::vector<StepSpeed::Change> StepSpeed::add(const std::vector<double>& seconds) {
  std::vector<Change> changes;
  if (workers_.empty()) {
    workers_.resize(seconds.size());
    return changes;
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    worker.latest.push_back(seconds.at(i));
    if (worker.latest.size() > latest_steps) {
      if (!worker.slow) worker.usual.push_back(worker.latest.front());
      if (worker.usual.size() > known_steps) worker.usual.pop_front();
      worker.latest.pop_front();
    }
    const double usual_s = median_of({worker.usual.begin(), worker.usual.end()});
    const double latest_s = std::accumulate(worker.latest.begin(), worker.latest.end(), 0.0);
    const bool known = worker.usual.size() >= known_from && usual_s > 0;
    worker.factor = known ? latest_s / (static_cast<double>(worker.latest.size()) * usual_s) : 1;
  }
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    std::vector<double> others;
    for (std::size_t j = 0; j < workers_.size(); ++j)
      if (j != i) others.push_back(workers_[j].factor);
    const double latest_s = std::accumulate(worker.latest.begin(), worker.latest.end(), 0.0);
    const bool slow =
        worker.slow ? worker.factor >= slow_until
                    : worker.factor >= std::max(slow_from, apart * median_of(std::move(others))) && latest_s >= least_s;
    if (slow != worker.slow) changes.push_back({i, worker.factor, slow});
    worker.slow = slow;
  }
  return changes;
}

}  // namespace motley
