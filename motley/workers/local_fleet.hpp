// Workers in processes of this machine, which end with the thread that starts them. They are reached over loopback, by
// those alone that know a key which was drawn for this fleet.
#pragma once

#include <filesystem>
#include <string>

#include "motley/workers/fleet.hpp"

namespace motley {

// A name of cpu, cuda, cuda:N; apart and apart:N, too, where the environment names the library of test devices.
bool is_backend(const std::string& name);

struct LocalFleetOptions {
  std::filesystem::path program;  // motley-worker, in motley's folder
  std::string transport = "shm";  // between workers: shm or tcp
  std::string backend = "cpu";    // of every device: cpu, cuda:N, or cuda (slot n of a machine runs on GPU n)
  int threads = 1;                // of each worker
};

class LocalFleet final : public Fleet {
 public:
  // Throws an input error for a transport or a number of threads that there is not.
  explicit LocalFleet(LocalFleetOptions options);

  // Throws an environment error where the program cannot be run.
  std::unique_ptr<WorkerStart> begin(const std::vector<std::string>& starting, const std::vector<std::string>& running,
                                     const WorkerReads& reads) override;
  bool is_here() const override { return true; }

 private:
  const LocalFleetOptions options_;
  const std::string key_;
};

}  // namespace motley
