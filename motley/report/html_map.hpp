// Places of a cluster and the links between them: a drawing of few, a table of all.
#pragma once

#include <string>
#include <vector>

#include "motley/report/html_layout.hpp"

namespace motley {

// Links that are told together: "5.00 ms, 1.25 GB/s", or from the least to the most of each.
class LinkRange {
 public:
  void add(const PathSpeed& link);
  void add(const LinkRange& links);
  bool empty() const { return !any_; }
  double bandwidth_bytes_per_s() const { return most_.bandwidth_bytes_per_s; }
  std::string latency() const;
  std::string bandwidth() const;

 private:
  PathSpeed least_, most_;
  bool any_ = false;
};

// Inside these machines, between the first two devices of each.
LinkRange links_inside(const Cluster& cluster, const std::vector<int>& machines);

// Between sites, or between kinds of machines where there is one site; empty where there is nothing to tell.
Html links_content(const PageLayout& layout);

}  // namespace motley
