#include "motley/fleet/needed_chunks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <random>

#include "motley/checkpoint/checkpoint.hpp"
#include "motley/checkpoint/chunk_cache.hpp"
#include "motley/checkpoint/gguf_writer.hpp"
#include "motley/checkpoint/safetensors_test.hpp"
#include "motley/checkpoint/stored_rows.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/part_tensors.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

Architecture llama(int hidden, int layers, int ffn, int vocabulary, bool tied) {
  const std::string config = fmt::format(
      R"({{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": {}, "hidden_size": {},
           "intermediate_size": {}, "num_hidden_layers": {}, "num_attention_heads": 4, "num_key_value_heads": 2,
           "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-05,
           "tie_word_embeddings": {}, "eos_token_id": 1, "torch_dtype": "bfloat16"}})",
      vocabulary, hidden, ffn, layers, tied);
  return read_architecture(parse_json(config, "config.json"), "config.json");
}

std::uint64_t bf16_bytes(const TensorSpec& tensor) { return 2 * static_cast<std::uint64_t>(tensor.elements()); }

// As toy_plan(), over the layers of another model.
ServePlan plan_over(const Architecture& arch, const std::vector<int>& degrees) {
  ServePlan plan = toy_plan({degrees});
  plan.model.arch = arch;
  const auto stages = std::ssize(degrees);
  for (std::ptrdiff_t s = 0; s < stages; ++s)
    plan.stages[static_cast<std::size_t>(s)].layers = {arch.layers * s / stages, arch.layers * (s + 1) / stages};
  return plan;
}

std::vector<ChunkId> needed_chunks(const ServePlan& plan, const std::string& device, const fs::path& model,
                                   const ModelManifest& manifest, ReadsOf of = ReadsOf::own_layers) {
  return NeededChunks(manifest, model).of(rows_of(plan, device, of));
}

class NeededChunksTest : public SafetensorsTest {
 protected:
  // Of one file, chunks alone.
  static std::vector<std::uint32_t> chunks_for(const ServePlan& plan, const std::string& device,
                                               const fs::path& model) {
    std::vector<std::uint32_t> numbers;
    for (const ChunkId& id : needed_chunks(plan, device, model, make_manifest(model))) {
      EXPECT_EQ(id.file, 0u);
      numbers.push_back(id.chunk);
    }
    return numbers;
  }

  // Tensors in BF16 at these places of the file, which begins with the header and is all zeros otherwise.
  void write_at(const Architecture& arch, const std::function<std::uint64_t(const TensorSpec&)>& place,
                std::uint64_t file_bytes) {
    constexpr std::uint64_t begin = 16384;
    std::string entries;
    for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch))) {
      const std::uint64_t at = place(tensor) - begin;
      entries += fmt::format(R"({}"{}": {{"dtype": "BF16", "shape": [{}], "data_offsets": [{}, {}]}})",
                             entries.empty() ? "" : ", ", tensor.name, fmt::join(tensor.shape, ", "), at,
                             at + bf16_bytes(tensor));
    }
    std::string header = "{" + entries + "}";
    ASSERT_LT(header.size(), begin - 8);
    header.resize(begin - 8, ' ');
    fs::resize_file(write(file_of(header, "")), file_bytes);
  }
};

// Two layers, and a place for every tensor:
//   0 header   1, 2 embedding   3 q   4 k   5 v   6 o   7, 8 gate, half of it each   9 up   10 down   11, 12 norms
//   13 ... 22 the second layer, the same   23 final norm   24, 25 head
class HandComputedTest : public NeededChunksTest {
 protected:
  HandComputedTest() { lay_out(); }
  void lay_out() {
    const std::map<std::string, std::uint64_t> in_layer{{"q.weight", 3},
                                                        {"k.weight", 4},
                                                        {"v.weight", 5},
                                                        {"o.weight", 6},
                                                        {"up.weight", 9},
                                                        {"down.weight", 10},
                                                        {"attention_norm.weight", 11},
                                                        {"ffn_norm.weight", 12}};
    const std::map<std::string, std::uint64_t> around{
        {"embedding.weight", 1}, {"final_norm.weight", 23}, {"head.weight", 24}};
    write_at(
        arch_,
        [&](const TensorSpec& tensor) {
          if (const auto found = around.find(tensor.role); found != around.end()) return found->second * chunk_bytes;
          const std::uint64_t layer = tensor.name.find("layers.1.") != std::string::npos ? 10 : 0;
          if (tensor.role == "gate.weight") return (layer + 8) * chunk_bytes - bf16_bytes(tensor) / 2;
          return (layer + in_layer.at(tensor.role)) * chunk_bytes;
        },
        26 * chunk_bytes);
  }
  // "3-5 7" as a list.
  static std::vector<std::uint32_t> numbers(std::initializer_list<std::pair<std::uint32_t, std::uint32_t>> ranges) {
    std::vector<std::uint32_t> all;
    for (const auto& [first, last] : ranges)
      for (std::uint32_t number = first; number <= last; ++number) all.push_back(number);
    return all;
  }

