// The operations of a block in training: those of the engine that autograd follows, and in place of some of them such
// as keep for the backward pass what the plan's memory counts (stored_elements_per_token(), model/training.hpp) and no
// more.
#pragma once

#include "motley/engine/ops.hpp"

namespace motley {

const Ops& train_ops();

}  // namespace motley
