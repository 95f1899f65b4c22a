// What the planner chooses among: recipes that make rounds for a vector of any size.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/clock.hpp"
#include "motley/planner/collective/collective_options.hpp"
#include "motley/planner/collective/share_tree.hpp"

namespace motley {

// What is planned; ranks are canonical, `block_of` says where a rank's block lies in the vector.
struct CollectiveProblem {
  const CollectiveNetwork& network;
  CollectiveOperation operation = CollectiveOperation::all_reduce;
  int root = 0;
  std::int64_t bytes = 0;
  std::vector<int> block_of;
  CollectiveOptions options;
  Instant start;

  bool expired() const;
  double left_s() const;
  bool of_blocks() const;
};

// Rounds for a vector (or chunk) of this many bytes; none where there would be too many transfers.
using RoundsFor = std::function<std::optional<std::vector<CollectiveRound>>(std::int64_t bytes)>;

// The same in the rounds that the program will be priced in: for hierarchies whose parts are not equally deep.
RoundsFor settled(RoundsFor rounds, int ranks);

struct CollectiveRecipe {
  std::string layout;
  RoundsFor rounds;
};

struct ScoredRecipe {
  CollectiveRecipe recipe;
  double seconds = 0;  // by the objective
  double steady_s = 0;
};

// Keeps the best recipe it has seen; the first of equals.
class RecipeContest {
 public:
  explicit RecipeContest(const CollectiveProblem& problem) : problem_(problem) {}

  // What is compared: the time by the objective, full ports counted against it.
  double seconds(const CollectiveCost& cost) const;
  // Its score, or none where it has too many transfers.
  std::optional<ScoredRecipe> score(const CollectiveRecipe& recipe);
  void enter(const CollectiveRecipe& recipe);
  void keep(ScoredRecipe scored);

  const std::optional<ScoredRecipe>& best() const { return best_; }
  std::int64_t evaluated() const { return evaluated_; }

 private:
  const CollectiveProblem& problem_;
  std::optional<ScoredRecipe> best_;
  std::int64_t evaluated_ = 0;
};

int most_chunks(const CollectiveProblem& problem);

// Hierarchies along the network's tree: for every kind of switch the groups that its branches are merged in.
void enter_hierarchies(const CollectiveProblem& problem, RecipeContest& contest);
// A ring; where links are unlike pair by pair, groups of ranks that fast links join.
void enter_rings(const CollectiveProblem& problem, RecipeContest& contest);
void enter_islands(const CollectiveProblem& problem, RecipeContest& contest);
// Chains and trees of a broadcast.
void enter_broadcasts(const CollectiveProblem& problem, RecipeContest& contest);
// Packed spanning trees. Returns the bound that the packing proved, seconds; 0: none was tried.
double enter_packing(const CollectiveProblem& problem, double limit_s, RecipeContest& contest);

// Ranks in an order that crosses slow links as rarely as possible.
std::vector<int> ring_order(const CollectiveNetwork& network);

}  // namespace motley
