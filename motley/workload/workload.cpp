#include "motley/workload/workload.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace motley {
namespace {

template <class Tokens>
double weighted_mean(const Workload& workload, Tokens tokens) {
  const bool rated = workload.total_rate_per_s() > 0;
  double sum = 0, weights = 0;
  for (const auto& described : workload.classes) {
    const double weight = rated ? described.rate_per_s : 1;
    sum += weight * tokens(described);
    weights += weight;
  }
  return weights > 0 ? sum / weights : 0;
}

}  // namespace

double Workload::mean_prompt_tokens() const {
  return weighted_mean(*this, [](const RequestClass& described) { return described.prompt_tokens.mean; });
}

double Workload::mean_cached_tokens() const {
  return weighted_mean(
      *this, [](const RequestClass& described) { return described.cached_share * described.prompt_tokens.mean; });
}

double Workload::mean_output_tokens() const {
  return weighted_mean(*this, [](const RequestClass& described) { return described.output_tokens.mean; });
}

double Workload::total_rate_per_s() const {
  double total = 0;
  for (const auto& described : classes) total += described.rate_per_s;
  return total;
}

double learning_rate(const Training& training, std::int64_t step, std::int64_t total_steps) {
  const double highest = training.learning_rate, lowest = training.min_learning_rate;
  const auto warm_up = static_cast<double>(training.warmup_steps), at = static_cast<double>(step);
  if (step <= training.warmup_steps) return highest * at / warm_up;
  if (training.schedule == RateSchedule::constant) return highest;
  const auto end = static_cast<double>(training.total_steps > 0 ? training.total_steps : total_steps);
  const double passed = end > warm_up ? std::min(1.0, (at - warm_up) / (end - warm_up)) : 1;
  const double left =
      training.schedule == RateSchedule::linear ? 1 - passed : 0.5 * (1 + std::cos(std::numbers::pi * passed));
  return lowest + (highest - lowest) * left;
}

Workload default_workload() {
  Workload workload;
  RequestClass& chat = workload.classes.emplace_back();
  chat.name = "chat";
  chat.prompt_tokens.mean = 512;
  chat.output_tokens.mean = 128;
  return workload;
}

Workload with_deadlines_scaled(Workload workload, double factor) {
  for (auto& request : workload.classes) {
    request.deadline.first_token_s *= factor;
    request.deadline.per_token_s *= factor;
    request.deadline.total_s *= factor;
  }
  return workload;
}

}  // namespace motley
