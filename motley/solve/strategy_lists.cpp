// Lists of partial chains.
#include "motley/solve/strategy_lists.hpp"

#include <algorithm>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"

namespace motley::strategy {
namespace {

// time + price * bytes may not reach most_s.
struct Line {
  double price_s_per_byte = 0;
  double most_s = unbounded;
  double time_at(double bytes) const { return most_s - price_s_per_byte * bytes; }
};

// Which partial chains up to a site, of one outgoing layout, can still become part of a chain that is of interest:
// those below all of `lines`, and below the highest of `any_of` where there are such.
struct Window {
  double most_bytes = unbounded;
  std::vector<Line> lines;
  std::vector<Line> any_of;  // those that are highest for some bytes, in the order of these bytes

  // `cursor` is 0 at first; bytes ascend from call to call.
  bool holds(double bytes, double time_s, std::size_t& cursor) const {
    if (bytes > most_bytes) return false;
    for (const auto& line : lines)
      if (time_s >= line.time_at(bytes)) return false;
    if (any_of.empty()) return true;
    while (cursor + 1 < any_of.size() && any_of[cursor + 1].time_at(bytes) >= any_of[cursor].time_at(bytes)) ++cursor;
    return time_s < any_of[cursor].time_at(bytes);
  }
};

// Adds a line of a lower price than all before.
void add_to_envelope(std::vector<Line>& envelope, const Line& line) {
  const auto crossing = [](const Line& steep, const Line& flat) {  // from these bytes on, the flat one is higher
    return (steep.most_s - flat.most_s) / (steep.price_s_per_byte - flat.price_s_per_byte);
  };
  while (!envelope.empty() && envelope.back().price_s_per_byte == line.price_s_per_byte) {
    if (envelope.back().most_s >= line.most_s) return;
    envelope.pop_back();
  }
  while (envelope.size() > 1 &&
         crossing(envelope.back(), line) <= crossing(envelope[envelope.size() - 2], envelope.back()))
    envelope.pop_back();
  envelope.push_back(line);
}

Window window(const Prepared& chain, const Pruning& pruning, std::size_t site, std::size_t layout) {
  Window window;
  const std::size_t at = (site + 1) * static_cast<std::size_t>(chain.layouts) + layout;
  if (!pruning.least_bytes.empty()) window.most_bytes = pruning.budget - pruning.least_bytes[site + 1];
  for (const auto& suffix : pruning.suffixes)
    window.lines.push_back(
        {suffix.price_s_per_byte, pruning.upper_s + suffix.price_s_per_byte * pruning.budget - suffix.least[at]});
  for (const auto& alternative : pruning.any_of)
    add_to_envelope(window.any_of,
                    {alternative.suffix.price_s_per_byte, alternative.most_s - alternative.suffix.least[at]});
  return window;
}

bool before(const Partial& a, const Partial& b) { return a.bytes != b.bytes ? a.bytes < b.bytes : a.time_s < b.time_s; }

// Merges `source`, as `extend` makes each of its entries, into `list`: what another entry beats or the window does not
// hold is left out.
template <class Extend>
std::int64_t merge_in(List& list, List& scratch, const List& source, const Window& window, double tolerance_s,
                      Extend extend) {
  scratch.clear();
  double least_s = unbounded;
  std::size_t i = 0, j = 0, cursor = 0;
  Partial next;
  if (!source.empty()) next = extend(source[0], 0);
  while (i < list.size() || j < source.size()) {
    const bool from_list = j == source.size() || (i < list.size() && !before(next, list[i]));
    const Partial entry = from_list ? list[i++] : next;
    if (!from_list && ++j < source.size()) next = extend(source[j], j);
    if (entry.time_s >= least_s - tolerance_s) continue;
    least_s = entry.time_s;
    if (from_list || window.holds(entry.bytes, entry.time_s, cursor)) scratch.push_back(entry);
  }
  list.swap(scratch);
  return static_cast<std::int64_t>(source.size());
}

// Drops from `list` what an entry of `other` beats even after paying `extra_s` more for its layout.
void drop_beaten(List& list, const List& other, double extra_s) {
  double least_s = unbounded;
  std::size_t j = 0, kept = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    for (; j < other.size() && other[j].bytes <= list[i].bytes; ++j) least_s = other[j].time_s + extra_s;
    if (list[i].time_s < least_s) list[kept++] = list[i];
  }
  list.resize(kept);
}

class Grower {
 public:
  Grower(const Admitted& admitted, const Pruning& pruning, const StrategyLimits& limits)
      : admitted_(admitted), chain_(*admitted.chain), pruning_(pruning), limits_(limits) {}