  // The embedding's 65536 rows of 256 bytes are two chunks.
  Architecture arch_ = llama(128, 2, 256, 65536, false);
};

TEST_F(HandComputedTest, AStageNeedsItsLayersAndTheEndsThatItHas) {
  const ServePlan plan = plan_over(arch_, {1, 1});
  EXPECT_THAT(chunks_for(plan, "box/0", folder), ElementsAreArray(numbers({{0, 12}})));
  EXPECT_THAT(chunks_for(plan, "box/1", folder), ElementsAreArray(numbers({{0, 0}, {13, 25}})));
}

TEST_F(HandComputedTest, StandbyWeightsAreNeededWhereTheyAreAskedFor) {
  ServePlan plan = plan_over(arch_, {1, 1});
  plan.stages[1].standby_weights = {{{0, 1}}};
  EXPECT_THAT(chunks_for(plan, "box/1", folder), ElementsAreArray(numbers({{0, 0}, {13, 25}})));
  std::vector<std::uint32_t> with;
  for (const ChunkId& id : needed_chunks(plan, "box/1", folder, make_manifest(folder), ReadsOf::standby_too))
    with.push_back(id.chunk);
  EXPECT_THAT(with, ElementsAreArray(numbers({{0, 25}})));
}

TEST_F(HandComputedTest, ARankNeedsItsRowsAndAllColumns) {
  ServePlan plan = plan_over(arch_, {2});
  EXPECT_THAT(chunks_for(plan, "box/0", folder), ElementsAreArray(numbers({{0, 1}, {3, 7}, {9, 17}, {19, 24}})));
  EXPECT_THAT(chunks_for(plan, "box/1", folder),
              ElementsAreArray(numbers({{0, 0}, {2, 6}, {8, 16}, {18, 23}, {25, 25}})));
  // Three quarters of the FFN's columns and of the vocabulary reach into the second chunk.
  plan.stages[0].shares = {0.75, 0.25};
  EXPECT_THAT(chunks_for(plan, "box/0", folder), ElementsAreArray(numbers({{0, 25}})));
  EXPECT_THAT(chunks_for(plan, "box/1", folder),
              ElementsAreArray(numbers({{0, 0}, {2, 6}, {8, 16}, {18, 23}, {25, 25}})));
}

TEST_F(HandComputedTest, ATiedHeadIsTheEmbedding) {
  arch_ = llama(128, 2, 256, 65536, true);
  lay_out();
  const ServePlan plan = plan_over(arch_, {1, 1});
  EXPECT_THAT(chunks_for(plan, "box/0", folder), ElementsAreArray(numbers({{0, 12}})));
  EXPECT_THAT(chunks_for(plan, "box/1", folder), ElementsAreArray(numbers({{0, 2}, {13, 23}})));
}

