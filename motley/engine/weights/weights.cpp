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

}  // namespace

std::vector<TensorSpec> own_tensors(const StageSpec& spec, const Shard& shard) {
  return held_tensors(spec.arch, {spec.layers, spec.embedding, spec.head}, shard);
}

std::vector<TensorSpec> standby_tensors(const StageSpec& spec, const Shard& shard) {
  std::vector<TensorSpec> all;
  for (const LayerRange& layers : spec.standby)
    std::ranges::move(held_tensors(spec.arch, with_ends(spec.arch, layers), shard), std::back_inserter(all));
  return all;
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
  const auto keep = [&](const std::vector<TensorSpec>& tensors) {
    for (const TensorSpec& tensor : tensors) {
      const auto found = held_->find(tensor.name);
      if (found != held_->end() && found->second.slice == slice_of(spec_.arch, tensor, shard_) &&
          found->second.matrix.type == held_type(spec_.arch, tensor, spec_.weight_type))
        needed.insert(*found);
    }
  };
  keep(own_tensors(spec_, shard_));
  keep(standby_tensors(spec_, shard_));
  *held_ = std::move(needed);
}

void WeightLoader::standby() {
  for (const TensorSpec& tensor : standby_tensors(spec_, shard_)) load(tensor);
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
    matrix = held_->at(tensor.name).matrix;
  } else {
    matrix = read(tensor, slice, type);
    loaded_bytes_ += allocated_bytes(matrix.values);
    if (held_ != nullptr) held_->emplace(tensor.name, HeldTensor{slice, matrix});
  }
  bytes_ += allocated_bytes(matrix.values);
  if (progress_) progress_(static_cast<double>(bytes_) / static_cast<double>(expected_bytes_));
  return matrix;
}

WeightMatrix WeightLoader::read(const TensorSpec& tensor, const Slice& slice, DType type) {
  check_type(tensor);
  WeightMatrix loaded{.type = type};
  if (is_quantised(type)) {
    const Span columns = whole_blocks(type, slice.columns);
    loaded.inputs = slice.held_columns();
    loaded.skipped = slice.columns.first - columns.first;
    const std::int64_t times = slice.column_step > 0 ? slice.times : 1;
    loaded.values = device_.empty({slice.held_rows(), times * motley::bytes_of(type, columns.size())}, at::kByte);
    read_blocks(checkpoint_, tensor, slice, type, loaded.values, &pieces_);
  } else {
    std::vector<std::int64_t> shape{slice.held_rows()};
    if (tensor.is_matrix()) shape.push_back(slice.held_columns());
    loaded.values = device_.empty(shape, scalar_type(type));
    read_tensor(checkpoint_, tensor, slice, loaded.values, &pieces_);
  }
  if (tensor.is_matrix()) ops_->prepare(loaded);
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
