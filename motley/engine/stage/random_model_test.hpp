// A model of random weights in a folder, for tests.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "motley/base/value.hpp"
#include "motley/model/model.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {

// Every tensor of the architecture, in fp32.
inline void write_random_model(const std::filesystem::path& folder, const Architecture& arch) {
  at::manual_seed(1);
  Value header = Value::object();
  std::string data;
  for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch))) {
    const at::Tensor values = at::randn(tensor.shape) * 0.2;
    const auto begin = static_cast<std::int64_t>(data.size());
    data.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
    Value shape = Value::array();
    for (const std::int64_t size : tensor.shape) shape.push_back(size);
    header.set(tensor.name,
               Value::object({{"dtype", "F32"},
                              {"shape", std::move(shape)},
                              {"data_offsets", Value::array({begin, static_cast<std::int64_t>(data.size())})}}));
  }
  const std::string text = to_json(header);
  std::ofstream file(folder / "model.safetensors", std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(text.size() >> (8 * i) & 0xff));
  file << text << data;
}

}  // namespace motley
