// Slices of a checkpoint's tensors, in the type that they are held in.
#pragma once

#include <ATen/ATen.h>

#include "motley/checkpoint/checkpoint.hpp"
#include "motley/engine/device/pinned_pieces.hpp"
#include "motley/model/model.hpp"

namespace motley {

// Both throw an input error where the checkpoint has no tensor of this name, or one of another shape than `tensor`
// promises, or of a type that is not read. The rows pass through `pieces` on their way to the device of `to`: all are
// there for what this thread asks of the device next. Without pieces `to` lies in the host's memory.

// Copies the slice into `to` (fp32 or bf16; as many elements as the slice).
void read_tensor(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, const at::Tensor& to,
                 PinnedPieces* pieces = nullptr);

// Fills `to` [rows, bytes of whole_blocks()] with the slice of a matrix in blocks of a quantised type: the file's own
// where they are of this type, or else made from its values.
void read_blocks(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, DType type,
                 const at::Tensor& to, PinnedPieces* pieces = nullptr);

}  // namespace motley