TEST_F(HandComputedTest, SaysWhatDoesNotFitTogether) {
  const ModelManifest manifest = make_manifest(folder);
  const ServePlan plan = plan_over(arch_, {1, 1});
  const auto error_of = [](const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(error_of([&] { needed_chunks(plan, "box/2", folder, manifest); }), "box/2 is in no stage of the plan");
  const ServePlan deeper = plan_over(llama(128, 3, 256, 65536, false), {1, 1, 1});
  EXPECT_THAT(error_of([&] { needed_chunks(deeper, "box/2", folder, manifest); }), HasSubstr("model.layers.2."));
  EXPECT_EQ(error_of([&] { needed_chunks(plan, "box/0", folder, {}); }),
            "the file model.safetensors has changed since it was read first");
}

TEST_F(NeededChunksTest, TheHeadersOfAllFilesAreNeeded) {
  const Architecture arch = llama(128, 2, 256, 512, false);
  const std::vector<TensorSpec> tensors = part_tensors(arch, whole_model(arch));
  std::string index;
  std::map<std::string, std::vector<TensorSpec>> files;
  for (const TensorSpec& tensor : tensors) {
    const std::string file =
        tensor.name.find("layers.1.") != std::string::npos ? "second.safetensors" : "first.safetensors";
    files[file].push_back(tensor);
    index += fmt::format(R"({}"{}": "{}")", index.empty() ? "" : ", ", tensor.name, file);
  }
  for (const auto& [name, inside] : files) {
    std::string entries;
    std::uint64_t at = 0;
    for (const TensorSpec& tensor : inside) {
      entries += fmt::format(R"({}"{}": {{"dtype": "BF16", "shape": [{}], "data_offsets": [{}, {}]}})",
                             entries.empty() ? "" : ", ", tensor.name, fmt::join(tensor.shape, ", "), at,
                             at + bf16_bytes(tensor));
      at += bf16_bytes(tensor);
    }
    write(file_of("{" + entries + "}", std::string(at, '\0')), name);
  }
  write("{\"weight_map\": {" + index + "}}", "model.safetensors.index.json");
  for (const char* device : {"box/0", "box/1"})
    EXPECT_THAT(needed_chunks(plan_over(arch, {1, 1}), device, folder, make_manifest(folder)),
                ElementsAre(ChunkId{0, 0}, ChunkId{1, 0}, ChunkId{2, 0}));
}

// ---- what is needed is enough ----

// A model of random bytes, in the order in which its tensors are listed, as safetensors or as GGUF.
class RandomModelTest : public NeededChunksTest {
 protected:
  std::vector<std::byte> random_bytes(std::uint64_t count) {
    std::vector<std::byte> bytes(count);
    for (std::size_t at = 0; at + 8 <= bytes.size(); at += 8) {
      const std::uint64_t some = random_();
      std::memcpy(bytes.data() + at, &some, 8);
    }
    return bytes;
  }

  fs::path write_folder(const Architecture& arch) {
    std::string entries, data;
    for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch))) {
      const std::vector<std::byte> bytes = random_bytes(bf16_bytes(tensor));
      entries += fmt::format(R"({}"{}": {{"dtype": "BF16", "shape": [{}], "data_offsets": [{}, {}]}})",
                             entries.empty() ? "" : ", ", tensor.name, fmt::join(tensor.shape, ", "), data.size(),
                             data.size() + bytes.size());
      data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    write(file_of("{" + entries + "}", data));
    return folder;
  }

  fs::path write_gguf(const Architecture& arch) {
    GgufWriter writer;
    writer.set_text("general.architecture", "llama");
    writer.set_u32("llama.attention.head_count", static_cast<std::uint32_t>(arch.heads));
    writer.set_u32("llama.attention.head_count_kv", static_cast<std::uint32_t>(arch.kinds.front().kv_heads));
    if (const std::int64_t experts = arch.kinds.front().experts.count; experts > 0)
      writer.set_u32("llama.expert_count", static_cast<std::uint32_t>(experts));
    std::vector<TensorSpec> tensors = part_tensors(arch, whole_model(arch));
    std::erase_if(tensors, [](const TensorSpec& tensor) { return tensor.expert > 0; });  // the first stands for all
    for (TensorSpec& tensor : tensors) {
      if (tensor.expert == 0) tensor.shape.insert(tensor.shape.begin(), arch.kinds[tensor.kind].experts.count);
      writer.add_tensor(gguf_name(family_of(arch).tensors, tensor.name), "BF16", tensor.shape);
    }
    writer.write(folder / "model.gguf", [&](std::int64_t index, const GgufWriter::Sink& sink) {
      sink(random_bytes(bf16_bytes(tensors[static_cast<std::size_t>(index)])));
    });
    return folder / "model.gguf";
  }

  // The device's part of a tensor, as its worker reads it.
  static std::vector<float> part_of(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice) {
    const StoredRows rows(checkpoint, tensor.name, tensor.shape);
    const bool vector = tensor.shape.size() == 1;
    const auto columns = static_cast<std::size_t>(vector ? 1 : slice.columns.size());
    std::vector<float> values(static_cast<std::size_t>(slice.rows.size()) * columns);
    for (std::int64_t row = slice.rows.first; row < slice.rows.end; ++row)
      rows.values(row, vector ? 0 : slice.columns.first, vector ? 1 : slice.columns.end,
                  values.data() + static_cast<std::size_t>(row - slice.rows.first) * columns);
    return values;
  }

  // Fetches no more than is needed, and reads all that a worker does.
  void check_device(const ServePlan& plan, const Stage& stage, std::size_t rank, const fs::path& model,
                    const ModelManifest& manifest) {
    const Checkpoint whole(model, tensor_naming);
    const fs::path root = folder / "cache";
    ChunkCache cache(root, manifest);
    for (const ChunkId& id : needed_chunks(plan, stage.devices[rank], model, manifest))
      cache.put(id, read_chunk(folder, manifest.files[id.file], id.chunk));
    const Checkpoint fetched(cache.model(), tensor_naming);
    const Architecture& arch = plan.model.arch;
    const Shard shard = stage_shards(arch, stage)[rank];
    for (const TensorSpec& tensor : held_tensors(arch, {stage.layers, stage.embedding, stage.head}, shard)) {
      const Slice slice = slice_of(arch, tensor, shard);
      const std::vector<float> here = part_of(fetched, tensor, slice), there = part_of(whole, tensor, slice);
      ASSERT_EQ(std::memcmp(here.data(), there.data(), here.size() * sizeof(float)), 0) << tensor.name;
    }
    fs::remove_all(root);
  }

  void check_plans(const Architecture& arch, const fs::path& model, int plans) {
    const ModelManifest manifest = make_manifest(model);
    ASSERT_GT(manifest.files[0].digests.size(), 3u);
    for (int i = 0; i < plans; ++i) {
      std::vector<int> degrees(1 + random_() % 3);
      for (int& degree : degrees) degree = 1 + static_cast<int>(random_() % 3);
      ServePlan plan = plan_over(arch, degrees);
      for (Stage& stage : plan.stages)
        if (random_() % 2 == 0)
          for (std::size_t rank = 0; rank < stage.devices.size(); ++rank)
            stage.shares.push_back(1 + static_cast<double>(random_() % 4));
      if (const std::int64_t experts = arch.kinds.front().experts.count; experts > 0)
        for (Stage& stage : plan.stages) {
          const std::int64_t others = std::ssize(stage.devices) - 1;
          stage.expert_shares.assign(stage.devices.size(), 1);
          stage.expert_shares[random_() % stage.devices.size()] = experts - others;
        }
      const Stage& stage = plan.stages[random_() % plan.stages.size()];
      const std::size_t rank = random_() % stage.devices.size();
      SCOPED_TRACE(fmt::format("{} of {}, shares {}", stage.devices[rank], fmt::join(degrees, ", "),
                               fmt::join(stage.shares, ", ")));
      check_device(plan, stage, rank, model, manifest);
    }
  }

  std::mt19937_64 random_{11};
};

