#include "motley/model/stored_model.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <map>

#include "motley/checkpoint/safetensors_test.hpp"
#include "motley/checkpoint/stored_rows.hpp"
#include "motley/model/model.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string embedding_name = "model.embed_tokens.weight", head_name = "lm_head.weight";

// A model folder of one block whose weights are there, each tensor with the values of its own.
class StoredModelTest : public SafetensorsTest {
 protected:
  using Tensors = std::map<std::string, std::vector<float>>;

  // Of a model whose head is tied, or said to be.
  Model made(bool tied, const std::function<void(Tensors&)>& edit) {
    const std::string config = fmt::format(R"({{"model_type": "llama", "hidden_size": 4, "num_hidden_layers": 1,
      "num_attention_heads": 2, "intermediate_size": 6, "vocab_size": 3, "tie_word_embeddings": {}}})",
                                           tied);
    std::ofstream(folder / "config.json") << config;
    const Architecture arch = read_architecture(parse_json(config, "config"), "config");
    Tensors tensors;
    float value = 0;
    for (const auto& specs : {embedding_tensors(arch), block_tensors(arch, 0), head_tensors(arch)})
      for (const TensorSpec& spec : specs) {
        shapes_[spec.name] = spec.shape;
        tensors.emplace(spec.name, std::vector<float>(static_cast<std::size_t>(spec.elements()), ++value));
      }
    edit(tensors);
    std::string header, data;
    for (const auto& [name, values] : tensors) {
      const auto shape = shapes_.find(name);
      header += fmt::format(R"({}"{}": {{"dtype": "F32", "shape": [{}], "data_offsets": [{}, {}]}})",
                            header.empty() ? "" : ", ", name,
                            shape == shapes_.end()      ? std::to_string(values.size())
                            : shape->second.size() == 2 ? fmt::format("{}, {}", shape->second[0], shape->second[1])
                                                        : std::to_string(shape->second[0]),
                            data.size(), data.size() + values.size() * sizeof(float));
      data += bytes_of(values);
    }
    write(file_of("{" + header + "}", data));
    return read_model(folder.string());
  }

  std::map<std::string, std::vector<std::int64_t>> shapes_ = {{head_name, {3, 4}}};
};

TEST_F(StoredModelTest, AHeadThatDiffersFromTheEmbeddingIsNotTiedToIt) {
  const auto none = [](Tensors&) {};
  const auto equal = [](Tensors& tensors) { tensors[head_name] = tensors.at(embedding_name); };
  const auto own = [](Tensors& tensors) {
    tensors[head_name] = tensors.at(embedding_name);
    tensors[head_name].back() += 1;
  };
  EXPECT_TRUE(made(true, none).arch.tied_embeddings);
  EXPECT_TRUE(made(true, equal).arch.tied_embeddings);
  EXPECT_FALSE(made(false, own).arch.tied_embeddings);

  const Model model = made(true, own);
  EXPECT_FALSE(model.arch.tied_embeddings);
  EXPECT_EQ(head_tensors(model.arch).back().name, head_name);
  EXPECT_EQ(total_parameters(model.arch), total_parameters(made(true, none).arch) + 3 * 4);
  EXPECT_EQ(motley::read<Model>(motley::write(model), "plan").arch, model.arch) << "so plans carry it";
}

TEST_F(StoredModelTest, AHeadAloneIsTheEmbeddingThatIsTiedToIt) {
  const auto head_alone = [](Tensors& tensors) {
    tensors.erase(embedding_name);
    tensors[head_name] = std::vector<float>(12, 7);
  };
  const Model model = made(true, head_alone);
  EXPECT_TRUE(model.arch.tied_embeddings);
  const Checkpoint checkpoint(folder);
  float first = 0;
  StoredRows(checkpoint, embedding_name, {3, 4}).values(0, 0, 1, &first);
  EXPECT_EQ(first, 7);
  EXPECT_THAT(refusal([&] { made(false, head_alone); }),
              HasSubstr("config.json: the tensor model.embed_tokens.weight is missing"));
}

TEST_F(StoredModelTest, TensorsThatNobodyReadsAreNamed) {
  EXPECT_THAT(made(true, [](Tensors&) {}).unread, IsEmpty());
  const auto more = [](Tensors& tensors) {
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {1};
    tensors["model.layers.0.self_attn.q_proj.bias"] = {1, 2, 3, 4};
    tensors["model.layers.1.input_layernorm.weight"] = {1, 2, 3, 4};
    tensors[head_name] = tensors.at(embedding_name);
  };
  EXPECT_THAT(made(true, more).unread,
              ElementsAre("model.layers.0.self_attn.q_proj.bias", "model.layers.1.input_layernorm.weight"));
  // As base models are saved.
  const auto without_prefix = [](Tensors& tensors) {
    Tensors renamed;
    for (auto& [name, values] : tensors) renamed[name.starts_with("model.") ? name.substr(6) : name] = values;
    tensors = std::move(renamed);
  };
  for (const auto& [name, shape] : std::map(shapes_))
    if (name.starts_with("model.")) shapes_[name.substr(6)] = shape;
  EXPECT_THAT(made(true, without_prefix).unread, IsEmpty());
}

// Planning needs no weights, and no whole ones.
TEST_F(StoredModelTest, WeightsThatCannotBeReadSayNothing) {
  made(true, [](Tensors&) {});
  write("damaged");
  const Model model = read_model(folder.string());
  EXPECT_TRUE(model.arch.tied_embeddings);
  EXPECT_THAT(model.unread, IsEmpty());
}

}  // namespace
}  // namespace motley
