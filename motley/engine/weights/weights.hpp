// The weights of one rank, read from the checkpoint: only its layers and its slices.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "motley/checkpoint/checkpoint.hpp"
#include "motley/engine/device/pinned_pieces.hpp"
#include "motley/engine/weights/block_weights.hpp"
#include "motley/engine/weights/stage_spec.hpp"

namespace motley {

// Where a rank's blocks are. A store may hold all of them, or bring in each one when it is used.
class BlockStore {
 public:
  virtual ~BlockStore() = default;
  // Block `layer` of the model; valid until the next call.
  virtual const BlockWeights& block(std::int64_t layer) = 0;
  virtual std::int64_t bytes() const = 0;  // allocated now
};

// Tensors of the checkpoint by name, and which part of each a rank holds.
struct HeldTensor {
  Slice slice;
  WeightMatrix matrix;
  bool on_host = false;  // where the device has memory of its own: in the host's, as Ops::prepare() has not seen it
};
using RetainedTensors = std::map<std::string, HeldTensor>;

struct StageWeights {
  std::unique_ptr<BlockStore> blocks;
  EndWeights ends;
  RetainedTensors held = {};      // all of them once more, without copies: for another part of the model
  std::int64_t loaded_bytes = 0;  // of them: read, not held before
};

// Those of a rank's part, and those of which it holds its slice as well, in one place or the other.
std::vector<TensorSpec> own_tensors(const StageSpec& spec, const Shard& shard);
std::vector<TensorSpec> standby_tensors(const StageSpec& spec, const Shard& shard);
std::vector<TensorSpec> host_standby_tensors(const StageSpec& spec, const Shard& shard);

// Reads a rank's weights from a model folder or a GGUF file, in the types that the plan has for them. What `held` has
// of them is not read again, what it has of others is let go at once, and what is read is added to it; nullptr: nothing
// is held. `progress` gets the fraction of all the rank's bytes that are there.
class WeightLoader {
 public:
  WeightLoader(const StageSpec& spec, const std::filesystem::path& model, const ComputeDevice& device,
               std::function<void(double)> progress = {}, RetainedTensors* held = nullptr);
  BlockWeights block(std::int64_t layer);
  // Its tensors by role, and no longer in `held`: for who copies them elsewhere.
  std::map<std::string, WeightMatrix> take_block(std::int64_t layer);
  EndWeights ends();
  // What the spec has the rank hold in addition to its own part, into `held`.
  void standby();
  const Shard& shard() const { return shard_; }
  // That it holds of a layer.
  std::int64_t first_expert(std::int64_t layer) const { return shard_.experts.at(spec_.arch.kind_index(layer)).first; }
  std::int64_t bytes() const { return bytes_; }                // allocated for all tensors so far
  std::int64_t loaded_bytes() const { return loaded_bytes_; }  // of these: read

 private:
  void check_type(const TensorSpec& tensor) const;
  void keep_needed() const;
  WeightMatrix load(const TensorSpec& tensor);
  WeightMatrix read(const TensorSpec& tensor, const Slice& slice, DType type, bool to_host = false);
  WeightMatrix bring(const TensorSpec& tensor, const WeightMatrix& from_host) const;
  void load_to_host(const TensorSpec& tensor);
  std::map<std::string, WeightMatrix> load_all(const std::vector<TensorSpec>& tensors);
  std::vector<TensorSpec> tensors_of(std::int64_t layer) const;

  StageSpec spec_;
  Shard shard_;
  Checkpoint checkpoint_;
  std::function<void(double)> progress_;
  const ComputeDevice& device_;
  std::shared_ptr<const Ops> ops_;
  PinnedPieces pieces_;
  std::int64_t expected_bytes_ = 0;
  std::int64_t bytes_ = 0;
  std::int64_t loaded_bytes_ = 0;
  RetainedTensors* held_;
};

}  // namespace motley
