#include "motley/workload/arrivals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "motley/base/error.hpp"
#include "motley/base/random.hpp"
#include "motley/workload/trace.hpp"

namespace motley {
namespace {

constexpr double z99 = 2.3263478740408408;  // the normal's 99th percentile
constexpr std::int64_t most_requests = 50'000'000;

// A stream of random numbers, one of many that do not meet.
class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t stream) : seed_(seed), index_(stream << 48) {}

  double uniform() { return uniform_at(seed_, index_++); }  // [0, 1)
  double exponential() { return -std::log1p(-uniform()); }
  double normal() {
    const double radius = std::sqrt(2 * exponential());
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  // Mean `shape`, scale 1: Marsaglia and Tsang, "A simple method for generating gamma variables" (ACM TOMS 26, 2000).
  double gamma(double shape) {
    if (shape < 1) {
      const double boosted = gamma(shape + 1);
      return boosted * std::pow(1 - uniform(), 1 / shape);
    }
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal(), root = 1 + c * x;
      const double u = 1 - uniform();
      if (root <= 0) continue;
      const double v = root * root * root;
      if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
  }

 private:
  std::uint64_t seed_, index_;
};

// The lengths of one class, one pair per call.
class Lengths {
 public:
  Lengths(const RequestClass& described, std::uint64_t seed, std::uint64_t stream)
      : described_(described),
        random_(seed, stream),
        prompt_(lognormal_of(described.prompt_tokens)),
        output_(lognormal_of(described.output_tokens)) {
    const std::string &prompt_file = described.prompt_tokens.trace, &output_file = described.output_tokens.trace;
    if (!prompt_file.empty()) prompts_ = read_lengths(prompt_file, "prompt_tokens", described.name);
    if (!output_file.empty()) outputs_ = read_lengths(output_file, "output_tokens", described.name);
    same_rows_ = !prompt_file.empty() && prompt_file == output_file;
  }

  void draw(TraceRequest& request) {
    // Always as many numbers, so that the lengths of one do not shift with those of the other.
    const double prompt_place = random_.uniform(), prompt_normal = random_.normal();
    const double output_place = random_.uniform(), output_normal = random_.normal();
    request.prompt_tokens = tokens(prompts_, prompt_place, described_.prompt_tokens, prompt_, prompt_normal);
    request.output_tokens =
        tokens(outputs_, same_rows_ ? prompt_place : output_place, described_.output_tokens, output_, output_normal);
  }

 private:
  static std::int64_t tokens(const std::vector<std::int64_t>& rows, double place, const Length& length,
                             const LogNormal& law, double normal) {
    if (!rows.empty()) return rows[static_cast<std::size_t>(place * static_cast<double>(rows.size()))];
    const double drawn = law.sigma > 0 ? std::exp(law.mu + law.sigma * normal) : length.mean;
    constexpr double most_tokens = 1e8;
    return static_cast<std::int64_t>(std::clamp(std::round(drawn), 1.0, most_tokens));
  }

  const RequestClass& described_;
  Random random_;
  LogNormal prompt_, output_;
  std::vector<std::int64_t> prompts_, outputs_;
  bool same_rows_ = false;
};

// The arrivals of one class.
class Source {
 public:
  Source(const Workload& workload, const RequestClass& described, const ArrivalOptions& options, std::uint64_t stream)
      : arrival_(workload.arrival),
        gaps_(options.seed, 2 * stream),
        lengths_(described, options.seed, 2 * stream + 1),
        rate_per_s_(described.rate_per_s * options.rate_scale) {
    next_.class_name = described.name;
    if (arrival_.process != ArrivalProcess::constant) time_s_ = gap_s();
    next_.arrival_s = time_s_;
  }

  double next_arrival_s() const { return next_.arrival_s; }
  TraceRequest take() {
    lengths_.draw(next_);
    TraceRequest taken = next_;
    ++count_;
    time_s_ =
        arrival_.process == ArrivalProcess::constant ? static_cast<double>(count_) / rate_per_s_ : time_s_ + gap_s();
    next_.arrival_s = time_s_;
    return taken;
  }

 private:
  double gap_s() {
    if (arrival_.process == ArrivalProcess::poisson) return gaps_.exponential() / rate_per_s_;
    const double shape = 1 / (arrival_.cv * arrival_.cv);
    return gaps_.gamma(shape) / (shape * rate_per_s_);
  }

