// Measures what lies behind a machine's devices as workers that offload use it: the disk by direct reads and writes,
// with as many threads and in pieces of the same size, and copies in host memory while threads compute.
#pragma once

#include <cstdint>
#include <filesystem>

#include "motley/cluster/cluster.hpp"

namespace motley {

constexpr std::int64_t default_probe_file_bytes = std::int64_t{1} << 30;

struct TierProbeOptions {
  std::filesystem::path folder;  // on the disk
  std::int64_t file_bytes = default_probe_file_bytes;
  int computing_threads = 1;  // during copies in host memory
};

struct ProbedTiers {
  Disk disk;                    // its capacity: what is free
  double copy_bytes_per_s = 0;  // in host memory, per second that computing takes longer for it
};

// Throws an environment error where the folder takes no file, its file system has no direct I/O, or the disk has less
// than twice the file's size free. The file is private, has no name, and is gone at the end.
ProbedTiers probe_tiers(const TierProbeOptions& options);

}  // namespace motley
