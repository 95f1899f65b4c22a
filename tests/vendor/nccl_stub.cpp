// A library of NCCL's kind for the host's memory and threads of one process: what
// motley/engine/cuda/nccl_test.cpp opens in place of a vendor's. It computes what it is asked for, and keeps a
// record of the calls.
#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct UniqueId {
  char internal[128];
};
struct Config {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

// Devices that meet under one identifier, and go through operations together.
struct Island {
  int size = 0;
  int met = 0;
  int arrived = 0;
  long round = 0;
  std::vector<const void*> in;
  std::vector<void*> out;
  bool aborted = false;
};

std::mutex mutex;
std::condition_variable changed;
std::map<std::string, Island> islands;
std::string record;
int identifiers = 0;

}  // namespace

struct ncclComm {
  Island* island;
  int rank;
};

namespace {

std::size_t bytes_of(int type) {
  constexpr std::size_t sizes[]{1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return sizes[type];
}

void note(const char* call, std::size_t count, int type) {
  record += std::string(call) + " " + std::to_string(count) + " of type " + std::to_string(type) + "\n";
}

// All devices hand in their pointers; the last to come does the work for all.
template <class Work>
int together(ncclComm* comm, const void* in, void* out, Work work) {
  std::unique_lock lock(mutex);
  Island& island = *comm->island;
  const long round = island.round;
  island.in[static_cast<std::size_t>(comm->rank)] = in;
  island.out[static_cast<std::size_t>(comm->rank)] = out;
  if (++island.arrived == island.size) {
    work(island);
    island.arrived = 0;
    ++island.round;
    changed.notify_all();
  }
  changed.wait(lock, [&] { return island.round > round || island.aborted; });
  return island.round > round ? 0 : 6;
}

std::vector<float> sum_of(const Island& island, std::size_t count) {
  std::vector<float> sum(count);
  for (const void* in : island.in)
    for (std::size_t i = 0; i < count; ++i) sum[i] += static_cast<const float*>(in)[i];
  return sum;
}

}  // namespace

extern "C" {

const char* motley_stub_record() { return record.c_str(); }

int ncclGetVersion(int* version) {
  *version = 22105;
  return 0;
}

int ncclGetUniqueId(UniqueId* id) {
  const std::lock_guard lock(mutex);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, "island", 6);
  id->internal[6] = static_cast<char>('a' + identifiers++);
  return 0;
}

// Does not wait for the others: says that it is on its way.
int ncclCommInitRankConfig(ncclComm** comm, int size, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0) return 4;
  const std::lock_guard lock(mutex);
  Island& island = islands[id.internal];
  island.size = size;
  island.in.resize(static_cast<std::size_t>(size));
  island.out.resize(static_cast<std::size_t>(size));
  ++island.met;
  *comm = new ncclComm{&island, rank};
  return 7;
}

int ncclCommGetAsyncError(ncclComm* comm, int* state) {
  const std::lock_guard lock(mutex);
  *state = comm->island->met < comm->island->size ? 7 : 0;
  return 0;
}

int ncclCommDestroy(ncclComm* comm) {
  delete comm;
  return 0;
}

int ncclCommAbort(ncclComm* comm) {
  const std::lock_guard lock(mutex);
  record += "abort\n";
  comm->island->aborted = true;
  changed.notify_all();
  delete comm;
  return 0;
}

const char* ncclGetErrorString(int result) { return result == 6 ? "remote process exited" : "invalid argument"; }

int ncclAllReduce(const void* in, void* out, std::size_t count, int type, int, ncclComm* comm, void*) {
  return together(comm, in, out, [&](Island& island) {
    note("all_reduce", count, type);
    const std::vector<float> sum = sum_of(island, count);
    for (void* each : island.out) std::memcpy(each, sum.data(), count * sizeof(float));
  });
}

int ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int, ncclComm* comm, void*) {
  return together(comm, in, out, [&](Island& island) {
    note("reduce_scatter", count, type);
    const std::vector<float> sum = sum_of(island, count * island.out.size());
    for (std::size_t r = 0; r < island.out.size(); ++r)
      std::memcpy(island.out[r], sum.data() + r * count, count * sizeof(float));
  });
}

int ncclAllGather(const void* in, void* out, std::size_t count, int type, ncclComm* comm, void*) {
  return together(comm, in, out, [&](Island& island) {
    note("all_gather", count, type);
    const std::size_t bytes = count * bytes_of(type);
    std::vector<char> all(bytes * island.in.size());
    for (std::size_t r = 0; r < island.in.size(); ++r) std::memcpy(all.data() + r * bytes, island.in[r], bytes);
    for (void* each : island.out) std::memcpy(each, all.data(), all.size());
  });
}

int ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root, ncclComm* comm, void*) {
  return together(comm, in, out, [&](Island& island) {
    note("broadcast", count, type);
    for (void* each : island.out)
      if (each != island.in[static_cast<std::size_t>(root)])
        std::memcpy(each, island.in[static_cast<std::size_t>(root)], count * bytes_of(type));
  });
}
}
