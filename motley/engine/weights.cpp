#include "motley/engine/weights.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "motley/checkpoint/stored_rows.hpp"
#include "motley/engine/backend.hpp"
#include "motley/engine/read_weights.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/part_tensors.hpp"

namespace motley {
namespace {

using Tensors = std::map<std::string, WeightMatrix>;  // by role

// The tensor of a role; undefined where this architecture has none.
WeightMatrix take(const Tensors& tensors, const std::string& role) {
  const auto found = tensors.find(role);
  return found == tensors.end() ? WeightMatrix() : found->second;
}

}  // namespace

void advise_large_pages(const at::Tensor& tensor) {
  constexpr std::uintptr_t page = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  const std::uintptr_t first = (begin + page - 1) / page * page, last = (begin + tensor.nbytes()) / page * page;
  if (tensor.is_cpu() && first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

std::int64_t allocated_bytes(const at::Tensor& tensor) {
  constexpr std::int64_t line = 64;
  return (static_cast<std::int64_t>(tensor.storage().nbytes()) + line - 1) / line * line;
}

BlockWeights block_of(const std::map<std::string, WeightMatrix>& tensors) {
  const auto norm = [&](const std::string& role) {
    return NormWeights{take(tensors, role + ".weight").values, take(tensors, role + ".bias").values};
  };
  const auto linear = [&](const std::string& role) {
    return LinearWeights{take(tensors, role + ".weight"), take(tensors, role + ".bias").values};
  };
  return {.attention_norm = norm("attention_norm"),
          .q_norm = norm("q_norm"),
          .k_norm = norm("k_norm"),
          .ffn_norm = norm("ffn_norm"),
          .q = linear("q"),
          .k = linear("k"),
          .v = linear("v"),
          .o = linear("o"),
          .gate = linear("gate"),
          .up = linear("up"),
          .down = linear("down")};
}

std::vector<TensorSpec> own_tensors(const StageSpec& spec) {
  return part_tensors(spec.arch, {spec.layers, spec.embedding, spec.head});
}

std::vector<TensorSpec> standby_tensors(const StageSpec& spec) {
  std::vector<TensorSpec> all;
  for (const LayerRange& layers : spec.standby)
    std::ranges::move(part_tensors(spec.arch, with_ends(spec.arch, layers)), std::back_inserter(all));
  return all;
}

WeightLoader::WeightLoader(const StageSpec& spec, const std::filesystem::path& model, at::Device device,
                           std::function<void(double)> progress, HeldTensors* held)
    : spec_(spec),
      shard_(
          make_shards(spec.arch, spec.degree, spec.shares, spec.weight_type).at(static_cast<std::size_t>(spec.rank))),
      checkpoint_(model, gguf_naming),
      progress_(std::move(progress)),
      device_(device),
      ops_(ops_for(device)),
      expected_bytes_(weight_bytes(spec.arch, {spec.layers, spec.embedding, spec.head}, shard_, spec.weight_type)),
      held_(held) {
  if (held_ != nullptr) keep_needed();
}

void WeightLoader::keep_needed() const {
  HeldTensors needed;
  const auto keep = [&](const std::vector<TensorSpec>& tensors) {
    for (const TensorSpec& tensor : tensors) {
      const auto found = held_->find(tensor.name);
      if (found != held_->end() && found->second.slice == slice_of(spec_.arch, tensor, shard_) &&
          found->second.matrix.type == held_type(spec_.arch, tensor, spec_.weight_type))
        needed.insert(*found);
    }
  };
  keep(own_tensors(spec_));
  keep(standby_tensors(spec_));
  *held_ = std::move(needed);
}

void WeightLoader::standby() {
  for (const TensorSpec& tensor : standby_tensors(spec_)) load(tensor);
}

// A plan for a file counts with its tensors' types.
void WeightLoader::check_type(const TensorSpec& tensor) const {
  const auto planned = spec_.arch.tensor_types.find(tensor.name);
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
    loaded.inputs = slice.columns.size();
    loaded.skipped = slice.columns.first - columns.first;
    at::Tensor blocks = at::empty({slice.rows.size(), motley::bytes_of(type, columns.size())}, at::kByte);
    advise_large_pages(blocks);
    read_blocks(checkpoint_, tensor, slice, type, blocks);
    loaded.values = blocks.to(device_);
  } else {
    const at::TensorOptions options = at::TensorOptions(scalar_type(type)).device(device_);
    loaded.values = tensor.shape.size() == 1 ? at::empty({slice.rows.size()}, options)
                                             : at::empty({slice.rows.size(), slice.columns.size()}, options);
    advise_large_pages(loaded.values);
    read_tensor(checkpoint_, tensor, slice, loaded.values);
  }
  if (tensor.shape.size() == 2) ops_->prepare(loaded);
  return loaded;
}

Tensors WeightLoader::load_all(const std::vector<TensorSpec>& tensors) {
  Tensors loaded;
  for (const TensorSpec& tensor : tensors) loaded.emplace(tensor.role, load(tensor));
  return loaded;
}

BlockWeights WeightLoader::block(std::int64_t layer) { return block_of(load_all(block_tensors(spec_.arch, layer))); }

Tensors WeightLoader::take_block(std::int64_t layer) {
  const std::vector<TensorSpec> tensors = block_tensors(spec_.arch, layer);
  Tensors loaded = load_all(tensors);
  if (held_ != nullptr)
    for (const TensorSpec& tensor : tensors) held_->erase(tensor.name);
  return loaded;
}

EndWeights WeightLoader::ends() {
  const std::int64_t before = bytes_;
  EndWeights ends;
  if (spec_.embedding) {
    const Tensors tensors = load_all(embedding_tensors(spec_.arch));
    ends.embedding = take(tensors, "embedding.weight");
    ends.position = take(tensors, "position.weight");
    ends.projection_in = take(tensors, "projection_in.weight");
  }
  if (spec_.head) {
    const bool held_already = spec_.arch.tied_embeddings && spec_.embedding;
    Tensors tensors;
    for (const TensorSpec& tensor : head_tensors(spec_.arch))
      tensors.emplace(tensor.role, held_already && tensor.role == "head.weight" ? ends.embedding : load(tensor));
    ends.final_norm = {take(tensors, "final_norm.weight").values, take(tensors, "final_norm.bias").values};
    ends.projection_out = take(tensors, "projection_out.weight");
    ends.head = take(tensors, "head.weight");
  }
  ends.bytes = bytes_ - before;
  return ends;
}

}  // namespace motley
