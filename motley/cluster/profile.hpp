// Measured figures that replace the cost model's: `motley.profile/1`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/binding.hpp"

namespace motley {

// How many tokens per second a tensor-parallel group passes on while it holds 1, 2, ... blocks of the model, at the
// batch it typically sees. The list ends where the group can hold no more.
struct LayerRate {
  std::string device_type;
  std::int64_t tp = 1;
  std::vector<double> tokens_per_s;
  bool operator==(const LayerRate&) const = default;
};

enum class LayerPart { embedding, block, head };
EnumNames<LayerPart> names_of(Bound<LayerPart>);

// Seconds of one part of the model for one micro-batch, the group's collectives included.
struct LayerTime {
  std::string device_type;
  std::int64_t tp = 1;
  std::int64_t micro_batch = 1;
  std::int64_t sequence_length = 0;
  LayerPart part = LayerPart::block;
  double forward_s = 0;
  double backward_s = 0;
  double update_s = 0;
  bool operator==(const LayerTime&) const = default;
};

// Rate of a link by the size of the message. `from` and `to` name device types, machines or sites.
struct LinkRate {
  std::string from;
  std::string to;
  std::vector<double> bytes;
  std::vector<double> bytes_per_s;
  bool operator==(const LinkRate&) const = default;
};

// Tokens per second (hidden states) that a directed link passes on.
struct LinkTokens {
  std::string from;
  std::string to;
  double tokens_per_s = 0;
  bool operator==(const LinkTokens&) const = default;
};

// How many experts of a layer were taken at least once, on average, by this many tokens.
struct ExpertCount {
  std::string model;
  std::int64_t layer = 0;
  std::int64_t tokens = 1;
  double distinct = 0;            // of as many sequences
  double distinct_of_prompt = 0;  // that follow one another
  bool operator==(const ExpertCount&) const = default;
};

// As how many tokens that choose their experts independently those of a step count: between two entries of a model they
// grow as the power gamma of the tokens.
struct RoutingGamma {
  std::string model;
  std::int64_t tokens = 1;  // up to this many, from those of the entry before, or 1; the last one also beyond
  double sequences = 1;     // of as many sequences
  double prompt = 1;        // of one prompt
  bool operator==(const RoutingGamma&) const = default;
};

struct Profile {
  std::vector<LayerRate> layer_rate;
  std::vector<LayerTime> layer_time;
  std::vector<LinkRate> link_rate;
  std::vector<LinkTokens> link_tokens;
  std::vector<ExpertCount> routing;
  std::vector<RoutingGamma> gamma;  // what `routing` comes to
  bool operator==(const Profile&) const = default;
};
Schema<Profile> schema_of(Bound<Profile>);

Profile read_profile(const std::filesystem::path& path);

// nullptr where nothing was measured for that group.
const LayerRate* find_layer_rate(const Profile& profile, std::string_view device_type, std::int64_t tp);

}  // namespace motley
