// Strategy chains: what is described (motley.chain/1), and the plan of kind "chain".
//
// Sites in a row, each with a short list of options: layers of a model with their parallel strategies, operators with
// their shards. Every site takes one option.
//
//   time  = sum of time_s + sync_s + what it costs to change from each site's layout to the next one's
//   bytes = sum of bytes + the largest chosen transient_bytes
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"
#include "motley/plan/shared.hpp"

namespace motley {

struct ChainSiteOption {
  std::string name;
  double time_s = 0;
  double sync_s = 0;
  double bytes = 0;  // may be fractional
  double transient_bytes = 0;
  std::string layout;  // one of the chain's; empty: the first
  bool operator==(const ChainSiteOption&) const = default;
};

// Equal sites in a row, each with a choice of its own.
struct ChainSites {
  std::string name;
  std::int64_t repeat = 1;
  std::vector<ChainSiteOption> options;
  bool operator==(const ChainSites&) const = default;
};

struct ChainDescription {
  std::string name;
  double budget_bytes = 0;
  std::vector<ChainSites> sites;
  std::vector<std::string> layouts;
  std::vector<std::vector<double>> layout_change_s;  // [from][to]; empty: changing costs nothing
  bool operator==(const ChainDescription&) const = default;
};
Schema<ChainDescription> schema_of(Bound<ChainDescription>);

ChainDescription read_chain(const std::filesystem::path& path);

std::int64_t site_count(const ChainDescription& chain);
// Index into `layouts`. The option must be one of the chain's.
int layout_index(const ChainDescription& chain, const ChainSiteOption& option);
// "layers (sites[1]), number 3 of 30": a site as its file has it, by its number with repeats written out.
std::string site_place(const ChainDescription& chain, std::int64_t site);

struct ChainCost {
  double time_s = 0;  // of all sites
  double sync_s = 0;
  double layout_change_s = 0;
  double bytes = 0;            // without transient bytes
  double transient_bytes = 0;  // the largest
  double total_s() const { return time_s + sync_s + layout_change_s; }
  double total_bytes() const { return bytes + transient_bytes; }
};
// `choice` has one index into the options of every site, repeats written out.
ChainCost chain_cost(const ChainDescription& chain, const std::vector<std::int64_t>& choice);

struct ChainPoint {
  double time_s = 0;
  double bytes = 0;
  bool operator==(const ChainPoint&) const = default;
};
Schema<ChainPoint> schema_of(Bound<ChainPoint>);

struct ChainPrediction {
  double time_s = 0;
  double bytes = 0;
  std::optional<double> price_s_per_byte;  // what one more byte of budget is worth
  bool operator==(const ChainPrediction&) const = default;
};

struct ChainPlan {
  static constexpr PlanKind kind{"chain", "motley plan train --chain"};

  ChainDescription chain;
  std::vector<std::int64_t> choice;
  ChainPrediction predicted;
  std::vector<ChainPoint> front;  // where it was asked for
  double front_gap_s = 0;         // no point of the front is slower than it had to be by more
  SearchRecord search;
  bool operator==(const ChainPlan&) const = default;
};
Schema<ChainPlan> schema_of(Bound<ChainPlan>);

// Checks a plan by arithmetic alone. Empty: nothing wrong.
std::vector<Violation> verify(const ChainPlan& plan);

}  // namespace motley
