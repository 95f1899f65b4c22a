// The cost form `motley`: real parameter counts, grouped KV heads, embedding and head on the end stages, prefill and
// decode apart, several sequences per step. docs/costs.md has the formulas with symbols, units, validity and sources.
//
// A stage works in steps. A decode step carries one token of each of q sequences; a prefill step carries one chunk of
// one prompt. In a step of t tokens that reads k cached tokens, one block takes on the slowest rank
//
//   max((weights + k * kv_bytes) / (bandwidth * efficiency), t * flops(context) / (flop_per_s * efficiency))
//     + 2 all-reduces of t * H activations + a constant per layer
//
// The tokens of a step also pay, per stage, receiving them (all-gather over the group after the striped crossing), the
// head on the last stage, and a constant.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/units.hpp"
#include "motley/cost/forms.hpp"

namespace motley {
namespace {

// Starting values, not measurements: launches of about ten kernels, and the scheduling and framing of a step.
constexpr double kLayerOverhead_s = 20e-6;
constexpr double kStepOverhead_s = 100e-6;

constexpr double kLogitBytes = 4;    // fp32
constexpr double kTokenIdBytes = 8;  // int64

struct Step {
  double tokens = 0;   // that pass through
  double context = 0;  // that each of them attends to
  double cached = 0;   // cached tokens that are read, over all sequences
  double logits = 0;   // tokens that go through the head
};

struct Roofline {
  double memory_s = 0;
  double compute_s = 0;
  double seconds() const { return std::max(memory_s, compute_s); }
};

class MotleyForm final : public ServeForm {
 public:
  MotleyForm(const CostOptions& options, const Cluster& cluster, const Architecture& arch, const ServePoint& point)
      : cluster_(cluster),
        arch_(arch),
        point_(point),
        layer_overhead_s_(setting(options, "motley.layer_overhead_s", kLayerOverhead_s)),
        step_overhead_s_(setting(options, "motley.step_overhead_s", kStepOverhead_s)),
        chunks_(std::max(1.0, std::ceil(point.prompt_tokens / static_cast<double>(point.step.max_tokens)))),
        decode_steps_(std::max(0.0, point.output_tokens - 1)),
        sequences_(static_cast<double>(point.sequences)) {
    const double half_prompt = point.prompt_tokens / 2;
    const double context = point.prompt_tokens + point.output_tokens / 2;
    prefill_ = {point.prompt_tokens / chunks_, half_prompt, seen(half_prompt), 1 / chunks_};
    decode_ = {sequences_, context, sequences_ * seen(context), sequences_};
  }

  StagePrice block(const TensorGroup& group) const override {
    return priced(block_step(group, prefill_).seconds() + block_fixed(group, prefill_),
                  block_step(group, decode_).seconds() + block_fixed(group, decode_));
  }

  StagePrice ends(const TensorGroup& group, StageEnds ends) const override {
    return priced(ends_step(group, ends, prefill_), ends_step(group, ends, decode_));
  }

  StagePrice hop(const TensorGroup& from, const TensorGroup& to) const override {
    const PathSpeed prompt = crossing(from, to, prefill_), token = crossing(from, to, decode_);
    const double prompt_bytes = activation_bytes_of(from, prefill_), token_bytes = activation_bytes_of(from, decode_);
    return {{chunks_ * prompt.seconds(prompt_bytes), decode_steps_ * token.seconds(token_bytes)},
            // Only the sending itself keeps the sender busy; the way through the network overlaps with its next step.
            {chunks_ * prompt_bytes / prompt.bandwidth_bytes_per_s,
             decode_steps_ * token_bytes / token.bandwidth_bytes_per_s / sequences_}};
  }

  PhaseSeconds token_return(const TensorGroup& last, const TensorGroup& first) const override {
    const double bytes = sequences_ * kTokenIdBytes;
    return {0, decode_steps_ * best_link(cluster_, last.devices, first.devices, bytes).seconds(bytes)};
  }

