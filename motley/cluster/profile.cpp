#include "motley/cluster/profile.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/cluster/names.hpp"

namespace motley {

EnumNames<LayerPart> names_of(Bound<LayerPart>) {
  return {{LayerPart::embedding, "embedding"}, {LayerPart::block, "block"}, {LayerPart::head, "head"}};
}

Schema<LayerRate> schema_of(Bound<LayerRate>) {
  using R = LayerRate;
  return Schema<R>("layer rate", "Tokens per second of a tensor-parallel group, by the layers that it holds.")
      .field("device_type", &R::device_type, "A type's name.", {.required = true})
      .field("tp", &R::tp, "Tensor-parallel degree. Default: 1.", {.min = 1, .max = 1 << 16})
      .field("tokens_per_s", &R::tokens_per_s,
             "Rate with one layer, two layers, ...; the list ends at the most layers that fit.",
             {.required = true, .above = 0});
}

Schema<LayerTime> schema_of(Bound<LayerTime>) {
  using T = LayerTime;
  constexpr Limits seconds{.min = 0};
  constexpr Limits count{.required = true, .min = 1, .max = 1 << 24};
  return Schema<T>("layer time", "Seconds of one part for one micro-batch, with the collectives of tensor parallelism.")
      .field("device_type", &T::device_type, "A type's name.", {.required = true})
      .field("tp", &T::tp, "Tensor-parallel degree. Default: 1.", {.min = 1, .max = 1 << 16})
      .field("micro_batch", &T::micro_batch, "Sequences.", count)
      .field("sequence_length", &T::sequence_length, "Tokens of each.", count)
      .field("part", &T::part, "Part of the model. Default: `block`.", {.always_written = true})
      .field("forward_s", &T::forward_s, "Forward.", {.required = true, .min = 0})
      .field("backward_s", &T::backward_s, "Backward.", seconds)
      .field("update_s", &T::update_s, "Optimizer.", seconds);
}

Schema<LinkRate> schema_of(Bound<LinkRate>) {
  using R = LinkRate;
  return Schema<R>("link rate", "A link's rate by the size of the message.")
      .field("from", &R::from, "A device type, machine or site.", {.required = true})
      .field("to", &R::to, "A device type, machine or site.", {.required = true})
      .field("bytes", &R::bytes, "Sizes of messages, ascending.", {.required = true, .above = 0})
      .field("bytes_per_s", &R::bytes_per_s, "Rate at each size.", {.required = true, .above = 0});
}

Schema<LinkTokens> schema_of(Bound<LinkTokens>) {
  using T = LinkTokens;
  return Schema<T>("link tokens", "Tokens per second of a directed link.")
      .field("from", &T::from, "A device type, machine or site.", {.required = true})
      .field("to", &T::to, "A device type, machine or site.", {.required = true})
      .field("tokens_per_s", &T::tokens_per_s, "Tokens per second.", {.required = true, .above = 0});
}

Schema<ExpertCount> schema_of(Bound<ExpertCount>) {
  using C = ExpertCount;
  constexpr Limits count{.required = true, .min = 0, .max = 1 << 24};
  return Schema<C>("expert count", "Experts of a layer that a number of tokens took at least once, on average.")
      .field("model", &C::model, "The model's name.", {.required = true})
      .field("layer", &C::layer, "From 0.", count)
      .field("tokens", &C::tokens, "Tokens of one step.", {.required = true, .min = 1, .max = 1 << 24})
      .field("distinct", &C::distinct, "Experts, where each token is of another sequence.", count)
      .field("distinct_of_prompt", &C::distinct_of_prompt, "Experts, where the tokens follow one another.", count);
}

Schema<RoutingGamma> schema_of(Bound<RoutingGamma>) {
  using G = RoutingGamma;
  constexpr Limits gamma{.required = true, .above = 0, .max = 1};
  return Schema<G>("routing gamma",
                   "As how many that choose their experts independently the tokens of a step count: tokens^gamma.")
      .field("model", &G::model, "The model's name.", {.required = true})
      .field("tokens", &G::tokens,
             "Up to this many tokens, from those of the model's entry before. The last entry also holds beyond.",
             {.required = true, .min = 1, .max = 1 << 24})
      .field("sequences", &G::sequences, "Where each token is of another sequence.", gamma)
      .field("prompt", &G::prompt, "Where the tokens follow one another in a prompt.", gamma);
}

namespace {

// Lists of equal meaning have equal length, sizes of messages ascend, no group is measured twice.
void check_profile(const Profile& profile, const Reader& reader) {
  for (std::size_t i = 0; i < profile.link_rate.size(); ++i) {
    const LinkRate& rate = profile.link_rate[i];
    if (rate.bytes.empty() || rate.bytes.size() != rate.bytes_per_s.size())
      reader.fail(fmt::format("link_rate[{}] has {} sizes and {} rates", i, rate.bytes.size(), rate.bytes_per_s.size()),
                  "give one rate for each size");
    if (!std::is_sorted(rate.bytes.begin(), rate.bytes.end()))
      reader.fail(fmt::format("link_rate[{}]: the sizes must ascend", i),
                  "sort them in ascending order, each with its rate");
  }
  for (std::size_t i = 0; i < profile.layer_rate.size(); ++i) {
    const LayerRate& rate = profile.layer_rate[i];
    if (rate.tokens_per_s.empty())
      reader.fail(fmt::format("layer_rate[{}] has no rates", i), "give tokens_per_s, or remove the entry");
    if (find_layer_rate(profile, rate.device_type, rate.tp) != &rate)
      reader.fail(fmt::format("layer_rate[{}]: {} at tp {} is measured twice", i, rate.device_type, rate.tp),
                  "keep one of the two");
  }
  for (std::size_t i = 1; i < profile.gamma.size(); ++i)
    if (const RoutingGamma &one = profile.gamma[i - 1], &next = profile.gamma[i];
        one.model == next.model && one.tokens >= next.tokens)
      reader.fail(fmt::format("gamma[{}]: {} tokens come after {}", i, next.tokens, one.tokens),
                  "sort a model's entries by `tokens`, ascending");
}

}  // namespace

Schema<Profile> schema_of(Bound<Profile>) {
  using P = Profile;
  return Schema<P>("profile", "Measured figures that replace the cost model's.")
      .format("motley.profile/1")
      .field("layer_rate", &P::layer_rate, "Rates by blocks held.")
      .field("layer_time", &P::layer_time, "Times of parts of the model.")
      .field("link_rate", &P::link_rate, "Rates of links by size of message.")
      .field("link_tokens", &P::link_tokens, "Rates of directed links in tokens.")
      .field("routing", &P::routing, "Experts that tokens took.")
      .field("gamma", &P::gamma, "How alike tokens choose their experts, from `routing`.")
      .check(check_profile);
}

Profile read_profile(const std::filesystem::path& path) { return read<Profile>(read_document(path), path.string()); }

const LayerRate* find_layer_rate(const Profile& profile, std::string_view device_type, std::int64_t tp) {
  for (const auto& rate : profile.layer_rate)
    if (rate.tp == tp && plain_name(rate.device_type) == plain_name(device_type)) return &rate;
  return nullptr;
}

}  // namespace motley
