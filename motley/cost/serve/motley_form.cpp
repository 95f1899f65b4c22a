// The cost form `motley`: real parameter counts, grouped KV heads, embedding and head on the end stages, prefill and
// decode apart, several sequences per step. docs/concepts/costs.md has the formulas with symbols, units, validity and
// sources.
//
// A stage works in steps, priced by cost/serve/step.hpp. Alone, a request has steps with a chunk of its prompt, then
// steps with one token of each of q sequences. Where others are in flight, every step carries both: as many tokens of
// prompts per decode as requests have, as far as a step holds them. Steps without a prompt read fewer experts; where
// that outweighs what larger ones compute, unlike steps save a part of the time.
#include "motley/cost/serve/motley_form.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/base/units.hpp"
#include "motley/cost/serve/pass.hpp"
#include "motley/cost/serve/step.hpp"

namespace motley {
namespace {

// The share of steps that count as unlike: about half of what they save, stages lose by waiting for the longer ones (in
// bench/mixture_bench they are busy 85 to 90 % of the time, and 98 % with steps that are alike).
constexpr double unlike_steps = 0.5;

class MotleyForm final : public ServeForm {
 public:
  MotleyForm(const CostOptions& options, const Cluster& cluster, const Architecture& arch, const ServePoint& point)
      : step_(options, cluster, arch),
        point_(point),
        chunks_(chunks_of(point)),
        decode_steps_(point.phase == Phase::prefill ? 0 : std::max(0.0, point.output_tokens - 1)),
        sequences_(static_cast<double>(point.sequences)) {
    const double half_prompt = (point.cached_tokens + point.prompt_tokens) / 2;  // before a token that is computed
    const double context = point.prompt_tokens + point.output_tokens / 2;
    if (chunks_ > 0)
      prefill_ = step_.windowed({point.computed_tokens() / chunks_, half_prompt, half_prompt, 1 / chunks_},
                                step_.in_window(half_prompt));
    decode_ =
        step_.windowed({sequences_, context, sequences_ * context, sequences_}, sequences_ * step_.in_window(context));
    if (!point.loaded) {
      steps_ = decode_steps_ / sequences_;
      return;
    }
    const double prompt_tokens = chunks_ > 0 ? point.computed_tokens() : 0, all_tokens = prompt_tokens + decode_steps_;
    if (all_tokens == 0) return;  // only decodes, and there is nothing to decode
    steps_ = std::max(decode_steps_ / sequences_, all_tokens / static_cast<double>(point.step.max_tokens));
    const double decodes = decode_steps_ / steps_, chunk = prompt_tokens / steps_;
    const double prompts = prompt_tokens > 0 ? chunk / prompt_tokens : 0;  // that end in a step
    const double reading = chunk > 0 ? std::max(1.0, prompts) : 0;         // prompts that are read in a step
    const auto step_with = [&](double of_prompts, double ends, double read) {
      const double tokens = decodes + of_prompts;
      return step_.windowed({tokens, (decodes * context + of_prompts * half_prompt) / tokens,
                             decodes * context + read * half_prompt, decodes + ends},
                            decodes * step_.in_window(context) + read * step_.in_window(half_prompt));
    };
    decode_ = step_with(chunk, prompts, reading);
    carried_ = chunks_ > 0;
    if (carried_) prefill_ = decode_;
    const double room = static_cast<double>(point.step.max_tokens) - decodes;
    const double most = room > 0 ? prompt_tokens / std::ceil(prompt_tokens / room) : 0;  // of a prompt in equal chunks
    if (arch.has_experts() && decodes > 0 && chunk > 0 && chunk < most)
      unlike_ = {chunk / most, step_with(most, most / prompt_tokens, 1), step_with(0, 0, 0)};
  }

  StagePrice block(const TensorGroup& group, std::size_t kind) const override {
    return in_steps([&](const StepLoad& step) {
      const double alike_s = step_.block_time(group, kind, step).seconds();
      return alike_s - saved_s(group, kind, alike_s) + step_.between_ranks_s(group, kind, step);
    });
  }

