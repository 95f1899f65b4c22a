// One rank's part of one stage: weights, KV cache, buffers, and the forward pass, on any device.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <vector>

#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/ops/kv_cache.hpp"
#include "motley/engine/weights/stage_spec.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

struct StageWeights;
struct PlainDraw;
class RankSums;

class StageModel {
 public:
  // Loads this rank's slices straight from a folder with safetensors, or a GGUF file. `group` may be null for a single
  // rank. Throws an input error where the files do not hold what the architecture promises.
  StageModel(const StageSpec& spec, const std::filesystem::path& model, WorkerGroup* group, const ComputeDevice& device,
             const std::function<void(double)>& progress = {});
  // What `earlier` holds of this part of the same model stays as it is: weights of the same slices, and keys and values
  // of the same layers and heads, in the blocks that both have room for; the rest of `earlier` is let go first, but for
  // the keys and values of layers that it is to hand over. Keys and values that were not held count from `epoch` on.
  // `sums` may be null: the group's ranks then add up by way of the host.
  StageModel(const StageSpec& spec, const std::filesystem::path& model, WorkerGroup* group, const ComputeDevice& device,
             const std::function<void(double)>& progress, std::unique_ptr<StageModel> earlier, std::uint64_t epoch,
             const std::set<std::int64_t>& parting = {}, const RankSums* sums = nullptr);
  // Its weights alone: good for nothing but to be the `earlier` of another.
  static std::unique_ptr<StageModel> preload(const StageSpec& spec, const std::filesystem::path& model,
                                             const ComputeDevice& device, const std::function<void(double)>& progress);
  // The same in two steps, for the second of which `earlier` need no longer be there: its tensors are not read again.
  static std::unique_ptr<StageModel> sharing(const StageSpec& spec, const ComputeDevice& device,
                                             const StageModel& earlier);
  void load(const std::filesystem::path& model, const std::function<void(double)>& progress);
  // In place of load(): what the spec has it hold in addition to its own part. What was read stays where `progress`
  // throws.
  void load_standby(const std::filesystem::path& model, const std::function<void(double)>& progress);
  // Holds the weights of another as well, for the model that it will be the `earlier` of. Where both have a tensor in
  // unlike slices its own stays.
  void take_weights(StageModel& other);
  // With weights from elsewhere than resident ones of a folder.
  StageModel(const StageSpec& spec, StageWeights weights, WorkerGroup* group, const ComputeDevice& device);
  ~StageModel();

  // Runs one step: T = sum of counts. A stage that offloads cuts it into micro-batches that share a pass over the
  // weights. At an embedding stage the tokens come from `step`; otherwise `incoming` holds [T, hidden], replicated on
  // all ranks. Returns [T, hidden], replicated, valid until the next call. Where `stop` is asked for during a long step
  // it throws GroupBroken: the step's keys and values are then not all there.
  at::Tensor forward(const Step& step, const at::Tensor& incoming, const std::stop_token& stop = {});

  // Of the latest step, where it asked for them.
  const std::vector<LayerExperts>& experts_taken() const;

  // Where received rows are put, of one step and of the next: [2 max_tokens, hidden]. An inference tensor: operations
  // on it need a c10::InferenceMode.
  at::Tensor incoming_buffer();

  // Logits of these rows of `hidden`, at most max_sequences of them: [rows, vocabulary] fp32 on rank 0 (other ranks
  // take part and return an empty tensor). Valid until the next call.
  at::Tensor logits(const at::Tensor& hidden, std::span<const std::int64_t> rows);
  // Of the sequences that sample.
  at::Tensor logits(const Step& step, const at::Tensor& hidden);
  // A token for each row of logits [rows, vocabulary], where the device draws (Ops::draw()).
  std::optional<std::vector<std::int32_t>> draw(const at::Tensor& logits, std::span<const PlainDraw> draws) const;

  // Bytes really allocated, by cause; of a stage that offloads, those of the device's own tier.
  struct Allocated {
    std::int64_t weights = 0, kv = 0, activations = 0;
  };
  Allocated allocated() const;
  std::int64_t loaded_bytes() const;   // of the weights: read for this part, not held before
  std::int64_t standby_bytes() const;  // held, but not of its own part
  // Since when the keys and values of all its layers have been kept.
  std::uint64_t cache_epoch() const;
  // Those of a layer of its own, or of one that it is to hand over; nullptr where it has none.
  struct RetainedLayer {
    std::uint64_t epoch = 1;  // since when
    LayerCache cache;
    std::int64_t slot_blocks = 0;  // that each slot has of these; 0: steps name them
  };
  RetainedLayer* retained_layer(std::int64_t layer);
  void let_parting_go();

 private:
  struct Impl;
  explicit StageModel(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace motley
