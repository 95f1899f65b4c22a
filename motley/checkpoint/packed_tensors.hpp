// Tensors that files hold inside others: those of all experts in one, a gate with its up, what a delta net's heads are
// made of, or under a name without an ending.
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

// Rows that a delta net has for a key head: of its key, of the values of its value heads, and of these one each.
struct KeyHeadRows {
  std::int64_t key_heads = 0, keys = 0, values = 0, value_heads = 0;
};

// One kind of tensor that holds others. N stands for the layer.
struct PackedNames {
  std::string_view stored;
  // What it holds, by whole names. Where these have an E, the first dimension counts the experts. The last ones may be
  // missing (empty).
  std::array<std::string_view, 4> parts = {};
  bool transposed = false;  // matrices are stored as [inputs, outputs]
  bool by_turns = false;    // outputs of one part and of the other; else all of the first come first
  // Of MXFP4 as such files have it, [..., inputs / 32, 16]: value 2 i of a block is the low half of byte i. The blocks'
  // exponents are in a tensor of their own, whose parts' names end so, too.
  bool mxfp4 = false;
  std::array<std::int64_t KeyHeadRows::*, 4> rows = {};  // of each part and key head; null: all have as many
  bool by_key_heads = false;                             // all parts of a key head, then those of the next
  bool channels = false;                                 // a convolution's, [outputs, 1, inputs]
  bool also_apart = false;  // its parts may stand for themselves instead, as new files have them
};
inline constexpr std::string_view scales_ending = "_scales";

// What a stored tensor of this name holds, by name; nothing: it stands for itself. Throws an input error where its
// shape cannot be divided so.
struct TensorInside {
  std::string name;
  StoredTensor tensor;
};
std::vector<TensorInside> tensors_inside(std::span<const PackedNames> names, const KeyHeadRows& heads,
                                         const std::filesystem::path& file, const std::string& stored,
                                         const StoredTensor& tensor);
// The names of what it holds, with E for an expert.
std::vector<std::string> names_inside(std::span<const PackedNames> names, const std::string& stored);

// Which tensor a new file has for one of this name and shape, of as many experts; nothing: one of this name.
struct PackedPlace {
  std::string name;
  std::vector<std::int64_t> shape;
  const PackedNames* packed = nullptr;
};
std::optional<PackedPlace> packed_place(std::span<const PackedNames> names, const std::string& name,
                                        const std::vector<std::int64_t>& shape, std::int64_t experts,
                                        const KeyHeadRows& heads = {});

}  // namespace motley
