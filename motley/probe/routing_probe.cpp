#include "motley/probe/routing_probe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "motley/base/clock.hpp"
#include "motley/probe/fit/routing_counts.hpp"
#include "motley/probe/probe_run.hpp"
#include "motley/workers/local_fleet.hpp"

namespace motley {
namespace {

constexpr std::int64_t most_text_tokens = 4096, fewest_text_tokens = 256;
constexpr std::int64_t longest_piece = 512;  // tokens, of the text, that see each other
constexpr std::int64_t kv_block_tokens = 16;

// One worker with the whole model, which runs a piece of the text in one step.
ServePlan routing_plan(const RoutingProbeOptions& options, std::int64_t piece) {
  const StepLimits limits{.max_tokens = piece, .max_sequences = 1, .block_tokens = kv_block_tokens};
  ServePlan plan = probe_plan(options.model, limits, piece, {{{{1, options.model.arch.layers}}, options.weight_type}});
  plan.stages.front().kv_type = dtype_row(options.weight_type).computed_in;
  return plan;
}

}  // namespace

Profile probe_routing(const RoutingProbeOptions& options) {
  const Architecture& arch = options.model.arch;
  if (!arch.has_experts())
    throw input_error(fmt::format("{} has no experts: there is no routing to count", options.model.name),
                      "give a mixture of experts, or leave --routing out");
  const std::int64_t tokens =
      std::min(most_text_tokens, std::ssize(options.text)) / largest_routing_group * largest_routing_group;
  if (tokens < fewest_text_tokens)
    throw input_error(
        fmt::format("the text must have at least {} tokens, found {}", fewest_text_tokens, std::ssize(options.text)),
        fmt::format("give a longer one: up to {} tokens count", most_text_tokens));
  const Instant start = Clock::now();
  const std::int64_t piece = std::min(longest_piece, arch.context);
  LocalFleet fleet({.program = options.worker_program, .threads = options.threads});
  ProbeRun run(routing_plan(options, piece), fleet, options.weights);
  std::map<std::int64_t, TokenExperts> by_layer;
  for (std::int64_t first = 0; first < tokens; first += piece) {
    const std::int64_t count = std::min(piece, tokens - first);
    StepSequence part{.sequence = static_cast<std::uint64_t>(first) + 1, .count = count};
    part.tokens.assign(options.text.begin() + first, options.text.begin() + first + count);
    for (std::int64_t block = 0; block * kv_block_tokens < count; ++block)
      part.blocks.push_back(static_cast<std::int32_t>(block));
    const StepResult result = run.run({.sequences = {std::move(part)}, .answer = Answer::experts}).front();
    for (const LayerExperts& taken : result.experts) {
      std::vector<std::int32_t>& all =
          by_layer.try_emplace(taken.layer, TokenExperts{taken.layer, {}}).first->second.experts;
      all.insert(all.end(), taken.experts.begin(), taken.experts.end());
    }
    if (options.report) options.report(fmt::format("{} of {} tokens", first + count, tokens), seconds_since(start));
  }
  std::vector<TokenExperts> taken;
  for (auto& [layer, experts] : by_layer) taken.push_back(std::move(experts));
  Profile profile;
  profile.routing = count_experts(options.model, taken);
  profile.gamma = fit_gamma(options.model, profile.routing);
  return profile;
}

}  // namespace motley
