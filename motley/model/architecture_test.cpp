#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>

#include "motley/base/paths.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/model.hpp"
#include "motley/model/training.hpp"

namespace motley {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::string llama_config = R"({
  "model_type": "llama",
  "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
  "intermediate_size": 160, "vocab_size": 300
})";

// A config of the given text with some keys set to JSON values.
Value with(const std::string& text, const std::vector<std::pair<std::string, std::string>>& changes) {
  Value config = parse_json(text, "base");
  for (const auto& [key, value] : changes) config.set(key, parse_json(value, "change"));
  return config;
}

Architecture arch_of(const std::vector<std::pair<std::string, std::string>>& changes,
                     const std::string& text = llama_config) {
  return read_architecture(with(text, changes), "config.json");
}

TEST(Architecture, LlamaDefaults) {
  const Architecture arch = arch_of({});
  EXPECT_EQ(arch.family, "llama");
  EXPECT_EQ(arch.kinds.front().head_dim, 8);
  EXPECT_EQ(arch.kinds.front().kv_heads, 2);
  EXPECT_EQ(arch.context, 2048);
  EXPECT_DOUBLE_EQ(arch.norm_epsilon, 1e-6);
  EXPECT_EQ(arch.rotaries.front(), Rotary{});
  EXPECT_FALSE(arch.tied_embeddings);
  EXPECT_EQ(arch.kinds.front().window, 0);
  EXPECT_EQ(arch.checkpoint_type, DType::bf16);
  EXPECT_THAT(arch.eos_tokens, ElementsAre(2));
  EXPECT_EQ(arch.bos_token, 1);
}

TEST(Architecture, NullDiffersFromAbsentWhereItDoesInTransformers) {
  EXPECT_THAT(arch_of({{"eos_token_id", "null"}}).eos_tokens, IsEmpty());
  EXPECT_EQ(arch_of({{"bos_token_id", "null"}}).bos_token, std::nullopt);
  EXPECT_THAT(arch_of({{"vocab_size", "3"}}).eos_tokens, ElementsAre(2));
  EXPECT_THAT(arch_of({{"vocab_size", "2"}}).eos_tokens, IsEmpty()) << "the default is none of the tokens";
  EXPECT_EQ(arch_of({{"vocab_size", "2"}}).bos_token, 1);
  EXPECT_EQ(arch_of({{"vocab_size", "1"}}).bos_token, std::nullopt);
  EXPECT_EQ(arch_of({{"num_key_value_heads", "null"}}).kinds.front().kv_heads, 8);
  EXPECT_EQ(arch_of({{"model_type", "\"mistral\""}}).kinds.front().window, 4096);
  EXPECT_EQ(arch_of({{"model_type", "\"mistral\""}, {"sliding_window", "null"}}).kinds.front().window, 0);
}

TEST(Architecture, OldAndNewSpellingOfRotaryAreOne) {
  const Architecture older = arch_of({{"max_position_embeddings", "131072"},
                                      {"rope_theta", "500000.0"},
                                      {"rope_scaling", R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})"},
                                      {"torch_dtype", "\"float16\""}});
  const Architecture newer =
      arch_of({{"max_position_embeddings", "131072"},
               {"rope_parameters", R"({"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0,
                                        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                        "original_max_position_embeddings": 8192})"},
               {"dtype", "\"float16\""}});
  EXPECT_EQ(older, newer);
  EXPECT_EQ(older.rotaries.front().scaling, RotaryScaling::llama3);
  EXPECT_DOUBLE_EQ(older.rotaries.front().theta, 500000);
  EXPECT_DOUBLE_EQ(older.rotaries.front().factor, 8);
  EXPECT_EQ(older.rotaries.front().original_context, 8192);
  EXPECT_EQ(older.checkpoint_type, DType::fp16);
}

TEST(Architecture, RotaryScalings) {
  const Rotary linear = arch_of({{"rope_scaling", R"({"type": "linear", "factor": 2.0})"}}).rotaries.front();
  EXPECT_EQ(linear.scaling, RotaryScaling::linear);
  EXPECT_DOUBLE_EQ(linear.factor, 2);

  const Rotary dynamic = arch_of({{"rope_scaling", R"({"type": "dynamic", "factor": 4.0})"}}).rotaries.front();
  EXPECT_EQ(dynamic.scaling, RotaryScaling::dynamic);
  EXPECT_EQ(dynamic.original_context, 2048);

  const Rotary yarn = arch_of({{"rope_scaling", R"({"rope_type": "yarn", "factor": 4.0})"}}).rotaries.front();
  EXPECT_EQ(yarn.scaling, RotaryScaling::yarn);
  EXPECT_EQ(yarn.original_context, 2048);
  EXPECT_NEAR(yarn.attention_factor, 1.1386294, 1e-6);  // 0.1 ln 4 + 1
  EXPECT_DOUBLE_EQ(yarn.beta_fast, 32);

  const Rotary balanced =
      arch_of({{"rope_scaling", R"({"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0})"}})
          .rotaries.front();
  EXPECT_DOUBLE_EQ(balanced.attention_factor, 1);

  EXPECT_EQ(arch_of({{"rope_scaling", R"({"rope_type": "default"})"}}).rotaries.front(), Rotary{});
  EXPECT_EQ(arch_of({{"rope_scaling", "null"}}).rotaries.front(), Rotary{});
}

// As vLLM counts.
TEST(Architecture, AScalingStretchesTheContext) {
  const auto context_of = [](const std::string& scaling) {
    return arch_of({{"max_position_embeddings", "40960"}, {"rope_scaling", scaling}}).context;
  };
  EXPECT_EQ(context_of(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})"), 131072);
  EXPECT_EQ(context_of(R"({"rope_type": "yarn", "factor": 2.5})"), 102400);
  EXPECT_EQ(context_of(R"({"rope_type": "yarn", "original_max_position_embeddings": 3000})"), 40960);
  EXPECT_EQ(context_of(R"({"rope_type": "linear", "factor": 2.0})"), 81920);
  EXPECT_EQ(context_of(R"({"rope_type": "dynamic", "factor": 1.5})"), 61440);
  EXPECT_EQ(context_of(R"({"rope_type": "default"})"), 40960);
  EXPECT_EQ(context_of(R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                           "original_max_position_embeddings": 8192})"),
            40960);
  EXPECT_EQ(arch_of({{"rope_scaling", R"({"type": "linear", "factor": 2.0})"}}).rotaries.front().original_context, 2048)
      << "what is stretched";
}

