#include "motley/solve/flow.hpp"

#include <algorithm>
#include <cmath>
#include <queue>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr std::int64_t most_units = std::int64_t{1} << 52;

}  // namespace

FlowNetwork::FlowNetwork(int vertices, int source, int sink, double unit)
    : source_(source), sink_(sink), unit_(unit), arcs_(vertices), level_(vertices), next_arc_(vertices) {
  MOTLEY_CHECK(unit > 0 && source != sink && source < vertices && sink < vertices);
}

FlowNetwork::Units FlowNetwork::to_units(double amount) const {
  MOTLEY_CHECK(amount >= 0);
  const double units = std::nearbyint(amount / unit_);
  return units >= static_cast<double>(most_units) ? most_units : static_cast<Units>(units);
}

double FlowNetwork::to_real(Units units) const { return static_cast<double>(units) * unit_; }

double FlowNetwork::capacity(int edge) const {
  const Units units = residual_[2 * edge] + residual_[2 * edge + 1];
  return units >= most_units ? unlimited : to_real(units);
}

void FlowNetwork::attach(int arc, int tail) {
  place_[arc] = static_cast<int>(arcs_[tail].size());
  arcs_[tail].push_back(arc);
}

void FlowNetwork::detach(int arc) {
  auto& list = arcs_[head_[arc ^ 1]];
  const int last = list.back();
  list[place_[arc]] = last;
  place_[last] = place_[arc];
  list.pop_back();
  place_[arc] = -1;
}

int FlowNetwork::add_edge(int from, int to, double capacity) {
  int edge = static_cast<int>(head_.size() / 2);
  if (free_edges_.empty()) {
    head_.resize(head_.size() + 2);
    place_.resize(head_.size());
    residual_.resize(head_.size());
  } else {
    edge = free_edges_.back();
    free_edges_.pop_back();
  }
  head_[2 * edge] = to;
  head_[2 * edge + 1] = from;
  residual_[2 * edge] = to_units(capacity);
  residual_[2 * edge + 1] = 0;
  attach(2 * edge, from);
  attach(2 * edge + 1, to);
  return edge;
}

void FlowNetwork::remove_edge(int edge) {
  set_capacity(edge, 0);
  detach(2 * edge);
  detach(2 * edge + 1);
  free_edges_.push_back(edge);
}

void FlowNetwork::set_capacity(int edge, double capacity) {
  const Units wanted = to_units(capacity);
  Units& forward = residual_[2 * edge];
  Units& carried = residual_[2 * edge + 1];
  if (wanted >= carried) {
    forward = wanted - carried;
    return;
  }
  const Units excess = carried - wanted;
  forward = 0;
  carried = wanted;
  take_back(edge, excess);
}

// The tail has `excess` too much and the head too little. What other ways carry stays; the rest goes back to the source
// and is missing at the sink: a flow that is valid has such ways back.
void FlowNetwork::take_back(int edge, Units excess) {
  const int tail = from(edge), head = to(edge);
  excess -= augment(tail, head, excess);
  if (excess == 0) return;
  const Units returned = tail == source_ ? excess : augment(tail, source_, excess);
  const Units missing = head == sink_ ? excess : augment(sink_, head, excess);
  MOTLEY_CHECK(returned == excess && missing == excess);
  value_ -= excess;
}

void FlowNetwork::clear_flow() {
  for (std::size_t arc = 0; arc < residual_.size(); arc += 2) {
    residual_[arc] += residual_[arc + 1];
    residual_[arc + 1] = 0;
  }
  value_ = 0;
}

double FlowNetwork::maximise() {
  value_ += augment(source_, sink_, std::numeric_limits<Units>::max());
  return value();
}

FlowNetwork::Units FlowNetwork::augment(int from, int to, Units limit) {
  Units sent = 0;
  while (sent < limit && level_vertices(from, to)) {
    std::fill(next_arc_.begin(), next_arc_.end(), std::size_t{0});
    while (sent < limit) {
      const Units more = push(from, to, limit - sent);
      if (more == 0) break;
      sent += more;
    }
  }
  return sent;
}

