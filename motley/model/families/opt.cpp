// OPT: layer norms, learned positions, biases, a FFN without a gate.
#include <fmt/format.h>

#include <array>

#include "motley/model/families/families.hpp"

namespace motley {
namespace {

Architecture read_opt(const Config& config) {
  Architecture arch;
  arch.hidden = config.size("hidden_size", max_hidden);
  arch.layers = config.size("num_hidden_layers", max_layers);
  arch.heads = arch.kinds.front().kv_heads = config.size("num_attention_heads", max_heads);
  if (arch.hidden % arch.heads != 0)
    config.at("num_attention_heads")
        .fail(fmt::format("hidden_size {} must be a multiple of {} heads", arch.hidden, arch.heads),
              fmt::format("choose a divisor of {}", arch.hidden));
  arch.kinds.front().head_dim = arch.hidden / arch.heads;
  arch.kinds.front().ffn = config.size("ffn_dim", max_ffn);
  arch.vocabulary = config.size("vocab_size", max_vocabulary);
  arch.context = config.size("max_position_embeddings", 1 << 24, 2048);
  arch.position = PositionKind::learned;
  arch.position_offset = 2;
  arch.position_rows = arch.context + arch.position_offset;
  arch.norm = Norm::layer;
  arch.norm_epsilon = 1e-5;
  arch.norm_bias = true;
  if (!config.flag("layer_norm_elementwise_affine", true))
    unsupported(config.at("layer_norm_elementwise_affine"), "a layer norm without parameters",
                "only true is supported");
  arch.norm_first = config.flag("do_layer_norm_before", true);
  arch.final_norm = arch.norm_first && !config.flag("_remove_final_layer_norm", false);
  arch.qkv_bias = arch.output_bias = arch.ffn_bias = config.flag("enable_bias", true);
  arch.gated = false;
  arch.activation = read_activation(config, "activation_function", "relu");
  const std::int64_t embedding_dim = config.size("word_embed_proj_dim", max_hidden, arch.hidden);
  arch.embedding_dim = embedding_dim == arch.hidden ? 0 : embedding_dim;
  arch.tied_embeddings = config.flag("tie_word_embeddings", true);
  arch.eos_tokens = read_eos(config, arch.vocabulary, 2);
  arch.bos_token = read_bos(config, arch.vocabulary, 2);
  arch.pad_token = read_pad(config, arch.vocabulary, 1);
  return arch;
}

constexpr std::array<TensorNames, 14> opt_tensors = {{
    {"embedding", "model.decoder.embed_tokens", {}},
    {"position", "model.decoder.embed_positions", {}},
    {"projection_in", "model.decoder.project_in", {}},
    {"attention_norm", "model.decoder.layers.N.self_attn_layer_norm", {}},
    {"q", "model.decoder.layers.N.self_attn.q_proj", {}},
    {"k", "model.decoder.layers.N.self_attn.k_proj", {}},
    {"v", "model.decoder.layers.N.self_attn.v_proj", {}},
    {"o", "model.decoder.layers.N.self_attn.out_proj", {}},
    {"ffn_norm", "model.decoder.layers.N.final_layer_norm", {}},
    {"up", "model.decoder.layers.N.fc1", {}},
    {"down", "model.decoder.layers.N.fc2", {}},
    {"final_norm", "model.decoder.final_layer_norm", {}},
    {"projection_out", "model.decoder.project_out", {}},
    {"head", "lm_head", {}},
}};

constexpr std::array<PreTokenizer, 1> opt_pre_tokenizers = {
    {{"gpt-2 phi-2 jina-es jina-de gigachat a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4",
      {gpt2_words}}}};

}  // namespace

constinit const Family opt_family = {
    .name = "opt",
    .read = read_opt,
    .tensors = opt_tensors,
    .deviation = "init_std",
    .gguf = {},
    .pre_tokenizers = opt_pre_tokenizers,
};

}  // namespace motley
