// Measures this machine as a host of workers, on its processors or its GPUs: the constants of the cost model, from
// steps that real workers run.
// What is measured, how, and what is not: docs/guides/probe.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "motley/plan/serve_plan.hpp"
#include "motley/probe/fit/calibrate.hpp"
#include "motley/probe/fit/unknown_machine.hpp"
#include "motley/probe/tier_probe.hpp"
#include "motley/serving/requests.hpp"
#include "motley/workers/fleet.hpp"

namespace motley {

constexpr double default_probe_seconds = 18;

// Of the real server with this plan and workers in this fleet, asked for answers of this many tokens over HTTP;
// `seconds`: about so long at most.
using MeasureAnswers =
    std::function<AnswerTimes(const ServePlan& plan, Fleet& fleet, const std::filesystem::path& model_folder,
                              std::int64_t answer_tokens, double seconds)>;

struct ProbeOptions {
  Cluster cluster;                                     // its machines say how many workers compute together
  Architecture shape;                                  // whose blocks are run; those of large models are made narrower
  MeasureAnswers measure_answers;                      // by which the driver's times are found
  std::filesystem::path worker_program;                // motley-worker, in motley's folder
  std::string backend = "cpu";                         // or cuda: GPU 0 stands for all of the machine's
  std::string transport = "shm";                       // between the workers of a machine
  int threads = 1;                                     // per worker
  double seconds = default_probe_seconds;              // about so long, starts of workers left out
  std::filesystem::path disk;                          // a folder on it; empty: no tiers are measured
  std::int64_t disk_bytes = default_probe_file_bytes;  // of a test file there
  std::function<void(const std::string& what, double elapsed_s)> report = {};
  bool rates_only = false;             // of steps: neither links nor a server
  std::int64_t device_free_bytes = 0;  // of the GPU's memory; 0: what the driver says
};

// A step that was measured, and what the rates make of it.
struct ProbedStep {
  std::int64_t ffn = 0, layers = 0;
  std::int64_t sequences = 0, tokens = 0, position = 0;
  double measured_s = 0, predicted_s = 0;
};

struct ProbedType {
  StepRates rates;
  FitError error;
  std::vector<ProbedStep> steps;
};

struct ProbeResult {
  std::map<DType, ProbedType> types;          // fp32 and bf16 weights
  std::map<std::string, PathSpeed> channels;  // from one worker to another: shm and tcp
  std::vector<std::optional<PathSpeed>>
      inside;  // of the cluster's machines, where they have several devices: all at work
  std::optional<ProbedTiers> tiers;
  std::string vendor;                    // of the devices that were measured
  std::int64_t device_memory_bytes = 0;  // of GPUs: the least that was free of one of them; 0: not looked at
  std::int64_t host_memory_bytes = 0;    // available in addition to what the devices have; 0: not measured, or none
  DriverCost driver;
  std::int64_t cores = 1;
  double elapsed_s = 0;
};

// Throws an input error where the cluster has no device of the backend's vendor or GPUs of several types, or where
// tiers of several machines are asked for; an environment error where workers cannot be started, or the disk cannot be
// measured.
ProbeResult probe(const ProbeOptions& options);

// Of one device, which `backend` names: what an agent offers of it. Memory and copies are not looked at.
DeviceType probe_device(ProbeOptions options);

// The cluster with the measured constants in place of those of its device types of that vendor and of its links, as all
// of it runs here. `type`: of the weights whose bandwidth counts.
ClusterDescription calibrated(const Cluster& cluster, const ProbeResult& result, const std::string& transport,
                              DType type);

}  // namespace motley
