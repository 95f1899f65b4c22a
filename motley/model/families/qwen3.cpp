// Qwen3: a norm of each query and key head.
#include "motley/model/families/families.hpp"
#include "motley/model/families/gated.hpp"

namespace motley {
namespace {

Architecture read_qwen3(const Config& config) {
  Architecture arch = read_gated(config, {.context = 32768, .kv_heads = 32, .head_dim = 128, .bos = {}, .eos = {}});
  arch.qk_norm = QkNorm::head;
  arch.qkv_bias = arch.output_bias = config.flag("attention_bias", false);
  read_windows(config, arch);
  return arch;
}

}  // namespace

constinit const Family qwen3_family = {
    .name = "qwen3",
    .read = read_qwen3,
    .tensors = gated_tensors_in_order,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "qwen3", .keys = {}, .attention_bias = "attention_bias", .ffn_bias = {}},
};

}  // namespace motley
