// Measures how this machine trains a model: the times of its parts and the rate at which replicas add up gradients,
// from steps that real workers run. What is measured, how, and what is not: docs/guides/probe.md.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "motley/cluster/cluster.hpp"
#include "motley/cluster/profile.hpp"
#include "motley/model/model.hpp"
#include "motley/workload/workload.hpp"

namespace motley {

struct TrainProbeOptions {
  Cluster cluster;                       // whose CPU types are measured; a machine says how many compute together
  Model model;                           // whose parts are run, with few layers
  Training training;                     // lengths, precision, optimizer; micro-batches of up to global_batch sequences
  std::filesystem::path worker_program;  // motley-worker, in motley's folder
  int threads = 1;                       // per worker
  double seconds = 18;                   // about so long, starts of workers left out
  std::function<void(const std::string& what, double elapsed_s)> report;
};

// Throws an input error where no device is a CPU, and what hinders the workers.
Profile probe_training(const TrainProbeOptions& options);

}  // namespace motley