  const Arrival& arrival_;
  Random gaps_;
  Lengths lengths_;
  double rate_per_s_;
  double time_s_ = 0;
  std::int64_t count_ = 0;
  TraceRequest next_;
};

// Whether the draw ends before this arrival.
bool ends(const ArrivalOptions& options, double arrival_s, std::size_t drawn) {
  return (options.duration_s > 0 && arrival_s >= options.duration_s) ||
         (options.requests > 0 && static_cast<std::int64_t>(drawn) >= options.requests);
}

std::vector<TraceRequest> replay(const Workload& workload, const ArrivalOptions& options) {
  std::vector<TraceRequest> requests = read_trace(workload.arrival.file);
  for (TraceRequest& request : requests) request.arrival_s /= options.rate_scale;
  std::size_t count = 0;
  while (count < requests.size() && !ends(options, requests[count].arrival_s, count)) ++count;
  requests.resize(count);
  return requests;
}

void check(const Workload& workload, const ArrivalOptions& options) {
  if (!(options.rate_scale > 0) || !std::isfinite(options.rate_scale))
    throw input_error(fmt::format("the scale of the rates must be positive, found {}", options.rate_scale),
                      "give a positive number");
  if (!(options.duration_s >= 0) || options.requests < 0)
    throw input_error("duration and number of requests must not be negative", "use 0 for no limit");
  if (workload.arrival.process == ArrivalProcess::trace) return;
  if (workload.classes.empty()) throw input_error("the workload has no request classes", "add [[class]] tables");
  for (const auto& described : workload.classes)
    if (described.rate_per_s <= 0)
      throw input_error(fmt::format("class \"{}\" has no rate", described.name),
                        "give its rate, as in rate = \"4 /s\"");
  if (options.duration_s == 0 && options.requests == 0)
    throw input_error("duration and number of requests are missing", "give one of them");
  const double expected = options.duration_s * workload.total_rate_per_s() * options.rate_scale;
  if (options.requests > most_requests || (options.requests == 0 && expected > static_cast<double>(most_requests)))
    throw input_error(fmt::format("{:.3g} requests are more than can be simulated",
                                  options.requests > 0 ? static_cast<double>(options.requests) : expected),
                      fmt::format("use at most {}", most_requests));
}

}  // namespace

LogNormal lognormal_of(const Length& length) {
  double sigma = 0;
  if (length.p50 > 0 && length.p99 > 0) {
    sigma = std::log(length.p99 / length.p50) / z99;
  } else if (length.p50 > 0 && length.mean > length.p50) {
    sigma = std::sqrt(2 * std::log(length.mean / length.p50));
  } else if (length.p99 > length.mean) {
    // p99 / mean = exp(z sigma - sigma^2 / 2), which is largest at sigma = z.
    sigma = z99 - std::sqrt(std::max(0.0, z99 * z99 - 2 * std::log(length.p99 / length.mean)));
  }
  return {std::log(length.mean) - sigma * sigma / 2, sigma};
}

Workload with_rate(Workload workload, double rate_per_s) {
  if (workload.arrival.process == ArrivalProcess::trace)
    throw input_error("--rate cannot be combined with a trace, which has its own arrivals",
                      "change the speed of the trace with --rate-scale");
  const double total = workload.total_rate_per_s();
  for (RequestClass& described : workload.classes)
    described.rate_per_s = total > 0 ? described.rate_per_s / total * rate_per_s
                                     : rate_per_s / static_cast<double>(workload.classes.size());
  return workload;
}

std::vector<TraceRequest> draw_requests(const Workload& workload, const ArrivalOptions& options) {
  check(workload, options);
  if (workload.arrival.process == ArrivalProcess::trace) return replay(workload, options);
  std::vector<Source> sources;
  for (std::size_t i = 0; i < workload.classes.size(); ++i)
    sources.emplace_back(workload, workload.classes[i], options, i);
  std::vector<TraceRequest> requests;
  for (;;) {
    const auto first = std::ranges::min_element(sources, {}, &Source::next_arrival_s);
    if (ends(options, first->next_arrival_s(), requests.size())) return requests;
    requests.push_back(first->take());
  }
}

}  // namespace motley
