#include "motley/cost/serve/serve_forms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "motley/cost/published/hexgen.hpp"
#include "motley/cost/serve/motley_form.hpp"

namespace motley {
namespace {

struct ServeFormEntry {
  std::string name;
  std::vector<std::string> settings;
  std::unique_ptr<ServeForm> (*make)(const CostOptions&, const Cluster&, const Architecture&, const ServePoint&);
};

const std::vector<ServeFormEntry>& serve_form_entries() {
  static const std::vector<ServeFormEntry> table = {
      {"motley",
       {"motley.batch", "motley.micro_batches", "motley.layer_overhead_s", "motley.step_overhead_s"},
       make_motley_form},
      {"hexgen", {"hexgen.batch"}, make_hexgen_form}};
  return table;
}

const ServeFormEntry& serve_form_entry(const std::string& form) {
  for (const auto& entry : serve_form_entries())
    if (entry.name == form) return entry;
  throw input_error(fmt::format("--cost must be a form for serving plans, found \"{}\"", form),
                    fmt::format("choose one of {}", fmt::join(serve_forms(), ", ")));
}

}  // namespace

void check_cost(const CostOptions& options) {
  const auto& known = serve_form_entry(options.form).settings;
  for (const auto& [key, value] : options.settings) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw input_error(fmt::format("the cost form \"{}\" has no setting \"{}\"", options.form, key),
                        fmt::format("choose one of {}", fmt::join(known, ", ")));
    const bool count = !key.ends_with("_s");
    if (!std::isfinite(value) || value < 0 || (count && (value < 1 || value != std::floor(value) || value > 1e9)))
      throw input_error(
          fmt::format("{} = {} is not a {}", key, value, count ? "whole number from 1" : "time in seconds"),
          fmt::format("give a number, as in --set {}={}", key, count ? "4" : "0.0001"));
  }
}

const std::vector<std::string>& serve_forms() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& entry : serve_form_entries()) list.push_back(entry.name);
    return list;
  }();
  return names;
}

std::unique_ptr<ServeForm> make_form(const CostOptions& options, const Cluster& cluster, const Architecture& arch,
                                     const ServePoint& point) {
  check_cost(options);
  return serve_form_entry(options.form).make(options, cluster, arch, point);
}

}  // namespace motley
