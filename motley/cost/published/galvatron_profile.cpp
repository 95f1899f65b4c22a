// Reading the profiles of `galvatron`.
#include <fmt/format.h>

#include <bit>

#include "motley/cost/published/galvatron.hpp"

namespace motley {

Schema<GalvatronEnds> schema_of(Bound<GalvatronEnds>) {
  using E = GalvatronEnds;
  return Schema<E>("ends", "Embedding and head.")
      .field("states_mib", &E::states_mib, "MiB of model states, by tensor degree 1, 2, 4, ...",
             {.required = true, .above = 0})
      .field("activation_mib", &E::activation_mib, "MiB per sample, by degree.", {.required = true, .above = 0});
}

namespace {

void check_lengths(const GalvatronProfile& p, const Reader& reader) {
  if (!std::has_single_bit(static_cast<std::uint64_t>(p.devices)))
    reader.fail(fmt::format("the number of devices must be a power of two, found {}", p.devices),
                "use 1, 2, 4, ... devices");
  const auto degrees = static_cast<std::size_t>(std::countr_zero(static_cast<std::uint64_t>(p.devices)));
  const auto expect = [&](std::string_view what, std::size_t found, std::size_t least) {
    if (found < least)
      reader.fail(fmt::format("{} has {} entries", what, found),
                  fmt::format("for {} devices it needs {}", p.devices, least));
  };
  expect("activation_mib", p.activation_mib.size(), degrees + 1);
  for (const auto& [what, ends] :
       {std::pair{"whole", &p.whole}, std::pair{"first", &p.first}, std::pair{"last", &p.last}}) {
    expect(fmt::format("{}.states_mib", what), ends->states_mib.size(), degrees + 1);
    expect(fmt::format("{}.activation_mib", what), ends->activation_mib.size(), degrees + 1);
  }
  expect("consecutive_gb_per_s", p.consecutive_gb_per_s.size(), degrees);
  expect("strided_gb_per_s", p.strided_gb_per_s.size(), degrees > 0 ? degrees - 1 : 0);
  expect("hop_gb_per_s", p.hop_gb_per_s.size(), degrees);
  for (const auto& [what, table] :
       {std::pair{"all_reduce_ms", &p.all_reduce_ms}, std::pair{"all_to_all_ms", &p.all_to_all_ms}}) {
    expect(what, table->size(), degrees);
    for (const auto& row : *table)
      if (row.size() != p.message_mib.size())
        reader.fail(
            fmt::format("{} has a row of {} entries for {} message sizes", what, row.size(), p.message_mib.size()),
            "one time per entry of message_mib");
  }
  for (const auto& [what, count] :
       {std::pair{"layer_forward_ms", p.layer_forward_ms.size()},
        std::pair{"ends_forward_ms", p.ends_forward_ms.size()}, std::pair{"message_mib", p.message_mib.size()}})
    if (count < 2) reader.fail(fmt::format("{} has {} entries", what, count), "a line needs two");
}

}  // namespace

Schema<GalvatronProfile> schema_of(Bound<GalvatronProfile>) {
  using P = GalvatronProfile;
  constexpr Limits some{.required = true, .above = 0};
  return Schema<P>("galvatron profile", "What the published planner measured of a model and a machine.")
      .format("motley.galvatron-profile/1")
      .field("name", &P::name, "Shown in reports.", {.required = true})
      .field("source", &P::source, "Where the figures come from.", {.required = true})
      .field("caution", &P::caution, "What the figures leave open.")
      .field("devices", &P::devices, "How many.", {.required = true, .min = 1, .max = 4096})
      .field("layers", &P::layers, "Transformer blocks.", {.required = true, .min = 1, .max = 4096})
      .field("hidden", &P::hidden, "Hidden size.", {.required = true, .min = 1, .max = 1 << 20})
      .field("sequence_length", &P::sequence_length, "Tokens of a sample.",
             {.required = true, .min = 1, .max = 1 << 24})
      .field("mixed_precision", &P::mixed_precision, "Default: true.", {.always_written = true})
      .field("parameter_mib", &P::parameter_mib, "MiB of a layer's parameters in fp32.", some)
      .field("activation_mib", &P::activation_mib, "MiB of a layer per sample, by degree 1, 2, 4, ...", some)
      .field("recomputed_mib", &P::recomputed_mib, "MiB per sample of a layer that is recomputed.", some)
      .field("layer_forward_ms", &P::layer_forward_ms, "Milliseconds per sample at micro-batches of 1, 2, ...", some)
      .field("ends_forward_ms", &P::ends_forward_ms, "The same of embedding and head.", some)
      .field("whole", &P::whole, "Embedding and head on one stage.", {.required = true})
      .field("first", &P::first, "The embedding's stage of several.", {.required = true})
      .field("last", &P::last, "The head's stage of several.", {.required = true})
      .field("consecutive_gb_per_s", &P::consecutive_gb_per_s,
             "All-reduce bus bandwidth of neighbouring ranks, groups of 2, 4, ...", some)
      .field("strided_gb_per_s", &P::strided_gb_per_s, "Of ranks far apart.", some)
      .field("hop_gb_per_s", &P::hop_gb_per_s, "Between stages, pipelines of 2, 4, ... stages.", some)
      .field("message_mib", &P::message_mib, "Sizes that collectives were timed at.", some)
      .field("all_reduce_ms", &P::all_reduce_ms, "A row per group of 2, 4, ...: one time per size.", some)
      .field("all_to_all_ms", &P::all_to_all_ms, "The same for all-to-all exchanges.", some)
      .field("slowdown", &P::slowdown, "Of computing and communicating at once.",
             {.required = true, .min = 1, .max = 100})
      .check(check_lengths);
}

GalvatronProfile read_galvatron_profile(const std::filesystem::path& path) {
  return read<GalvatronProfile>(read_document(path), path.string());
}

}  // namespace motley
