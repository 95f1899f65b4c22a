// The membership protocol, explored exhaustively: membership_explore [changes] [deaths] [steps] [learners]
#include <fmt/format.h>

#include <chrono>
#include <string>

#include "motley/comm/membership/membership_exploration_test.hpp"

int main(int argc, char** argv) {
  motley::exploration::Budget budget;
  if (argc > 1) budget.changes = std::stoi(argv[1]);
  if (argc > 2) budget.deaths = std::stoi(argv[2]);
  if (argc > 3) budget.steps = std::stoul(argv[3]);
  if (argc > 4) budget.learners = std::string(argv[4]) == "learners";
  const auto start = std::chrono::steady_clock::now();
  const auto result = motley::exploration::explore(budget, 256);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  fmt::print("{} changes, {} deaths, {} steps: {} states, {} transitions, {:.1f} s: {}\n", budget.changes,
             budget.deaths, budget.steps, result.states, result.transitions, elapsed.count(),
             result.failure.empty() ? "no contradiction, and every group heals" : result.failure);
  return result.failure.empty() ? 0 : 1;
}
