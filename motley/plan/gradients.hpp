// Which gradients of a training plan are added up, tensor by tensor: what a runtime has to do once per step.
#pragma once

#include <string>
#include <vector>

#include "motley/plan/train_plan.hpp"

namespace motley {

// A device whose gradient counts in a sum, multiplied by `weight`: one nth where all n ranks of a tensor-parallel group
// hold the same gradient, otherwise 1.
struct GradientHolder {
  std::string device;
  double weight = 1;
  bool operator==(const GradientHolder&) const = default;
};

// A part of one tensor of the checkpoint, and everyone who ends with the weighted sum of all holders' gradients of it.
struct GradientSlice {
  TensorSpec tensor;
  Slice slice;  // rows and columns of the whole tensor
  std::vector<GradientHolder> holders;
};

// Every element of every tensor, once. A tensor is cut wherever any holder's part of it ends (common refinement), so
// degrees, shares and layouts in memory may differ: no part crosses a head, a gate or a tensor that a holder
// stores elsewhere.
//
// A device's gradient is that of the sum, over the tokens that it worked on, of their losses, divided by the tokens of
// the whole step: unlike shares of the batch weigh as they should. The ranks of a tensor-parallel group hold it as
// backward passes leave it that add up the gradients of a column-parallel product's input: whole for norms, for biases
// added after row-parallel products and for learned positions; only of their own heads for norms inside attention and
// for a key/value head that several ranks hold. With zero2 and zero3 a stage's data-parallel ranks have reduced their
// gradients before, and each holds one of dp parts, in their order, of its tensor-parallel part.
//
// The plan must have passed verify().
std::vector<GradientSlice> gradient_slices(const TrainPlan& plan);

}  // namespace motley
