// Tensors that Hugging Face's files hold inside others: those of all experts in one, a gate with its up, or under a
// name without an ending.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/checkpoint/stored_tensor.hpp"

namespace motley {

constexpr std::int64_t most_experts_in_tensor = 4096;

// One kind of tensor that holds others. N stands for the layer.
struct PackedNames {
  std::string_view stored;
  // What it holds, by whole names. Where these have an E, the first dimension counts the experts. The second part may
  // be missing (empty).
  std::array<std::string_view, 2> parts = {};
  bool transposed = false;  // matrices are stored as [inputs, outputs]
  bool by_turns = false;    // outputs of one part and of the other; else all of the first come first
  // Of MXFP4 as such files have it, [..., inputs / 32, 16]: value 2 i of a block is the low half of byte i. The blocks'
  // exponents are in a tensor of their own, whose parts' names end so, too.
  bool mxfp4 = false;
};
inline constexpr std::string_view scales_ending = "_scales";

// What a stored tensor of this name holds, by name; nothing: it stands for itself. Throws an input error where its
// shape cannot be divided so.
struct TensorInside {
  std::string name;
  StoredTensor tensor;
};
std::vector<TensorInside> tensors_inside(std::span<const PackedNames> names, const std::filesystem::path& file,
                                         const std::string& stored, const StoredTensor& tensor);

// Which tensor a file has for one of this name and shape, of as many experts; nothing: one of this name.
struct PackedPlace {
  std::string name;
  std::vector<std::int64_t> shape;
};
std::optional<PackedPlace> packed_place(std::span<const PackedNames> names, const std::string& name,
                                        const std::vector<std::int64_t>& shape, std::int64_t experts);

}  // namespace motley
