// The tables of motley.chain/1 and of motley.plan/1, kind "chain".
#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/plan/chain_plan.hpp"
#include "motley/plan/format.hpp"

namespace motley {
namespace {

constexpr double largest_cost = 1e18;  // seconds or bytes: sums stay far from overflow
constexpr std::int64_t most_sites = 100000;
constexpr Limits cost_limits{.always_written = true, .min = 0, .max = largest_cost};

// A name, or a number into `layouts`.
std::string read_layout(const Reader& reader) {
  if (reader.value().is_integer()) return std::to_string(binding::read_integer(reader, {.min = 0}));
  return binding::read_string(reader);
}

// The place of a name, or of a number, among the layouts; -1: nowhere.
int find_layout(const ChainDescription& chain, const std::string& layout) {
  if (layout.empty()) return 0;
  const auto place = std::find(chain.layouts.begin(), chain.layouts.end(), layout);
  if (place != chain.layouts.end()) return static_cast<int>(place - chain.layouts.begin());
  for (std::size_t i = 0; i < chain.layout_change_s.size(); ++i)
    if (layout == std::to_string(i)) return static_cast<int>(i);
  return -1;
}

void check_layouts(const ChainDescription& chain, const Reader& reader) {
  const std::size_t count = chain.layouts.empty() ? chain.layout_change_s.size() : chain.layouts.size();
  for (std::size_t i = 0; i < chain.layouts.size(); ++i)
    if (std::find(chain.layouts.begin(), chain.layouts.begin() + static_cast<std::ptrdiff_t>(i), chain.layouts[i]) !=
        chain.layouts.begin() + static_cast<std::ptrdiff_t>(i))
      reader.fail(fmt::format("layouts[{}]: \"{}\" is given twice", i, chain.layouts[i]), "give unique names");
  if (!chain.layout_change_s.empty() && chain.layout_change_s.size() != count)
    reader.fail(fmt::format("layout_change_s has {} rows for {} layouts", chain.layout_change_s.size(), count),
                "give one row per layout, in their order: seconds from this layout to each");
  for (std::size_t i = 0; i < chain.layout_change_s.size(); ++i)
    if (chain.layout_change_s[i].size() != count)
      reader.fail(
          fmt::format("layout_change_s[{}] has {} entries for {} layouts", i, chain.layout_change_s[i].size(), count),
          "give one entry per next layout, and 0 for no change");
}

void check_sites(const ChainDescription& chain, const Reader& reader) {
  if (chain.sites.empty())
    reader.fail("the chain has no sites", "give sites, as in sites: [{\"repeat\": 32, \"options\": [...]}]");
  std::int64_t count = 0;
  for (std::size_t s = 0; s < chain.sites.size(); ++s) {
    if (chain.sites[s].options.empty())
      reader.fail(fmt::format("sites[{}] has no options", s), "every site needs at least one");
    count += chain.sites[s].repeat;
    for (std::size_t i = 0; i < chain.sites[s].options.size(); ++i) {
      const std::string& layout = chain.sites[s].options[i].layout;
      if (find_layout(chain, layout) >= 0) continue;
      reader.fail(
          fmt::format("sites[{}].options[{}].layout: \"{}\" is not among the layouts", s, i, layout),
          did_you_mean(layout, chain.layouts, "add it to `layouts`, with its row and column in layout_change_s"));
    }
  }
  if (count > most_sites) reader.fail(fmt::format("{} sites are more than {}", count, most_sites), "reduce `repeat`");
}

}  // namespace

Schema<ChainSiteOption> schema_of(Bound<ChainSiteOption>) {
  using O = ChainSiteOption;
  return Schema<O>("option", "One option of a site.")
      .field("name", &O::name, "Shown in reports.")
      .field("time_s", &O::time_s, "Seconds.", {.required = true, .min = 0, .max = largest_cost})
      .field("sync_s", &O::sync_s, "Additional seconds for synchronisation. Default: 0.", cost_limits)
      .field("bytes", &O::bytes, "Bytes that are always held; may be fractional.",
             {.required = true, .min = 0, .max = largest_cost})
      .field("transient_bytes", &O::transient_bytes,
             "Bytes that are held while the site runs; the largest of all sites is used. Default: 0.", cost_limits)
      .custom<std::string>({"layout",
                            "string, or integer",
                            "",
                            "One of `layouts`, or its number from 0. Default: the first.",
                            false,
                            {}},
                           &O::layout, read_layout, [](const std::string& layout) { return Value(layout); });
}

Schema<ChainSites> schema_of(Bound<ChainSites>) {
  using S = ChainSites;
  return Schema<S>("sites", "Equal sites in a row, each with a choice of its own.")
      .field("name", &S::name, "Shown in reports.")
      .field("repeat", &S::repeat, "Number of such sites. Default: 1.",
             {.always_written = true, .min = 1, .max = most_sites})
      .field("options", &S::options, "Options; at least one.", {.required = true});
}

Schema<ChainDescription> schema_of(Bound<ChainDescription>) {
  using C = ChainDescription;
  return Schema<C>("chain", "Sites in sequence, and the memory that they share.")
      .format("motley.chain/1")
      .field("name", &C::name, "Shown in reports.")
      .field("budget_bytes", &C::budget_bytes, "Memory for all sites together.",
             {.required = true, .min = 0, .max = largest_cost})
      .field("sites", &C::sites, "In order.", {.required = true})
      .field("layouts", &C::layouts, "Names of the layouts. Default: one layout.")
      .field("layout_change_s", &C::layout_change_s,
             "Seconds between neighbouring sites: a row per layout, a column per layout of the next site. The first "
             "site costs nothing. Default: 0.",
             {.min = 0, .max = largest_cost})
      .check(check_layouts)
      .check(check_sites);
}

Schema<ChainPrediction> schema_of(Bound<ChainPrediction>) {
  using P = ChainPrediction;
  return Schema<P>("predicted", "Time and memory of the choice.")
      .field("time_s", &P::time_s, "Seconds of all sites, with layout changes.", {.required = true, .min = 0})
      .field("bytes", &P::bytes, "Bytes of all sites, with the largest transient bytes.", {.required = true, .min = 0})
      .field("price_s_per_byte", &P::price_s_per_byte, "Seconds that one more byte of budget saves, by the relaxation.",
             {.min = 0});
}

Schema<ChainPoint> schema_of(Bound<ChainPoint>) {
  return Schema<ChainPoint>("point", "The least time within a number of bytes.")
      .field("time_s", &ChainPoint::time_s, "Seconds.", {.required = true, .min = 0})
      .field("bytes", &ChainPoint::bytes, "Bytes.", {.required = true, .min = 0});
}

Schema<ChainPlan> schema_of(Bound<ChainPlan>) {
  using P = ChainPlan;
  return plan_table<P>("chain plan", "An option for every site of a chain.")
      .field("chain", &P::chain, "The chain that was solved, whole.", {.required = true})
      .field("choice", &P::choice, "Option of every site, repeats written out: indices from 0.",
             {.required = true, .min = 0})
      .field("predicted", &P::predicted, "Time and memory of the choice.", {.required = true})
      .field("front", &P::front, "With `--front`: the Pareto front, by bytes.")
      .field("front_gap_s", &P::front_gap_s,
             "Largest distance of a point of the front from the optimum, in seconds. Default: 0, the front is exact.",
             {.min = 0})
      .field("search", &P::search, "How the choice was found.", {.always_written = true});
}

ChainDescription read_chain(const std::filesystem::path& path) {
  return read<ChainDescription>(read_document(path), path.string());
}

int layout_index(const ChainDescription& chain, const ChainSiteOption& option) {
  const int index = find_layout(chain, option.layout);
  MOTLEY_CHECK(index >= 0);
  return index;
}

}  // namespace motley
