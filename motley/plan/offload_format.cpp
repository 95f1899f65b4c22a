// The tables of motley.plan/1, kind "offload".
#include "motley/plan/format.hpp"
#include "motley/plan/offload_plan.hpp"

namespace motley {

Schema<OffloadPrediction> schema_of(Bound<OffloadPrediction>) {
  using P = OffloadPrediction;
  return Schema<P>("predicted", "Prediction for the workload.")
      .field("tokens_per_s", &P::tokens_per_s, "Generated tokens by the time of all work, prompts included.",
             {.always_written = true, .min = 0})
      .field("latency_s", &P::latency_s, "Seconds of one request of mean lengths.", {.always_written = true, .min = 0})
      .field("kl", &P::kl,
             "Mean Kullback-Leibler divergence to the unquantised model, in nats, by measured figures of each type.",
             {.min = 0})
      .field("busy", &P::busy, "Share of the time that each resource works, by its name; the largest binds.",
             {.min = 0})
      .field("memory_bytes", &P::memory_bytes, "Memory by device.", {.always_written = true});
}

Schema<OffloadPlan> schema_of(Bound<OffloadPlan>) {
  using P = OffloadPlan;
  constexpr Limits written{.always_written = true};
  constexpr Limits count{.always_written = true, .min = 1, .max = 1 << 20};
  return with_descriptions(plan_table<P>("offload plan",
                                         "A device that uses its host's memory and disk as its own, and the "
                                         "descriptions that the plan was made from."),
                           "The model that is served.")
      .field("device", &P::device, "The device that computes.", {.required = true})
      .field("batch", &P::batch, "Sequences of a micro-batch.", {.required = true, .min = 1, .max = 1 << 20})
      .field("batches", &P::batches, "Micro-batches that share one pass over the weights. Default: 1.", count)
      .field("kv_tokens", &P::kv_tokens, "Size of the KV cache: tokens per layer, of all sequences.",
             {.required = true, .min = 1})
      .field("prompt_chunk", &P::prompt_chunk,
             "Tokens of prompts in a micro-batch, in addition to one of each sequence. Default: 0.",
             {.always_written = true, .min = 0, .max = 1 << 20})
      .field("weights", &P::weights,
             "Weights of the blocks: multiples of 1/layers in a plan that runs. Embedding and head stay on the device.",
             written)
      .field("kv", &P::kv, "Keys and values: multiples of 1/layers.", written)
      .field("activations", &P::activations, "Hidden states between layers: multiples of 1/`batches`; never on disk.",
             written)
      .field("weight_type", &P::weight_type, "Type of the weights. Default: `bf16`.", written)
      .field("kv_type", &P::kv_type, "Type of keys and values. Default: `bf16`.", written)
      .field("cpu_attention", &P::cpu_attention,
             "The host's processors compute attention over keys and values that are not on the device. Default: false.",
             written)
      .field("draft_tokens", &P::draft_tokens, "Tokens that are proposed per pass and sequence. Default: 0.",
             {.always_written = true, .min = 0, .max = 1 << 10})
      .field("block_tokens", &P::block_tokens, "Tokens of a KV block. Default: 16.", {.min = 1, .max = 1 << 16})
      .field("predicted", &P::predicted, "Prediction.", written)
      .field("unused", &P::unused, "Idle devices.", written)
      .field("search", &P::search, "How the plan was found.", written);
}

}  // namespace motley
