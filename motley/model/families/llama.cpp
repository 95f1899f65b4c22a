// Llama, and all that has its shape.
#include "motley/model/families/families.hpp"
#include "motley/model/families/gated.hpp"

namespace motley {
namespace {

Architecture read_llama(const Config& config) {
  Architecture arch = read_gated(config, {.context = 2048, .kv_heads = {}, .head_dim = {}, .bos = 1, .eos = 2});
  arch.qkv_bias = arch.output_bias = config.flag("attention_bias", false);
  arch.ffn_bias = config.flag("mlp_bias", false);
  return arch;
}

constexpr std::array<PreTokenizer, 2> llama_pre_tokenizers = {{
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2", {llama3_words}, true, true},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b", {one_digit, gpt2_words}},
}};

}  // namespace

constinit const Family llama_family = {
    .name = "llama",
    .read = read_llama,
    .tensors = gated_tensors_in_pairs,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "llama", .keys = {}, .attention_bias = "attention_bias", .ffn_bias = "mlp_bias"},
    .pre_tokenizers = llama_pre_tokenizers,
};

}  // namespace motley
