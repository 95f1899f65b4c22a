// The tables of motley.plan/1, kind "train".
#include "motley/plan/format.hpp"
#include "motley/plan/train_plan.hpp"

namespace motley {

EnumNames<Sharding> names_of(Bound<Sharding>) {
  return {{Sharding::none, "none"}, {Sharding::zero1, "zero1"}, {Sharding::zero2, "zero2"}, {Sharding::zero3, "zero3"}};
}

EnumNames<PipelineSchedule> names_of(Bound<PipelineSchedule>) {
  return {{PipelineSchedule::gpipe, "gpipe"},
          {PipelineSchedule::one_forward_one_backward, "1f1b"},
          {PipelineSchedule::zb_h1, "zb-h1"}};
}

EnumNames<PassKind> names_of(Bound<PassKind>) {
  return {{PassKind::forward, "forward"}, {PassKind::backward, "backward"}, {PassKind::weights, "weights"}};
}

EnumNames<SyncAlgorithm> names_of(Bound<SyncAlgorithm>) {
  return {
      {SyncAlgorithm::ring, "ring"}, {SyncAlgorithm::direct, "direct"}, {SyncAlgorithm::hierarchical, "hierarchical"}};
}

Schema<LayerStrategy> schema_of(Bound<LayerStrategy>) {
  using S = LayerStrategy;
  constexpr Limits degree{.always_written = true, .min = 1, .max = 1 << 20};
  return Schema<S>("strategy", "Strategy of a range of a stage's layers. tp x dp is the number of the stage's devices.")
      .custom<LayerRange>(layers_row("Transformer blocks."), &S::layers, read_layers, write_layers)
      .field("tp", &S::tp, "Tensor-parallel degree: neighbours in the list of devices. Default: 1.", degree)
      .field("dp", &S::dp, "Data-parallel degree inside the stage. Default: 1.", degree)
      .field("shard", &S::shard,
             "What the data-parallel ranks divide: nothing, optimizer states, gradients too, weights too. Default: "
             "`none`.",
             {.always_written = true})
      .field("recompute", &S::recompute, "Keep only a layer's input for the backward pass. Default: false.",
             {.always_written = true})
      .field("split", &S::split,
             "Parts in which the matrices of a `zero3` layer are gathered, and their gradients added up, one after the "
             "other. Default: 1.",
             {.min = 1, .max = 1 << 20});
}

Schema<TrainStage> schema_of(Bound<TrainStage>) {
  using S = TrainStage;
  return Schema<S>("training stage", "A contiguous range of layers held by a group of devices.")
      .custom<LayerRange>(layers_row("Transformer blocks; the first stage adds the embedding, the last the head."),
                          &S::layers, read_layers, write_layers)
      .field("devices", &S::devices, "Rank r is rank r % tp of the data-parallel rank r / tp.", {.required = true})
      .field("shares", &S::shares,
             "Shares of the work by device, in stages with tensor or data parallelism only; they sum to 1. Default: "
             "equal.")
      .field("strategies", &S::strategies, "In the order of the layers; together all of the stage's.",
             {.required = true});
}

Schema<TrainReplica> schema_of(Bound<TrainReplica>) {
  using R = TrainReplica;
  return Schema<R>("replica", "A complete copy of the model: a pipeline of stages.")
      .field("share", &R::share, "Share of the global batch; a whole number of sequences.",
             {.required = true, .above = 0, .max = 1})
      .field("micro_batches", &R::micro_batches, "Number per step; their sizes differ by at most one sequence.",
             {.required = true, .min = 1})
      .field("stages", &R::stages, "Stages, first to last.", {.required = true});
}

Schema<GradientSync> schema_of(Bound<GradientSync>) {
  using G = GradientSync;
  return Schema<G>("sync", "How replicas add up their gradients.")
      .field(
          "algorithm", &G::algorithm,
          "`ring`; `direct`: every owner of a part receives it from all others and sends the sum back; or "
          "`hierarchical`: the same, first inside each machine, then inside each site, then over all. Default: `ring`.",
          {.always_written = true})
      .field("overlap", &G::overlap, "Overlap with the backward pass. Default: false.", {.always_written = true});
}

Schema<TrainMemory> schema_of(Bound<TrainMemory>) {
  using M = TrainMemory;
  return Schema<M>("training memory", "Bytes on one device, by cause.")
      .field("weights", &M::weights, "Bytes.", {.required = true, .min = 0})
      .field("gradients", &M::gradients, "Bytes.", {.required = true, .min = 0})
      .field("optimizer", &M::optimizer, "Bytes of moments and master copy.", {.required = true, .min = 0})
      .field("activations", &M::activations, "Bytes kept for the backward pass, and the largest working set.",
             {.required = true, .min = 0})
      .field("reserve", &M::reserve, "Bytes kept free.", {.required = true, .min = 0})
      .field("limit", &M::limit, "Bytes that the device has.", {.required = true, .min = 0});
}

Schema<TrainPrediction> schema_of(Bound<TrainPrediction>) {
  using P = TrainPrediction;
  constexpr Limits figure{.always_written = true, .min = 0};
  return Schema<P>("predicted", "Prediction.")
      .field("iteration_s", &P::iteration_s, "Seconds of a step, in the cost form of the search.", figure)
      .field("tokens_per_s", &P::tokens_per_s, "Tokens of a step, per second of it.", figure)
      .field("mfu", &P::mfu, "Model FLOPs per second as a share of the peak of the devices that work.", figure)
      .field(
          "iteration_s_range", &P::iteration_s_range,
          "Where it lies if device types that were not measured reach more, or less, than those that stand for them.")
      .field("memory_bytes", &P::memory_bytes, "Memory by device.", {.always_written = true});
}

Schema<TrainPlan> schema_of(Bound<TrainPlan>) {
  using P = TrainPlan;
  constexpr Limits written{.always_written = true};
  return with_descriptions(plan_table<P>("training plan", "How to train, with the descriptions it was made from."),
                           "The model that is trained.")
      .field("replicas", &P::replicas, "Copies of the model; each takes its share of every step.", {.required = true})
      .field("schedule", &P::schedule, "Order of the micro-batches in a pipeline. Default: `1f1b`.", written)
      .field("sync", &P::sync, "Synchronisation of the gradients.", written)
      .field("predicted", &P::predicted, "Prediction.", written)
      .field("unused", &P::unused, "Idle devices.", written)
      .field("search", &P::search, "How the plan was found.", written)
      .check([](const P& plan, const Reader& reader) {
        if (!plan.workload.training)
          reader.fail("workload: [training] is missing", "a training plan carries the job it was made for");
      });
}

}  // namespace motley