TEST(Architecture, TheRowOfThePaddingToken) {
  const auto pad_of = [](const std::string& value) { return arch_of({{"pad_token_id", value}}).pad_token; };
  EXPECT_EQ(arch_of({}).pad_token, std::nullopt);
  EXPECT_EQ(pad_of("5"), 5);
  EXPECT_EQ(pad_of("null"), std::nullopt);
  EXPECT_EQ(pad_of("-1"), 299) << "from the end, as in torch";
  EXPECT_EQ(pad_of("300"), std::nullopt);
  EXPECT_EQ(pad_of("-301"), std::nullopt);
  EXPECT_EQ(pad_of("\"<pad>\""), std::nullopt);
  const std::vector<std::pair<std::string, std::string>> opt = {{"model_type", "\"opt\""}, {"ffn_dim", "160"}};
  EXPECT_EQ(arch_of(opt).pad_token, 1);
  auto without = opt;
  without.emplace_back("pad_token_id", "null");
  EXPECT_EQ(arch_of(without).pad_token, std::nullopt);
}

std::string refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_THAT(error.hint(), HasSubstr("original weights"));
    return error.what();
  }
  return "accepted";
}

TEST(Architecture, QuantisedCheckpointsAreRefusedByTheirMethod) {
  const auto refused = [](const std::string& key, const std::string& value) {
    return refusal_of([&] { arch_of({{key, value}}); });
  };
  const std::vector<std::array<std::string, 3>> table = {
      {"quantization_config", R"({"quant_method": "gptq", "bits": 4, "group_size": 128})",
       "quantization_config: a checkpoint quantised by gptq (4 bits, groups of 128) is not supported"},
      {"quantization_config", R"({"quant_method": "tomorrow"})", "quantised by tomorrow is"},
      {"quantization_config", R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})",
       "by compressed-tensors (pack-quantized)"},
      {"quantization_config", R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", "by modelopt (NVFP4)"},
      {"quantization_config", R"({"load_in_4bit": true})", "by bitsandbytes"},
      {"quantization_config", "{}", "by a method without a name"},
      {"quantization", R"({"group_size": 64, "bits": 4})",
       "quantization: a checkpoint quantised by MLX (4 bits, groups of 64)"},
      {"quantization", R"({"quant_algo": "FP8"})", "by ModelOpt (FP8)"},
      {"quantization", "\"awq\"", "by awq"},
      {"compression_config", R"({"config_groups": {}})",
       "compression_config: a checkpoint quantised by compressed-tensors"},
      {"quant_config", R"({"bits": 4, "group_size": 128, "quant_method": "awq"})", "by awq (4 bits"},
      {"quantization_bit", "8", "a method without a name (quantization_bit = 8)"}};
  for (const auto& [key, value, message] : table) EXPECT_THAT(refused(key, value), HasSubstr(message)) << value;
  for (const char* nothing : {"null", "false", "0", "\"none\""})
    EXPECT_EQ(refused("quantization_bit", nothing), "accepted") << nothing;
  EXPECT_EQ(refused("quantity", "{}"), "accepted");
}

TEST(Architecture, MixtralsFfnsAreExperts) {
  const auto mixtral = [](std::vector<std::pair<std::string, std::string>> changes) {
    changes.push_back({"model_type", "\"mixtral\""});
    return arch_of(changes);
  };
  const Architecture usual = mixtral({});
  EXPECT_EQ(usual.kinds.front().experts, (Experts{.count = 8, .active = 2}));
  EXPECT_EQ(usual.kinds.front().window, 0);
  EXPECT_EQ(usual.rotaries.front().theta, 1e6);
  const Architecture other =
      mixtral({{"num_local_experts", "32"}, {"num_experts_per_tok", "4"}, {"sliding_window", "64"}});
  EXPECT_EQ(other.kinds.front().experts, (Experts{.count = 32, .active = 4}));
  EXPECT_EQ(other.kinds.front().window, 64);
  EXPECT_EQ(other.kinds.front().active_ffns(), 4);
  EXPECT_THROW(mixtral({{"num_local_experts", "2"}, {"num_experts_per_tok", "4"}}), Error);
}

using Changes = std::vector<std::pair<std::string, std::string>>;

Architecture of_family(const std::string& name, Changes changes) {
  changes.push_back({"model_type", "\"" + name + "\""});
  return arch_of(changes);
}

// Columns of each layer's FFN where that is dense, else 0.
std::vector<std::int64_t> dense_columns(const Architecture& arch) {
  std::vector<std::int64_t> all;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer)
    all.push_back(arch.kind(layer).experts.count > 0 ? 0 : arch.kind(layer).ffn);
  return all;
}

TEST(Architecture, Qwen3MoeListsItsDenseLayers) {
  const auto qwen = [](const Changes& changes) { return of_family("qwen3_moe", changes); };
  const Architecture usual = qwen({});
  EXPECT_EQ(usual.kinds.size(), 1);
  EXPECT_EQ(usual.kinds.front().ffn, 768);
  EXPECT_EQ(usual.kinds.front().experts,
            (Experts{.count = 128, .active = 8, .router = {.score = RouterScore::softmax}}));
  EXPECT_EQ(usual.qk_norm, QkNorm::head);
  EXPECT_EQ(usual.kinds.front().head_dim, 8);
  EXPECT_EQ(usual.kinds.front().window, 0);
  EXPECT_EQ(qwen({{"norm_topk_prob", "true"}}).kinds.front().experts.router, RouterRule{});
  EXPECT_THAT(dense_columns(qwen({{"mlp_only_layers", "[2, 0]"}})), ElementsAre(160, 0, 160, 0));
  EXPECT_THAT(dense_columns(qwen({{"decoder_sparse_step", "2"}})), ElementsAre(160, 0, 160, 0));
  EXPECT_THAT(dense_columns(qwen({{"decoder_sparse_step", "2"}, {"mlp_only_layers", "[3]"}})),
              ElementsAre(160, 0, 160, 160));
  EXPECT_THAT(dense_columns(qwen({{"decoder_sparse_step", "5"}})), ElementsAre(160, 160, 160, 160));
  for (const char* key : {"num_experts", "num_local_experts"})
    EXPECT_EQ(qwen({{key, "16"}}).kinds.front().experts.count, 16);
  const Architecture windowed =
      qwen({{"mlp_only_layers", "[1]"}, {"use_sliding_window", "true"}, {"sliding_window", "16"}});
  EXPECT_EQ(windowed.kind(0).window, 16);
  EXPECT_EQ(windowed.kind(1).window, 16);
}