  std::int64_t most_layers(const TensorGroup& group, StageEnds ends, std::int64_t in_flight) const override {
    return most_layers_in_memory(arch_, group, ends, kv_tokens_of(point_, in_flight), point_.step);
  }

  Term explain_stage(const TensorGroup& group, StageEnds ends, std::int64_t layers, std::string name) const override {
    return sum_of(std::move(name), {explain_steps(group, ends, layers, prefill_, chunks_, "prefill",
                                                  fmt::format("{:g} chunks of {:g} tokens", chunks_, prefill_.tokens)),
                                    explain_steps(group, ends, layers, decode_, decode_steps_, "decode",
                                                  fmt::format("{:g} steps of {} sequences at context {:g}",
                                                              decode_steps_, point_.sequences, decode_.context))});
  }

  Term explain_hop(const TensorGroup& from, const TensorGroup& to, std::string name) const override {
    const PhaseSeconds seconds = hop(from, to).latency;
    const auto note = [&](const Step& step, double times) {
      const PathSpeed path = crossing(from, to, step);
      return fmt::format("{:g} x ({} + {} / {})", times, human_seconds(path.latency_s),
                         human_bytes(activation_bytes_of(from, step)), human_rate(path.bandwidth_bytes_per_s));
    };
    return sum_of(std::move(name), {leaf("prefill", seconds.prefill_s, note(prefill_, chunks_)),
                                    leaf("decode", seconds.decode_s, note(decode_, decode_steps_))});
  }

  double requests_per_job() const override { return 1; }
  bool pipeline_always_full() const override { return false; }

 private:
  // All steps of a request: it waits for whole decode steps, but is only one of the sequences they serve.
  StagePrice priced(double prefill_step_s, double decode_step_s) const {
    const PhaseSeconds latency{chunks_ * prefill_step_s, decode_steps_ * decode_step_s};
    return {latency, {latency.prefill_s, latency.decode_s / sequences_}};
  }

  // Cached tokens that one sequence of this context really reads.
  double seen(double context) const {
    const bool windowed = arch_.sliding_window > 0 && arch_.sliding_layers.empty();
    return windowed ? std::min(context, static_cast<double>(arch_.sliding_window)) : context;
  }

  // The rank that takes longest.
  template <class RankRoofline>
  static Roofline slowest(const TensorGroup& group, RankRoofline of) {
    Roofline slowest;
    for (const auto& rank : group.ranks)
      if (const Roofline roofline = of(rank); roofline.seconds() > slowest.seconds()) slowest = roofline;
    return slowest;
  }
  static double bandwidth(const Rank& rank) { return rank.memory_bandwidth_bytes_per_s * rank.efficiency.bandwidth; }
  static double speed(const Rank& rank) { return rank.flop_per_s * rank.efficiency.compute; }

  Roofline block_step(const TensorGroup& group, const Step& step) const {
    return slowest(group, [&](const Rank& rank) {
      const double flops = rank.block_flops + rank.attention_flops * seen(step.context);
      return Roofline{(static_cast<double>(rank.block_bytes) + step.cached * rank.kv_bytes) / bandwidth(rank),
                      step.tokens * flops / speed(rank)};
    });
  }

  double all_reduces(const TensorGroup& group, const Step& step) const {
    return 2 * all_reduce_s(group, activation_bytes_of(group, step));
  }
  double block_fixed(const TensorGroup& group, const Step& step) const {
    return all_reduces(group, step) + layer_overhead_s_;
  }

