// What the simulator knows of a plan that does not change while it runs: the hops of every chain, and the time that
// steps take on stages and links.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "motley/batching/router.hpp"
#include "motley/cost/serve/step.hpp"

namespace motley::sim {

inline constexpr std::uint32_t no_link = ~std::uint32_t{0};

// From one stage to another. Messages of different size may take different pairs of devices.
struct Way {
  std::uint32_t link = no_link;
  PathSpeed small, large;   // the fastest pair for one token, and for a full step
  double token_bytes = 0;   // of a token's hidden state, as the sender has it
  double tokens_per_s = 0;  // measured; 0: not
  const LinkRate* rate = nullptr;

  PathSpeed path(double bytes) const { return small.seconds(bytes) <= large.seconds(bytes) ? small : large; }
  // How long the sending keeps the link busy.
  double occupancy_s(double tokens, double bytes) const;
  double latency_s(double bytes) const { return path(bytes).latency_s; }
};

struct StageHop {
  std::uint32_t stage = 0;
  std::int64_t layers = 0;
  StageEnds ends;
  Way next;  // to the following hop; after the last one none
};

// Keys and values from a stage that prefilled to one that decodes.
struct Transfer {
  Way way;
  double bytes_per_token = 0;
};

struct ChainModel {
  std::vector<StageHop> hops;
  PathSpeed back;                   // of the tokens from the last hop to the first; none where they are one
  std::vector<Transfer> transfers;  // at the end of a chain that prefills: to the stages of the chain that decodes
};

struct StageModel {
  TensorGroup group;                 // one rank of each kind: the others are alike
  double measured_tokens_per_s = 0;  // 0: not measured
  int workers = 1;                   // one per rank
};

struct LinkModel {
  std::string from, to;  // machines; stages inside one
};

class Network {
 public:
  // Plan and router must outlive it.
  Network(const ServePlan& plan, const Router& router, const CostOptions& options);

  const std::vector<StageModel>& stages() const { return stages_; }
  const std::vector<ChainModel>& chains() const { return chains_; }
  const std::vector<LinkModel>& links() const { return links_; }

  StepLoad load_of(const RoutedStep& step) const;
  double stage_s(const StageHop& hop, const StepLoad& load) const;
  // Of sampled tokens from the last stage to the first, or through the driver to the next step.
  double back_s(const ChainModel& chain, double sequences) const;
  // Of a request, beside its steps.
  double request_s() const { return cost_.driver().request_s; }

 private:
  Way way(std::uint32_t from, std::uint32_t to);
  std::uint32_t link_between(std::uint32_t from_stage, std::uint32_t to_stage, int from, int to);
  ChainModel chain_model(const RouteChain& chain, const std::map<std::string, std::uint32_t>& stage_numbers);
  void add_transfers(ChainModel& prefill, const ChainModel& decode, std::size_t route);

  const ServePlan& plan_;
  StepCost cost_;
  std::vector<StageModel> stages_;
  std::vector<ChainModel> chains_;
  std::vector<LinkModel> links_;
  std::map<std::tuple<bool, std::uint32_t, std::uint32_t>, std::uint32_t> link_numbers_;  // inside a machine; ends
};

}  // namespace motley::sim
