#include "motley/model/warnings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace motley {
namespace {

// "model.layers.46.mlp.gate.weight", or "blk.46.nextn.eh_proj.weight", whose role is not known: 46; -1: of no layer.
std::int64_t layer_of(std::string_view name) {
  std::int64_t layer = -1;
  for (const std::string_view before : {"layers.", "blk."})
    if (const std::size_t at = name.find(before); at != std::string_view::npos)
      std::from_chars(name.data() + at + before.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

std::vector<std::string> model_warnings(const Model& model) {
  constexpr std::size_t most_named = 4;
  std::vector<std::string> warnings, unread;
  std::set<std::int64_t> predicting;  // layers behind the model's own
  bool predicts_apart = false;
  for (const std::string& name : model.unread)
    if (name.starts_with("mtp."))
      predicts_apart = true;
    else if (const std::int64_t layer = layer_of(name); layer >= model.arch.layers)
      predicting.insert(layer);
    else
      unread.push_back(name);
  if (!predicting.empty())
    warnings.push_back(fmt::format("{}: {} {}, which predict{} further tokens, {} left out", model.name,
                                   predicting.size() == 1 ? "layer" : "layers", fmt::join(predicting, ", "),
                                   predicting.size() == 1 ? "s" : "", predicting.size() == 1 ? "is" : "are"));
  if (predicts_apart)
    warnings.push_back(fmt::format("{}: its tensors mtp.*, which predict further tokens, are left out", model.name));
  if (unread.empty()) return warnings;
  const std::size_t named = std::min(unread.size(), most_named);
  warnings.push_back(fmt::format("{}: {} tensor{} in its files that the model does not use: {}{}", model.name,
                                 unread.size(), unread.size() == 1 ? "" : "s",
                                 fmt::join(unread.begin(), unread.begin() + static_cast<std::ptrdiff_t>(named), ", "),
                                 unread.size() > named ? ", ..." : ""));
  return warnings;
}

}  // namespace motley