  StagePrice ends(const TensorGroup& group, StageEnds ends) const override {
    StagePrice price = in_steps([&](const StepLoad& step) { return step_.ends_s(group, ends, step); });
    if (ends.first) price.latency = price.latency + driver_s();  // it keeps no stage busy
    return price;
  }

  StagePrice streamed(const TensorGroup& group, StageEnds ends, const StreamedStage& stage) const override {
    StagePrice price = priced(pass_s(group, ends, stage, prefill_), pass_s(group, ends, stage, decode_));
    if (ends.first) price.latency = price.latency + driver_s();
    return price;
  }

  StagePrice hop(const TensorGroup& from, const TensorGroup& to) const override {
    const HopSpeed prompt = step_.crossing(from, to, prefill_.tokens), token = step_.crossing(from, to, decode_.tokens);
    const double prompt_bytes = step_.crossing_bytes(from, prefill_.tokens),
                 token_bytes = step_.crossing_bytes(from, decode_.tokens);
    // Only the sending itself keeps the sender busy; the way through the network overlaps with its next step.
    StagePrice price = priced(prompt_bytes / prompt.bandwidth_bytes_per_s, token_bytes / token.bandwidth_bytes_per_s);
    price.latency = {chunks_ > 0 ? prompt.seconds(prompt_bytes) : 0, decode_steps_ * token.seconds(token_bytes)};
    return price;
  }

  double chunks() const override { return chunks_; }

  PhaseSeconds token_return(const TensorGroup& last, const TensorGroup& first) const override {
    // With a driver the prompt comes from it, too, and the first token goes there.
    const double prompt_s = step_.has_driver() && chunks_ > 0 ? step_.token_return_s(last, first, 1) : 0;
    return {prompt_s, decode_steps_ * step_.token_return_s(last, first, sequences_)};
  }

  Term explain_stage(const TensorGroup& group, StageEnds ends, const LayerCounts& layers,
                     std::string name) const override {
    return in_phases(std::move(name),
                     explain_steps(group, ends, layers, prefill_, chunks_ > 0 ? 1 : 0, "prefill", prefill_note()),
                     explain_steps(group, ends, layers, decode_, decode_steps_, "decode", decode_note()));
  }

  Term explain_streamed(const TensorGroup& group, StageEnds ends, const StreamedStage& stage,
                        std::string name) const override {
    const auto phase = [&](std::string phase_name, const StepLoad& step, double times, double driver_s,
                           std::string note) {
      const PassCut cut = cut_into_passes(step, stage.batches);
      std::vector<Term> terms = {explain_pass(
          "passes", pass_seconds(step_, group, ends, stage, cut.each, cut.micro_batches), stage.counts, times,
          fmt::format("{} layers, {} of {:.1f} tokens", stage.layers(),
                      cut.micro_batches == 1 ? "a micro-batch" : fmt::format("{} micro-batches", cut.micro_batches),
                      cut.each.tokens),
          "the busiest resource")};
      if (ends.first && driver_s > 0) terms.push_back(leaf("driver", driver_s, "of its steps and the request"));
      return sum_of(std::move(phase_name), std::move(terms), std::move(note));
    };
    const PhaseSeconds driver = driver_s();
    return in_phases(std::move(name), phase("prefill", prefill_, chunks_ > 0 ? 1 : 0, driver.prefill_s, prefill_note()),
                     phase("decode", decode_, decode_steps_, driver.decode_s, decode_note()));
  }

