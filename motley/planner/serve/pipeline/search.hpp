// The search for the best layout of one pipeline over some devices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "motley/planner/serve/pipeline/serve_problem.hpp"
#include "motley/planner/serve/pipeline/stage_table.hpp"

namespace motley {

struct Candidate {
  std::shared_ptr<const StageTable> table;
  Chain chain;
  ChainOffload offload = {};  // of its stages
  std::int64_t batch = 1;     // requests in flight per pipeline
  std::int64_t micro_batches = 1;
  double latency_s = 0;  // of a request at that batch
  double requests_per_s = 0;
  double first_token_s = 0;
  double excess = 0;  // over the deadlines
};

// Strictly better by the objective; equal figures (within the tolerance) go on to the next criterion.
bool better(const Candidate& a, const Candidate& b, Objective objective);

struct PartAnswer {
  std::optional<Candidate> best;
  bool exact = false;  // every device by itself, every state visited
  std::int64_t evaluated = 0;
};

PartAnswer search_part(const ServeProblem& problem, const std::vector<int>& devices);

// All non-dominated layouts of one pipeline over all of these devices, for one request (or job) at a time.
std::vector<FrontEntry> whole_front(const ServeProblem& problem, const std::vector<int>& devices);

// For every class of which the candidate leaves units idle: why.
struct IdleUnits {
  std::vector<int> devices;
  std::string reason;
};
std::vector<IdleUnits> explain_idle(const ServeProblem& problem, const Candidate& candidate);

// The most layers that one pipeline over these devices can hold.
std::int64_t most_layers_placed(const ServeProblem& problem, const std::vector<int>& devices);

}  // namespace motley
