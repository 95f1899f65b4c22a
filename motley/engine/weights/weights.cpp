#include "motley/engine/weights/weights.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "motley/checkpoint/stored_rows.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/scalar_type.hpp"
#include "motley/engine/weights/read_weights.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

using Tensors = std::map<std::string, WeightMatrix>;  // by role

std::vector<TensorSpec> tensors_with_ends(const StageSpec& spec, const Shard& shard,
                                          const std::vector<LayerRange>& of) {
  std::vector<TensorSpec> all;
  for (const LayerRange& layers : of)
    std::ranges::move(held_tensors(spec.arch, with_ends(spec.arch, layers), shard), std::back_inserter(all));
  return all;
}

}  // namespace

std::vector<TensorSpec> own_tensors(const StageSpec& spec, const Shard& shard) {
  return held_tensors(spec.arch, {spec.layers, spec.embedding, spec.head}, shard);
}

std::vector<TensorSpec> standby_tensors(const StageSpec& spec, const Shard& shard) {
  return tensors_with_ends(spec, shard, spec.standby);
}

std::vector<TensorSpec> host_standby_tensors(const StageSpec& spec, const Shard& shard) {
  return tensors_with_ends(spec, shard, spec.host_standby);
}

WeightLoader::WeightLoader(const StageSpec& spec, const std::filesystem::path& model, const ComputeDevice& device,
                           std::function<void(double)> progress, RetainedTensors* held)
    : spec_(spec),
      shard_(spec.shards().at(static_cast<std::size_t>(spec.rank))),
      checkpoint_(model, tensor_naming),
      progress_(std::move(progress)),
      device_(device),
      ops_(device.make_ops()),
      pieces_(device),
      expected_bytes_(weight_bytes(spec.arch, {spec.layers, spec.embedding, spec.head}, shard_, spec.weight_type)),
      held_(held) {
  if (held_ != nullptr) keep_needed();
}

void WeightLoader::keep_needed() const {
  RetainedTensors needed;
  const auto keep = [&](const std::vector<TensorSpec>& tensors, bool on_host_alone = false) {
    for (const TensorSpec& tensor : tensors) {
      const auto found = held_->find(tensor.name);
      if (found != held_->end() && (found->second.on_host || !on_host_alone) &&
          found->second.slice == slice_of(spec_.arch, tensor, shard_) &&
          found->second.matrix.type == held_type(spec_.arch, tensor, spec_.weight_type))
        needed.insert(*found);
    }
  };
  keep(own_tensors(spec_, shard_));
  keep(standby_tensors(spec_, shard_));
  keep(host_standby_tensors(spec_, shard_), device_.has_own_memory());
  *held_ = std::move(needed);
}

void WeightLoader::standby() {
  for (const TensorSpec& tensor : standby_tensors(spec_, shard_)) load(tensor);
  for (const TensorSpec& tensor : host_standby_tensors(spec_, shard_))
    device_.has_own_memory() ? load_to_host(tensor) : static_cast<void>(load(tensor));
}

// Into memory that the device reads by itself, as the checkpoint has it.
void WeightLoader::load_to_host(const TensorSpec& tensor) {
  MOTLEY_CHECK(held_ != nullptr);
  if (!held_->contains(tensor.name)) {
    const Slice slice = slice_of(spec_.arch, tensor, shard_);
    const WeightMatrix matrix = read(tensor, slice, held_type(spec_.arch, tensor, spec_.weight_type), true);
    loaded_bytes_ += allocated_bytes(matrix.values);
    held_->emplace(tensor.name, HeldTensor{slice, matrix, /*on_host=*/true});
  }
  if (progress_) progress_(static_cast<double>(bytes_) / static_cast<double>(expected_bytes_));
}

// The allocator of pinned memory gives it to no one else while the copy is under way.
WeightMatrix WeightLoader::bring(const TensorSpec& tensor, const WeightMatrix& from_host) const {
  WeightMatrix matrix = from_host;
  matrix.values = device_.empty(from_host.values.sizes(), from_host.values.scalar_type());
  matrix.values.copy_(from_host.values, /*non_blocking=*/true);
  if (tensor.is_matrix()) ops_->prepare(matrix);
  return matrix;
}

