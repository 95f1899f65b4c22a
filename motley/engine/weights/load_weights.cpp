#include "motley/engine/weights/load_weights.hpp"

#include <c10/core/InferenceMode.h>

#include <utility>
#include <vector>

#include "motley/engine/weights/streamed_blocks.hpp"

namespace motley {
namespace {

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

StageWeights load_weights(const StageSpec& spec, const std::filesystem::path& model, const ComputeDevice& device,
                          std::function<void(double)> progress, RetainedTensors held) {
  const c10::InferenceMode guard;
  WeightLoader loader(spec, model, device, std::move(progress), &held);
  StageWeights weights;
  if (spec.offload)
    weights.blocks = std::make_unique<StreamedBlocks>(loader, spec, device);
  else
    weights.blocks = std::make_unique<ResidentBlocks>(loader, spec.layers);
  weights.ends = loader.ends();
  weights.loaded_bytes = loader.loaded_bytes();
  device.synchronize();
  weights.held = std::move(held);
  return weights;
}

}  // namespace motley
