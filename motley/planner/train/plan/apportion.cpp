#include "motley/planner/train/plan/apportion.hpp"

#include <algorithm>
#include <cmath>

#include "motley/cost/published/flashflex.hpp"

namespace motley {
namespace {

constexpr double rounding = 1e-12;  // relative: what a bound that was computed from an end may lack

}  // namespace

double ReplicaPace::end_s(std::int64_t micro_batches) const {
  if (micro_batches < std::ssize(lockstep_stages_s)) return lockstep_s(lockstep_stages_s, micro_batches);
  return rest_s + static_cast<double>(micro_batches) * each_s;
}

std::int64_t ReplicaPace::within(double bound_s, std::int64_t most) const {
  bound_s *= 1 + rounding;
  if (std::isinf(each_s)) return 0;
  const std::int64_t full = std::max<std::int64_t>(1, std::ssize(lockstep_stages_s));
  if (bound_s >= end_s(full))
    return std::min(most, std::max(full, static_cast<std::int64_t>(std::min((bound_s - rest_s) / each_s, 1e15))));
  std::int64_t done = 0;
  while (done + 1 < full && done < most && end_s(done + 1) <= bound_s) ++done;
  return done;
}

std::vector<std::int64_t> apportion(const std::vector<ReplicaPace>& replicas, std::int64_t total, std::int64_t least) {
  if (total < least * std::ssize(replicas)) return {};
  std::vector<std::int64_t> counts(replicas.size(), 0);
  const auto share = [&](const ReplicaPace& replica, double bound_s) {
    return std::max(least, replica.within(bound_s, total));
  };
  const auto room = [&](double bound_s) {
    std::int64_t sum = 0;
    for (const auto& replica : replicas) sum += share(replica, bound_s);
    return sum;
  };
  double low = 0, high = 0;
  for (const auto& replica : replicas)
    if (std::isfinite(replica.each_s)) high = std::max(high, replica.end_s(total));
  std::int64_t most = room(high);
  if (most < total) return counts;
  while (most > total + std::ssize(replicas) && high - low > rounding * high) {
    const double middle = (low + high) / 2;
    if (const std::int64_t then = room(middle); then >= total) {
      high = middle;
      most = then;
    } else {
      low = middle;
    }
  }
  std::int64_t left = total;
  for (std::size_t r = 0; r < replicas.size(); ++r) left -= counts[r] = share(replicas[r], high);
  // The bound may have room for more than there is: the one that would end last gives it back.
  for (; left < 0; ++left) {
    std::size_t last = replicas.size();
    for (std::size_t r = 0; r < replicas.size(); ++r)
      if (counts[r] > least &&
          (last == replicas.size() || replicas[r].end_s(counts[r]) > replicas[last].end_s(counts[last])))
        last = r;
    --counts[last];
  }
  return counts;
}

}  // namespace motley
