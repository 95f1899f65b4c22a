#include "motley/cost/published/flexgen.hpp"

#include <algorithm>
#include <cmath>

namespace motley {
namespace {

constexpr double gibi = 1073741824.0, tera = 1e12;

double away(const TierShares& shares) { return shares.host + shares.disk; }

// Bytes of one layer's weights.
double layer_bytes(const FlexgenCase& c) { return c.weight_factor * (8 * c.hidden * c.hidden + 4 * c.hidden * c.ffn); }

// Attention on the host is slower for small batches and small hidden sizes.
double host_flops(const FlexgenCase& c, double batch) {
  const double a = std::max(0.0, std::log2(64 / batch)), b = std::max(0.0, std::log2(4096 / c.hidden));
  return c.rates.host_flops * std::max(0.1, 1 + c.rates.c1 * a * b - c.rates.c2 * a - c.rates.c3 * b);
}

}  // namespace

FlexgenRates flexgen_rates(const CostOptions& options) {
  return {.upload = 12.89 * gibi,
          .download_kv = 0.97 * gibi,
          .download_hidden = 4.82 * gibi,
          .disk_read = setting(options, "flexgen.disk_read_gib_s", 0.473) * gibi,
          .disk_write_kv = 0.746 * gibi,
          .disk_write_hidden = 2.015 * gibi,
          .disk_write_decode = 2.015 * gibi,
          .products_prefill = 21.24 * tera,
          .products_decode = 4.3 * tera,
          .attention_prefill = 9.97 * tera,
          .attention_decode = 0.079 * tera,
          .host_flops = 0.0123 * tera,
          .c1 = 0.0168,
          .c2 = 0.0328,
          .c3 = 0.0621};
}

FlexgenTimes flexgen_times(const FlexgenCase& c, const FlexgenPolicy& p) {
  const double h = c.hidden, s = c.prompt, n = c.output, context = s + n / 2;
  const double block = p.batch * p.batches, weights = layer_bytes(c), disk_in_decode = 0.95;
  const FlexgenRates& r = c.rates;
  FlexgenTimes times;
  const double products = 8 * h * h + 4 * h * c.ffn;
  times.prefill = {.upload = (away(p.weights) * weights + 2 * away(p.activations) * s * h * block) / r.upload,
                   .download = 4 * away(p.kv) * (s + 1) * h * block / r.download_kv +
                               2 * away(p.activations) * s * h * block / r.download_hidden,
                   .disk_read = (p.weights.disk * weights + 2 * p.activations.disk * s * h * block) / r.disk_read,
                   .disk_write = 4 * p.kv.disk * block * (s + 1) * h / r.disk_write_kv +
                                 2 * p.activations.disk * s * h * block / r.disk_write_hidden,
                   .compute = block * s * products / r.products_prefill + 4 * block * s * s * h / r.attention_prefill};
  times.decode = {
      .upload = (away(p.weights) * weights + 2 * away(p.activations) * h * block) / r.upload,
      .download = 2 * away(p.activations) * h * block / r.download_hidden,
      .disk_read = (4 * p.kv.disk * block * context * h + 2 * p.activations.disk * h * block) / r.disk_read +
                   p.weights.disk * weights / (disk_in_decode * r.disk_read),
      .disk_write = (4 * p.kv.disk * block * h + 2 * p.activations.disk * h * block) / r.disk_write_decode,
      .compute = block * products / r.products_decode + 4 * p.kv.device * block * context * h / r.attention_decode +
                 4 * away(p.kv) * block * context * h / host_flops(c, p.batch)};
  const FlexgenPhase &a = times.prefill, &g = times.decode;
  times.prefill_layer_s = std::max({a.upload + a.disk_read, a.download + a.disk_write, a.compute});
  times.decode_layer_s = g.upload + std::max({g.download, g.disk_read, g.disk_write, g.compute});
  times.total_s = c.layers * times.prefill_layer_s + c.layers * (n - 1) * times.decode_layer_s;
  times.tokens_per_s = block * n / times.total_s;
  return times;
}

FlexgenMemory flexgen_memory(const FlexgenCase& c, const FlexgenPolicy& p) {
  const double h = c.hidden, s = c.prompt, n = c.output, l = c.layers, heads = c.heads;
  const double batch = p.batch, block = p.batch * p.batches, weights = layer_bytes(c);
  const double streamed = 1 - p.weights.device, moved = 1 - p.activations.device;
  FlexgenMemory m;
  m.device_prefill = l * weights * p.weights.device + 2 * s * h * block * p.activations.device +
                     4 * (s + n) * h * block * l * p.kv.device + 2 * weights * streamed + 2 * s * h * batch * moved +
                     batch * (18 * s * h + 2 * s * c.ffn + 2 * heads * s * s);
  m.device_decode = l * weights * p.weights.device + 2 * h * block * p.activations.device +
                    4 * (s + n) * h * block * l * p.kv.device + 2 * weights * streamed + 2 * h * batch * moved +
                    4 * batch * (s + n) * h * p.kv.device + batch * (14 * h + 2 * c.ffn) +
                    p.kv.device * batch * (4 * h + 4 * (s + n) * h + 2 * heads * (s + n));
  m.host_prefill = l * weights * p.weights.host + 2 * s * h * block * p.activations.host +
                   4 * s * h * block * l * p.kv.host + weights * streamed + 2 * s * h * batch * moved;
  m.host_decode = l * weights * p.weights.host + 2 * h * block * p.activations.host +
                  4 * (s + n) * h * block * l * p.kv.host + weights * p.weights.disk +
                  4 * h * batch * p.activations.disk + 8 * (s + n) * h * batch * p.kv.disk +
                  2 * heads * (s + n) * batch + 2 * h * batch;
  m.disk =
      l * weights * p.weights.disk + 2 * s * h * block * p.activations.disk + 4 * (s + n) * h * block * l * p.kv.disk;
  return m;
}

}  // namespace motley
