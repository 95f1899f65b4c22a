// What serving and training plans have in common on a page: devices in stages, stages in pipelines, memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/plan/serve_plan.hpp"
#include "motley/report/html.hpp"

namespace motley {

struct PageStage {
  std::string name;
  std::string css_class;  // its colour
  LayerRange layers;
  std::vector<int> devices;             // indices into the cluster
  std::vector<std::string> facts = {};  // "embedding", "dp 2 zero3"
};

struct PageHop {
  std::size_t stage = 0;
  LayerRange layers;
};

struct PagePipeline {
  std::string name;
  std::string note = {};  // "25% of the requests"
  std::vector<PageHop> hops = {};
};

struct PageLayout {
  const Cluster* cluster = nullptr;
  std::int64_t layers = 0;
  double hop_bytes = 0;  // by which the fastest link between two stages is chosen
  std::vector<PageStage> stages = {};
  std::vector<PagePipeline> pipelines = {};
  std::vector<UnusedDevice> unused = {};

  // Some stage is part of several pipelines.
  bool shares_stages() const;
};

// The cluster: places and the links between them, machines with their devices and what these are for, idle devices.
Html cluster_content(const PageLayout& layout);

// Pipelines as rows of boxes as wide as their layers, with devices and links. Alike ones of many are told once.
Html stages_content(const PageLayout& layout);

struct PageMemory {
  std::string device;
  std::string type;
  std::vector<std::int64_t> bytes;  // by cause
  std::int64_t total = 0;
  std::int64_t limit = 0;
};
// A bar per device, as long as its memory; devices that hold the same are one bar.
Html memory_content(const std::vector<std::string>& causes, const std::vector<PageMemory>& devices);

// "4 x A100-80, 2 x A6000".
std::string device_types(const Cluster& cluster, const std::vector<int>& devices);
std::vector<std::string> device_names_of(const Cluster& cluster, const std::vector<int>& devices);
// "20.0 ms, 125 MB/s".
std::string link_text(const PathSpeed& link);

}  // namespace motley
