// Choosing a token from one row of logits. In this order, as OpenAI's and vLLM's documents have it:
//   1. logit bias is added; 2. forbidden tokens go; 3. presence and frequency penalties of the output so far are
//   subtracted;
//   4. temperature: 0 takes the largest logit, ties to the lowest id, and ends here; 5. top-k; 6. top-p: the fewest of
//   the most likely tokens that reach p together; 7. min-p: those at least min-p times as likely as the first;
//   8. one uniform number, a function of (seed, position) alone, picks among what is left.
// Log-probabilities are those of the model: log-softmax of the logits before any of the above.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "motley/base/random.hpp"
#include "motley/engine/stage/sampler.hpp"

namespace motley {
namespace {

constexpr float never = -std::numeric_limits<float>::infinity();

struct Candidate {
  std::int32_t token;
  double weight;  // unnormalised probability
};

// Steps 1 to 3. NaN counts as impossible.
std::vector<float> adjusted(std::span<const float> logits, const Sampling& sampling) {
  std::vector<float> out(logits.begin(), logits.end());
  const auto at = [&](std::int32_t token) -> float* {
    return token >= 0 && static_cast<std::size_t>(token) < out.size() ? &out[static_cast<std::size_t>(token)] : nullptr;
  };
  for (const auto& [token, bias] : sampling.logit_bias)
    if (float* logit = at(token)) *logit += bias;
  if (sampling.presence_penalty != 0 || sampling.frequency_penalty != 0) {
    std::map<std::int32_t, int> counts;
    for (const std::int32_t token : sampling.generated) ++counts[token];
    for (const auto& [token, count] : counts)
      if (float* logit = at(token))
        *logit -= sampling.presence_penalty + sampling.frequency_penalty * static_cast<float>(count);
  }
  for (const std::int32_t token : sampling.forbidden)
    if (float* logit = at(token)) *logit = never;
  for (float& logit : out)
    if (std::isnan(logit)) logit = never;
  return out;
}

bool more_likely(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

// The fewest of the most likely candidates that hold `share` of all weight together. A heap, because they are few of
// many.
void keep_most_likely(std::vector<Candidate>& candidates, double share) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  const auto less_likely = [](const Candidate& a, const Candidate& b) { return more_likely(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), less_likely);
  auto rest = candidates.end();
  for (double sum = 0; rest != candidates.begin() && (sum == 0 || sum < share * total);) {
    std::pop_heap(candidates.begin(), rest, less_likely);
    sum += (--rest)->weight;
  }
  candidates.erase(candidates.begin(), rest);
}

// Steps 5 to 7 on all tokens' weights.
std::vector<Candidate> filtered(std::vector<Candidate> candidates, const Sampling& sampling) {
  if (sampling.top_k > 0 && static_cast<std::size_t>(sampling.top_k) < candidates.size()) {
    const auto end = candidates.begin() + sampling.top_k;
    std::nth_element(candidates.begin(), end - 1, candidates.end(), more_likely);
    candidates.erase(end, candidates.end());
  }
  if (sampling.top_p < 1) keep_most_likely(candidates, static_cast<double>(sampling.top_p));
  if (sampling.min_p > 0) {
    const Candidate best = *std::min_element(candidates.begin(), candidates.end(), more_likely);
    std::erase_if(candidates, [&](const Candidate& candidate) {
      return candidate.token != best.token && candidate.weight < best.weight * static_cast<double>(sampling.min_p);
    });
  }
  // The order decides which token a number falls on: by id, whatever the filters left it in.
  if (!std::ranges::is_sorted(candidates, {}, &Candidate::token)) std::ranges::sort(candidates, {}, &Candidate::token);
  return candidates;
}

std::int32_t draw(const std::vector<Candidate>& candidates, double uniform) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  const double target = uniform * total;
  double sum = 0;
  std::int32_t last = candidates.front().token;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight == 0) continue;
    last = candidate.token;
    sum += candidate.weight;
    if (sum > target) break;
  }
  return last;  // of those with any weight, where rounding leaves the target beyond the sum
}

std::int32_t choose(std::span<const float> logits, const Sampling& sampling, std::int64_t position) {
  const std::vector<float> scores = adjusted(logits, sampling);
  const auto best = std::max_element(scores.begin(), scores.end());  // the first of equals
  if (best == scores.end() || *best == never)
    throw Error(ErrorCode::internal, "no token can be sampled: all logits are excluded or not a number",
                "check the weights, and the request's logit_bias");
  if (sampling.temperature == 0 || std::isinf(*best)) return static_cast<std::int32_t>(best - scores.begin());
  std::vector<Candidate> candidates;
  candidates.reserve(scores.size());
  for (std::size_t token = 0; token < scores.size(); ++token)
    candidates.push_back(
        {static_cast<std::int32_t>(token), std::exp((static_cast<double>(scores[token]) - static_cast<double>(*best)) /
                                                    static_cast<double>(sampling.temperature))});
  return draw(filtered(std::move(candidates), sampling),
              uniform_at(sampling.seed, static_cast<std::uint64_t>(position)));
}

// log(sum of e^logit)
double log_normaliser(std::span<const float> logits) {
  const auto maximum = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - maximum);
  return maximum + std::log(sum);
}

}  // namespace

TokenScore score(std::span<const float> logits, std::int32_t token, std::int32_t top) {
  const double normaliser = log_normaliser(logits);
  const auto logprob = [&](std::int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<std::size_t>(id)]) - normaliser);
  };
  TokenScore out{.logprob = logprob(token)};
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto count = std::min(static_cast<std::size_t>(top), order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  for (std::size_t i = 0; i < count; ++i) out.top.push_back({order[i], logprob(order[i])});
  return out;
}

SampledToken sample(std::span<const float> logits, const Sampling& sampling, std::uint64_t sequence,
                    std::int64_t position) {
  SampledToken out{.sequence = sequence, .token = choose(logits, sampling, position)};
  if (sampling.logprobs < 0) return out;
  TokenScore scored = score(logits, out.token, sampling.logprobs);
  out.logprob = scored.logprob;
  out.top = std::move(scored.top);
  return out;
}

}  // namespace motley
