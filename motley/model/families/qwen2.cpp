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

}  // namespace

constinit const Family qwen2_family = {
    .name = "qwen2",
    .read = read_qwen2,
    .tensors = gated_tensors_in_order,
    .deviation = gated_deviation,
    .gguf = GgufForm{.architecture = "qwen2", .keys = {}, .attention_bias = {}, .ffn_bias = {}},
};

}  // namespace motley
