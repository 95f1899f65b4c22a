// Mistral: Llama with a sliding window. llama.cpp writes it as a llama that has one.
#include "motley/model/families/families.hpp"
#include "motley/model/families/gated.hpp"

namespace motley {
namespace {

Architecture read_mistral(const Config& config) {
  Architecture arch = read_gated(config, {.context = 131072, .kv_heads = 8, .head_dim = {}, .bos = 1, .eos = 2});
  // An absent key means the first release's window, a null means full attention.
  const bool full = config.states("sliding_window") && !config.has("sliding_window");
  arch.kinds.front().window = full ? 0 : config.size("sliding_window", max_context, 4096);
  return arch;
}

constexpr std::array<GgufKey, 1> mistral_keys = {
    {{"attention.sliding_window", "sliding_window",
      [](const Architecture& arch) { return value_or_null(arch.kinds.front().window); }}}};

constexpr std::string_view words_by_case =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::array<PreTokenizer, 1> mistral_pre_tokenizers = {{{"tekken", {words_by_case}, true}}};

}  // namespace

constinit const Family mistral_family = {
    .name = "mistral",
    .read = read_mistral,
    .tensors = gated_tensors_in_pairs,
    .deviation = gated_deviation,
    .gguf =
        GgufForm{
            .architecture = "llama", .keys = mistral_keys, .attention_bias = "attention_bias", .ffn_bias = "mlp_bias"},
    .pre_tokenizers = mistral_pre_tokenizers,
};

}  // namespace motley