TEST(Architecture, Glm4MoeBeginsWithDenseLayers) {
  const auto glm = [](const Changes& changes) { return of_family("glm4_moe", changes); };
  const Architecture usual = glm({});
  EXPECT_THAT(dense_columns(usual), ElementsAre(160, 0, 0, 0));
  EXPECT_EQ(usual.kind(1).ffn, 1408);
  EXPECT_EQ(
      usual.kind(1).experts,
      (Experts{.count = 128,
               .active = 8,
               .router = {.score = RouterScore::sigmoid, .selection_bias = true, .normalise = true, .epsilon = 1e-20},
               .shared_ffn = 1408}));
  EXPECT_EQ(usual.qk_norm, QkNorm::none);
  EXPECT_EQ(rotated_dimensions(usual.rotaries.front(), usual.kinds.front().head_dim), 4);
  EXPECT_FALSE(usual.qkv_bias || usual.output_bias);
  const Architecture other = glm({{"first_k_dense_replace", "0"},
                                  {"n_shared_experts", "2"},
                                  {"moe_intermediate_size", "24"},
                                  {"routed_scaling_factor", "2.5"},
                                  {"use_qk_norm", "true"},
                                  {"attention_bias", "true"},
                                  {"partial_rotary_factor", "0.25"}});
  EXPECT_EQ(other.kinds.size(), 1);
  EXPECT_EQ(other.kinds.front().experts.shared_ffn, 48);
  EXPECT_EQ(other.kinds.front().experts.router.factor, 2.5);
  EXPECT_EQ(other.qk_norm, QkNorm::head);
  EXPECT_TRUE(other.qkv_bias && !other.output_bias);
  EXPECT_EQ(rotated_dimensions(other.rotaries.front(), other.kinds.front().head_dim), 2);
  EXPECT_EQ(glm({{"rope_parameters", R"({"rope_theta": 1e6, "partial_rotary_factor": 1.0})"}}).rotaries.front().partial,
            1);
  EXPECT_THAT(dense_columns(glm({{"mlp_layer_types", R"(["dense", "sparse", "dense", "sparse"])"}})),
              ElementsAre(160, 0, 160, 0));
}

TEST(Architecture, MiniMaxM2NormsAllHeadsTogether) {
  const Architecture arch = of_family("minimax_m2", {{"rotary_dim", "64"}});
  EXPECT_EQ(arch.qk_norm, QkNorm::whole);
  EXPECT_EQ(arch.kinds.front().head_dim, 128);
  EXPECT_EQ(rotated_dimensions(arch.rotaries.front(), arch.kinds.front().head_dim), 64);
  EXPECT_EQ(arch.rotaries.front().theta, 5e6);
  EXPECT_EQ(arch.kinds.front().ffn, 160);
  EXPECT_EQ(arch.kinds.front().experts,
            (Experts{.count = 256,
                     .active = 8,
                     .router = {.score = RouterScore::sigmoid, .selection_bias = true, .normalise = true}}));
}

std::vector<std::int64_t> windows(const Architecture& arch) {
  std::vector<std::int64_t> all;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer) all.push_back(arch.kind(layer).window);
  return all;
}

TEST(Architecture, GptOssHasSinksBiasesAndAWindowInEveryOtherLayer) {
  const Architecture arch = of_family("gpt_oss", {});
  EXPECT_EQ(arch.kinds.front().head_dim, 64);
  EXPECT_TRUE(arch.sinks && arch.qkv_bias && arch.output_bias && arch.ffn_bias);
  EXPECT_EQ(arch.activation, Activation(Activation::swiglu, 7, 1.702));
  EXPECT_THAT(windows(arch), ElementsAre(128, 0, 128, 0));
  EXPECT_EQ(arch.kind(0).experts, (Experts{.count = 128, .active = 4, .router = {.bias = true}}));
  const Rotary yarn{.theta = 150000,
                    .scaling = RotaryScaling::yarn,
                    .factor = 32,
                    .attention_factor = 0.1 * std::log(32) + 1,
                    .whole_pairs = false,
                    .original_context = 4096};
  EXPECT_EQ(arch.rotaries.front(), yarn);
  const Architecture other = of_family(
      "gpt_oss", {{"layer_types", R"(["full_attention", "full_attention", "sliding_attention", "full_attention"])"},
                  {"sliding_window", "16"},
                  {"swiglu_limit", "5"},
                  {"attention_bias", "false"},
                  {"rope_scaling", R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})"}});
  EXPECT_THAT(windows(other), ElementsAre(0, 0, 16, 0));
  EXPECT_EQ(other.activation.limit, 5);
  EXPECT_FALSE(other.qkv_bias || other.output_bias);
  EXPECT_TRUE(other.rotaries.front().whole_pairs);
  EXPECT_THAT(untrainable(arch), HasSubstr("sinks"));
  EXPECT_NO_THROW(of_family("gpt_oss", {{"quantization_config", R"({"quant_method": "mxfp4"})"}}));
  EXPECT_THROW(of_family("gpt_oss", {{"quantization_config", R"({"quant_method": "awq"})"}}), Error);
}

std::vector<bool> layers_with_delta(const Architecture& arch) {
  std::vector<bool> with;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer) with.push_back(bool(arch.kind(layer).delta));
  return with;
}

