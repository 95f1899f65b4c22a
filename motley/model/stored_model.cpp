#include "motley/model/stored_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "motley/base/error.hpp"

namespace motley {
namespace {

// Computed from the configuration, or read as a part of it.
constexpr std::array<std::string_view, 2> harmless = {"rotary_emb.inv_freq", "rope_freqs.weight"};
constexpr std::string_view base_prefix = "model.";  // which base models are saved without

std::string without_prefix(const std::string& name) {
  return name.starts_with(base_prefix) ? name.substr(base_prefix.size()) : name;
}

bool is_same(const StoredTensor& a, const StoredTensor& b) {
  return a.type == b.type && a.shape == b.shape && std::ranges::equal(a.bytes, b.bytes);
}

}  // namespace

bool has_own_head(bool tied, const std::string& embedding, const std::string& head, const Checkpoint& checkpoint) {
  if (!checkpoint.contains(embedding) && !tied)
    throw input_error(fmt::format("the tensor {} is missing from the weights, and is not tied to the head", embedding),
                      "take config.json and weights from the same model");
  return tied && checkpoint.contains(embedding) && checkpoint.contains(head) &&
         !is_same(checkpoint.find(embedding).tensor, checkpoint.find(head).tensor);
}

std::vector<std::string> unread_tensors(const std::vector<std::string>& stored, const std::vector<std::string>& read) {
  std::set<std::string> known;
  for (const std::string& name : read) known.insert(without_prefix(name));
  std::vector<std::string> unread;
  for (const std::string& name : stored) {
    const bool is_harmless = std::ranges::any_of(harmless, [&](std::string_view end) { return name.ends_with(end); });
    if (!is_harmless && !known.contains(without_prefix(name))) unread.push_back(name);
  }
  return unread;
}

}  // namespace motley
