// Counts the experts that the tokens of a text take: by a worker that runs the model. What is counted, and what plans
// make of it: docs/guides/probe.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "motley/cluster/profile.hpp"
#include "motley/model/model.hpp"

namespace motley {

struct RoutingProbeOptions {
  Model model;
  std::filesystem::path weights;  // a folder or a GGUF file
  DType weight_type = DType::bf16;
  std::vector<std::int32_t> text;  // its first tokens count
  std::filesystem::path worker_program;
  int threads = 1;
  std::function<void(const std::string& what, double elapsed_s)> report;
};

// A profile of counts, and of gamma. Throws an input error where the model has no experts or the text is short, and
// what hinders the worker.
Profile probe_routing(const RoutingProbeOptions& options);

}  // namespace motley