  // A prompt's head is read once, in its last chunk; `step.logits` spreads it over the chunks.
  Roofline head_step(const TensorGroup& group, const Step& step) const {
    const double times = std::min(1.0, step.logits);
    return slowest(group, [&](const Rank& rank) {
      return Roofline{times * rank.head_bytes / bandwidth(rank), step.logits * rank.head_flops / speed(rank)};
    });
  }
  double gather_logits(const TensorGroup& group, const Step& step) const {
    if (group.degree() < 2) return 0;
    const double times = std::min(1.0, step.logits);
    return times * all_gather_s(group, step.logits / times * static_cast<double>(arch_.vocabulary) * kLogitBytes);
  }
  // The first stage adds up the parts of its cut embedding; the others gather the stripes that arrive at their ranks.
  double receive(const TensorGroup& group, StageEnds ends, const Step& step) const {
    const double bytes = activation_bytes_of(group, step);
    return ends.first ? all_reduce_s(group, bytes) : all_gather_s(group, bytes);
  }
  double ends_step(const TensorGroup& group, StageEnds ends, const Step& step) const {
    const double head = ends.last ? head_step(group, step).seconds() + gather_logits(group, step) : 0;
    return step_overhead_s_ + receive(group, ends, step) + head;
  }

  double activation_bytes_of(const TensorGroup& group, const Step& step) const {
    const double element = group.weight_type == DType::fp32 ? 4 : 2;
    return step.tokens * static_cast<double>(arch_.hidden) * element;
  }
  PathSpeed crossing(const TensorGroup& from, const TensorGroup& to, const Step& step) const {
    return best_link(cluster_, from.devices, to.devices, activation_bytes_of(from, step));
  }

  Term explain_steps(const TensorGroup& group, StageEnds ends, std::int64_t layers, const Step& step, double times,
                     std::string name, const std::string& what) const {
    const double all = times * static_cast<double>(layers);
    const Rank& rank = group.ranks.front();
    const Roofline block = block_step(group, step);
    std::vector<Term> terms = {max_of(
        fmt::format("{} layers", layers),
        {leaf("memory", all * block.memory_s,
              fmt::format("per step, layer and rank {} of weights and {} of KV at {}",
                          human_bytes(static_cast<double>(rank.block_bytes)), human_bytes(step.cached * rank.kv_bytes),
                          human_rate(bandwidth(rank)))),
         leaf("compute", all * block.compute_s,
              fmt::format("per step, layer and rank {} at {}/s",
                          human_flop(step.tokens * (rank.block_flops + rank.attention_flops * seen(step.context))),
                          human_flop(speed(rank))))},
        "the slowest rank")};
    if (group.degree() > 1)
      terms.push_back(leaf("all-reduce", all * all_reduces(group, step),
                           fmt::format("2 per layer, {} over {} devices", human_bytes(activation_bytes_of(group, step)),
                                       group.degree())));
    terms.push_back(
        leaf("layer overhead", all * layer_overhead_s_, fmt::format("{} per layer", human_seconds(layer_overhead_s_))));
    if (const double seconds = receive(group, ends, step); seconds > 0)
      terms.push_back(leaf(ends.first ? "embedding all-reduce" : "receive", times * seconds,
                           fmt::format("over {} devices", group.degree())));
    if (ends.last) {
      const Roofline head = head_step(group, step);
      terms.push_back(max_of("head", {leaf("memory", times * head.memory_s, human_bytes(rank.head_bytes) + " per rank"),
                                      leaf("compute", times * head.compute_s)}));
      if (group.degree() > 1) terms.push_back(leaf("gather logits", times * gather_logits(group, step)));
    }
    terms.push_back(
        leaf("step overhead", times * step_overhead_s_, fmt::format("{} per step", human_seconds(step_overhead_s_))));
    return sum_of(std::move(name), std::move(terms), what);
  }

  const Cluster& cluster_;
  const Architecture& arch_;
  ServePoint point_;
  double layer_overhead_s_, step_overhead_s_;
  double chunks_, decode_steps_, sequences_;
  Step prefill_, decode_;
};

}  // namespace

std::unique_ptr<ServeForm> make_motley_form(const CostOptions& options, const Cluster& cluster,
                                            const Architecture& arch, const ServePoint& point) {
  return std::make_unique<MotleyForm>(options, cluster, arch, point);
}

}  // namespace motley
