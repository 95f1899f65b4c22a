#include "motley/cost/serve/measured_times.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace motley {
namespace {

constexpr std::int64_t latest = 16;       // steps of one size that count
constexpr std::int64_t forgotten = 4096;  // steps of the stage after which a size without a new one is
constexpr std::int64_t refit_every = 8;   // steps, once there are twice as many
// How many measured steps the believed price weighs as much as: as a whole, and in how it divides into its parts. After
// this many steps half as much, at last a tenth: what only steps of like sizes have shown says little about the others.
constexpr double prior_steps = 4, prior_parts = 0.5;
constexpr double fades_after = 16, prior_left = 0.1;
constexpr double least_s = 1e-6;       // a clock says nothing of less
constexpr double least_factor = 1e-3;  // of the stage's as a whole
constexpr double full_step = 512;

using Vector = std::array<double, 3>;  // step_s, weights, tokens

double scalar(const Vector& a, const Vector& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// Normal equations of weighted least squares, and their solution under lower bounds.
struct Equations {
  std::array<Vector, 3> matrix = {};
  Vector right = {};

  void add(const Vector& row, double value, double weight) {
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) matrix[i][j] += weight * row[i] * row[j];
      right[i] += weight * row[i] * value;
    }
  }

  Vector solve(const Vector& bounds) const {
    std::array<bool, 3> fixed = {};
    for (;;) {
      const Vector x = solve(bounds, fixed);
      bool sound = true;
      for (std::size_t i = 0; i < 3; ++i)
        if (x[i] < bounds[i]) {
          fixed[i] = true;
          sound = false;
        }
      if (sound) return x;
    }
  }

 private:
  // Positive definite: no pivots.
  Vector solve(const Vector& bounds, const std::array<bool, 3>& fixed) const {
    std::array<Vector, 3> m = matrix;
    Vector x = right;
    for (std::size_t i = 0; i < 3; ++i)
      if (fixed[i]) {
        m[i] = {};
        m[i][i] = 1;
        x[i] = bounds[i];
      }
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t j = i + 1; j < 3; ++j) {
        const double factor = m[j][i] / m[i][i];
        for (std::size_t k = i; k < 3; ++k) m[j][k] -= factor * m[i][k];
        x[j] -= factor * x[i];
      }
    for (std::size_t i = 3; i-- > 0;) {
      for (std::size_t k = i + 1; k < 3; ++k) x[i] -= m[i][k] * x[k];
      x[i] /= m[i][i];
    }
    for (std::size_t i = 0; i < 3; ++i)
      if (fixed[i]) x[i] = bounds[i];
    return x;
  }
};

MeasuredStage::Parts parts_from(const Vector& x) { return {x[0], x[1], x[2]}; }

}  // namespace

// ---- parts ----

MeasuredStage::Parts parts_of(const StageTime& believed) {
  if (believed.measured_tokens_per_s > 0) return {};
  double reduce_s = 0;
  for (const AllReduces& each : believed.all_reduces) reduce_s += each.seconds(0);
  return {believed.fixed_s + reduce_s + believed.gather.latency_s + believed.gather_logits.latency_s};
}

StageTime with_parts(const StageTime& believed, const MeasuredStage::Parts& parts) {
  StageTime time = believed;
  time.fixed_s = parts.step_s;
  if (time.pass) {
    time.pass_factor *= parts.weights;
    return time;
  }
  if (believed.measured_tokens_per_s > 0) {
    time.ranks = {{.token_s = parts.tokens / believed.measured_tokens_per_s}};
    time.measured_tokens_per_s = 0;
    time.all_reduces.clear();
    time.gather = time.gather_logits = {};
    return time;
  }
  for (StageTime::Rank& rank : time.ranks) {
    for (double* seconds : {&rank.weights_s, &rank.experts_s, &rank.head_s}) *seconds *= parts.weights;
    for (double* seconds : {&rank.token_s, &rank.cached_s, &rank.attended_s, &rank.logit_s}) *seconds *= parts.tokens;
  }
  const auto without_latency = [&](MessageTime& message) { message = {0, message.token_s * parts.tokens}; };
  for (AllReduces& each : time.all_reduces)
    for (MessageTime* message : {&each.ring, &each.direct}) without_latency(*message);
  for (MessageTime* message : {&time.gather, &time.gather_logits}) without_latency(*message);
  return time;
}

// ---- one stage ----

MeasuredStage::MeasuredStage(StageTime believed)
    : believed_(std::move(believed)), corrected_(believed_), parts_(parts_of(believed_)) {}

void MeasuredStage::add(const StepLoad& load, double seconds) {
  if (!(load.tokens > 0) || !std::isfinite(seconds)) return;
  Size& size = sizes_[static_cast<int>(std::lround(2 * std::log2(load.tokens)))];
  const Sample sample{load, std::max(seconds, least_s)};
  if (std::ssize(size.latest) < latest)
    size.latest.push_back(sample);
  else
    size.latest[static_cast<std::size_t>(size.added % latest)] = sample;
  ++size.added;
  size.last_step = ++steps_;
  if (steps_ <= 2 * refit_every || steps_ % refit_every == 0) fit();
}

