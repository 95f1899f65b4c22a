// The best policy by the published form, exactly.
//
// For one batch and number of batches the shares are a linear program. Divided by the number of batches, and with its
// inverse v as an unknown, times and memory of a whole range of numbers are linear in v, the shares, and their products
// with v: relaxed to their envelopes, one linear program bounds the range. Ranges of all batches are branched on, best
// bound first, until no bound is better than the best policy found. FlexGen's own search follows batches of 1, 2, 3, 4,
// 8, 16, ... only.
#pragma once

#include <cstdint>
#include <optional>

#include "motley/cost/published/flexgen.hpp"

namespace motley {

struct FlexgenFound {
  FlexgenPolicy policy;
  double tokens_per_s = 0;
  std::int64_t evaluated = 0;  // linear programs
};
// None: not even one sequence fits.
std::optional<FlexgenFound> search_flexgen(const FlexgenCase& input, double headroom = flexgen_headroom);

// The best shares for one shape of the block; none where it does not fit.
std::optional<FlexgenFound> best_shares(const FlexgenCase& input, std::int64_t batch, std::int64_t batches,
                                        double headroom = flexgen_headroom);

}  // namespace motley
