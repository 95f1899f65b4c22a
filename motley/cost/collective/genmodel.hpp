// GenModel: what a collective costs, with incast and memory access (Xiong et al., arXiv 2409.04202).
//
// Rounds in sequence: the sum over the rounds of
//     the greatest latency of a path
//   + max over ports of load * (beta + epsilon * max(w - w_t, 0))
//   + max over ranks of added * gamma + accessed * delta
// with w = 1 + the ports that feed this one in the round, the receiver being counted; adding k blocks to one's own
// reads k + 1 and writes 1.
//
// Pipelined in Q chunks, the halves overlapping:
//     sum over the rounds of latency + (port + rank) / Q
//   + (Q - 1) / Q * the busiest port's or rank's time over all rounds together
//   + (Q - 1) * messages of the busiest rank * the time that one more message costs.
// With Q = 1 both are the same.
#pragma once

#include <string>
#include <vector>

#include "motley/cost/collective/collective_network.hpp"
#include "motley/cost/form/term.hpp"
#include "motley/plan/collective_programs.hpp"

namespace motley {

struct CollectiveCostOptions {
  double message_s = 1e-5;  // of a rank, per message that chunking adds: a system call and a wake-up
};

struct RoundCost {
  double latency_s = 0;
  double transfer_s = 0, incast_s = 0;  // of the port that takes longest
  double add_s = 0, access_s = 0;       // of the rank that takes longest
  std::string port;
  int rank = -1;
  double sum() const { return latency_s + transfer_s + incast_s + add_s + access_s; }
};

// Of one vector that is not cut.
struct CollectiveCost {
  std::vector<RoundCost> rounds;
  double time_s = 0;    // rounds in sequence
  double steady_s = 0;  // the busiest port, its bytes alone: what the limit bounds
  std::string steady_port;
  double full_share = 0;  // of the ports that carry anything: those as busy as the busiest, to a fiftieth
  double busy_s = 0;      // the busiest port with its incast, or the busiest rank
  std::string busy;
  double messages = 0;   // of the busiest rank: peers that it sends to or hears of, over all rounds
  double latency_s = 0;  // of all rounds

  double pipelined_s(int chunks, const CollectiveCostOptions& options) const;
  // The chunks that cost least, at most `most`.
  int best_chunks(int most, const CollectiveCostOptions& options) const;
};

// `scale`: bytes of the vector per byte of the transfers' ranges. Transfers of one pair of ranks stand side by side.
CollectiveCost price_rounds(const CollectiveNetwork& network, const std::vector<CollectiveRound>& rounds,
                            double scale = 1);

// Transfers that a program makes, in rounds: additions as early as what their ranges depend on allows (additions to one
// range do not wait for each other), then copies as late as those who hand them on allow, so that an all-gather is the
// mirror image of its reduce-scatter. Where an addition needs a copy, everything as early as it can be. The program
// must be sound (check_program()).
std::vector<CollectiveRound> rounds_of(const CollectiveProgram& program);
// The same of transfers that are in rounds already.
std::vector<CollectiveRound> settled_rounds(const std::vector<CollectiveRound>& rounds, int ranks);

// The cost as a tree: rounds in sequence, alike ones together.
Term genmodel_term(const CollectiveCost& cost);
// Fill, steady state, messages.
Term pipelined_term(const CollectiveCost& cost, int chunks, const CollectiveCostOptions& options);

// Closed forms of plans on one switch, per byte of the vector; the figures that published tables are made of.
struct PlanCounts {
  double rounds = 0;    // A
  double moved = 0;     // B: through the busiest port
  double added = 0;     // C
  double accessed = 0;  // D
  double excess = 0;    // sum over rounds of bytes * max(w - w_t, 0)
};
PlanCounts factored_counts(const std::vector<int>& factors, int threshold);
PlanCounts ring_counts(int ranks);

// P10 and its like: constants of a switch whose ports are alike.
struct GenModelConstants {
  double alpha_s = 0;  // per round
  double beta_s_per_byte = 0;
  double gamma_s_per_byte = 0;
  double delta_s_per_byte = 0;
  double epsilon_s_per_byte = 0;
  int threshold = 0;  // w_t; 0: no incast
};
double genmodel_seconds(const PlanCounts& counts, const GenModelConstants& constants, double bytes);

}  // namespace motley