TEST_F(RandomModelTest, AWorkerReadsTheSameFromWhatItNeedsOfSafetensors) {
  for (const bool tied : {false, true}) {
    const Architecture arch = llama(256, 3, 4096, 16384, tied);
    check_plans(arch, write_folder(arch), 8);
  }
}

// Of whole experts no chunk of another rank's alone, whether each has tensors of its own or all are one.
TEST_F(RandomModelTest, AWorkerReadsTheSameFromWhatItNeedsOfItsExperts) {
  const Architecture arch = read_architecture(
      parse_json(R"({"model_type": "mixtral", "vocab_size": 16384, "hidden_size": 256, "intermediate_size": 8192,
                     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                     "num_local_experts": 6, "num_experts_per_tok": 2, "torch_dtype": "bfloat16"})",
                 "config.json"),
      "config.json");
  ServePlan plan = plan_over(arch, {2});
  const auto check = [&](const fs::path& model) {
    check_plans(arch, model, 3);
    const ModelManifest manifest = make_manifest(model);
    const auto needed = [&](std::vector<std::int64_t> shares) {
      plan.stages[0].expert_shares = std::move(shares);
      return needed_chunks(plan, "box/1", model, manifest).size();
    };
    EXPECT_LT(needed({5, 1}), needed({1, 5}));
    EXPECT_LT(needed({5, 1}), needed({})) << "of columns each rank needs some of every expert";
  };
  check(write_folder(arch));
  fs::remove(folder / "model.safetensors");
  check(write_gguf(arch));
}

TEST_F(RandomModelTest, AWorkerReadsTheSameFromWhatItNeedsOfAGgufFile) {
  for (const bool tied : {false, true}) {
    const Architecture arch = llama(256, 3, 4096, 16384, tied);
    check_plans(arch, write_gguf(arch), 8);
  }
}

}  // namespace
}  // namespace motley