TEST(Architecture, QwenHasDeltaNetsInAllButSomeLayers) {
  const DeltaNet usual{.key_heads = 16, .value_heads = 32, .key_dim = 128, .value_dim = 128, .width = 4};
  const Architecture dense = of_family("qwen3_5_text", {{"num_hidden_layers", "5"}});
  EXPECT_THAT(layers_with_delta(dense), ElementsAre(true, true, true, false, true));
  EXPECT_EQ(dense.kind(0).delta, usual);
  EXPECT_EQ(dense.norm, Norm::rms1p);
  EXPECT_EQ(dense.qk_norm, QkNorm::head);
  EXPECT_TRUE(dense.output_gate);
  EXPECT_EQ(dense.kinds.front().head_dim, 256);
  EXPECT_EQ(dense.rotaries.front().partial, 0.25);
  EXPECT_EQ(dense.norm_epsilon, 1e-6);
  EXPECT_THAT(untrainable(dense), HasSubstr("layer 0: it is a gated delta net"));

  const Architecture mixture = of_family("qwen3_5_moe_text", {{"num_hidden_layers", "3"},
                                                              {"moe_intermediate_size", "24"},
                                                              {"linear_num_value_heads", "16"},
                                                              {"full_attention_interval", "2"}});
  EXPECT_THAT(layers_with_delta(mixture), ElementsAre(true, false, true));
  EXPECT_EQ(mixture.kind(1).ffn, 24);
  EXPECT_EQ(mixture.kind(0).delta.value_heads, 16);
  EXPECT_EQ(mixture.kind(0).experts, mixture.kind(1).experts);
  EXPECT_EQ(mixture.kind(0).experts,
            (Experts{.count = 256, .active = 8, .router = {}, .shared_ffn = 512, .shared_gate = true}));

  const Architecture next = of_family("qwen3_next", {{"num_hidden_layers", "4"},
                                                     {"norm_topk_prob", "false"},
                                                     {"mlp_only_layers", "[1]"},
                                                     {"layer_types", R"(["full_attention", "linear_attention",
                                                                         "linear_attention", "full_attention"])"}});
  EXPECT_THAT(layers_with_delta(next), ElementsAre(false, true, true, false));
  EXPECT_EQ(next.kinds.size(), 3u);
  EXPECT_EQ(next.kind(1).experts.count, 0);
  EXPECT_EQ(next.kind(2).experts.count, 512);
  EXPECT_EQ(next.kind(2).experts.active, 10);
  EXPECT_EQ(next.kind(2).experts.router.score, RouterScore::softmax);

  const auto refused = [](std::vector<std::pair<std::string, std::string>> changes) {
    changes.push_back({"num_hidden_layers", "4"});
    try {
      of_family("qwen3_5_text", changes);
    } catch (const Error& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
    return std::string("no error");
  };
  EXPECT_THAT(refused({{"layer_types", R"(["linear_attention", "full_attention"])"}}),
              HasSubstr("2 entries for 4 layers | give one per layer, or remove `layer_types` to use "
                        "`full_attention_interval`"));
  EXPECT_THAT(refused({{"layer_types", R"(["sliding_attention", "", "", ""])"}}), HasSubstr("sliding_attention"));
  EXPECT_THAT(refused({{"linear_num_key_heads", "12"}}),
              HasSubstr("32 value heads cannot be divided among 12 key heads"));
}

TEST(Architecture, Gemma3HasTwoRotaryRules) {
  const auto gemma = [](std::vector<std::pair<std::string, std::string>> changes) {
    changes.push_back({"num_hidden_layers", "7"});
    return of_family("gemma3_text", changes);
  };
  const Architecture arch = gemma({});
  EXPECT_EQ(arch.norm, Norm::rms1p);
  EXPECT_TRUE(arch.output_norms && arch.tied_embeddings);
  EXPECT_EQ(arch.qk_norm, QkNorm::head);
  EXPECT_EQ(arch.activation, Activation::gelu_tanh);
  EXPECT_EQ(arch.kinds.front().head_dim, 256);
  EXPECT_EQ(arch.embedding_factor, 8);
  EXPECT_EQ(arch.score_scale, 1.0 / 16);
  EXPECT_THAT(windows(arch), ElementsAre(4096, 4096, 4096, 4096, 4096, 0, 4096));
  EXPECT_EQ(arch.rotaries, (std::vector<Rotary>{{.theta = 1e6}, {.theta = 1e4}}));
  EXPECT_EQ(arch.kind(0).rotary, 1);
  EXPECT_EQ(arch.kind(5).rotary, 0);
  EXPECT_EQ(arch.pad_token, 0);

  const std::vector<Rotary> scaled = {
      {.theta = 5e5, .scaling = RotaryScaling::linear, .factor = 8, .original_context = 1024}, {.theta = 2e4}};
  const Architecture older = gemma({{"max_position_embeddings", "1024"},
                                    {"rope_theta", "500000"},
                                    {"rope_local_base_freq", "20000"},
                                    {"rope_scaling", R"({"rope_type": "linear", "factor": 8})"},
                                    {"sliding_window_pattern", "3"},
                                    {"query_pre_attn_scalar", "64"}});
  EXPECT_EQ(older.rotaries, scaled);
  EXPECT_EQ(older.context, 1024);
  EXPECT_EQ(older.score_scale, 1.0 / 8);
  EXPECT_EQ(older.kind(2).window, 0);
  EXPECT_EQ(gemma({{"max_position_embeddings", "1024"},
                   {"rope_parameters", R"({"full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
                                           "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}})"}})
                .rotaries,
            scaled);
}

TEST(Architecture, Gemma4HasHeadsOfTwoSizes) {
  const auto gemma = [](std::vector<std::pair<std::string, std::string>> changes) {
    changes.push_back({"num_hidden_layers", "7"});
    if (std::ranges::count(changes, "hidden_size_per_layer_input", &std::pair<std::string, std::string>::first) == 0)
      changes.push_back({"hidden_size_per_layer_input", "null"});
    return of_family("gemma4_text", changes);
  };
  const Architecture arch = gemma({});
  EXPECT_EQ(arch.norm, Norm::rms);
  EXPECT_TRUE(arch.output_norms && arch.value_norm && arch.layer_factors && arch.tied_embeddings);
  EXPECT_EQ(arch.score_scale, 1);
  EXPECT_THAT(windows(arch), ElementsAre(512, 512, 512, 512, 512, 0, 0)) << "the last has none";
  EXPECT_EQ(arch.rotaries, (std::vector<Rotary>{{.theta = 1e6, .turning = 0.25}, {.theta = 1e4}}));
  EXPECT_EQ(arch.kind(0).head_dim, 256);
  EXPECT_EQ(arch.kind(5).head_dim, 512);
  EXPECT_EQ(arch.kind(5).kv_heads, arch.kind(0).kv_heads);
  EXPECT_EQ(arch.kind(5).rotary, 0);
  EXPECT_FALSE(arch.kind(5).keys_are_values);
  EXPECT_EQ(arch.kind(0).experts, Experts());

  const std::vector<std::pair<std::string, std::string>> mixture = {{"attention_k_eq_v", "true"},
                                                                    {"num_global_key_value_heads", "1"},
                                                                    {"final_logit_softcapping", "30.0"},
                                                                    {"enable_moe_block", "true"},
                                                                    {"num_experts", "8"},
                                                                    {"top_k_experts", "3"},
                                                                    {"moe_intermediate_size", "24"}};
  const Architecture routed = gemma(mixture);
  EXPECT_EQ(routed.logit_cap, 30);
  EXPECT_EQ(routed.kind(5).kv_heads, 1);
  EXPECT_TRUE(routed.kind(5).keys_are_values && !routed.kind(0).keys_are_values);
  EXPECT_EQ(routed.kind(0).experts, (Experts{.count = 8,
                                             .active = 3,
                                             .router = {.expert_factors = true},
                                             .shared_ffn = arch.kind(0).ffn,
                                             .own_norms = true}));
  EXPECT_EQ(routed.kind(0).ffn, 24);
  EXPECT_EQ(total_parameters(routed), parameters_of(part_tensors(routed, whole_model(routed))));
  EXPECT_THAT(untrainable(routed), HasSubstr("layer 0: its experts and the FFN at their side have norms of their own"));
  EXPECT_THAT(untrainable(arch), HasSubstr("norms of values"));
  // As `transformers` saves it.
  std::vector<std::pair<std::string, std::string>> saved = mixture;
  saved[1] = {"per_layer_config", R"({"5": {"head_dim": 512, "num_key_value_heads": 1},
                                      "6": {"head_dim": 512, "num_key_value_heads": 1}})"};
  EXPECT_EQ(gemma(saved), routed);

  const auto refused = [&](std::vector<std::pair<std::string, std::string>> changes, const char* said) {
    try {
      gemma(changes);
      ADD_FAILURE() << said;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(said));
    }
  };
  refused({{"hidden_size_per_layer_input", "256"}}, "embeddings of its own for each layer");
  refused({{"num_kv_shared_layers", "2"}}, "layers that share keys and values");
  refused({{"per_layer_config", R"({"5": {"head_dim": 512}, "6": {"head_dim": 128}})"}},
          "layer 6 with other heads than those of its type");
  refused({{"per_layer_config", R"({"0": {"head_dim": 64}, "5": {"head_dim": 512}, "6": {"head_dim": 512}})"}},
          "layer 0 with other heads");
  refused({{"enable_moe_block", "true"}, {"moe_intermediate_size", "24"}, {"num_experts", "2"}, {"top_k_experts", "3"}},
          "a token cannot take 3 of 2 experts");
  refused({{"rope_parameters", R"({"full_attention": {"rope_type": "yarn"}})"}}, "rotary scaling \"yarn\"");
}

