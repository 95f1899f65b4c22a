#include "motley/engine/cuda/nccl.hpp"

#include <dlfcn.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"

namespace motley {
namespace {

// NCCL's interface, as its manual gives it.
struct NcclComm;
struct NcclUniqueId {
  char internal[128];
};
// The part of the configuration that version 2.14 had; later versions take the rest from `version`.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};
constexpr int nccl_success = 0, nccl_in_progress = 7;

int nccl_type(CollectiveElement element) {
  switch (element) {
    case CollectiveElement::int8: return 0;
    case CollectiveElement::uint8: return 1;
    case CollectiveElement::int32: return 2;
    case CollectiveElement::int64: return 4;
    case CollectiveElement::fp16: return 6;
    case CollectiveElement::fp32: return 7;
    case CollectiveElement::fp64: return 8;
    case CollectiveElement::bf16: return 9;
    case CollectiveElement::int16: break;
  }
  throw input_error(fmt::format("vendors' libraries do not support {}", name(element)), "use int8 or int32");
}

int nccl_operator(CollectiveReduction reduction) {
  switch (reduction) {
    case CollectiveReduction::sum: return 0;
    case CollectiveReduction::max: return 2;
    case CollectiveReduction::min: return 3;
    case CollectiveReduction::mean: return 4;
  }
  return 0;
}

}  // namespace

struct VendorLibrary::Functions {
  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(NcclUniqueId*) = nullptr;
  int (*init)(NcclComm**, int, NcclUniqueId, int, NcclConfig*) = nullptr;
  int (*destroy)(NcclComm*) = nullptr;
  int (*abort)(NcclComm*) = nullptr;
  int (*async_error)(NcclComm*, int*) = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, NcclComm*, void*) = nullptr;
  int (*reduce_scatter)(const void*, void*, std::size_t, int, int, NcclComm*, void*) = nullptr;
  int (*all_gather)(const void*, void*, std::size_t, int, NcclComm*, void*) = nullptr;
  int (*broadcast)(const void*, void*, std::size_t, int, int, NcclComm*, void*) = nullptr;
};

// Shared with the thread that aborts, which may outlive the island. An abort frees the library's object: a thread
// that asks for its state holds the mutex, and looks for an abort first.
struct VendorIsland::Group {
  NcclComm* comm = nullptr;
  std::atomic<bool> aborted{false};
  std::mutex asking;
};

VendorLibrary::VendorLibrary() : functions_(std::make_unique<Functions>()) {}
VendorLibrary::~VendorLibrary() {
  if (handle_ != nullptr) ::dlclose(handle_);
}

std::shared_ptr<const VendorLibrary> VendorLibrary::open(const std::string& name) {
  const std::shared_ptr<VendorLibrary> library(new VendorLibrary);
  library->handle_ = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library->handle_ == nullptr)
    throw Error(ErrorCode::environment, fmt::format("cannot open \"{}\": {}", name, ::dlerror()),
                "give the vendor's library, such as libnccl.so.2, or its path");
  const auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library->handle_, symbol));
    if (function == nullptr)
      throw Error(ErrorCode::environment, fmt::format("\"{}\" has no {}", name, symbol), "install NCCL 2.14 or later");
  };
  Functions& functions = *library->functions_;
  find(functions.get_version, "ncclGetVersion");
  find(functions.get_unique_id, "ncclGetUniqueId");
  find(functions.init, "ncclCommInitRankConfig");
  find(functions.destroy, "ncclCommDestroy");
  find(functions.abort, "ncclCommAbort");
  find(functions.async_error, "ncclCommGetAsyncError");
  find(functions.error_string, "ncclGetErrorString");
  find(functions.all_reduce, "ncclAllReduce");
  find(functions.reduce_scatter, "ncclReduceScatter");
  find(functions.all_gather, "ncclAllGather");
  find(functions.broadcast, "ncclBroadcast");
  if (const int result = functions.get_version(&library->version_); result != nccl_success)
    throw Error(ErrorCode::environment, fmt::format("\"{}\": {}", name, functions.error_string(result)));
  return library;
}

IslandId VendorLibrary::new_island() const {
  NcclUniqueId id{};
  if (const int result = functions_->get_unique_id(&id); result != nccl_success)
    throw Error(ErrorCode::environment,
                fmt::format("cannot make an identifier for an island: {}", functions_->error_string(result)));
  return std::to_array(id.internal);
}

VendorIsland::VendorIsland(std::shared_ptr<const VendorLibrary> library, const IslandId& island, int rank, int size,
                           double timeout_s)
    : library_(std::move(library)), group_(std::make_shared<Group>()), rank_(rank), size_(size), timeout_s_(timeout_s) {
  NcclUniqueId id{};
  std::copy(island.begin(), island.end(), id.internal);
  NcclConfig config;
  const int result = library_->functions_->init(&group_->comm, size, id, rank, &config);
  try {
    settle(result, "connecting the island");
  } catch (...) {
    if (group_->comm != nullptr) library_->functions_->abort(group_->comm);
    throw;
  }
}

VendorIsland::~VendorIsland() {
  if (group_->comm == nullptr || group_->aborted.exchange(true)) return;
  library_->functions_->destroy(group_->comm);
}