bool FlowNetwork::level_vertices(int from, int to) {
  std::fill(level_.begin(), level_.end(), -1);
  queue_.assign(1, from);
  level_[from] = 0;
  for (std::size_t i = 0; i < queue_.size(); ++i)
    for (const int arc : arcs_[queue_[i]]) {
      const int head = head_[arc];
      if (residual_[arc] == 0 || level_[head] >= 0) continue;
      level_[head] = level_[queue_[i]] + 1;
      if (head == to) return true;
      queue_.push_back(head);
    }
  return false;
}

FlowNetwork::Units FlowNetwork::push(int vertex, int target, Units limit) {
  if (vertex == target) return limit;
  const auto& list = arcs_[vertex];
  Units sent = 0;
  for (std::size_t& i = next_arc_[vertex]; i < list.size(); ++i) {
    const int arc = list[i], head = head_[arc];
    if (residual_[arc] == 0 || level_[head] != level_[vertex] + 1) continue;
    const Units more = push(head, target, std::min(limit - sent, residual_[arc]));
    residual_[arc] -= more;
    residual_[arc ^ 1] += more;
    sent += more;
    if (sent == limit) return sent;
  }
  return sent;
}

std::vector<bool> FlowNetwork::source_side() const {
  std::vector<bool> reached(arcs_.size(), false);
  std::vector<int> queue = {source_};
  reached[source_] = true;
  for (std::size_t i = 0; i < queue.size(); ++i)
    for (const int arc : arcs_[queue[i]]) {
      const int head = head_[arc];
      if (residual_[arc] == 0 || reached[head]) continue;
      reached[head] = true;
      queue.push_back(head);
    }
  return reached;
}

std::vector<int> FlowNetwork::min_cut() const {
  const std::vector<bool> reached = source_side();
  std::vector<int> cut;
  for (int edge = 0; edge < static_cast<int>(head_.size() / 2); ++edge)
    if (place_[2 * edge] >= 0 && reached[from(edge)] && !reached[to(edge)]) cut.push_back(edge);
  return cut;
}

std::vector<FlowPath> FlowNetwork::paths() const {
  std::vector<Units> left(head_.size() / 2, 0);
  for (std::size_t edge = 0; edge < left.size(); ++edge)
    if (place_[2 * edge] >= 0) left[edge] = residual_[2 * edge + 1];
  std::vector<FlowPath> found;
  for (FlowPath path = widest_path(left); !path.edges.empty(); path = widest_path(left)) {
    Units width = std::numeric_limits<Units>::max();
    for (const int edge : path.edges) width = std::min(width, left[edge]);
    for (const int edge : path.edges) left[edge] -= width;
    path.flow = to_real(width);
    found.push_back(std::move(path));
  }
  return found;
}

// Dijkstra's algorithm with the narrowest edge as a path's length; of equal widths the smaller vertex first.
FlowPath FlowNetwork::widest_path(const std::vector<Units>& left) const {
  std::vector<Units> width(arcs_.size(), 0);
  std::vector<int> entered_by(arcs_.size(), -1);
  std::priority_queue<std::pair<Units, int>> open;
  width[source_] = std::numeric_limits<Units>::max();
  open.push({width[source_], -source_});
  while (!open.empty()) {
    const auto [reach, negative] = open.top();
    const int vertex = -negative;
    open.pop();
    if (vertex == sink_) break;
    if (reach < width[vertex]) continue;
    for (const int arc : arcs_[vertex]) {
      if ((arc & 1) != 0) continue;
      const int head = head_[arc];
      const Units wide = std::min(reach, left[arc / 2]);
      if (wide <= width[head]) continue;
      width[head] = wide;
      entered_by[head] = arc / 2;
      open.push({wide, -head});
    }
  }
  FlowPath path;
  for (int edge = entered_by[sink_]; edge >= 0; edge = from(edge) == source_ ? -1 : entered_by[from(edge)])
    path.edges.push_back(edge);
  std::reverse(path.edges.begin(), path.edges.end());
  return path;
}

}  // namespace motley
