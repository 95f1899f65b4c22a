// OSDP's single chain on the chain kernel: operators that are replicated or sharded, whole or in slices, within the
// memory of a device; the batch of most samples per second; and the released search over its table of blocks.
#pragma once

#include <optional>
#include <vector>

#include "motley/cost/published/osdp.hpp"
#include "motley/solve/strategy_chain.hpp"

namespace motley {

struct OsdpPlan {
  double samples = 0;               // per rank and micro-batch
  std::vector<OsdpOption> options;  // of every operator
  double step_s = 0;
  double bytes = 0;
  double samples_per_s = 0;  // of all ranks
};

// None: it does not fit, and `shortage` says which operator and how much would do.
struct OsdpOutcome {
  std::optional<OsdpPlan> plan;
  StrategyShortage shortage;
};

// For the setting's samples.
OsdpOutcome plan_osdp(const std::vector<OsdpOperator>& operators, const OsdpSetting& setting, double limit_bytes);
// For 1, 2, ... samples per rank, up to the first that does not fit: the plan of most samples per second.
OsdpOutcome plan_osdp_batch(const std::vector<OsdpOperator>& operators, OsdpSetting setting, double limit_bytes,
                            int most_samples = 1024);

StrategyChain osdp_chain(const std::vector<OsdpOperator>& operators, const OsdpSetting& setting);

// ---- the released table ----

enum class OsdpMemory { exact, truncated };  // to whole MB, as released

// Equal blocks of a table's row; bytes of the chain are MB.
StrategyChain osdp_blocks_chain(const OsdpBlock& block, std::size_t row, std::int64_t count, OsdpMemory memory);

struct OsdpBlocksPlan {
  std::size_t row = 0;
  std::vector<int> levels;
  double step_s = 0;
  double memory_mb = 0;
};

// The released search: rows 1 to 3, until one does not fit; of these the plan of least time, whatever its batch; memory
// truncated. None where the first row does not fit (the released program then takes the least of an empty list, and
// stops).
std::optional<OsdpBlocksPlan> search_osdp_released(const OsdpBlocks& blocks, std::int64_t hidden, std::int64_t count,
                                                   double limit_mb);

}  // namespace motley
