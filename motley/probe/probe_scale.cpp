#include "motley/probe/probe_scale.hpp"

#include <unistd.h>

#include <algorithm>
#include <limits>

namespace motley {
namespace {

std::int64_t block_elements(const Architecture& shape) {
  const LayerKind& kind = shape.kinds.front();
  return 2 * shape.hidden * kind.head_dim * (shape.heads + kind.kv_heads) + 3 * shape.hidden * kind.ffn;
}
constexpr std::int64_t few_elements = 8 << 20;  // of a block

}  // namespace

const ProbeScale& scale_of(const std::string& backend, bool briefly) {
  constexpr double any_flops = std::numeric_limits<double>::infinity();
  static const ProbeScale processors{
      .vendor = "cpu",
      .limits = {.max_tokens = 64, .max_sequences = 8, .block_tokens = 16},
      .most_context = 256,
      .most_elements = 64 << 20,
      .most_vocabulary = 8192,
      .most_flops = 5e9,
      .channel_type = DType::fp32,
      .fill = Fill::zeros,
      .steps = {{1, 1, 0}, {1, 1, 256}, {8, 1, 256}, {1, 16, 0}, {1, 64, 0}, {1, 64, 256}}};
  static const ProbeScale gpus{
      .vendor = "nvidia",
      .limits = {.max_tokens = 2048, .max_sequences = 64, .block_tokens = 16},
      .most_context = 2048,
      .most_elements = 256 << 20,
      .most_vocabulary = 32768,
      .most_flops = any_flops,
      .channel_type = DType::bf16,
      .fill = Fill::random,
      .steps = {{1, 1, 0}, {1, 1, 2048}, {16, 1, 512}, {64, 1, 512}, {1, 512, 0}, {1, 2048, 0}, {1, 2048, 2048}}};
  // As GPUs, with less to write, to load and to run.
  static const ProbeScale gpus_briefly = [] {
    ProbeScale scale = gpus;
    scale.most_elements = 64 << 20;
    return scale;
  }();
  // A stand-in for a device computes on processors.
  if (!backend.starts_with("cuda")) return processors;
  return briefly ? gpus_briefly : gpus;
}

std::int64_t kv_tokens_of(const ProbeScale& scale) {
  std::int64_t most = 0;
  for (const ProbeStep& step : scale.steps)
    most = std::max(most, step.sequences * (step.position + step.tokens + scale.limits.block_tokens));
  return most;
}

Architecture probe_shape(Architecture shape, const ProbeScale& scale, std::int64_t memory_bytes) {
  constexpr std::int64_t bytes_per_element = 64;  // of both types and widths and all counts of layers, and as many free
  const std::int64_t most_elements = std::clamp(memory_bytes / bytes_per_element, few_elements, scale.most_elements);
  LayerKind& kind = shape.kinds.front();
  while (block_elements(shape) > most_elements && shape.heads > 1) {
    const auto halved = [](std::int64_t n) { return std::max<std::int64_t>(1, n / 2); };
    shape.hidden = halved(shape.hidden);
    kind.ffn = halved(kind.ffn);
    shape.heads = halved(shape.heads);
    kind.kv_heads = std::min(halved(kind.kv_heads), shape.heads);
  }
  if (shape.heads % kind.kv_heads != 0) kind.kv_heads = shape.heads;
  shape.vocabulary = std::min(shape.vocabulary, scale.most_vocabulary);
  shape.context = scale.most_context + scale.limits.max_tokens;
  return shape;
}

Architecture with_another_ffn(Architecture shape) {
  constexpr std::int64_t wider = 2, narrower = 8;
  shape.kinds.front().ffn =
      block_elements(shape) <= few_elements ? wider * shape.kinds.front().ffn : shape.kinds.front().ffn / narrower;
  return shape;
}

std::int64_t layers_beyond_cache(const Cluster& cluster, const Architecture& model, const Architecture& probed) {
  constexpr std::int64_t usual_cache_bytes = 32 << 20;
  const std::int64_t known_bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const std::int64_t cache_bytes = known_bytes > 0 ? known_bytes : usual_cache_bytes;
  std::int64_t device_bytes = 0;
  for (const DeviceType& type : cluster.types) device_bytes = std::max(device_bytes, type.memory_bytes);
  if (std::min(device_bytes, bytes_of(DType::bf16, total_parameters(model))) <= cache_bytes) return 0;
  const std::int64_t memory_bytes = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE);
  constexpr std::int64_t copies = 32;  // both types, both widths and counts, and most of the memory for others
  return std::min(2 * cache_bytes, memory_bytes / copies) / bytes_of(DType::bf16, block_parameters(probed, 0));
}

}  // namespace motley