TEST(Architecture, ALanguageModelInsideALargerOneIsTakenOutOfIt) {
  Value whole = Value::object({{"model_type", "gemma3"}, {"eos_token_id", Value::array({1, 106})}});
  whole.set("text_config", with(llama_config, {{"model_type", "\"gemma3_text\""}}));
  const Architecture arch = read_architecture(text_config(whole), "config.json");
  EXPECT_EQ(arch.family, "gemma3_text");
  EXPECT_THAT(arch.eos_tokens, ElementsAre(1, 106));
  whole.set("text_config", with(llama_config, {{"model_type", "\"unheard_of\""}}));
  EXPECT_EQ(text_config(whole), whole);
}

TEST(Architecture, QwenWindows) {
  const auto qwen2 = [](std::vector<std::pair<std::string, std::string>> changes) {
    changes.push_back({"model_type", "\"qwen2\""});
    return arch_of(changes);
  };
  EXPECT_EQ(qwen2({{"sliding_window", "16"}}).kinds.front().window, 0);
  const Architecture some =
      qwen2({{"use_sliding_window", "true"}, {"sliding_window", "16"}, {"max_window_layers", "3"}});
  EXPECT_THAT(windows(some), ElementsAre(0, 0, 0, 16));
  const Architecture all = qwen2({{"use_sliding_window", "true"}, {"max_window_layers", "0"}});
  EXPECT_THAT(windows(all), ElementsAre(4096, 4096, 4096, 4096));
  EXPECT_EQ(all.kinds.size(), 1);
  const Architecture none = qwen2({{"use_sliding_window", "true"}, {"sliding_window", "16"}});
  EXPECT_THAT(windows(none), ElementsAre(0, 0, 0, 0));
  const Architecture listed =
      qwen2({{"use_sliding_window", "true"},
             {"sliding_window", "16"},
             {"layer_types", R"(["full_attention", "sliding_attention", "full_attention", "sliding_attention"])"}});
  EXPECT_THAT(windows(listed), ElementsAre(0, 16, 0, 16));
  EXPECT_EQ(listed.kinds.size(), 2);
  EXPECT_TRUE(listed.qkv_bias);
  EXPECT_FALSE(listed.output_bias);
}

TEST(Architecture, Qwen3HasItsOwnHeadSize) {
  const Architecture arch = arch_of({{"model_type", "\"qwen3\""}, {"hidden_size", "100"}});
  EXPECT_EQ(arch.kinds.front().head_dim, 128);
  EXPECT_EQ(arch.qk_norm, QkNorm::head);
  EXPECT_FALSE(arch.qkv_bias);
}

