// What the simulator knows of a plan that does not change while it runs: the hops of every chain, and the time that
// steps take on stages and links.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/batching/router.hpp"
#include "motley/cost/serve/step_time.hpp"

namespace motley::sim {

inline constexpr std::uint32_t no_link = ~std::uint32_t{0};

// From one stage to another.
struct Way {
  std::uint32_t link = no_link;
  HopTime time = {};
};

struct StageHop {
  std::uint32_t stage = 0;
  StageTime time = {};
  Way next = {};  // to the following hop; after the last one none
  // No other stage sends over that link: the steps leave in the order in which they come.
  bool leaves_in_order = true;
};

// Keys and values from a stage that prefilled to one that decodes.
struct Transfer {
  Way way;
  LayerRange layers;  // whose keys and values it is
  DType kv_type = DType::bf16;
};

struct ChainModel {
  std::vector<StageHop> hops = {};
  MessageTime back = {};                 // of the tokens from the last hop to the first, or through the driver
  std::vector<Transfer> transfers = {};  // at the end of a chain that prefills: to the stages of the chain that decodes
};

struct LinkModel {
  std::string from, to;  // machines; stages inside one
};

class Network {
 public:
  // Plan and router must outlive it. `times`: of a plan with one route, instead of the cost model's.
  Network(const ServePlan& plan, const Router& router, const std::optional<PipelineTime>& times = {});

  const std::vector<ChainModel>& chains() const { return chains_; }
  const std::vector<LinkModel>& links() const { return links_; }

  StepLoad load_of(const RoutedStep& step) const;
  int workers(std::uint32_t stage) const { return times_.group(stage).degree(); }  // one per rank
  double request_s() const { return times_.request_s(); }  // of a request, in addition to its steps

 private:
  static void take(const PipelineTime& times, ChainModel& chain);
  void find_shared_links();
  Way way(std::uint32_t from, std::uint32_t to, HopTime time);
  std::uint32_t link_between(std::uint32_t from_stage, std::uint32_t to_stage, const HopTime& time);
  ChainModel chain_model(const RouteChain& chain);
  void add_transfers(ChainModel& prefill, const ChainModel& decode, std::size_t route);

  const ServePlan& plan_;
  const StepTimes& times_;
  std::int64_t window_ = 0;
  std::vector<ChainModel> chains_;
  std::vector<LinkModel> links_;
  std::map<LinkKey, std::uint32_t> link_numbers_;
};

}  // namespace motley::sim
