// The bytes of each rank of a stage, as planner and engine count them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/model/caches.hpp"

namespace motley {

struct RankBytes {
  Shard shard;
  std::int64_t weights = 0, kv = 0, activations = 0;
};

std::vector<RankBytes> rank_bytes(const Architecture& arch, const ModelPart& part, int degree,
                                  const std::vector<double>& shares, DType weight_type, DType kv_type,
                                  const CacheRoom& caches, const StepLimits& step);

std::string rank_bytes_report(const std::vector<RankBytes>& ranks);
Value rank_bytes_json(const std::vector<RankBytes>& ranks);

}  // namespace motley
