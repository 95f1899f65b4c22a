// What stands before the blocks of a model and behind them, for serving and for training alike, as run_block() is.
#pragma once

#include <ATen/ATen.h>

#include "motley/engine/device/collectives.hpp"
#include "motley/engine/ops/ops.hpp"
#include "motley/engine/weights/block_weights.hpp"

namespace motley {

struct EndCall {
  const Architecture& arch;
  const Ops& ops;
  const EndWeights& weights;
};

// out [T, embedding dim] = the embedding of `tokens`. Every rank looks up those of the table's `rows`, which it holds,
// and the sum puts them together.
void look_up(const EndCall& pass, BlockRanks& ranks, const at::Tensor& tokens, const Span& rows, at::Tensor& out);

// hidden [T, hidden] = what the first block reads: what was looked up, projected and with learned positions where the
// model has these. `learned` [T, hidden] may hold them in between; without a projection `hidden` is `looked_up`.
void enter_blocks(const EndCall& pass, const at::Tensor& positions, const at::Tensor& looked_up, at::Tensor& learned,
                  at::Tensor& hidden);

// What the head's matrix meets of hidden [rows, hidden]: through the final norm, in place where the operations are, and
// the projection, which `projected` may hold.
at::Tensor leave_blocks(const EndCall& pass, const at::Tensor& hidden, at::Tensor projected);

}  // namespace motley