TEST(Architecture, Opt) {
  const std::string opt = R"({"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                              "ffn_dim": 128, "vocab_size": 100})";
  const Architecture arch = arch_of({}, opt);
  EXPECT_EQ(arch.position, PositionKind::learned);
  EXPECT_EQ(arch.context, 2048);
  EXPECT_EQ(arch.position_rows, 2050);
  EXPECT_EQ(arch.position_offset, 2);
  EXPECT_EQ(arch.kinds.front().kv_heads, 4);
  EXPECT_EQ(arch.norm, Norm::layer);
  EXPECT_TRUE(arch.norm_bias && arch.qkv_bias && arch.output_bias && arch.ffn_bias);
  EXPECT_TRUE(arch.norm_first && arch.final_norm && arch.tied_embeddings);
  EXPECT_FALSE(arch.gated);
  EXPECT_EQ(arch.activation, Activation::relu);
  EXPECT_EQ(arch.embedding_dim, 0);

  const Architecture last = arch_of({{"do_layer_norm_before", "false"}, {"word_embed_proj_dim", "32"}}, opt);
  EXPECT_FALSE(last.norm_first);
  EXPECT_FALSE(last.final_norm);
  EXPECT_EQ(last.embedding_dim, 32);
}

struct Bad {
  std::vector<std::pair<std::string, std::string>> changes;
  std::string message;
  std::string hint;
};

TEST(Architecture, BadConfigsAreRefusedWithPlaceAndCause) {
  const std::vector<Bad> table = {
      {{{"model_type", "null"}}, "`model_type` is missing", "supported model types: llama"},
      {{{"model_type", "\"lama\""}}, "model_type: model type \"lama\" is not supported", "did you mean \"llama\"?"},
      {{{"model_type", "\"gemma3\""}, {"text_config", "{}"}}, "not supported", "only text models are supported"},
      {{{"model_type", "7"}}, "expected a string", ""},
      {{{"hidden_size", "null"}}, "`hidden_size` is missing", "whole shape"},
      {{{"num_hidden_layers", "null"}}, "`num_hidden_layers` is missing", ""},
      {{{"num_attention_heads", "null"}}, "`num_attention_heads` is missing", ""},
      {{{"intermediate_size", "null"}}, "`intermediate_size` is missing", ""},
      {{{"vocab_size", "null"}}, "`vocab_size` is missing", ""},
      {{{"hidden_size", "\"64\""}}, "hidden_size: expected an integer, found a string", ""},
      {{{"hidden_size", "64.5"}}, "hidden_size: expected an integer", ""},
      {{{"hidden_size", "0"}}, "hidden_size: 0 is out of range", "at least 1"},
      {{{"hidden_size", "-64"}}, "out of range", ""},
      {{{"hidden_size", "100000000"}}, "out of range", "at most 262144"},
      {{{"hidden_size", "1e300"}}, "expected an integer", ""},
      {{{"num_hidden_layers", "1000000"}}, "num_hidden_layers: 1000000 is out of range", ""},
      {{{"vocab_size", "0"}}, "vocab_size: 0 is out of range", ""},
      {{{"vocab_size", "9223372036854775807"}}, "vocab_size:", ""},
      {{{"hidden_size", "65"}}, "hidden_size 65 must be a multiple of 8 heads", "head_dim"},
      {{{"num_key_value_heads", "3"}},
       "num_key_value_heads: 8 query heads must be a multiple of 3",
       "correct num_attention_heads"},
      {{{"num_key_value_heads", "16"}}, "num_key_value_heads: 8 query heads must be a multiple of 16", ""},
      {{{"head_dim", "7"}}, "head_dim: the head size must be even for rotary embeddings, found 7", ""},
      {{{"head_dim", "0"}}, "head_dim: 0 is out of range", ""},
      {{{"hidden_act", "\"mish\""}}, "hidden_act: activation \"mish\" is not supported", "silu"},
      {{{"torch_dtype", "\"float8_e4m3fn\""}}, "torch_dtype: a checkpoint of type", "float32, bfloat16"},
      {{{"rms_norm_eps", "0"}}, "rms_norm_eps: 0 is out of range", ""},
      {{{"rms_norm_eps", "true"}}, "rms_norm_eps: expected a number", ""},
      {{{"tie_word_embeddings", "1"}}, "tie_word_embeddings: expected true or false", ""},
      {{{"max_position_embeddings", "0"}}, "max_position_embeddings: 0 is out of range", ""},
      {{{"rope_theta", "-1"}}, "rope_theta: -1 is out of range", ""},
      {{{"rope_scaling", "[]"}}, "rope_scaling: expected a table", ""},
      {{{"rope_scaling", R"({"type": "longrope"})"}}, "rope_scaling.type: rotary scaling \"longrope\"", "llama3, yarn"},
      {{{"rope_scaling", R"({"type": "linear"})"}}, "rope_scaling: `factor` is missing", ""},
      {{{"rope_scaling", R"({"type": "linear", "factor": 0})"}}, "rope_scaling.factor: 0 is out of range", ""},
      {{{"rope_scaling", R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4})"}},
       "high_freq_factor: 4 must be above low_freq_factor",
       ""},
      {{{"rope_scaling", R"({"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2})"}},
       "beta_fast: 1 must not",
       ""},
      {{{"rope_parameters", R"({"full_attention": {}})"}}, "per layer type is not supported", ""},
      {{{"partial_rotary_factor", "0.5"}}, "partial_rotary_factor: partial rotary embedding", ""},
      {{{"eos_token_id", "300"}}, "eos_token_id: 300 is out of range", "at most 299"},
      {{{"eos_token_id", "[2, -1]"}}, "eos_token_id[1]: -1 is out of range", ""},
      {{{"eos_token_id", "\"</s>\""}}, "eos_token_id: expected an integer", ""},
      {{{"bos_token_id", "300"}}, "bos_token_id: 300 is out of range", ""},
      {{{"rope_scaling", R"({"type": "linear", "factor": 1e6})"}}, "rope_scaling.factor: 1e+06 times 2048", "correct"},
      {{{"rope_scaling", R"({"rope_type": "yarn", "factor": 1e-4})"}}, "must be a context of 1 to", ""},
      {{{"model_type", "\"qwen2\""},
        {"num_hidden_layers", "1"},
        {"layer_types", R"(["full_attention", "full_attention"])"}},
       "layer_types: 2 entries for 1 layers",
       ""},
      {{{"model_type", "\"qwen2\""}, {"layer_types", R"(["full_attention"])"}},
       "layer_types: 1 entries for 4 layers",
       ""},
      {{{"model_type", "\"qwen2\""},
        {"layer_types", R"(["full_attention", "sliding_attention", "full_attention", "full_attention"])"}},
       "a layer has sliding attention, but the window is missing",
       "use_sliding_window"},
      {{{"model_type", "\"qwen2\""}, {"layer_types", R"(["full_attention", "linear_attention", 1, 2])"}},
       "layer_types[1]: \"linear_attention\" is not one of",
       ""},
      {{{"model_type", "\"opt\""}}, "`ffn_dim` is missing", ""},
      {{{"model_type", "\"opt\""}, {"ffn_dim", "4"}, {"num_attention_heads", "7"}},
       "must be a multiple of 7 heads",
       ""},
      {{{"model_type", "\"opt\""}, {"ffn_dim", "4"}, {"layer_norm_elementwise_affine", "false"}},
       "without parameters",
       ""},
      {{{"model_type", "\"qwen3_moe\""}, {"num_experts_per_tok", "9"}, {"num_experts", "4"}},
       "num_experts_per_tok: a token cannot take 9 of 4 experts",
       "`num_experts`"},
      {{{"model_type", "\"qwen3_moe\""}, {"num_experts", "4"}}, "a token cannot take 8 of 4 experts", ""},
      {{{"model_type", "\"qwen3_moe\""}, {"num_experts", "16"}, {"num_local_experts", "32"}},
       "num_local_experts: 32 experts, and `num_experts` says 16",
       "keep one"},
      {{{"model_type", "\"qwen3_moe\""}, {"mlp_only_layers", "[1, 4]"}}, "mlp_only_layers[1]: 4 is out of range", ""},
      {{{"model_type", "\"qwen3_moe\""}, {"mlp_only_layers", "0"}}, "mlp_only_layers: expected a list", ""},
      {{{"model_type", "\"qwen3_moe\""}, {"partial_rotary_factor", "0.5"}},
       "partial_rotary_factor: partial rotary embedding is not supported",
       "whole heads"},
      {{{"model_type", "\"glm4_moe\""}, {"mlp_layer_types", R"(["dense"])"}},
       "mlp_layer_types: 1 entries for 4 layers",
       "first_k_dense_replace"},
      {{{"model_type", "\"glm4_moe\""}, {"mlp_layer_types", R"(["dense", "sparse", "sparse", "none"])"}},
       "mlp_layer_types[3]",
       ""},
      {{{"model_type", "\"glm4_moe\""}, {"first_k_dense_replace", "5"}},
       "first_k_dense_replace: 5 is out of range",
       ""},
      {{{"model_type", "\"glm4_moe\""}, {"n_group", "4"}}, "n_group: a choice among groups of experts", "1 group"},
      {{{"model_type", "\"glm4_moe\""}, {"scoring_func", "\"softmax\""}},
       "scoring_func: a router that scores by \"softmax\"",
       "sigmoid"},
      {{{"model_type", "\"glm4_moe\""}, {"partial_rotary_factor", "0.4"}},
       "partial_rotary_factor: 3 of the 8 dimensions of a head cannot be rotated in pairs",
       "head_dim"},
      {{{"model_type", "\"minimax_m2\""}, {"rotary_dim", "130"}}, "rotary_dim: 130 is out of range", "at most 128"},
      {{{"model_type", "\"minimax_m2\""}, {"intermediate_size", "2097152"}, {"num_local_experts", "4096"}},
       "a layer of 4096 experts of 2097152 columns is not supported",
       "at most 134217728"},
  };
  for (const Bad& bad : table) {
    SCOPED_TRACE(bad.changes.back().first + " = " + bad.changes.back().second);
    try {
      arch_of(bad.changes);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      EXPECT_THAT(error.what(), HasSubstr(bad.message));
      EXPECT_THAT(error.what(), testing::StartsWith("config.json"));
      EXPECT_THAT(error.hint(), HasSubstr(bad.hint));
    }
  }
  EXPECT_THROW(read_architecture(Value("text"), "config.json"), Error);
}

