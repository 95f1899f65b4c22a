// Qwen2 and Qwen2.5: biases of queries, keys and values; some layers may have a window.
#include "motley/model/families/families.hpp"
#include "motley/model/families/gated.hpp"

namespace motley {
namespace {

Architecture read_qwen2(const Config& config) {
  Architecture arch = read_gated(config, {.context = 32768, .kv_heads = 32, .head_dim = {}, .bos = {}, .eos = {}});
  arch.qkv_bias = true;
  read_windows(config, arch);
  return arch;
}

constexpr std::string_view qwen2_words =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::array<PreTokenizer, 1> qwen2_pre_tokenizers = {
    {{"qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2", {qwen2_words}}}};

}  // namespace

constinit const Family qwen2_family = {
    .name = "qwen2",
    .read = read_qwen2,
    .tensors = gated_tensors_in_order,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "qwen2", .keys = {}, .attention_bias = {}, .ffn_bias = {}},
    .pre_tokenizers = qwen2_pre_tokenizers,
};

}  // namespace motley