  Term explain_hop(const TensorGroup& from, const TensorGroup& to, std::string name) const override {
    const PhaseSeconds seconds = hop(from, to).latency;
    const auto note = [&](const StepLoad& step, double times) {
      const HopSpeed hop = step_.crossing(from, to, step.tokens);
      constexpr double least_shown = 0.01;
      const double bytes = step_.crossing_bytes(from, step.tokens), copies_s = hop.wait_s(bytes) - hop.latency_s;
      return fmt::format(
          "{:g} x ({} + {}{} / {}{}{})", times, human_seconds(hop.latency_s), human_bytes(bytes),
          from.sends_in ? fmt::format(" of {}", name_of(*from.sends_in)) : "", human_rate(hop.bandwidth_bytes_per_s),
          hop.by_copies ? ", which a copy reaches" : "",
          copies_s > least_shown * hop.seconds(bytes)
              ? fmt::format(" + {} until the first piece has passed the other parts", human_seconds(copies_s))
              : "");
    };
    return in_phases(std::move(name), leaf("prefill", seconds.prefill_s, note(prefill_, 1)),
                     leaf("decode", seconds.decode_s, note(decode_, decode_steps_)));
  }

  double requests_per_job() const override { return 1; }
  bool pipeline_always_full() const override { return false; }

 private:
  PassCut cut_into_passes(const StepLoad& step, std::int64_t batches) const {
    return cut_step(step, batches, point_.step.max_tokens / batches);
  }

  double pass_s(const TensorGroup& group, StageEnds ends, const StreamedStage& stage, const StepLoad& step) const {
    if (!(step.tokens > 0)) return 0;
    const PassCut cut = cut_into_passes(step, stage.batches);
    return std::ranges::max(pass_seconds(step_, group, ends, stage, cut.each, cut.micro_batches).of(stage.counts));
  }

  std::string prefill_note() const {
    return point_.loaded ? fmt::format("a step of {:.1f} tokens", prefill_.tokens)
                         : fmt::format("one of {:g} chunks of {:.1f} tokens", chunks_, prefill_.tokens);
  }
  std::string decode_note() const {
    return fmt::format("{:g} steps of {} sequences and {:.1f} tokens at context {:.1f}", decode_steps_,
                       point_.sequences, decode_.tokens, decode_.context);
  }

  // Those that are priced.
  Term in_phases(std::string name, Term prefill, Term decode) const {
    std::vector<Term> terms;
    if (point_.phase != Phase::decode) terms.push_back(std::move(prefill));
    if (point_.phase != Phase::prefill) terms.push_back(std::move(decode));
    return sum_of(std::move(name), std::move(terms));
  }

  static double chunks_of(const ServePoint& point) {
    if (point.phase == Phase::decode) return 0;
    const double most = point.chunk_tokens > 0 ? point.chunk_tokens : static_cast<double>(point.step.max_tokens);
    return std::max(1.0, std::ceil(point.computed_tokens() / most));
  }

  // A request waits for whole steps, but is only one of the sequences they serve.
  StagePrice priced(double chunk_s, double decode_step_s) const {
    const double prompt_s = chunks_ > 0 ? chunk_s : 0;
    const double apart_s = point_.loaded ? 0 : chunks_ * prompt_s;
    return {{prompt_s, decode_steps_ * decode_step_s}, apart_s + steps_ * decode_step_s, prompt_s};
  }

  // Of a block's time where steps are alike: what unlike ones save on average.
  double saved_s(const TensorGroup& group, std::size_t kind, double alike_s) const {
    if (!(unlike_.share > 0)) return 0;
    const auto seconds = [&](const StepLoad& step) { return step_.block_time(group, kind, step).seconds(); };
    const double mean_s = unlike_.share * seconds(unlike_.with_prompt) + (1 - unlike_.share) * seconds(unlike_.without);
    return unlike_steps * std::max(0.0, alike_s - mean_s);
  }

  template <class Seconds>
  StagePrice in_steps(Seconds seconds) const {
    const double decode_s = seconds(decode_);
    return priced(carried_ ? decode_s : seconds(prefill_), decode_s);
  }

  // What the driver adds to a request.
  PhaseSeconds driver_s() const {
    const DriverCost driver = step_.driver();
    const double request_s = point_.phase == Phase::decode ? 0 : driver.request_s;
    return {request_s + (chunks_ > 0 ? driver.step_s : 0), decode_steps_ * driver.step_s};
  }