// Whatever stands under a key, the answer is an architecture whose arithmetic is sound, or an input error.
RC_GTEST_PROP(ArchitectureProperty, NoValueOfAnyKeyDoesHarm, ()) {
  static const std::vector<std::string> keys = {"model_type",          "hidden_size",
                                                "num_hidden_layers",   "num_attention_heads",
                                                "num_key_value_heads", "head_dim",
                                                "intermediate_size",   "ffn_dim",
                                                "vocab_size",          "max_position_embeddings",
                                                "rope_scaling",        "rope_parameters",
                                                "rope_theta",          "sliding_window",
                                                "max_window_layers",   "layer_types",
                                                "eos_token_id",        "use_sliding_window",
                                                "word_embed_proj_dim", "do_layer_norm_before",
                                                "torch_dtype",         "hidden_act",
                                                "tie_word_embeddings", "attention_bias",
                                                "rms_norm_eps",        "num_local_experts",
                                                "num_experts_per_tok", "mlp_only_layers",
                                                "n_shared_experts",    "decoder_sparse_step",
                                                "rotary_dim"};
  static const std::vector<std::string> values = {
      "null",
      "true",
      "0",
      "1",
      "-1",
      "2",
      "3",
      "8",
      "4096",
      "262144",
      "2097152",
      "16777216",
      "9223372036854775807",
      "-9223372036854775808",
      "1e308",
      "0.5",
      "\"\"",
      "\"mistral\"",
      "\"qwen2\"",
      "\"qwen3\"",
      "\"opt\"",
      "\"qwen3_moe\"",
      "\"glm4_moe\"",
      "\"minimax_m2\"",
      "\"float32\"",
      "[]",
      "[1, 2]",
      "[null]",
      "{}",
      R"({"rope_type": "yarn"})",
      R"({"rope_type": "yarn", "factor": 1e-300})",
      R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4})",
      R"({"type": {}})"};
  Value config = parse_json(llama_config, "base");
  const int changes = *rc::gen::inRange(1, 5);
  for (int i = 0; i < changes; ++i)
    config.set(*rc::gen::elementOf(keys), parse_json(*rc::gen::elementOf(values), "change"));
  try {
    const Architecture arch = read_architecture(config, "config.json");
    RC_ASSERT(total_parameters(arch) > 0);
    RC_ASSERT(arch.heads % arch.kinds.front().kv_heads == 0);
    const Shard whole = make_shards(arch, 1).front();
    const ModelPart all = whole_model(arch);
    RC_ASSERT(weight_bytes(arch, all, whole, DType::fp32) >= 4 * total_parameters(arch));
  } catch (const Error& error) {
    RC_ASSERT(error.code() == ErrorCode::input);
  }
}

