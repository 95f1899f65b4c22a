#include "motley/engine/weights.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdint>
#include <optional>

#include "motley/engine/backend.hpp"

namespace motley {
namespace {

std::optional<at::ScalarType> stored_type(std::string_view type) {
  if (type == "F32") return at::kFloat;
  if (type == "BF16") return at::kBFloat16;
  if (type == "F16") return at::kHalf;
  return std::nullopt;
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

class Loader {
 public:
  Loader(const StageSpec& spec, const Shard& shard, const Checkpoint& checkpoint, at::Device device,
         const std::function<void(double)>& progress)
      : spec_(spec),
        shard_(shard),
        checkpoint_(checkpoint),
        progress_(progress),
        options_(at::TensorOptions(scalar_type(spec.weight_type)).device(device)),
        expected_bytes_(
            weight_bytes(spec.arch, {spec.layers.size(), spec.embedding, spec.head}, shard, spec.weight_type)) {}

  at::Tensor load(const TensorSpec& tensor) {
    const Slice slice = slice_of(spec_.arch, tensor, shard_);
    at::Tensor to = tensor.shape.size() == 1 ? at::empty({slice.rows.size()}, options_)
                                             : at::empty({slice.rows.size(), slice.columns.size()}, options_);
    advise_large_pages(to);
    read_tensor(checkpoint_, tensor, slice, to);
    bytes_ += allocated_bytes(to);
    if (progress_) progress_(static_cast<double>(bytes_) / static_cast<double>(expected_bytes_));
    return to;
  }

  Tensors load_all(const std::vector<TensorSpec>& tensors) {
    Tensors loaded;
    for (const TensorSpec& tensor : tensors) loaded.emplace(tensor.role, load(tensor));
    return loaded;
  }

  std::int64_t bytes() const { return bytes_; }

 private:
  const StageSpec& spec_;
  const Shard& shard_;
  const Checkpoint& checkpoint_;
  const std::function<void(double)>& progress_;
  at::TensorOptions options_;
  std::int64_t expected_bytes_;
  std::int64_t bytes_ = 0;
};

// The tensor of a role; undefined where this architecture has none.
at::Tensor take(const Tensors& tensors, const std::string& role) {
  const auto found = tensors.find(role);
  return found == tensors.end() ? at::Tensor() : found->second;
}

template <class Weights>
Weights take_pair(const Tensors& tensors, const std::string& role) {
  return {take(tensors, role + ".weight"), take(tensors, role + ".bias")};
}

BlockWeights block_of(const Tensors& tensors) {
  const auto norm = [&](const char* role) { return take_pair<NormWeights>(tensors, role); };
  const auto linear = [&](const char* role) { return take_pair<LinearWeights>(tensors, role); };
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

}  // namespace

std::int64_t allocated_bytes(const at::Tensor& tensor) {
  constexpr std::int64_t line = 64;
  return (static_cast<std::int64_t>(tensor.storage().nbytes()) + line - 1) / line * line;
}

void read_tensor(const Checkpoint& checkpoint, const TensorSpec& tensor, const Slice& slice, at::Tensor to) {
  const auto [file, stored] = checkpoint.find(tensor.name);
  if (stored.shape != tensor.shape)
    throw input_error(fmt::format("config.json promises {} {}, {} holds {}", tensor.name, shape_text(tensor.shape),
                                  file.string(), shape_text(stored.shape)),
                      "config.json and weights must come from the same model");
  const auto type = stored_type(stored.type);
  if (!type)
    throw input_error(fmt::format("{}: {} is of type {}", file.string(), tensor.name, stored.type),
                      "supported: F32, BF16, F16");
  const std::int64_t width = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  MOTLEY_CHECK(slice.rows.end <= tensor.shape.at(0) && slice.columns.end <= width);
  const auto element = static_cast<std::int64_t>(at::elementSize(*type));
  const std::byte* first = stored.bytes.data() + (slice.rows.first * width + slice.columns.first) * element;
  const at::Tensor from = at::from_blob(const_cast<std::byte*>(first), {slice.rows.size(), slice.columns.size()},
                                        {width, 1}, at::TensorOptions(*type));
  to.view({slice.rows.size(), slice.columns.size()}).copy_(from);
}

StageWeights load_weights(const StageSpec& spec, const Shard& shard, const Checkpoint& checkpoint, at::Device device,
                          const std::function<void(double)>& progress) {
  Loader loader(spec, shard, checkpoint, device, progress);
  StageWeights weights;
  for (std::int64_t layer = spec.layers.first; layer < spec.layers.end; ++layer)
    weights.blocks.push_back(block_of(loader.load_all(block_tensors(spec.arch, layer))));
  if (spec.embedding) {
    const Tensors tensors = loader.load_all(embedding_tensors(spec.arch));
    weights.embedding = take(tensors, "embedding.weight");
    weights.position = take(tensors, "position.weight");
    weights.projection_in = take(tensors, "projection_in.weight");
  }
  if (spec.head) {
    const bool held_already = spec.arch.tied_embeddings && spec.embedding;
    Tensors tensors;
    for (const TensorSpec& tensor : head_tensors(spec.arch))
      tensors.emplace(tensor.role,
                      held_already && tensor.role == "head.weight" ? weights.embedding : loader.load(tensor));
    weights.final_norm = take_pair<NormWeights>(tensors, "final_norm");
    weights.projection_out = take(tensors, "projection_out.weight");
    weights.head = take(tensors, "head.weight");
  }
  weights.bytes = loader.bytes();
  return weights;
}

}  // namespace motley