  static Term joined(std::string name, const Roofline& roofline, std::vector<Term> parts) {
    return roofline.in_turn ? sum_of(std::move(name), std::move(parts)) : max_of(std::move(name), std::move(parts));
  }

  // The layers of one kind.
  Term explain_layers(const TensorGroup& group, std::size_t kind, double layers, const StepLoad& step,
                      double times) const {
    std::string name = group.ranks.front().blocks.size() == 1 ? fmt::format("{} layers", layers)
                                                              : fmt::format("{} layers of kind {}", layers, kind + 1);
    const auto blocks = [&](std::string part, const StepLoad& load, double steps) {
      return sum_of(std::move(part), explain_blocks(group, kind, load, steps * layers), "the slowest rank");
    };
    if (!(saved_s(group, kind, step_.block_time(group, kind, step).seconds()) > 0))
      return blocks(std::move(name), step, times);
    const auto part = [&](const std::string& which, const StepLoad& load, double share) {
      return blocks(fmt::format("{:.3g} steps {}, of {:.1f} tokens", share * times, which, load.tokens), load,
                    share * times);
    };
    return sum_of(std::move(name), {part("alike", step, 1 - unlike_steps),
                                    part("with a prompt", unlike_.with_prompt, unlike_steps * unlike_.share),
                                    part("without a prompt", unlike_.without, unlike_steps * (1 - unlike_.share))});
  }

  // Of a block, this many times.
  std::vector<Term> explain_blocks(const TensorGroup& group, std::size_t kind, const StepLoad& step, double all) const {
    const Rank& rank = group.ranks.front();
    const BlockWork& work = rank.blocks[kind];
    const BlockTime block = step_.block_time(group, kind, step);
    const auto memory = [&](std::string part, double seconds, double bytes, double rate, const std::string& what) {
      return leaf(std::move(part), all * seconds,
                  fmt::format("per step, layer and rank {}{} at {}", human_bytes(bytes), what, human_rate(rate)));
    };
    const auto compute = [&](std::string part, double seconds, double flops, double rate, const std::string& what) {
      return leaf(std::move(part), all * seconds,
                  fmt::format("per step, layer and rank {}{} at {}/s", human_flop(flops), what, human_flop(rate)));
    };
    // Of what is read or computed, the experts' part by itself, where there are experts.
    const auto apart = [&](std::string part, const auto& term, double seconds, double amount, double share, double rate,
                           const std::string& experts) {
      if (work.experts.count == 0) return term(std::move(part), seconds, amount, rate, "");
      return sum_of(std::move(part), {term("other weights", (1 - share) * seconds, (1 - share) * amount, rate, ""),
                                      term("experts", share * seconds, share * amount, rate, experts)});
    };
    const double read = step_.read_bytes(work, step), read_of_experts = step_.expert_bytes(work, step);
    std::vector<Term> parts = {
        joined(
            "products", block.products,
            {apart("memory", memory, block.products.memory_s, read, read_of_experts / read, effective_bandwidth(rank),
                   fmt::format(", of {:.1f} of {}", step_.touched(work, step), work.held_experts)),
             apart("compute", compute, block.products.compute_s, step.tokens * work.flops,
                   work.expert_flops / work.flops, effective_flop_per_s(rank),
                   fmt::format(", of {} for each token", work.experts.active))}),
        joined("attention", block.attention,
               {memory("memory", block.attention.memory_s, kept_bytes(work, step), attention_bandwidth(rank), ""),
                compute("compute", block.attention.compute_s,
                        step.tokens * work.attention_flops * step.context_of(work), attention_flop_per_s(rank), "")}),
        leaf("element-wise", all * block.elementwise_s,
             fmt::format("per step, layer and rank {}", human_bytes(step.tokens * work.element_bytes)))};
    if (block.imbalance_s > 0)
      parts.push_back(leaf("imbalance of experts", all * block.imbalance_s,
                           "ranks hold whole ones: of some more are taken than on average"));
    return parts;
  }

