// The tables of motley.plan/1, kind "serve".
#include <fmt/format.h>

#include "motley/plan/format.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

EnumNames<StandbyTier> names_of(Bound<StandbyTier>) {
  return {{StandbyTier::device, "device"}, {StandbyTier::host, "host"}};
}

EnumNames<StageRole> names_of(Bound<StageRole>) {
  return {{StageRole::any, "any"}, {StageRole::prefill, "prefill"}, {StageRole::decode, "decode"}};
}

Schema<StepLimits> schema_of(Bound<StepLimits>) {
  using S = StepLimits;
  return Schema<S>("step", "Largest step: sizes of the engine's buffers and KV blocks.")
      .field("max_tokens", &S::max_tokens, "Tokens of a micro-batch, prompt chunks and decodes together.",
             {.always_written = true, .min = 1, .max = 1 << 20})
      .field("max_sequences", &S::max_sequences, "Sequences of a micro-batch.",
             {.always_written = true, .min = 1, .max = 1 << 20})
      .field("block_tokens", &S::block_tokens, "Tokens of a KV block.",
             {.always_written = true, .min = 1, .max = 1 << 16});
}

Schema<TierShares> schema_of(Bound<TierShares>) {
  using T = TierShares;
  constexpr Limits share{.always_written = true, .min = 0, .max = 1};
  return Schema<T>("shares of tiers", "Shares that sum to 1.")
      .field("device", &T::device, "In the device's own memory. Default: 1.", share)
      .field("host", &T::host, "In its host's memory. Default: 0.", share)
      .field("disk", &T::disk, "On its host's disk. Default: 0.", share);
}

Schema<Offload> schema_of(Bound<Offload>) {
  using O = Offload;
  return Schema<O>("offload", "Where a stage of one device keeps what it holds, by whole layers.")
      .field("batches", &O::batches, "Micro-batches that share one pass over the weights. Default: 1.",
             {.always_written = true, .min = 1, .max = 1 << 20})
      .field("weights", &O::weights,
             "Weights of the blocks: multiples of 1/layers. Embedding and head stay on the device.",
             {.always_written = true})
      .field("kv", &O::kv, "Keys and values: multiples of 1/layers.", {.always_written = true})
      .field("activations", &O::activations, "Hidden states between layers: multiples of 1/`batches`; never on disk.",
             {.always_written = true})
      .field("cpu_attention", &O::cpu_attention,
             "The host's processors compute attention over keys and values that are not on the device. Default: false.",
             {.always_written = true});
}

Schema<StandbyWeights> schema_of(Bound<StandbyWeights>) {
  using W = StandbyWeights;
  return Schema<W>("standby weights", "Layers of other stages of which a stage holds copies, cut as its own.")
      .custom<LayerRange>(layers_row("Transformer blocks; with the first one also the embedding, with the last one the "
                                     "final norm and the LM head."),
                          &W::layers, read_layers, write_layers)
      .field("tier", &W::tier,
             "Where they lie: `device`, or `host` for its host's memory. Of a processor both are one. Default: "
             "`device`.");
}

Schema<Stage> schema_of(Bound<Stage>) {
  using S = Stage;
  constexpr Limits written{.always_written = true};
  return Schema<S>("stage", "A contiguous range of layers held by a tensor-parallel group of devices.")
      .field("id", &S::id, "Unique.", {.required = true})
      .field("role", &S::role, "Phase that the stage computes. Default: `any`.", written)
      .custom<LayerRange>(layers_row("Transformer blocks it holds."), &S::layers, read_layers, write_layers)
      .field("devices", &S::devices, "One tensor-parallel rank each, in order. A device belongs to one stage.",
             {.required = true})
      .field("shares", &S::shares, "Shares of the ranks; they sum to 1. Default: equal.")
      .field(
          "expert_shares", &S::expert_shares,
          "Whole experts of each rank, in rank order; they sum to the experts of a layer. Default: each rank has its "
          "share of the columns of every expert.",
          {.min = 0, .max = 1 << 20})
      .field("embedding", &S::embedding, "Holds the embedding: the first stage of a route. Default: false.", written)
      .field("head", &S::head, "Holds the final norm and the LM head: the last stage of a route. Default: false.",
             written)
      .field("kv_tokens", &S::kv_tokens, "Size of the KV cache: tokens per layer.", {.required = true})
      .field(
          "kv_sequences", &S::kv_sequences,
          "Sequences at once: a delta net keeps a state of each, and a layer with a window no more than that, where it "
          "takes less than `kv_tokens`. Default: any number, and all layers keep all tokens.",
          {.min = 0, .max = 1 << 20})
      .field("weight_type", &S::weight_type, "Type of the weights. Default: `bf16`.", written)
      .field("kv_type", &S::kv_type,
             "Type of keys and values: `fp32`, `bf16`, `fp16`, or `q8_0` where head_dim is a multiple of 32. Default: "
             "`bf16`.",
             written)
      .field("offload", &S::offload, "Where it keeps what its device cannot hold. Default: all on the devices.")
      .field("standby_weights", &S::standby_weights,
             "Copies of other stages' layers, which are not loaded again after a loss. Default: none.");
}

