#include "motley/model/families/gated.hpp"

namespace motley {

Architecture read_gated(const Config& config, const GatedDefaults& defaults) {
  Architecture arch;
  arch.hidden = config.size("hidden_size", max_hidden);
  arch.layers = config.size("num_hidden_layers", max_layers);
  read_heads(config, arch, defaults.kv_heads, defaults.head_dim);
  arch.kinds.front().ffn = config.size(defaults.columns_key, max_ffn);
  arch.vocabulary = config.size("vocab_size", max_vocabulary);
  arch.context = config.size("max_position_embeddings", max_context, defaults.context);
  arch.norm_epsilon = config.number("rms_norm_eps", {.above = 0, .max = 1}, defaults.norm_epsilon);
  arch.activation = read_activation(config, "hidden_act", "silu");
  arch.rotaries.front() = read_rotary(config, arch.context, defaults.rotary_theta);
  arch.rotaries.front().partial = read_rotated_share(config, arch.kinds.front().head_dim, defaults.rotated);
  arch.tied_embeddings = config.flag("tie_word_embeddings", false);
  arch.eos_tokens = read_eos(config, arch.vocabulary, defaults.eos);
  arch.bos_token = read_bos(config, arch.vocabulary, defaults.bos);
  arch.pad_token = read_pad(config, arch.vocabulary, {});
  return arch;
}

}  // namespace motley
