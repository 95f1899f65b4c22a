// How the ranks of a stage add up on their devices: by kernels, over memory that all of them reach. Launches that
// follow one another in a stream are one sum after the other, so that a recorded step may hold sums.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string_view>
#include <vector>

#include "motley/engine/device/compute_device.hpp"
#include "motley/engine/device/peer_memory.hpp"
#include "motley/engine/device/shared_pages.hpp"
#include "motley/engine/device/sum_kernels.hpp"
#include "motley/workers/worker_group.hpp"

namespace motley {

enum class SumWay : std::uint8_t {
  host,    // by WorkerGroup
  pinned,  // over pages of the host that all devices read and write by themselves; small sums alone
  peers,   // over memory of the devices
};
std::string_view name(SumWay way);
// The best one that this process may take: what MOTLEY_SUMS names, else `peers`. Throws an input error.
SumWay best_sum_way();

class RankSums {
 public:
  // Every rank of the group calls it. Each says what it can and tries it, and all take the best way that all of them
  // have seen to be right: where that is the host's, null. `most_bytes`: of a sum. A sum ends without a result once
  // `stop` is asked for at any rank. Throws GroupBroken.
  static std::unique_ptr<RankSums> meet(WorkerGroup& group, const ComputeDevice& device, std::int64_t most_bytes,
                                        SumWay best, const std::stop_token& stop = {});
  // Lets go of what is other ranks' before all else.
  ~RankSums();
  RankSums(const RankSums&) = delete;
  RankSums& operator=(const RankSums&) = delete;

  SumWay way() const { return way_; }
  // Larger sums go by way of the host.
  bool takes(std::int64_t bytes) const { return way_ == SumWay::peers || bytes <= most_bytes_of(way_); }
  // In place, in the order of the thread's stream: returns before it is done. `terms` is contiguous, of fp32 or bf16.
  void sum(const at::Tensor& terms) const;
  // After a stream was waited for: throws GroupBroken where its sums may have ended without a result.
  void check() const;

 private:
  struct Statement;
  struct Trials;
  RankSums(WorkerGroup& group, const ComputeDevice& device, std::int64_t most_bytes);
  std::int64_t most_bytes_of(SumWay way) const;
  std::int64_t page_bytes() const;
  Statement offer(SumWay best);
  Trials open(const std::vector<Statement>& all);
  bool try_out(SumWay way);
  void give_up(SumWay way) const;
  bool given_up(SumWay way) const;
  void run(const at::Tensor& terms, bool in_parts) const;

  const int rank_, ranks_;
  const ComputeDevice& device_;
  const SumKernels* const kernels_;
  const std::int64_t most_bytes_;
  SumWay way_ = SumWay::host;
  int blocks_ = 0;
  std::optional<SharedPages> pages_;  // the words to give up by, then the ranks' segments
  bool pinned_ = false;
  std::optional<PeerMemory::Buffer> own_;  // this rank's segment on its device
  std::vector<void*> opened_;              // the others', null for this one
  std::vector<void*> pinned_segments_, peer_segments_;
  std::byte* words_ = nullptr;  // of pages_, where the device finds them
  at::Tensor counters_;         // of the device; of each way
  std::optional<std::stop_callback<std::function<void()>>> stop_;
};

}  // namespace motley