  Term explain_steps(const TensorGroup& group, StageEnds ends, const LayerCounts& layers, const StepLoad& step,
                     double times, std::string name, const std::string& what) const {
    const double all = times * sum_of_layers(layers);
    std::vector<Term> terms;
    for (std::size_t kind = 0; kind < layers.size(); ++kind)
      if (layers[kind] > 0) terms.push_back(explain_layers(group, kind, layers[kind], step, times));
    double sums_s = 0, sums = 0;
    for (std::size_t kind = 0; kind < layers.size(); ++kind) {
      sums_s += layers[kind] * step_.all_reduces_s(group, kind, step);
      sums += layers[kind] * all_reduces(group.ranks.front().blocks[kind]);
    }
    if (group.degree() > 1)
      terms.push_back(leaf("all-reduce", times * sums_s,
                           fmt::format("{:g} per layer, {} over {} devices", sums / sum_of_layers(layers),
                                       human_bytes(step_.activation_bytes(group, step.tokens)), group.degree())));
    if (const double seconds = step_.norms_s(group, step); seconds > 0)
      terms.push_back(leaf("norms over all heads", all * seconds, "1 all-reduce per layer"));
    double routing_s = 0, routers = 0;
    for (std::size_t kind = 0; kind < layers.size(); ++kind)
      if (const double seconds = step_.routing_s(group, kind, step); seconds > 0 && layers[kind] > 0) {
        routing_s += layers[kind] * seconds;
        routers += layers[kind];
      }
    if (routers > 0)
      terms.push_back(leaf("routing", times * routing_s, fmt::format("1 all-reduce in each of {} layers", routers)));
    terms.push_back(leaf("layer overhead", all * step_.layer_overhead_s(group),
                         fmt::format("{} per layer", human_seconds(step_.layer_overhead_s(group)))));
    if (const double seconds = step_.receive_s(group, ends, step); seconds > 0)
      terms.push_back(leaf(ends.first ? "embedding all-reduce" : "receive", times * seconds,
                           fmt::format("over {} devices", group.degree())));
    if (ends.last) {
      const Roofline head = step_.head_roofline(group, step);
      terms.push_back(
          joined("head", head,
                 {leaf("memory", times * head.memory_s, human_bytes(group.ranks.front().head_bytes) + " per rank"),
                  leaf("compute", times * head.compute_s)}));
      if (group.degree() > 1) terms.push_back(leaf("gather logits", times * step_.gather_logits_s(group, step)));
    }
    terms.push_back(leaf("step overhead", times * step_.step_overhead_s(group),
                         fmt::format("{} per step", human_seconds(step_.step_overhead_s(group)))));
    const DriverCost driver = step_.driver();
    if (ends.first && &step == &prefill_ && driver_s().prefill_s > 0)
      terms.push_back(leaf(
          "driver", driver_s().prefill_s,
          fmt::format("{} per step, {} per request", human_seconds(driver.step_s), human_seconds(driver.request_s))));
    if (ends.first && &step == &decode_ && driver_s().decode_s > 0)
      terms.push_back(leaf("driver", driver_s().decode_s, fmt::format("{} per step", human_seconds(driver.step_s))));
    return sum_of(std::move(name), std::move(terms), what);
  }

  StepCost step_;
  ServePoint point_;
  double chunks_;        // of its prompt, alone; 0 where it only decodes
  double decode_steps_;  // that it waits for
  double sequences_;
  double steps_ = 0;  // its part of them, in steps of decode_
  StepLoad prefill_, decode_;
  bool carried_ = false;  // its chunks are part of decode steps
  struct {
    double share = 0;  // of steps that have a prompt
    StepLoad with_prompt, without;
  } unlike_;  // what decode_ is the mean of, where there are experts
};

}  // namespace

std::unique_ptr<ServeForm> make_motley_form(const CostOptions& options, const Cluster& cluster,
                                            const Architecture& arch, const ServePoint& point) {
  return std::make_unique<MotleyForm>(options, cluster, arch, point);
}

}  // namespace motley
