#include "motley/engine/stage/model_ends.hpp"

namespace motley {

void look_up(const EndCall& pass, BlockRanks& ranks, const at::Tensor& tokens, const Span& rows, at::Tensor& out) {
  pass.ops.embedding(out, tokens, pass.weights.embedding, rows);
  ranks.sum(out);
}

void enter_blocks(const EndCall& pass, const at::Tensor& positions, const at::Tensor& looked_up, at::Tensor& learned,
                  at::Tensor& hidden) {
  if (pass.weights.projection_in.defined())
    pass.ops.linear(hidden, looked_up, pass.weights.projection_in, {});
  else
    hidden = looked_up;
  if (pass.arch.embedding_factor != 1) pass.ops.scale(hidden, pass.arch.embedding_factor);
  if (!pass.weights.position.defined()) return;
  pass.ops.embedding(learned, positions + pass.arch.position_offset, pass.weights.position,
                     {0, pass.arch.position_rows});
  pass.ops.add(hidden, learned, {});
}

at::Tensor leave_blocks(const EndCall& pass, const at::Tensor& hidden, at::Tensor projected) {
  at::Tensor rows = hidden;
  if (pass.arch.final_norm)
    pass.ops.norm(pass.arch.norm, rows, hidden, pass.weights.final_norm, pass.arch.norm_epsilon);
  if (!pass.weights.projection_out.defined()) return rows;
  pass.ops.linear(projected, rows, pass.weights.projection_out, {});
  return projected;
}

}  // namespace motley
