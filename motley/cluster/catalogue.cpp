// The device catalogue: data/devices.json, compiled in by CMake and parsed at first use.
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <utility>

#include "motley/cluster/capability.hpp"
#include "motley/cluster/cluster.hpp"
#include "motley/cluster/interconnect.hpp"
#include "motley/cluster/names.hpp"

namespace motley {

std::string_view devices_json();

namespace {

struct EfficiencyFact {
  double compute = 0;
  double bandwidth = 0;
  double quantised_bandwidth = 0;
  std::string source;
  bool operator==(const EfficiencyFact&) const = default;
};
struct TrainingFact {
  double products = 0;
  double attention = 0;
  double elementwise = 0;
  std::string source;
  bool operator==(const TrainingFact&) const = default;
};
struct Interconnect {
  std::string kind;
  double bidirectional_bytes_per_s = 0;
  std::int64_t pcie_generation = 0;
  std::int64_t pcie_lanes = 0;
  bool operator==(const Interconnect&) const = default;
};
struct PriceFact {
  double usd_per_hour = 0;
  std::string kind;
  std::string source;
  bool operator==(const PriceFact&) const = default;
};
// One device as software sees it: a board of two dies is two devices.
struct DeviceFacts {
  std::string id, name, full_name;
  std::vector<std::string> aliases;
  std::string vendor, market, architecture;
  std::int64_t year = 0;
  double compute_capability = 0;  // 0: of no NVIDIA card
  std::int64_t devices_per_board = 1;
  std::int64_t memory_bytes = 0;
  std::int64_t memory_marketed_bytes = 0;
  double memory_bandwidth_bytes_per_s = 0;
  std::map<std::string, double> flop_per_s;
  double fp16_accumulate_flop_per_s = 0;
  EfficiencyFact efficiency;
  TrainingFact training;
  std::optional<std::int64_t> reserve_bytes;
  Interconnect interconnect;
  double board_power_w = 0;
  std::vector<PriceFact> prices;
  std::vector<std::string> sources;
  std::string confidence;
  std::string note;
  bool operator==(const DeviceFacts&) const = default;
};
struct Facts {
  std::map<std::string, std::string> sources;
  std::vector<DeviceFacts> devices;
  bool operator==(const Facts&) const = default;
};

}  // namespace

Schema<EfficiencyFact> schema_of(Bound<EfficiencyFact>) {
  return Schema<EfficiencyFact>("efficiency fact", "Reached shares of the peaks.")
      .field("compute", &EfficiencyFact::compute, "Share of the peak FLOP/s.", {.required = true, .above = 0, .max = 1})
      .field("bandwidth", &EfficiencyFact::bandwidth, "Share of the peak memory bandwidth.",
             {.required = true, .above = 0, .max = 1})
      .field("quantised_bandwidth", &EfficiencyFact::quantised_bandwidth,
             "The same while quantised weights are unpacked.", {.above = 0, .max = 1})
      .field("source", &EfficiencyFact::source, "Key of `sources`.", {.required = true});
}
Schema<TrainingFact> schema_of(Bound<TrainingFact>) {
  return Schema<TrainingFact>("training fact", "Shares of the peaks that the parts of a training step reach.")
      .field("products", &TrainingFact::products, "Share of the peak FLOP/s in matrix products.",
             {.required = true, .above = 0, .max = 1})
      .field("attention", &TrainingFact::attention, "Share of the peak FLOP/s in causal attention.",
             {.required = true, .above = 0, .max = 1})
      .field("elementwise", &TrainingFact::elementwise,
             "Share of the peak memory bandwidth in element-wise operations.", {.required = true, .above = 0, .max = 1})
      .field("source", &TrainingFact::source, "Key of `sources`.", {.required = true});
}
Schema<Interconnect> schema_of(Bound<Interconnect>) {
  return Schema<Interconnect>("interconnect", "How devices of this kind reach each other.")
      .field("kind", &Interconnect::kind, "Its name.", {.required = true})
      .quantity("bidirectional", &Interconnect::bidirectional_bytes_per_s, Dimension::bytes_per_s,
                "Bandwidth between two devices, both directions together.", {.above = 0})
      .field("pcie_generation", &Interconnect::pcie_generation, "Generation of the host link.", {.min = 1})
      .field("pcie_lanes", &Interconnect::pcie_lanes, "Lanes of the host link.", {.min = 1});
}
Schema<PriceFact> schema_of(Bound<PriceFact>) {
  return Schema<PriceFact>("price", "One observation of a rental price.")
      .quantity("price", &PriceFact::usd_per_hour, Dimension::usd_per_hour, "Price of one device.",
                {.required = true, .above = 0})
      .field("kind", &PriceFact::kind, "How it is rented.", {.required = true})
      .field("source", &PriceFact::source, "Key of `sources`.", {.required = true});
}
Schema<DeviceFacts> schema_of(Bound<DeviceFacts>) {
  using D = DeviceFacts;
  return Schema<D>("device facts", "One kind of accelerator, as software sees it.")
      .field("id", &D::id, "Unique.", {.required = true})
      .field("name", &D::name, "The short name that cluster files use.", {.required = true})
      .field("full_name", &D::full_name, "The vendor's name.", {.required = true})
      .field("aliases", &D::aliases,
             "Other names, in addition to those that differ in case, spaces, dashes, vendor, or the way in which "
             "nvidia-smi writes form factor and memory.")
      .field("vendor", &D::vendor, "nvidia, amd, intel, huawei or apple.", {.required = true})
      .field("market", &D::market, "datacentre, workstation, consumer or apple-silicon.", {.required = true})
      .field("architecture", &D::architecture, "The vendor's name of the generation.", {.required = true})
      .field("year", &D::year, "Year of the launch.", {.required = true, .min = 2000})
      .field("compute_capability", &D::compute_capability, "Of NVIDIA cards: which instructions they know.",
             {.above = 0, .max = 100})
      .field("devices_per_board", &D::devices_per_board, "Dies that appear as devices of their own.", {.min = 1})
      .quantity("memory", &D::memory_bytes, Dimension::bytes, "Memory as the driver reports it, else as marketed.",
                {.required = true, .above = 0})
      .quantity("memory_marketed", &D::memory_marketed_bytes, Dimension::bytes, "Memory as marketed, if it differs.",
                {.above = 0})
      .quantity("memory_bandwidth", &D::memory_bandwidth_bytes_per_s, Dimension::bytes_per_s, "Peak.",
                {.required = true, .above = 0})
      .custom<std::map<std::string, double>>(flops_row(true), &D::flop_per_s, read_flops, write_flops)
      .quantity("flops_fp16_accumulate", &D::fp16_accumulate_flop_per_s, Dimension::flop_per_s,
                "Peak with fp16 accumulation, which no engine uses.", {.above = 0})
      .field("efficiency", &D::efficiency, "Reached shares of the peaks.", {.required = true})
      .field("training", &D::training, "The same of the parts of a training step.", {.required = true})
      .quantity("reserve", &D::reserve_bytes, Dimension::bytes, "Memory that is kept free, if not the default.",
                {.min = 0})
      .field("interconnect", &D::interconnect, "How devices of this kind reach each other.", {.required = true})
      .field("board_power_w", &D::board_power_w, "Watts of the board.", {.above = 0})
      .field("prices", &D::prices, "Observed prices.")
      .field("sources", &D::sources, "Keys of `sources`.", {.required = true})
      .field("confidence", &D::confidence, "high, medium or low.", {.required = true})
      .field("note", &D::note, "Notes.");
}
Schema<Facts> schema_of(Bound<Facts>) {
  return Schema<Facts>("devices", "The device catalogue.")
      .format("motley.devices/1")
      .field("sources", &Facts::sources, "What the keys stand for.", {.required = true})
      .field("devices", &Facts::devices, "One entry per kind of device.", {.required = true});
}

namespace {

// The lower median, so that the figure is one that was really paid. 0 where there is none.
double typical_price(const std::vector<PriceFact>& prices) {
  if (prices.empty()) return 0;
  std::vector<double> sorted;
  for (const auto& price : prices) sorted.push_back(price.usd_per_hour);
  std::sort(sorted.begin(), sorted.end());
  return sorted[(sorted.size() - 1) / 2];
}

Basis basis_of(const std::string& source) {
  if (source == "generation") return Basis::generation;
  return source == "nearest" || source == "start" ? Basis::guess : Basis::measured;
}

DeviceType as_type(const DeviceFacts& facts) {
  DeviceType type;
  type.name = facts.name;
  type.vendor = facts.vendor;
  type.memory_bytes = facts.memory_bytes;
  type.memory_bandwidth_bytes_per_s = facts.memory_bandwidth_bytes_per_s;
  type.flop_per_s = facts.flop_per_s;
  // Attention and element-wise operations of prompts were measured in training alone.
  type.efficiency = {.compute = facts.efficiency.compute,
                     .bandwidth = facts.efficiency.bandwidth,
                     .attention_compute = facts.training.attention,
                     .quantised_bandwidth = facts.efficiency.quantised_bandwidth,
                     .elementwise = facts.training.elementwise,
                     .basis = basis_of(facts.efficiency.source)};
  type.training = {.products = facts.training.products,
                   .attention = facts.training.attention,
                   .elementwise = facts.training.elementwise,
                   .basis = basis_of(facts.training.source)};
  type.reserve_bytes = facts.reserve_bytes;
  type.usd_per_hour = typical_price(facts.prices);
  return type;
}

bool through_host(const DeviceFacts& device) { return device.market == "consumer"; }

LinkSpeed as_link(const DeviceFacts& device) {
  constexpr double latency_s = 5e-6, pcie3_lane_bytes_per_s = 1e9, reached = 0.75;
  const Interconnect& facts = device.interconnect;
  const bool switched = facts.kind.starts_with("NVLink") || facts.kind.starts_with("Infinity Fabric");
  const auto says = [&](const char* word) { return facts.kind.find(word) != std::string::npos; };
  if (switched && !says("pair") && !says("to CPU") && facts.bidirectional_bytes_per_s > 0)
    return {.latency_s = latency_s, .bandwidth_bytes_per_s = facts.bidirectional_bytes_per_s / 2};
  const auto generation = static_cast<int>(std::max<std::int64_t>(facts.pcie_generation, 3));
  const auto lanes = static_cast<double>(facts.pcie_lanes > 0 ? facts.pcie_lanes : 16);
  const double bytes_per_s = reached * std::ldexp(pcie3_lane_bytes_per_s * lanes, generation - 3);
  if (through_host(device)) return {.latency_s = through_host_latency_s, .bandwidth_bytes_per_s = bytes_per_s / 2};
  return {.latency_s = latency_s, .bandwidth_bytes_per_s = bytes_per_s};
}

// A name without what differs between ways to write it: the vendor and its brands, words that every such card has, the
// generation of the socket and of the memory. "Tesla V100-SXM2-32GB" and "V100 32GB SXM" are v100sxm32.
std::string card_name(std::string_view name) {
  static constexpr std::array<std::string_view, 10> brands = {"nvidia", "geforce",  "tesla", "quadro", "amd",
                                                              "radeon", "instinct", "intel", "apple",  "huawei"};
  static constexpr std::array<std::string_view, 3> fillers = {"generation", "workstation", "edition"};
  static constexpr std::string_view separators = " -_";
  const auto numbered = [](std::string_view word, std::string_view start) {
    return word.starts_with(start) && word.size() <= start.size() + 2;
  };
  std::string card, memory;
  for (std::size_t begin = 0, end = 0; end < name.size(); begin = end + 1) {
    end = std::min(name.find_first_of(separators, begin), name.size());
    const std::string word = plain_name(name.substr(begin, end - begin));
    if (std::ranges::count(fillers, word) > 0 || numbered(word, "hbm")) continue;
    if (word.ends_with("gb") && word.find_first_not_of("0123456789") == word.size() - 2)
      memory += word.substr(0, word.size() - 2);
    else
      card += numbered(word, "sxm") ? "sxm" : word;
  }
  card += memory;
  for (bool again = true; std::exchange(again, false);)
    for (const std::string_view brand : brands)
      if (card.size() > brand.size() && card.starts_with(brand)) {
        card.erase(0, brand.size());
        again = true;
      }
  return card;
}

struct Catalogue {
  std::vector<DeviceType> types;
  std::vector<LinkSpeed> links;                // of each type
  std::vector<bool> through_host;              // of each type
  std::vector<double> compute_capability;      // of each type
  std::map<std::string, std::size_t> by_name;  // as card_name() has it
};

Catalogue load_catalogue() {
  const auto facts = read<Facts>(parse_json(devices_json(), "data/devices.json"), "data/devices.json");
  const auto check_source = [&](const std::string& key) { MOTLEY_CHECK(facts.sources.contains(key)); };
  Catalogue catalogue;
  for (const auto& device : facts.devices) {
    for (const auto& key : device.sources) check_source(key);
    for (const auto& price : device.prices) check_source(price.source);
    check_source(device.efficiency.source);
    check_source(device.training.source);
    std::vector<std::string> names = device.aliases;
    names.insert(names.end(), {device.id, device.name, device.full_name});
    for (const auto& name : names) {
      const auto [entry, added] = catalogue.by_name.emplace(card_name(name), catalogue.types.size());
      MOTLEY_CHECK(added || entry->second == catalogue.types.size());
    }
    catalogue.types.push_back(as_type(device));
    catalogue.links.push_back(as_link(device));
    catalogue.through_host.push_back(through_host(device));
    catalogue.compute_capability.push_back(device.compute_capability);
  }
  return catalogue;
}

const Catalogue& catalogue() {
  static const Catalogue loaded = load_catalogue();
  return loaded;
}

}  // namespace

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != ' ' && c != '-' && c != '_') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

const SchemaDoc& catalogue_format() { return schema<Facts>().doc(); }

const std::vector<DeviceType>& device_catalogue() { return catalogue().types; }

namespace {

// Where the catalogue has it.
std::optional<std::size_t> place_of(std::string_view name) {
  const auto found = catalogue().by_name.find(card_name(name));
  return found == catalogue().by_name.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

std::optional<LinkSpeed> machine_link(std::string_view device_type) {
  const auto place = place_of(device_type);
  return place ? std::optional(catalogue().links[*place]) : std::nullopt;
}

bool exchanges_through_host(std::string_view device_type) {
  const auto place = place_of(device_type);
  return place && catalogue().through_host[*place];
}

std::optional<double> compute_capability(std::string_view device_type) {
  const auto place = place_of(device_type);
  if (!place || catalogue().compute_capability[*place] == 0) return std::nullopt;
  return catalogue().compute_capability[*place];
}

const DeviceType* find_in_catalogue(std::string_view name) {
  const auto place = place_of(name);
  return place ? &catalogue().types[*place] : nullptr;
}

}  // namespace motley
