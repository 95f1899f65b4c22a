#include "motley/engine/weights.hpp"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "motley/engine/backend.hpp"

namespace motley {
namespace {

// Of tensors in a file; none for a type that is not converted.
std::optional<at::ScalarType> stored_type(std::string_view name) {
  for (const DTypeRow& row : dtypes())
    if (!row.file_name.empty() && row.file_name == name) return scalar_type(row.type);
  return std::nullopt;
}

std::string stored_types() {
  std::string names;
  for (const DTypeRow& row : dtypes())
    if (!row.file_name.empty()) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.file_name);
  return names;
}

using Tensors = std::map<std::string, at::Tensor>;  // by role

// Large pages spare the processor a page walk per 4 KiB while it streams through the weights. Only advice: where the
// system does not follow it, all is as before.
void advise_large_pages(const at::Tensor& tensor) {
  constexpr std::uintptr_t page = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
  const std::uintptr_t first = (begin + page - 1) / page * page, last = (begin + tensor.nbytes()) / page * page;
  if (tensor.is_cpu() && first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

// The tensor of a role; undefined where this architecture has none.
at::Tensor take(const Tensors& tensors, const std::string& role) {
  const auto found = tensors.find(role);
  return found == tensors.end() ? at::Tensor() : found->second;
}

class ResidentBlocks final : public BlockStore {
 public:
  ResidentBlocks(WeightLoader& loader, const LayerRange& layers) : first_(layers.first) {
    const std::int64_t before = loader.bytes();
    for (std::int64_t layer = layers.first; layer < layers.end; ++layer) blocks_.push_back(loader.block(layer));
    bytes_ = loader.bytes() - before;
  }
  const BlockWeights& block(std::int64_t layer) override {
    return blocks_.at(static_cast<std::size_t>(layer - first_));
  }
  std::int64_t bytes() const override { return bytes_; }

 private:
  std::vector<BlockWeights> blocks_;
  std::int64_t first_;
  std::int64_t bytes_ = 0;
};

}  // namespace

std::int64_t allocated_bytes(const at::Tensor& tensor) {
  constexpr std::int64_t line = 64;
  return (static_cast<std::int64_t>(tensor.storage().nbytes()) + line - 1) / line * line;
}

void read_tensor(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, at::Tensor to) {
  const auto [file, stored, interleaved] = checkpoint.find(tensor.name);
  MOTLEY_CHECK(interleaved == 0);
  if (stored.shape != tensor.shape)
    throw input_error(fmt::format("config.json needs the tensor {} {}, but {} holds {}", tensor.name,
                                  shape_text(tensor.shape), file.string(), shape_text(stored.shape)),
                      "config.json and weights must come from the same model");
  const auto type = stored_type(stored.type);
  if (!type)
    throw input_error(fmt::format("{}: {} is of type {}", file.string(), tensor.name, stored.type),
                      "supported: " + stored_types());
  const std::int64_t width = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  MOTLEY_CHECK(slice.rows.end <= tensor.shape.at(0) && slice.columns.end <= width);
  const auto element = static_cast<std::int64_t>(at::elementSize(*type));
  const std::byte* first = stored.bytes.data() + (slice.rows.first * width + slice.columns.first) * element;
  const at::Tensor from = at::from_blob(const_cast<std::byte*>(first), {slice.rows.size(), slice.columns.size()},
                                        {width, 1}, at::TensorOptions(*type));
  to.view({slice.rows.size(), slice.columns.size()}).copy_(from);
}

BlockWeights block_of(const std::map<std::string, at::Tensor>& tensors, DType type) {
  const auto norm = [&](const std::string& role) {
    return NormWeights{take(tensors, role + ".weight"), take(tensors, role + ".bias")};
  };
  const auto linear = [&](const std::string& role) {
    return LinearWeights{{.values = take(tensors, role + ".weight"), .type = type}, take(tensors, role + ".bias")};
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

WeightLoader::WeightLoader(const StageSpec& spec, const std::filesystem::path& folder, at::Device device,
                           std::function<void(double)> progress)
    : spec_(spec),
      shard_(make_shards(spec.arch, spec.degree, spec.shares).at(static_cast<std::size_t>(spec.rank))),
      checkpoint_(folder),
      progress_(std::move(progress)),
      options_(at::TensorOptions(scalar_type(spec.weight_type)).device(device)),
      expected_bytes_(
          weight_bytes(spec.arch, {spec.layers.size(), spec.embedding, spec.head}, shard_, spec.weight_type)) {}

at::Tensor WeightLoader::load(const TensorSpec& tensor) {
  const Slice slice = slice_of(spec_.arch, tensor, shard_);
  at::Tensor to = tensor.shape.size() == 1 ? at::empty({slice.rows.size()}, options_)
                                           : at::empty({slice.rows.size(), slice.columns.size()}, options_);
  advise_large_pages(to);
  read_tensor(checkpoint_, tensor, slice, to);
  bytes_ += allocated_bytes(to);
  if (progress_) progress_(static_cast<double>(bytes_) / static_cast<double>(expected_bytes_));
  return to;
}

Tensors WeightLoader::load_all(const std::vector<TensorSpec>& tensors) {
  Tensors loaded;
  for (const TensorSpec& tensor : tensors) loaded.emplace(tensor.role, load(tensor));
  return loaded;
}

BlockWeights WeightLoader::block(std::int64_t layer) {
  return block_of(load_all(block_tensors(spec_.arch, layer)), spec_.weight_type);
}

EndWeights WeightLoader::ends() {
  const std::int64_t before = bytes_;
  EndWeights ends;
  const auto matrix = [&](const Tensors& tensors, const char* role) {
    return WeightMatrix{.values = take(tensors, role), .type = spec_.weight_type};
  };
  if (spec_.embedding) {
    const Tensors tensors = load_all(embedding_tensors(spec_.arch));
    ends.embedding = matrix(tensors, "embedding.weight");
    ends.position = matrix(tensors, "position.weight");
    ends.projection_in = matrix(tensors, "projection_in.weight");
  }
  if (spec_.head) {
    const bool held_already = spec_.arch.tied_embeddings && spec_.embedding;
    Tensors tensors;
    for (const TensorSpec& tensor : head_tensors(spec_.arch))
      tensors.emplace(tensor.role, held_already && tensor.role == "head.weight" ? ends.embedding.values : load(tensor));
    ends.final_norm = {take(tensors, "final_norm.weight"), take(tensors, "final_norm.bias")};
    ends.projection_out = matrix(tensors, "projection_out.weight");
    ends.head = matrix(tensors, "head.weight");
  }
  ends.bytes = bytes_ - before;
  return ends;
}

StageWeights load_weights(const StageSpec& spec, const std::filesystem::path& folder, at::Device device,
                          std::function<void(double)> progress) {
  const c10::InferenceMode guard;
  WeightLoader loader(spec, folder, device, std::move(progress));
  auto blocks = std::make_unique<ResidentBlocks>(loader, spec.layers);
  return {std::move(blocks), loader.ends()};
}

}  // namespace motley