Schema<Hop> schema_of(Bound<Hop>) {
  return Schema<Hop>("hop", "A stage on a route.")
      .field("stage", &Hop::stage, "Its id.", {.required = true})
      .custom<LayerRange>(layers_row("The blocks that are computed there."), &Hop::layers, read_layers, write_layers)
      .field("activation_type", &Hop::activation_type,
             "Type of the activations that go to the next stage: `fp32`, `bf16` or `int8`. Default: what that stage "
             "computes in.");
}

Schema<Route> schema_of(Bound<Route>) {
  return Schema<Route>("route", "A chain of stages that covers all layers.")
      .field("id", &Route::id, "Unique.", {.required = true})
      .field("path", &Route::path, "In order.", {.required = true})
      .field("weight", &Route::weight, "Share of the requests, relative to the other routes. Default: 1.",
             {.always_written = true})
      .field("batch", &Route::batch, "Requests in flight in the prediction. Default: 1.",
             {.always_written = true, .min = 1, .max = 1 << 20})
      .field("micro_batches", &Route::micro_batches,
             "Most micro-batches in flight. Default: what the times of stages and links call for.",
             {.min = 0, .max = 1 << 10});
}

Schema<TierMemory> schema_of(Bound<TierMemory>) {
  using D = TierMemory;
  return Schema<D>("tier memory", "Bytes in one tier of memory, by cause.")
      .field("weights", &D::weights, "Bytes.", {.required = true, .min = 0})
      .field("kv", &D::kv, "Bytes of the KV cache.", {.required = true, .min = 0})
      .field("activations", &D::activations, "Bytes of the step's buffers.", {.required = true, .min = 0})
      .field("reserve", &D::reserve, "Bytes kept free.", {.required = true, .min = 0})
      .field("limit", &D::limit, "Bytes of the whole tier.", {.required = true, .min = 0})
      .field("standby", &D::standby, "Bytes of `standby_weights`. Default: 0.", {.min = 0});
}

Schema<DeviceMemory> schema_of(Bound<DeviceMemory>) {
  return Schema<DeviceMemory>("device memory", "Bytes of one device, by cause.")
      .flatten(&DeviceMemory::device)
      .field("host", &DeviceMemory::host, "What it holds in its host's memory.")
      .field("disk", &DeviceMemory::disk, "What it holds on its host's disk.");
}

Schema<ServePrediction> schema_of(Bound<ServePrediction>) {
  using P = ServePrediction;
  constexpr Limits figure{.always_written = true, .min = 0};
  constexpr const char* range_doc =
      "Where it lies if device types that were not measured reach less, or more, than those that stand for them.";
  return Schema<P>("predicted", "Prediction for the workload.")
      .field("tokens_per_s", &P::tokens_per_s, "Output tokens of all routes, each with its `batch` in flight.", figure)
      .field("requests_per_s", &P::requests_per_s, "Requests per second of all routes.", figure)
      .field("latency_s", &P::latency_s, "Seconds of one request of mean lengths, at those batches.", figure)
      .field("bottleneck_s", &P::bottleneck_s, "Busy seconds per request of the busiest stage.", figure)
      .field("slo_attainment", &P::slo_attainment, "Share of the requests that meet their deadline.",
             {.min = 0, .max = 1})
      .field("kl", &P::kl,
             "Mean Kullback-Leibler divergence to the unquantised model, in nats, by measured figures of each type.",
             {.min = 0})
      .field("tokens_per_s_range", &P::tokens_per_s_range, range_doc)
      .field("latency_s_range", &P::latency_s_range, range_doc)
      .field("memory_bytes", &P::memory_bytes, "Memory by device.", {.always_written = true});
}

namespace {

// A plan needs nothing else: what a workload takes from a trace must already be in it.
void check_lengths(const ServePlan& plan, const Reader& reader) {
  for (const auto& described : plan.workload.classes)
    if (described.prompt_tokens.mean == 0 || described.output_tokens.mean == 0)
      reader.fail(fmt::format("workload: class \"{}\" has no mean lengths", described.name),
                  "a plan does not read traces: give `mean` with `trace`");
}

}  // namespace

Schema<ServePlan> schema_of(Bound<ServePlan>) {
  using P = ServePlan;
  constexpr Limits written{.always_written = true};
  return with_descriptions(plan_table<P>("plan", "A serving plan, with the descriptions it was made from."),
                           "The model that is served.")
      .field("step", &P::step, "Sizes of the engine's buffers.", written)
      .field("stages", &P::stages, "All stages of all routes.", {.required = true})
      .field("routes", &P::routes, "How requests pass through the stages.", {.required = true})
      .field("predicted", &P::predicted, "Prediction.", written)
      .field("unused", &P::unused, "Idle devices.", written)
      .field("search", &P::search, "How the plan was found.", written)
      .check(check_lengths);
}

}  // namespace motley
