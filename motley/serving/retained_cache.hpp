// Which running requests find their keys and values again after a change of plan, and which stages lack them: workers
// that stay keep those of the layers that they still hold, in the same blocks. A value, without workers.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/batching/router.hpp"
#include "motley/plan/serve_plan.hpp"
#include "motley/workers/worker_messages.hpp"

namespace motley {

// By stage: since which epoch all its ranks have kept the keys and values of all its layers.
using CacheEpochs = std::map<std::string, std::uint64_t>;

class RetainedCache {
 public:
  // The plan of `epoch` ends, with these sequences under way; those of an earlier one are forgotten.
  void take(const ServePlan& plan, std::uint64_t epoch, const Router& router);
  // The workers are launched for another plan: what it has no room for is lost.
  void follow(const ServePlan& plan);
  // Workers hand over keys and values to others of the plan that was followed last.
  void receive(const std::vector<CacheMove>& moves, const ServePlan& plan);
  void clear() { sequences_.clear(); }

  // Blocks of the sequences, as far as every worker of the plan that was followed last has room for them, in order.
  std::vector<std::int32_t> blocks(const ServePlan& plan) const;
  std::vector<std::int32_t> slots(const ServePlan& plan) const;  // alike
  std::int64_t tokens() const;                                   // of all sequences

  // What is there of a sequence on a route of the plan that was followed last; none where every stage lacks it.
  std::optional<CachedTokens> find(std::uint64_t id, const ServePlan& plan, const Route& route,
                                   const CacheEpochs& epochs) const;
  // Of the router that the sequence comes from: block ids of two groups may be the same. Throws without such a
  // sequence.
  std::size_t group_of(std::uint64_t id) const { return sequences_.at(id).group; }

 private:
  struct Sequence {
    std::size_t group = 0;
    CachedTokens cached;
  };
  struct DeviceCache {
    std::size_t group = 0;
    std::int64_t blocks = 0, slots = 0;  // the fewest that there were
  };

  std::uint64_t epoch_ = 0;
  std::int64_t block_tokens_ = 0;
  std::map<std::uint64_t, Sequence> sequences_;
  std::map<std::string, DeviceCache> devices_;
};

}  // namespace motley
