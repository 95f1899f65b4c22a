// The tales model as GGUF files that a test writes.
#pragma once

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "motley/checkpoint/gguf_writer.hpp"
#include "motley/checkpoint/quants.hpp"
#include "motley/checkpoint/stored_rows.hpp"
#include "motley/engine/stage/stage_model.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {

inline const std::filesystem::path tales_folder = MOTLEY_SOURCE_DIR "/data/models/tales";
// The tales model as a GGUF file, as llama.cpp stores it: rotated pairs of queries and keys side by side.
inline void write_tales(const std::filesystem::path& path, DType asked) {
  const Architecture arch = read_model(tales_folder).arch;
  const Checkpoint checkpoint(tales_folder);
  GgufWriter writer;
  writer.set_text("general.architecture", "llama");
  for (const auto& [key, value] :
       std::map<std::string, std::int64_t>{{"block_count", arch.layers},
                                           {"context_length", arch.context},
                                           {"embedding_length", arch.hidden},
                                           {"feed_forward_length", arch.kinds.front().ffn},
                                           {"attention.head_count", arch.heads},
                                           {"attention.head_count_kv", arch.kinds.front().kv_heads}})
    writer.set_u32("llama." + key, static_cast<std::uint32_t>(value));
  writer.set_f32("llama.attention.layer_norm_rms_epsilon", static_cast<float>(arch.norm_epsilon));
  const std::vector<TensorSpec> tensors = part_tensors(arch, whole_model(arch));
  const auto type_of = [&](const TensorSpec& tensor) {
    return tensor.shape.size() == 2 ? fitting(asked, tensor.shape[1]) : DType::fp32;
  };
  for (const TensorSpec& tensor : tensors)
    writer.add_tensor(gguf_name(family_of(arch).tensors, tensor.name), dtype_row(type_of(tensor)).file_name,
                      tensor.shape);
  writer.write(path, [&](std::int64_t index, const GgufWriter::Sink& sink) {
    const TensorSpec& tensor = tensors[static_cast<std::size_t>(index)];
    const StoredRows rows(checkpoint, tensor.name, tensor.shape);
    std::vector<float> values(static_cast<std::size_t>(rows.width()));
    std::vector<std::byte> bytes(static_cast<std::size_t>(motley::bytes_of(type_of(tensor), rows.width())));
    const bool rotated = tensor.role == "q.weight" || tensor.role == "k.weight";
    for (std::int64_t place = 0; place < tensor.shape[0]; ++place) {
      const std::int64_t inside = place % arch.kinds.front().head_dim, head = place - inside;
      const std::int64_t row = rotated ? head + inside % 2 * (arch.kinds.front().head_dim / 2) + inside / 2 : place;
      rows.values(row, 0, rows.width(), values.data());
      quantise_row(type_of(tensor), values.data(), rows.width(), bytes.data());
      sink(bytes);
    }
  });
}

// A folder that vanishes with the test, and its files.
class GgufFileTest : public ::testing::Test {
 protected:
  GgufFileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "gguf-weights-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
    at::set_num_threads(1);  // products of a small model are over before a busy machine has run a second thread
  }
  ~GgufFileTest() override {
    at::set_num_threads(threads_);
    std::filesystem::remove_all(folder);
  }

  std::filesystem::path file_of(DType type) {
    const auto path = folder / (std::string(name_of(type)) + ".gguf");
    if (!std::filesystem::exists(path)) write_tales(path, type);
    return path;
  }

  static StageSpec whole(const std::filesystem::path& model, DType weights) {
    return {.arch = read_model(model).arch,
            .layers = {0, 8},
            .embedding = true,
            .head = true,
            .weight_type = weights,
            .kv_tokens = 128,
            .limits = {.max_tokens = 40, .max_sequences = 4, .block_tokens = 16}};
  }

  std::filesystem::path folder;

 private:
  int threads_ = at::get_num_threads();
};

}  // namespace motley