// A plan for a file counts with its tensors' types.
void WeightLoader::check_type(const TensorSpec& tensor) const {
  const auto planned = spec_.arch.tensor_types.find(tensor.type_name());
  if (spec_.weight_type != DType::file || planned == spec_.arch.tensor_types.end()) return;
  const Checkpoint::Found found = checkpoint_.find(tensor.name);
  if (const DType stored = stored_type(found, tensor.name); stored != planned->second)
    throw input_error(fmt::format("{} holds {} as {}, and the plan counts with {}", found.file.string(), tensor.name,
                                  name_of(stored), name_of(planned->second)),
                      "plan again with this file");
}

WeightMatrix WeightLoader::load(const TensorSpec& tensor) {
  const Slice slice = slice_of(spec_.arch, tensor, shard_);
  const DType type = held_type(spec_.arch, tensor, spec_.weight_type);
  WeightMatrix matrix;
  if (held_ != nullptr && held_->contains(tensor.name)) {
    HeldTensor& held = held_->at(tensor.name);
    if (held.on_host) held = {slice, bring(tensor, held.matrix)};
    matrix = held.matrix;
  } else {
    matrix = read(tensor, slice, type);
    loaded_bytes_ += allocated_bytes(matrix.values);
    if (held_ != nullptr) held_->emplace(tensor.name, HeldTensor{slice, matrix});
  }
  bytes_ += allocated_bytes(matrix.values);
  if (progress_) progress_(static_cast<double>(bytes_) / static_cast<double>(expected_bytes_));
  return matrix;
}

WeightMatrix WeightLoader::read(const TensorSpec& tensor, const Slice& slice, DType type, bool to_host) {
  check_type(tensor);
  PinnedPieces* const pieces = to_host ? nullptr : &pieces_;
  const auto space = [&](at::IntArrayRef shape, at::ScalarType of) {
    return to_host ? at::empty(shape, at::TensorOptions(of).pinned_memory(true)) : device_.empty(shape, of);
  };
  WeightMatrix loaded{.type = type};
  if (is_quantised(type)) {
    const Span columns = whole_blocks(type, slice.columns);
    loaded.inputs = slice.held_columns();
    loaded.skipped = slice.columns.first - columns.first;
    const std::int64_t times = slice.column_step > 0 ? slice.times : 1;
    loaded.values = space({slice.held_rows(), times * motley::bytes_of(type, columns.size())}, at::kByte);
    read_blocks(checkpoint_, tensor, slice, type, loaded.values, pieces);
  } else {
    std::vector<std::int64_t> shape{slice.held_rows()};
    if (tensor.is_matrix()) shape.push_back(slice.held_columns());
    loaded.values = space(shape, scalar_type(type));
    read_tensor(checkpoint_, tensor, slice, loaded.values, pieces);
  }
  if (tensor.is_matrix() && !to_host) ops_->prepare(loaded);
  return loaded;
}

Tensors WeightLoader::load_all(const std::vector<TensorSpec>& tensors) {
  Tensors loaded;
  for (const TensorSpec& tensor : tensors) loaded.emplace(tensor.role, load(tensor));
  return loaded;
}

std::vector<TensorSpec> WeightLoader::tensors_of(std::int64_t layer) const {
  return held_tensors(spec_.arch, {.layers = {layer, layer + 1}}, shard_);
}

BlockWeights WeightLoader::block(std::int64_t layer) {
  return block_of(load_all(tensors_of(layer)), spec_.rank, first_expert(layer));
}

Tensors WeightLoader::take_block(std::int64_t layer) {
  const std::vector<TensorSpec> tensors = tensors_of(layer);
  Tensors loaded = load_all(tensors);
  if (held_ != nullptr)
    for (const TensorSpec& tensor : tensors) held_->erase(tensor.name);
  return loaded;
}

EndWeights WeightLoader::ends() {
  const std::int64_t before = bytes_;
  Tensors tensors;
  if (spec_.embedding) tensors = load_all(embedding_tensors(spec_.arch));
  const bool shared = spec_.arch.tied_embeddings && spec_.embedding;  // the head is the embedding's table
  if (spec_.head)
    for (const TensorSpec& tensor : head_tensors(spec_.arch))
      tensors.emplace(tensor.role,
                      shared && tensor.role == "head.weight" ? tensors.at("embedding.weight") : load(tensor));
  EndWeights ends = ends_of(tensors);
  ends.bytes = bytes_ - before;
  return ends;
}

}  // namespace motley