// A call that does not block says so; what came of it is asked for.
void VendorIsland::settle(int result, const char* doing) const {
  const auto until = deadline_in(timeout_s_);
  while (result == nccl_in_progress) {
    if (Clock::now() >= until)
      throw Error(ErrorCode::limit, fmt::format("{}: not complete within {} s", doing, timeout_s_));
    {
      const std::lock_guard lock(group_->asking);
      if (group_->aborted) throw Error(ErrorCode::peer, fmt::format("{}: aborted", doing));
      int state = nccl_success;
      result = library_->functions_->async_error(group_->comm, &state);
      if (result == nccl_success) result = state;
    }
    if (result == nccl_in_progress) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (result != nccl_success)
    throw Error(ErrorCode::peer, fmt::format("{}: {}", doing, library_->functions_->error_string(result)));
}

void VendorIsland::mark_aborted() { group_->aborted = true; }
bool VendorIsland::aborted() const { return group_->aborted; }

namespace {

void refuse_aborted(bool aborted) {
  if (aborted) throw Error(ErrorCode::peer, "the island has been aborted");
}

}  // namespace

void VendorIsland::all_reduce(const void* in, void* out, std::size_t count, CollectiveElement element,
                              CollectiveReduction reduction, void* stream) {
  refuse_aborted(aborted());
  settle(library_->functions_->all_reduce(in, out, count, nccl_type(element), nccl_operator(reduction), group_->comm,
                                          stream),
         "all_reduce in the island");
}

void VendorIsland::reduce_scatter(const void* in, void* out, std::size_t count, CollectiveElement element,
                                  CollectiveReduction reduction, void* stream) {
  refuse_aborted(aborted());
  settle(library_->functions_->reduce_scatter(in, out, count, nccl_type(element), nccl_operator(reduction),
                                              group_->comm, stream),
         "reduce_scatter in the island");
}

void VendorIsland::all_gather(const void* in, void* out, std::size_t count, CollectiveElement element, void* stream) {
  refuse_aborted(aborted());
  settle(library_->functions_->all_gather(in, out, count, nccl_type(element), group_->comm, stream),
         "all_gather in the island");
}

void VendorIsland::broadcast(const void* in, void* out, std::size_t count, CollectiveElement element, int root,
                             void* stream) {
  refuse_aborted(aborted());
  settle(library_->functions_->broadcast(in, out, count, nccl_type(element), root, group_->comm, stream),
         "broadcast in the island");
}

bool abort_islands(const std::vector<VendorIsland*>& islands, double patience_s) {
  struct Watch {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
  };
  const auto watch = std::make_shared<Watch>();
  std::vector<std::pair<std::shared_ptr<const VendorLibrary>, std::shared_ptr<VendorIsland::Group>>> doomed;
  for (VendorIsland* island : islands)
    if (!island->group_->aborted.exchange(true)) doomed.emplace_back(island->library_, island->group_);
  std::thread aborting([watch, doomed = std::move(doomed)] {
    for (const auto& [library, group] : doomed) {
      const std::lock_guard lock(group->asking);
      library->functions_->abort(group->comm);
    }
    {
      const std::lock_guard lock(watch->mutex);
      watch->over = true;
    }
    watch->changed.notify_all();
  });
  std::unique_lock lock(watch->mutex);
  const bool over =
      watch->changed.wait_for(lock, std::chrono::duration<double>(patience_s), [&] { return watch->over; });
  lock.unlock();
  if (over)
    aborting.join();  // it may close the library
  else
    aborting.detach();  // hangs in the vendor's library
  return over;
}

OperationOutcome all_reduce_across_islands(VendorIsland& island, Communicator& across, void* data, std::size_t count,
                                           CollectiveElement element, const OperationOptions& options,
                                           const IslandMemory& memory) {
  const auto size = static_cast<std::size_t>(island.size());
  const auto unit = static_cast<std::size_t>(element_bytes(element));
  auto* const bytes = static_cast<std::byte*>(data);
  const std::size_t share = count / size;
  std::byte* const mine = bytes + static_cast<std::size_t>(island.rank()) * share * unit;
  // A mean is the sum until the end: islands of one size each hold a sum of equally many.
  const bool mean = options.reduction == CollectiveReduction::mean;
  const CollectiveReduction inside = mean ? CollectiveReduction::sum : options.reduction;
  OperationOptions outside = options;
  outside.reduction = inside;

  OperationOutcome outcome;
  const auto fold = [&](std::byte* place, std::size_t elements) {
    std::vector<std::byte> staging(elements * unit);
    memory.to_host(staging.data(), place, staging.size());
    outcome = across.all_reduce(staging, element, outside);
    if (outcome.status != OperationStatus::ok) return false;
    if (mean) divide_by(element, staging, across.size() * island.size());
    memory.to_device(place, staging.data(), staging.size());
    return true;
  };
  if (share > 0) {
    island.reduce_scatter(data, mine, share, element, inside, memory.stream);
    if (!fold(mine, share)) return outcome;
    island.all_gather(mine, data, share, element, memory.stream);
  }
  // What cannot be shared out is summed by every device for itself.
  const std::size_t rest = count - share * size;
  if (rest == 0) return outcome;
  std::byte* const tail = bytes + share * size * unit;
  island.all_reduce(tail, tail, rest, element, inside, memory.stream);
  fold(tail, rest);
  return outcome;
}

}  // namespace motley
