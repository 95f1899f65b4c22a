// The types of numbers that motley knows, in one table: weights, keys and values, activations, and what devices are
// rated in. Every module asks this table; a new type is a row here and an implementation in the engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/binding.hpp"

namespace motley {

// `file`: each matrix of weights has the type that the model's GGUF file has it in.
enum class DType {
  fp32,
  bf16,
  fp16,
  fp8,
  int8,
  int4,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q4_k,
  q5_k,
  q6_k,
  mxfp4,
  iq4_nl,
  iq4_xs,
  file
};

// How far a type is supported, each level with all those before it.
enum class Support {
  rated,    // devices have a speed in it
  priced,   // plans may name it, and its bytes are known
  planned,  // plans with it are sound, and training counts in it
  served    // workers compute with it
};

// What the numbers are: matrices of weights, what is computed with them (activations, gradients), or keys and values.
enum class Use { weights, values, kv };

struct DTypeRow {
  DType type;
  std::string_view name;         // in plans, options and cluster files
  std::string_view config_name;  // in config.json, as LibTorch calls it; empty where no checkpoint is of it
  std::string_view file_name;    // in files of weights, as safetensors and GGUF spell it; empty: none holds it
  // Values take their bytes by the block, scales included.
  std::int64_t block_values;
  std::int64_t block_bytes;
  DType computed_in;  // of activations with such weights, and of what is never quantised
  DType rated_in;     // whose FLOP/s bound products with such weights
  bool is_rated;      // may be a key of a device's `flops`
  Support weights, values, kv;
  Support support(Use use) const { return use == Use::weights ? weights : use == Use::values ? values : kv; }

  double bits_per_value() const { return 8.0 * static_cast<double>(block_bytes) / static_cast<double>(block_values); }
};

std::span<const DTypeRow> dtypes();
const DTypeRow& dtype_row(DType type);
// Null: no type has this name.
const DTypeRow* find_dtype(std::string_view name);
// Those with this much support or more, in the table's order; joined for hints: "fp32, bf16 or fp16".
std::vector<DType> dtypes_with(Support support, Use use);
std::string names_with(Support support, Use use);
inline bool supports(DType type, Support support, Use use) { return dtype_row(type).support(use) >= support; }

// Whether weights of this type lie in GGUF's blocks, with their scales.
inline bool is_quantised(DType type) { return type >= DType::q8_0 && type <= DType::iq4_xs; }
// The type for rows of this many values that are not whole blocks of `type`: as llama.cpp, a type of about as many bits
// whose blocks are smaller, or else fp16.
DType fitting(DType type, std::int64_t row);

// Bytes of `count` values, in whole blocks; not of `file`.
std::int64_t bytes_of(DType type, std::int64_t count);

EnumNames<DType> names_of(Bound<DType>);  // those that plans may name

}  // namespace motley
