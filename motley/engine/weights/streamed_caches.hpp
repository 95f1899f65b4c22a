// Keys and values of layers that are homed on a disk, and brought into memory ahead of their use.
//
// A step goes through its micro-batches layer by layer, so what comes next is known. Two buffers, each with the blocks
// that one micro-batch has in one layer, take turns: while attention uses one, what was written in the other goes back
// to the disk, and the next blocks come.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "motley/engine/ops/kv_cache.hpp"
#include "motley/engine/ops/ops.hpp"
#include "motley/engine/spill/spill_file.hpp"
#include "motley/engine/spill/transfers.hpp"

namespace motley {

class StreamedCaches {
 public:
  // Of these layers, each with `shape`; `buffer_blocks`: of the largest micro-batch.
  StreamedCaches(std::vector<std::int64_t> layers, DType type, const CacheShape& shape, std::int64_t buffer_blocks,
                 const ComputeDevice& device);

  // A step with these micro-batches comes next, each of whose passes through a layer is a begin() and an end(). The
  // blocks of none are more than a buffer has.
  void begin_step(const std::vector<std::vector<SequenceRows>>& batches);
  struct Pass {
    const LayerCache& cache;
    const std::vector<SequenceRows>& sequences;  // whose blocks are numbered as they lie in the buffer
  };
  Pass begin(std::int64_t layer, std::size_t batch);
  void end();
  std::int64_t buffers_bytes() const;

 private:
  // The blocks of a micro-batch: block i of a buffer is block `ids[i]` of the cache.
  struct Batch {
    std::vector<std::int32_t> ids, local;
    std::vector<bool> filled, written;  // by earlier steps; by this one
    std::vector<SequenceRows> sequences;
    bool continues = false;  // a sequence of the batch before it
  };
  struct Buffer {
    LayerCache cache;
    Transfers::Handle transfer;
  };

  std::int64_t layer_of(std::size_t pass) const { return layers_[pass / batches_.size()]; }
  std::size_t batch_of(std::size_t pass) const { return pass % batches_.size(); }
  bool loads_early(std::size_t pass) const { return pass < passes() && !batches_[batch_of(pass)]->continues; }
  std::size_t passes() const { return layers_.size() * batches_.size(); }
  // Blocks of pass `stored` from its buffer to the disk, then those of `loaded` into it.
  void move(std::optional<std::size_t> stored, std::optional<std::size_t> loaded);

  const std::vector<std::int64_t> layers_;
  std::map<std::int64_t, std::int64_t> places_;  // number of each layer among those on the disk
  const CacheShape shape_;
  const std::int64_t buffer_blocks_;
  std::int64_t record_bytes_ = 0;  // of a block with its keys, values and scales
  std::shared_ptr<const SpillFile> file_;
  std::vector<std::shared_ptr<const Batch>> batches_;
  Buffer buffers_[2];
  std::size_t pass_ = 0;
  std::unique_ptr<Transfers> transfers_;
};

}  // namespace motley