  Lists run() {
    const auto layouts = static_cast<std::size_t>(chain_.layouts);
    std::int64_t held = 0;
    for (std::size_t site = 0; site < chain_.sites() && lists_.complete; ++site) {
      lists_.at.emplace_back(layouts);
      extend(site);
      auto& here = lists_.at.back();
      for (std::size_t a = 0; a < layouts; ++a)
        for (std::size_t b = 0; b < layouts; ++b)
          if (a != b) drop_beaten(here[a], here[b], chain_.exit_extra_s[b * layouts + a]);
      for (const auto& list : here) held += static_cast<std::int64_t>(list.size());
      if (held > limits_.max_points || past(limits_)) lists_.complete = site + 1 == chain_.sites();
    }
    return std::move(lists_);
  }

 private:
  // The partial chains before this site, with the change to `in` paid.
  const List& entered(std::size_t site, std::size_t in, List& buffer) {
    buffer.clear();
    const auto& last = lists_.at[site - 1];
    for (std::size_t from = 0; from < last.size(); ++from) {
      if (last[from].empty()) continue;
      const double change_s = chain_.change(static_cast<int>(from), static_cast<int>(in));
      merge_in(buffer, scratch_, last[from], {}, chain_.time_tolerance_s, [&](const Partial& p, std::size_t index) {
        return Partial{p.bytes, p.time_s + change_s, static_cast<std::uint32_t>(index),
                       static_cast<std::uint16_t>(from), 0};
      });
    }
    return buffer;
  }

  // No chain through this option can be of interest.
  bool hopeless(std::size_t site, const Item& item) const {
    if (pruning_.prefix.empty()) return false;
    const Suffix& suffix = pruning_.suffixes.front();
    const auto layouts = static_cast<std::size_t>(chain_.layouts);
    const double through = pruning_.prefix[site * layouts + static_cast<std::size_t>(item.in)] + item.time_s +
                           suffix.price_s_per_byte * item.bytes +
                           suffix.least[(site + 1) * layouts + static_cast<std::size_t>(item.out)];
    return through >= pruning_.upper_s + suffix.price_s_per_byte * pruning_.budget;
  }

  void extend(std::size_t site) {
    static const List start = {Partial{}};
    const Items& items = admitted_.at(site);
    auto& here = lists_.at.back();
    std::vector<Window> windows;
    for (std::size_t layout = 0; layout < here.size(); ++layout)
      windows.push_back(window(chain_, pruning_, site, layout));
    for (int in = 0; in < chain_.layouts; ++in) {
      const List* base = nullptr;
      for (std::size_t i = 0; i < items.size(); ++i) {
        const Item& item = items[i];
        if (item.in != in || hopeless(site, item)) continue;
        if (!base) base = site == 0 ? &start : &entered(site, static_cast<std::size_t>(in), entered_);
        const auto out = static_cast<std::size_t>(item.out);
        lists_.evaluated += merge_in(here[out], scratch_, *base, windows[out], chain_.time_tolerance_s,
                                     [&](const Partial& p, std::size_t) {
                                       return Partial{p.bytes + item.bytes, p.time_s + item.time_s, p.parent, p.from,
                                                      static_cast<std::uint16_t>(i)};
                                     });
      }
    }
  }

  const Admitted& admitted_;
  const Prepared& chain_;
  const Pruning& pruning_;
  const StrategyLimits& limits_;
  Lists lists_;
  List scratch_, entered_;
};

}  // namespace

bool past(const StrategyLimits& limits) { return limits.deadline && Clock::now() >= *limits.deadline; }

Lists grow(const Admitted& admitted, const Pruning& pruning, const StrategyLimits& limits) {
  return Grower(admitted, pruning, limits).run();
}

std::vector<int> trace(const Lists& lists, std::size_t site, int layout, std::uint32_t index) {
  std::vector<int> items(site + 1);
  auto at = static_cast<std::size_t>(layout);
  for (std::size_t i = site + 1; i-- > 0;) {
    const Partial& partial = lists.at[i][at][index];
    items[i] = partial.item;
    at = partial.from;
    index = partial.parent;
  }
  return items;
}

}  // namespace motley::strategy
