// Keys and values of a prompt on their way from the stages that prefilled it to those that decode.
#pragma once

#include <cstddef>
#include <map>
#include <tuple>
#include <vector>

#include "motley/cluster/cluster.hpp"
#include "motley/cost/form/hop.hpp"
#include "motley/model/model.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley {

// A stage as its keys and values see it.
struct KvHolder {
  std::vector<int> devices;  // indices into the cluster
  LayerRange layers;
  DType kv_type = DType::bf16;
};

// Everything from one machine to another goes over one link; inside a machine every pair of stages has its own. A stage
// is named by its first device.
using KvLink = std::tuple<bool, int, int>;  // inside a machine; from and to: devices, or else machines

struct KvMove {
  std::size_t from = 0, to = 0;  // of the holders that prefill, of those that decode
  double bytes = 0;
  HopSpeed path;  // the fastest pair of devices
  KvLink link;
  double occupancy_s() const { return bytes / path.bandwidth_bytes_per_s; }
};

// Of `tokens` cached tokens: each decoding stage gets the layers it holds from those that prefilled them.
std::vector<KvMove> kv_moves(const Cluster& cluster, const Architecture& arch, const std::vector<KvHolder>& prefill,
                             const std::vector<KvHolder>& decode, double tokens);

// The same of a route that hands over, for the workload's mean prompt; empty for one that does not. `from` and `to` are
// hops of its path.
std::vector<KvMove> kv_moves(const ServePlan& plan, const Route& route);

// Seconds that the moves keep each link busy.
std::map<KvLink, double> link_loads(const std::vector<KvMove>& moves);
// Until the last of them has arrived, if all begin at once on idle links.
double seconds_of(const std::vector<KvMove>& moves);

}  // namespace motley
