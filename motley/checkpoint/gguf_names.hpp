// Names of tensors: llama.cpp's, as GGUF files have them, and Hugging Face's, as motley's models have them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "motley/base/value.hpp"
#include "motley/checkpoint/name_patterns.hpp"
#include "motley/checkpoint/packed_tensors.hpp"

namespace motley {

// One kind of tensor, without ".weight" or ".bias". N stands for the layer: "model.layers.N.self_attn.q_proj" is
// "blk.N.attn_q". E stands for an expert, and GGUF files have one tensor for all of them, [experts, rows, columns].
// Where `gguf_ending` is given, Hugging Face's name ends in neither: "e_score_correction_bias" is "exp_probs_b.bias".
struct TensorNames {
  std::string_view role;  // the engine's name
  std::string_view hugging_face;
  std::string_view gguf;     // empty: no GGUF file has it
  bool paired_rows = false;  // in GGUF files the rows of a rotated pair lie next to each other
  std::string_view gguf_ending = {};
  bool one_more = false;   // GGUF files have its values plus one
  bool minus_exp = false;  // GGUF files have minus their exponential
};

// How the tensors of files are to be read.
struct TensorNaming {
  std::span<const TensorNames> names = {};  // of a GGUF file
  std::int64_t head_rows = 0;               // of a head of queries or keys there
  std::span<const PackedNames> packed = {};
  KeyHeadRows heads = {};  // of the model's delta nets
};
// Of a GGUF file's metadata, or of a folder's config.json.
using NamingOf = TensorNaming (*)(const Value& description);

// "blk.3.attn_q.weight" <-> "model.layers.3.self_attn.q_proj.weight"; empty where the other side has no such tensor.
// Of experts' tensors Hugging Face's name is that with E.
std::string gguf_name(std::span<const TensorNames> names, std::string_view hugging_face);
std::string hugging_face_name(std::span<const TensorNames> names, std::string_view gguf);
// What a GGUF file's tensor is; null: unknown.
const TensorNames* names_of(std::span<const TensorNames> names, std::string_view gguf);
// Whether a tensor of this name in a GGUF file has its rows in pairs.
bool has_paired_rows(std::span<const TensorNames> names, std::string_view gguf);

}  // namespace motley
