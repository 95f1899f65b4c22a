// What the probe runs: how wide and deep models, and which steps.
#pragma once

#include <string>
#include <vector>

#include "motley/probe/probe_run.hpp"

namespace motley {

// What is run on a kind of device: steps that keep it busy for long enough to be timed, in memory that it has.
struct ProbeScale {
  const char* vendor;
  StepLimits limits;
  std::int64_t most_context;
  std::int64_t most_elements;  // of a block
  std::int64_t most_vocabulary;
  double most_flops;   // of a step with many layers: those with few tell the rates
  DType channel_type;  // of weights where links and the server are measured
  Fill fill;
  std::vector<ProbeStep> steps;
};

// Of a backend: cpu, cuda, cuda:N, or a stand-in. `briefly`: in a few seconds.
const ProbeScale& scale_of(const std::string& backend, bool briefly = false);

// Keys and values of all sequences of the step that has most.
std::int64_t kv_tokens_of(const ProbeScale& scale);

// Narrower until a block has no more elements than the scale has and so much free memory holds, and a vocabulary that
// fits with it: products of narrow blocks are faster than those of wide ones, but the probe's time and memory grow
// with it.
Architecture probe_shape(Architecture shape, const ProbeScale& scale, std::int64_t memory_bytes);

// Another FFN tells bytes from layers. Wide blocks take long, and their bytes so much longer than anything else of a
// layer that what is left of two of them is noise: theirs is narrower.
Architecture with_another_ffn(Architecture shape);

// How many layers of `probed` stream from memory, where the model's weights on a device would not stay in the
// processor's cache; otherwise 0.
std::int64_t layers_beyond_cache(const Cluster& cluster, const Architecture& model, const Architecture& probed);

}  // namespace motley