TEST(Architecture, TheLargestAcceptedSizesDoNotOverflow) {
  const Architecture arch = arch_of({{"hidden_size", "262144"},
                                     {"num_hidden_layers", "4096"},
                                     {"num_attention_heads", "4096"},
                                     {"num_key_value_heads", "4096"},
                                     {"head_dim", "4096"},
                                     {"intermediate_size", "2097152"},
                                     {"vocab_size", "16777216"}});
  const double block = 4.0 * 4096 * 4096 * 262144 + 3.0 * 2097152 * 262144;
  const double total = 4096 * block + 2.0 * 16777216 * 262144;
  EXPECT_NEAR(static_cast<double>(total_parameters(arch)) / total, 1, 1e-6);
  const ModelPart all = whole_model(arch);
  const double bytes = static_cast<double>(weight_bytes(arch, all, make_shards(arch, 1).front(), DType::fp32));
  EXPECT_NEAR(bytes / (4 * total), 1, 1e-6);
}

// ---- read_model ----

class ModelFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("motley-model-" + std::to_string(getpid())) / "tiny";
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_.parent_path()); }
  std::filesystem::path folder_;
};

TEST_F(ModelFolder, FolderAndFileAreTheSameModel) {
  write_file(folder_ / "config.json", llama_config);
  const Model model = read_model(folder_.string());
  EXPECT_EQ(model.name, "tiny");
  EXPECT_EQ(model.arch.layers, 4);
  EXPECT_EQ(read_model((folder_ / "config.json").string()), model);
  EXPECT_EQ(read_model(folder_.string() + "/"), model);
  EXPECT_EQ(read_architecture(model.config, "plan.json"), model.arch);
}

TEST_F(ModelFolder, GenerationConfigSaysWhatEndsAText) {
  write_file(folder_ / "config.json", llama_config);
  write_file(folder_ / "generation_config.json", R"({"eos_token_id": [5, 7], "temperature": 0.7})");
  const Model model = read_model(folder_.string());
  EXPECT_THAT(model.arch.eos_tokens, ElementsAre(5, 7));
  EXPECT_EQ(read_architecture(model.config, "plan.json"),
            model.arch);  // so a plan that carries the config carries them

  write_file(folder_ / "generation_config.json", R"({"eos_token_id": 999})");
  EXPECT_THROW(
      {
        try {
          read_model(folder_.string());
        } catch (const Error& error) {
          EXPECT_THAT(error.what(), HasSubstr("generation_config.json:1: eos_token_id"));
          throw;
        }
      },
      Error);
}

// ModelOpt, AutoGPTQ and AutoAWQ have written files of their own.
TEST_F(ModelFolder, AFileBesideTheConfigurationSaysThatItIsQuantised) {
  write_file(folder_ / "config.json", llama_config);
  const auto refused = [&](const char* name, const char* text) {
    write_file(folder_ / name, text);
    const std::string what = refusal_of([&] { read_model(folder_.string()); });
    std::filesystem::remove(folder_ / name);
    return what;
  };
  const std::string opt_fp8 = refused("hf_quant_config.json", R"({"producer": {"name": "modelopt", "version": "0.33"},
                                       "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null}})");
  EXPECT_THAT(opt_fp8, testing::AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("quantised by modelopt (FP8)")));
  EXPECT_THAT(refused("quantize_config.json", R"({"bits": 4, "group_size": 128, "quant_method": "gptq"})"),
              HasSubstr("quantised by gptq (4 bits, groups of 128)"));
  EXPECT_EQ(refused("hf_quant_config.json", R"({"quantization": {"quant_algo": null, "kv_cache_quant_algo": "FP8"}})"),
            "accepted");
}

TEST_F(ModelFolder, AContextIsSetAsFarAsPositionsGo) {
  write_file(folder_ / "config.json", llama_config);
  Model model = read_model(folder_.string());
  set_context(model, 0);
  EXPECT_EQ(model.arch.context, 2048);
  EXPECT_EQ(model.context, std::nullopt);
  set_context(model, 100000);
  EXPECT_EQ(model.arch.context, 100000);
  EXPECT_EQ(motley::read<Model>(motley::write(model), "plan"), model);

  Model opt = read_model("opt-125m");
  set_context(opt, 100);
  set_context(opt, 2048);
  EXPECT_EQ(opt.arch.context, 2048);
  EXPECT_EQ(opt.arch.position_rows, 2050);
  EXPECT_THROW(set_context(opt, 2049), Error);
}

TEST(ReadModel, NamesOfTheDataFolder) {
  const Model model = read_model("llama-2-70b");
  EXPECT_EQ(model.name, "llama-2-70b");
  EXPECT_EQ(model.arch.layers, 80);
  EXPECT_EQ(model.arch.kinds.front().kv_heads, 8);
  for (const auto& entry : std::filesystem::directory_iterator(data_folder() / "models")) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    const std::string name = entry.path().filename();
    EXPECT_EQ(read_model(name).name, name);
  }
}

TEST(ReadModel, UnknownNamesAndPaths) {
  const auto error_of = [](const std::string& name) {
    try {
      read_model(name);
    } catch (const Error& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
    return std::string("no error");
  };
  EXPECT_THAT(error_of("llama-2-7Ob"), HasSubstr("did you mean \"llama-2-70b\"?"));
  EXPECT_THAT(error_of("zzz"), HasSubstr("known models: "));
  EXPECT_THAT(error_of("no/such/folder"), HasSubstr("no such file or folder"));
  EXPECT_THAT(error_of("config.json.gone.json"), HasSubstr("no such file or folder"));
  EXPECT_THAT(error_of("/tmp"), HasSubstr("config.json is missing in this folder"));
}

}  // namespace
}  // namespace motley
