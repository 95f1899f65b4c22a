// Vendors' collective libraries for islands: devices of one make that a library of theirs joins faster than anything
// else could. Opened at run time; NCCL's functions are the table, which RCCL and others export under the same names.
//
// A step across islands: every device gets the sum of one share of the island's data from the vendor's library, the
// shares are summed across islands by a Communicator of the devices with the same share, and the island gathers them
// again. So every device's network card works.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/transport/collective_element.hpp"

namespace motley {

// What all devices of an island must be given by one of them before they meet.
using IslandId = std::array<char, 128>;

class VendorIsland;
// Marks all of them first, then frees them from a helper thread: libraries block each other otherwise, and the abort
// itself may hang. False when it has not come back in time: the process should end, and join again.
bool abort_islands(const std::vector<VendorIsland*>& islands, double patience_s = 10);

// Functions of a library of NCCL's kind.
class VendorLibrary {
 public:
  // By path or name: "libnccl.so.2", "librccl.so.1". Throws an environment error where it is not there, or lacks a
  // function.
  static std::shared_ptr<const VendorLibrary> open(const std::string& name);
  ~VendorLibrary();
  VendorLibrary(const VendorLibrary&) = delete;
  VendorLibrary& operator=(const VendorLibrary&) = delete;

  int version() const { return version_; }  // 22105 is 2.21.5
  IslandId new_island() const;

 private:
  friend class VendorIsland;
  friend bool abort_islands(const std::vector<VendorIsland*>& islands, double patience_s);
  struct Functions;
  VendorLibrary();
  void* handle_ = nullptr;
  std::unique_ptr<Functions> functions_;
  int version_ = 0;
};

// One device's place in an island. Operations are put on `stream` (a cudaStream_t, hipStream_t, ...) and return before
// they are done; pointers are the device's. Calls belong to one thread; abort() to any.
class VendorIsland {
 public:
  // Meets the others without blocking for longer than `timeout_s`. The thread's current device takes part. Throws a
  // peer error with the library's own words, or a limit error.
  VendorIsland(std::shared_ptr<const VendorLibrary> library, const IslandId& island, int rank, int size,
               double timeout_s);
  ~VendorIsland();
  VendorIsland(const VendorIsland&) = delete;
  VendorIsland& operator=(const VendorIsland&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // `count` elements; of reduce_scatter and all_gather, per device. Throw like the constructor; an input error for what
  // the library does not know (int16).
  void all_reduce(const void* in, void* out, std::size_t count, CollectiveElement element,
                  CollectiveReduction reduction, void* stream);
  void reduce_scatter(const void* in, void* out, std::size_t count, CollectiveElement element,
                      CollectiveReduction reduction, void* stream);
  void all_gather(const void* in, void* out, std::size_t count, CollectiveElement element, void* stream);
  void broadcast(const void* in, void* out, std::size_t count, CollectiveElement element, int root, void* stream);

  // Nothing is put on any stream from now on. Comes first for all islands of a process: see abort_islands().
  void mark_aborted();
  bool aborted() const;

 private:
  friend bool abort_islands(const std::vector<VendorIsland*>& islands, double patience_s);
  struct Group;
  void settle(int result, const char* doing) const;

  std::shared_ptr<const VendorLibrary> library_;
  std::shared_ptr<Group> group_;
  int rank_, size_;
  double timeout_s_;
};

// How data get from a device to this process and back, and how a stream is waited for; the engine knows.
struct IslandMemory {
  void* stream = nullptr;
  std::function<void(void* host, const void* device, std::size_t bytes)>
      to_host;  // in the stream's order, done when it returns
  std::function<void(void* device, const void* host, std::size_t bytes)> to_device;
};

// In place, `count` elements on every device of every island; islands are of one size. `across` joins the devices of
// the same rank in their islands, this one's among them. Throws what VendorIsland throws.
OperationOutcome all_reduce_across_islands(VendorIsland& island, Communicator& across, void* data, std::size_t count,
                                           CollectiveElement element, const OperationOptions& options,
                                           const IslandMemory& memory);

}  // namespace motley