std::vector<MeasuredStage::Point> MeasuredStage::points() const {
  std::vector<Point> points;
  for (const auto& [tokens, size] : sizes_) {
    if (steps_ - size.last_step >= forgotten) continue;
    std::vector<Sample> sorted = size.latest;
    std::ranges::sort(sorted, {}, &Sample::seconds);
    const std::size_t count = sorted.size(), cut = count < 3 ? 0 : std::max<std::size_t>(1, count / 16);
    Point point;
    point.weight = static_cast<double>(count);
    const auto part = 1 / static_cast<double>(count - 2 * cut);
    for (std::size_t i = cut; i < count - cut; ++i) {
      point.load.tokens += part * sorted[i].load.tokens;
      point.load.context += part * sorted[i].load.context;
      point.load.cached += part * sorted[i].load.cached;
      point.load.logits += part * sorted[i].load.logits;
      point.load.window_context += part * sorted[i].load.window_context;
      point.load.window_cached += part * sorted[i].load.window_cached;
      point.seconds += part * sorted[i].seconds;
    }
    points.push_back(point);
  }
  return points;
}

// Relative least squares, by steps of Gauss and Newton: within a piece (weights or tokens take longer) a time is linear
// in its parts. The prior is the believed price, multiplied by what all sizes together are slower.
void MeasuredStage::fit() {
  const std::vector<Point> all = points();
  const double prior_share = std::max(prior_left, fades_after / (fades_after + static_cast<double>(steps_)));
  double weights = prior_steps * prior_share, sum = 0;
  for (const Point& point : all) {
    weights += point.weight;
    sum += point.weight * std::log(point.seconds / std::max(believed_.seconds(point.load), least_s));
  }
  const double scale = std::exp(sum / weights);
  const Parts believed = parts_of(believed_);
  const double token_s = std::max(believed_.seconds({.tokens = 1, .logits = 1}), least_s);
  const Vector prior{scale * believed.step_s, scale, scale}, units{scale * token_s, scale, scale};
  const Vector bounds{0, least_factor * scale, least_factor * scale};

  Vector x = prior, best = prior;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 12; ++round) {
    Equations equations;
    double error = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      Vector row{};
      row[i] = 1 / units[i];
      equations.add(row, prior[i] / units[i], prior_parts * prior_share);
      error += prior_parts * prior_share * std::pow((x[i] - prior[i]) / units[i], 2);
    }
    for (const Point& point : all) {
      const auto seconds = [&](const Vector& at) { return with_parts(believed_, parts_from(at)).seconds(point.load); };
      const double here = seconds(x);
      Vector slope{1, 0, 0};
      for (std::size_t i = 1; i < 3; ++i) {
        Vector moved = x;
        moved[i] *= 1 + 1e-6;
        slope[i] = (seconds(moved) - here) / (1e-6 * x[i]);
      }
      const double unit = 1 / std::max(point.seconds, 0.1 * scale * believed_.seconds(point.load));
      for (double& s : slope) s *= unit;
      const double missing = (point.seconds - here) * unit;
      equations.add(slope, scalar(slope, x) + missing, point.weight);
      error += point.weight * missing * missing;
    }
    if (error < least) {
      least = error;
      best = x;
    }
    x = equations.solve(bounds);
  }
  parts_ = parts_from(best);
  corrected_ = with_parts(believed_, parts_);
}

// ---- a pipeline ----

namespace {

// Links and the way back as what every step costs and what every token costs.
StageTime way_of(const PipelineTime& pipeline) {
  StageTime::Rank rank;
  double fixed_s = pipeline.back_s;
  for (const PipelineTime::Crossing& crossing : pipeline.crossings) {
    const double token_s = (crossing.time.seconds(full_step) - crossing.time.seconds(1)) / (full_step - 1);
    rank.token_s += token_s;
    fixed_s += crossing.time.seconds(1) - token_s;
  }
  return {.ranks = {rank}, .fixed_s = std::max(fixed_s, 0.0)};
}

// With the same latency, but so much slower for every token; where latencies count elsewhere, without.
HopTime slower(const HopTime& believed, double factor) {
  const double token_s = (believed.seconds(full_step) - believed.seconds(1)) / (full_step - 1);
  const HopSpeed path{0, believed.token_bytes / std::max(factor * token_s, 1e-15)};
  return {.small = path,
          .large = path,
          .from_device = believed.from_device,
          .to_device = believed.to_device,
          .token_bytes = believed.token_bytes};
}

}  // namespace

MeasuredPipeline::MeasuredPipeline(PipelineTime believed)
    : believed_(std::move(believed)), corrected_(std::make_shared<PipelineTime>(believed_)), way_(way_of(believed_)) {
  for (const PipelineTime::Visit& visit : believed_.visits) stages_.try_emplace(visit.stage, visit.time);
}

void MeasuredPipeline::add_stage(std::size_t stage, const StepLoad& load, double seconds) {
  const auto found = stages_.find(stage);
  if (found == stages_.end()) return;
  MeasuredStage& measured = found->second;
  measured.add(load, seconds);
  ++corrected_->corrections;
  for (std::size_t i = 0; i < believed_.visits.size(); ++i)
    if (believed_.visits[i].stage == stage)
      corrected_->visits[i].time = with_parts(believed_.visits[i].time, measured.parts());
}

void MeasuredPipeline::add_way(const StepLoad& load, double seconds) {
  way_.add(load, seconds);
  ++corrected_->corrections;
  corrected_->back_s = way_.parts().step_s;
  for (std::size_t i = 0; i < believed_.crossings.size(); ++i)
    corrected_->crossings[i].time = slower(believed_.crossings[i].time, way_.parts().tokens);
}

}  // namespace motley
