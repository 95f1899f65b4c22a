// The cost form `hexgen`: the published model of HexGen (arXiv 2311.11514), formulas 1 to 4 of its paper, in one
// reading ("M1"): KV divided by the tensor-parallel degree in the memory formula. Per device: memory M, memory
// bandwidth m (peak), c FLOP/s (peak); n devices in a stage of l layers; link latency a and bandwidth b; batch q,
// prompt s_in, output s_out tokens; H hidden size, B bytes per element, W = 12 H^2 B bytes of weights in one layer.
//
//   1  compute     l (s_out max(W / (n m)) + max(24 q (s_in + s_out) H^2 / (n c)))
//   2  all-reduce  4 l max_d sum_d' (a + q s_in H B / (n b))  +  4 l s_out max_d sum_d' (a + q H B / (n b))
//   3  hop         min over pairs (a + q s_in H B / b)  +  s_out min over pairs (a + q H B / b)
//   4  memory      l (W / n + 2 q (s_in + s_out) H B / n) + 4 q (s_in + s_out) H B <= M
//
// What it leaves out (embedding, head, grouped KV heads, gated FFN, reserve, efficiency) stays left out here: this form
// is for reproducing published results. docs/concepts/costs.md lists the differences to motley's own.
#include "motley/cost/published/hexgen.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "motley/base/units.hpp"

namespace motley {
namespace {

class HexgenForm final : public ServeForm {
 public:
  HexgenForm(const CostOptions& options, const Cluster& cluster, const Architecture& arch, const ServePoint& point)
      : cluster_(cluster),
        layers_(arch.layers),
        hidden_(static_cast<double>(arch.hidden)),
        batch_(setting(options, "hexgen.batch", 1)),
        in_(point.prompt_tokens),
        out_(point.output_tokens) {}

  StagePrice block(const TensorGroup& group, std::size_t) const override {
    const PhaseSeconds seconds{prefill_compute(group) + all_reduce(group, in_),
                               out_ * weights(group) + decode_compute(group) + out_ * all_reduce(group, 1)};
    return {seconds, seconds.sum()};
  }

  StagePrice ends(const TensorGroup&, StageEnds) const override { return {}; }

  StagePrice hop(const TensorGroup& from, const TensorGroup& to) const override {
    const PhaseSeconds seconds{crossing(from, to, in_), out_ * crossing(from, to, 1)};
    return {seconds, seconds.sum()};
  }

  PhaseSeconds token_return(const TensorGroup&, const TensorGroup&) const override { return {}; }

  std::optional<std::int64_t> most_layers(const TensorGroup& group, StageEnds, std::int64_t) const override {
    const double element = element_bytes(group), n = group.degree();
    const double tokens = batch_ * (in_ + out_);
    const double each = (layer_bytes(group) + 2 * tokens * hidden_ * element) / n;
    const double fixed = 4 * tokens * hidden_ * element;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& rank : group.ranks) least = std::min(least, static_cast<double>(rank.memory_bytes));
    const double most = std::floor((least - fixed) / each);
    return static_cast<std::int64_t>(std::clamp(most, 0.0, static_cast<double>(layers_)));
  }

  Term explain_stage(const TensorGroup& group, StageEnds, const LayerCounts& layers, std::string name) const override {
    const double l = sum_of_layers(layers);
    const int n = group.degree();
    std::vector<Term> terms = {
        leaf("weights", l * out_ * weights(group),
             fmt::format("{} layers x {:g} tokens x {} / {} devices over the slowest memory", l, out_,
                         human_bytes(layer_bytes(group)), n)),
        leaf("prefill products", l * prefill_compute(group),
             fmt::format("{} layers x 24 x {:g} x {:g} tokens x H^2 / {} devices", l, batch_, in_, n)),
        leaf("decode products", l * decode_compute(group),
             fmt::format("{} layers x 24 x {:g} x {:g} tokens x H^2 / {} devices", l, batch_, out_, n))};
    if (n > 1) {
      terms.push_back(
          leaf("prefill all-reduce", l * all_reduce(group, in_), fmt::format("4 rounds of {} peers per layer", n - 1)));
      terms.push_back(leaf("decode all-reduce", l * out_ * all_reduce(group, 1),
                           fmt::format("4 rounds of {} peers per layer and token", n - 1)));
    }
    return sum_of(std::move(name), std::move(terms));
  }

  Term explain_hop(const TensorGroup& from, const TensorGroup& to, std::string name) const override {
    const StagePrice price = hop(from, to);
    return sum_of(std::move(name), {leaf("prefill", price.latency.prefill_s, "the fastest pair of devices"),
                                    leaf("decode", price.latency.decode_s, fmt::format("{:g} tokens", out_))});
  }

  double chunks() const override { return 1; }
  double requests_per_job() const override { return batch_; }
  bool pipeline_always_full() const override { return true; }

 private:
  static double element_bytes(const TensorGroup& group) {
    if (group.weight_type == DType::file)
      throw input_error("the form hexgen counts weights of one type, and the file's differ", "give --weight-type");
    return dtype_row(group.weight_type).bits_per_value() / 8;
  }
  double layer_bytes(const TensorGroup& group) const { return 12 * hidden_ * hidden_ * element_bytes(group); }

  // Largest over the ranks of amount / (n * rate).
  template <class Rate>
  static double slowest(const TensorGroup& group, double amount, Rate rate) {
    double seconds = 0;
    for (const auto& rank : group.ranks) seconds = std::max(seconds, amount / (group.degree() * rate(rank)));
    return seconds;
  }

  double weights(const TensorGroup& group) const {
    return slowest(group, layer_bytes(group), [](const Rank& rank) { return rank.memory_bandwidth_bytes_per_s; });
  }
  double products(const TensorGroup& group, double tokens) const {
    return slowest(group, 24 * batch_ * tokens * hidden_ * hidden_, [](const Rank& rank) { return rank.flop_per_s; });
  }
  double prefill_compute(const TensorGroup& group) const { return products(group, in_); }
  double decode_compute(const TensorGroup& group) const { return products(group, out_); }

  double all_reduce(const TensorGroup& group, double tokens) const {
    const double bytes = batch_ * tokens * hidden_ * element_bytes(group) / group.degree();
    double slowest_rank = 0;
    for (const int device : group.devices) {
      double sum = 0;
      for (const int peer : group.devices)
        if (peer != device) sum += cluster_.link(device, peer).seconds(bytes);
      slowest_rank = std::max(slowest_rank, sum);
    }
    return 4 * slowest_rank;
  }

  double crossing(const TensorGroup& from, const TensorGroup& to, double tokens) const {
    const double bytes = batch_ * tokens * hidden_ * element_bytes(from);
    return best_link(cluster_, from.devices, to.devices, bytes).seconds(bytes);
  }

  const Cluster& cluster_;
  std::int64_t layers_;
  double hidden_, batch_, in_, out_;
};

}  // namespace

std::unique_ptr<ServeForm> make_hexgen_form(const CostOptions& options, const Cluster& cluster,
                                            const Architecture& arch, const ServePoint& point) {
  if (point.phase != Phase::both)
    throw input_error("the cost form \"hexgen\" cannot price stages that only prefill or only decode",
                      "use --cost motley");
  return std::make_unique<HexgenForm>(options, cluster, arch, point);
}

}  // namespace motley
