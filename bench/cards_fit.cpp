// Shares of the peaks that device types reach in serving, fitted to published tokens per second of single cards
// (data/inference): of the memory bandwidth to the decode of one stream of 1,024 tokens, with weights in 16 bits and in
// 4, of the FLOP/s in products to prompts of 1,024 tokens in 16 bits; llama-3-8b. Both by the form `motley`, so that
// its other terms are not counted again. Prints the table of docs/concepts/costs.md, and how far measured types differ
// from others of their generation.
//
//   cards_fit [--write data/devices.json]
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/value.hpp"
#include "motley/cluster/names.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/train/run_table.hpp"
#include "motley/model/training.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

constexpr double tokens = 1024;      // of the prompt, and of the answer
constexpr std::int64_t chunk = 512;  // tokens of a prompt that the published engine takes at once
constexpr double outlier = 2;        // 16-bit prompts this many times slower than 4-bit ones are not believed
constexpr double least_share = 0.02, no_card_reaches = 1.2;

std::string source(const std::string& path) { return std::string(MOTLEY_SOURCE_DIR) + "/" + path; }

// ---- published figures ----

struct Published {
  double decode_tokens_per_s = 0, prompt_tokens_per_s = 0;
};

// By card and type of weights, of single cards and llama-3-8b. "3090 24GB" is "3090": the catalogue knows short names.
std::map<std::string, std::map<std::string, Published>> published_cards() {
  std::map<std::string, std::map<std::string, Published>> cards;
  for (const RunRow& row : read_run_table(source("data/inference/cards.csv"))) {
    if (row.count("count") != 1 || row.text("model") != "llama-3-8b") continue;
    const std::string& card = row.text("card");
    cards[card.substr(0, card.rfind(' '))][row.text("weights")] = {row.number("decode_tokens_per_s"),
                                                                   row.number("prompt_tokens_per_s")};
  }
  return cards;
}

// That engine's launches, not the cards, bound its decode on these (data/inference/README.md).
bool held_up_by_launches(const std::string& card) { return card.starts_with("A100") || card.starts_with("H100"); }

// ---- what the form says ----

// Nothing where the catalogue does not know the card.
std::optional<Cluster> single(const std::string& card) {
  // "M1 Max 32-Core GPU" is "M1 Max".
  static const std::regex cores(" [0-9]+.*Core GPU");
  const std::string name = std::regex_replace(card, cores, "");
  if (find_in_catalogue(name) == nullptr) return std::nullopt;
  const std::string text =
      fmt::format("format = \"motley.cluster/1\"\n[[machine]]\nname = \"box\"\ndevices = [\"{}\"]\n", name);
  Cluster cluster = resolve(read<ClusterDescription>(parse_toml(text, card), card), card);
  cluster.types.front().reserve_bytes = 0;  // the model fills the smallest card to the brim
  return cluster;
}

RouteCost priced(const Cluster& cluster, const Model& model, double prompt, double answer, DType weights) {
  Workload workload = default_workload();
  workload.classes.front().prompt_tokens = {.mean = prompt, .trace = ""};
  workload.classes.front().output_tokens = {.mean = answer, .trace = ""};
  const ServeOutcome outcome = plan_serve(cluster, model, workload,
                                          {.objective = Objective::latency,
                                           .step = {.max_tokens = prompt > 1 ? chunk : 16},
                                           .weight_type = weights,
                                           .kv_type = DType::fp16});
  if (!outcome.plan) throw input_error(outcome.reason, outcome.hint);
  return price_serve(*outcome.plan, {}).routes.front();
}

// Of all output tokens but the first, which comes out of the prompt.
double decode_tokens_per_s(const Cluster& cluster, const Model& model, DType weights) {
  const RouteCost route = priced(cluster, model, 1, tokens, weights);
  return (tokens - 1) / (route.latency_s - route.first_token_s);
}

double prompt_s(const Cluster& cluster, const Model& model) {
  return priced(cluster, model, tokens, 1, DType::fp16).first_token_s;
}

// The share at which `seconds`, which falls with it, is `wanted`.
template <class SecondsAt>
double share_where(const SecondsAt& seconds, double wanted) {
  double low = least_share, high = no_card_reaches;
  for (int round = 0; round < 40; ++round) {
    const double middle = (low + high) / 2;
    (seconds(middle) > wanted ? low : high) = middle;
  }
  return (low + high) / 2;
}

double bandwidth_share(Cluster cluster, const Model& model, DType weights, double decode_tokens_per_s_published) {
  Efficiency& efficiency = cluster.types.front().efficiency;
  double& share = weights == DType::fp16 ? efficiency.bandwidth : efficiency.quantised_bandwidth;
  return share_where(
      [&](double x) {
        share = x;
        return 1 / decode_tokens_per_s(cluster, model, weights);
      },
      1 / decode_tokens_per_s_published);
}

// Where the published engine summed in fp16, at a higher peak, the products' time at both peaks is the difference.
double compute_share(Cluster cluster, const Model& model, double prompt_tokens_per_s, double fp16_sums_flop_per_s) {
  DeviceType& type = cluster.types.front();
  const double flop = tokens * blocks_flops(model.arch, 0);
  const double peak = type.flop_per_s.at("fp16");
  const double slower_s = fp16_sums_flop_per_s > 0 ? flop / peak - flop / fp16_sums_flop_per_s : 0;
  return share_where(
      [&](double x) {
        type.efficiency.compute = x;
        return prompt_s(cluster, model);
      },
      tokens / prompt_tokens_per_s + slower_s);
}

// ---- the catalogue ----

struct Shares {
  double compute = 0, bandwidth = 0, quantised = 0;  // 0: not measured
  std::string source = {};
};

struct Entry {
  std::string name, generation;  // empty: nothing that was measured is like it
  double fp16_sums_flop_per_s = 0;
};

// Cards of an architecture whose memory and limits of power are alike: HBM, GeForce, or GDDR of workstations and
// servers.
std::string generation_of(const Value& device) {
  constexpr double slowest_hbm = 700e9;  // B/s
  const auto text = [&](const char* key) { return device.find(key)->as_string(); };
  if (text("vendor") != "nvidia" && text("vendor") != "apple") return {};
  const double bandwidth = find_in_catalogue(text("name"))->memory_bandwidth_bytes_per_s;
  const std::string market = text("market");
  const char* kind = market == "consumer"                                                                 ? "GeForce"
                     : market == "apple-silicon"                                                          ? "unified"
                     : market == "datacentre" && bandwidth > slowest_hbm && text("architecture") != "Ada" ? "HBM"
                                                                                                          : "GDDR";
  return text("architecture") + ", " + kind;
}

std::vector<Entry> catalogue_entries() {
  const Value catalogue = read_document(source("data/devices.json"));
  std::vector<Entry> entries;
  for (const Value& device : catalogue.find("devices")->as_array()) {
    Entry entry{device.find("name")->as_string(), generation_of(device)};
    if (const Value* rate = device.find("flops_fp16_accumulate"))
      entry.fp16_sums_flop_per_s = parse_quantity(rate->as_string(), Dimension::flop_per_s);
    entries.push_back(entry);
  }
  return entries;
}

// Measured times of one Llama-2-70B layer (profiles of Helix) as shares of the peaks: of the whole layer. Products
// alone reach more.
const std::map<std::string, Shares> helix = {
    {"A100-40", {0.80, 0.79}}, {"A100-PCIe-80", {0.80, 0.79}}, {"A100-80", {0.80, 0.79}},
    {"V100-16", {0.71, 0.83}}, {"V100-32", {0.71, 0.83}},      {"V100-PCIe", {0.71, 0.83}},
    {"V100S", {0.71, 0.83}},   {"L4", {0.42, 0.83}},           {"T4", {0.42, 0.75}}};

Shares products_of_layer(const std::string& name, Shares whole) {
  const DeviceType& type = *find_in_catalogue(name);
  const Architecture arch = read_model("llama-2-70b").arch;
  const double product_s = block_flops(arch, 0, 0) / type.flop_per_s.at("fp16");
  const Shard all = make_shards(arch, 1).front();
  const double element_s = static_cast<double>(2 * element_traffic_per_token(arch, 0, all).forward) /
                           (type.memory_bandwidth_bytes_per_s * type.efficiency.elementwise);
  return {product_s / (product_s / whole.compute - element_s), whole.bandwidth, 0, "helix"};
}

// Where nothing of a generation was measured: which one stands for it.
std::string nearest(const std::string& generation) {
  const auto ends = [&](const char* kind) { return generation.ends_with(kind); };
  if (generation.starts_with("Blackwell") && ends("HBM")) return "Hopper, HBM";
  if (ends("HBM")) return "Ampere, HBM";
  if (generation.starts_with("Turing")) return ends("GeForce") ? "Ampere, GeForce" : "Ampere, GDDR";
  return ends("GeForce") ? "Ada, GeForce" : "Ada, GDDR";
}

double lower_median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.at((values.size() - 1) / 2);
}

using Select = double Shares::*;

std::vector<double> measured_of(const std::vector<Entry>& entries, const std::map<std::string, Shares>& measured,
                                const std::string& generation, Select select, const std::string& without = {}) {
  std::vector<double> values;
  for (const Entry& entry : entries)
    if (const auto found = measured.find(entry.name);
        found != measured.end() && entry.generation == generation && entry.name != without && found->second.*select > 0)
      values.push_back(found->second.*select);
  return values;
}

// The shares of a type by its own measurements, or those that stand for it; `without` leaves its own out.
Shares shares_of(const std::vector<Entry>& entries, const std::map<std::string, Shares>& measured, const Entry& entry,
                 bool without) {
  const auto own = measured.find(entry.name);
  Shares shares;
  bool all_own = own != measured.end() && !without, all_generation = true;
  for (const Select select : {&Shares::compute, &Shares::bandwidth}) {
    if (own != measured.end() && !without && own->second.*select > 0) {
      shares.*select = own->second.*select;
      continue;
    }
    all_own = false;
    std::string generation = entry.generation;
    std::vector<double> like = measured_of(entries, measured, generation, select, entry.name);
    while (like.empty()) {
      all_generation = false;
      const std::string next = nearest(generation);
      if (next == generation) break;
      generation = next;
      like = measured_of(entries, measured, generation, select, entry.name);
    }
    shares.*select = lower_median(like.empty() ? std::vector<double>{least_share} : like);
  }
  // Where nothing of its generation was measured in 4 bits, the form's own factor holds.
  const std::vector<double> like = measured_of(entries, measured, entry.generation, &Shares::quantised, entry.name);
  const bool own_quantised = own != measured.end() && !without && own->second.quantised > 0;
  shares.quantised = own_quantised ? own->second.quantised : like.empty() ? 0 : lower_median(like);
  shares.source = all_own ? own->second.source : all_generation ? "generation" : "nearest";
  return shares;
}

// ---- the tables ----

double two_digits(double x) { return std::round(100 * x) / 100; }

std::map<std::string, Shares> measured_shares(const Model& model, const std::vector<Entry>& entries) {
  std::map<std::string, Shares> measured;
  for (const auto& [name, whole] : helix) measured[name] = products_of_layer(name, whole);
  // Of H100 published training steps say what products reach.
  measured["H100"] = {find_in_catalogue("H100")->training.products, 0, 0, "foundry"};
  fmt::print(
      "| card | published, tokens/s | predicted | ratio | bandwidth share | in 4 bits | predicted | ratio | bandwidth "
      "share | prompts, tokens/s | compute share |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const auto& [card, by_weights] : published_cards()) {
    const auto cluster = single(card);
    const auto f16 = by_weights.find("f16");
    if (!cluster || f16 == by_weights.end()) continue;
    const std::string& name = cluster->types.front().name;
    const Published& published = f16->second;
    const double predicted = decode_tokens_per_s(*cluster, model, DType::fp16);
    const double bandwidth = bandwidth_share(*cluster, model, DType::fp16, published.decode_tokens_per_s);
    const auto entry = std::ranges::find(entries, name, &Entry::name);
    const Published& in_4_bits = by_weights.at("q4_k_m");
    const bool believed = outlier * published.prompt_tokens_per_s > in_4_bits.prompt_tokens_per_s;
    const double predicted_4 = decode_tokens_per_s(*cluster, model, DType::q4_k);
    const double quantised = bandwidth_share(*cluster, model, DType::q4_k, in_4_bits.decode_tokens_per_s);
    const double compute =
        believed ? compute_share(*cluster, model, published.prompt_tokens_per_s, entry->fp16_sums_flop_per_s) : 0;
    fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.0f} | {} |\n", card,
               published.decode_tokens_per_s, predicted, predicted / published.decode_tokens_per_s, bandwidth,
               in_4_bits.decode_tokens_per_s, predicted_4, predicted_4 / in_4_bits.decode_tokens_per_s, quantised,
               published.prompt_tokens_per_s, believed ? fmt::format("{:.2f}", compute) : "outlier");
    if (!held_up_by_launches(card))
      measured[name] = {two_digits(compute), two_digits(bandwidth), two_digits(quantised), "cards"};
  }
  return measured;
}

void print_spread(const std::vector<Entry>& entries, const std::map<std::string, Shares>& measured) {
  std::map<std::string, std::pair<double, double>> worst;  // factors, by source
  for (const Entry& entry : entries) {
    const auto own = measured.find(entry.name);
    if (own == measured.end()) continue;
    const Shares others = shares_of(entries, measured, entry, true);
    const auto factor = [](double a, double b) { return a > 0 ? std::max(a / b, b / a) : 1; };
    auto& [compute, bandwidth] = worst[others.source];
    compute = std::max(compute, factor(own->second.compute, others.compute));
    bandwidth = std::max(bandwidth, factor(own->second.bandwidth, others.bandwidth));
  }
  fmt::print(
      "\nMeasured types by those that would stand for them:\n\n| rests on | compute off by | bandwidth off by "
      "|\n|---|---|---|\n");
  for (const auto& [basis, factors] : worst)
    fmt::print("| {} | {:.2f} | {:.2f} |\n", basis, factors.first, factors.second);
}

void write_devices(const std::string& path, const std::vector<Entry>& entries,
                   const std::map<std::string, Shares>& measured) {
  std::ifstream in(path);
  if (!in) throw input_error(fmt::format("cannot read {}", path), "name the catalogue, data/devices.json");
  const std::regex name_key("\"name\": \"([^\"]*)\""), efficiency_key("\"efficiency\": \\{[^}]*\\}");
  std::ostringstream text;
  for (std::string line; std::getline(in, line);) {
    std::smatch name;
    if (std::regex_search(line, name, name_key)) {
      const auto entry = std::ranges::find(entries, name[1].str(), &Entry::name);
      const Shares shares =
          entry->generation.empty() ? Shares{0.60, 0.80, 0, "start"} : shares_of(entries, measured, *entry, false);
      line = std::regex_replace(
          line, efficiency_key,
          fmt::format("\"efficiency\": {{\"compute\": {}, \"bandwidth\": {}, {}\"source\": \"{}\"}}",
                      two_digits(shares.compute), two_digits(shares.bandwidth),
                      shares.quantised > 0 ? fmt::format("\"quantised_bandwidth\": {}, ", shares.quantised) : "",
                      shares.source));
    }
    text << line << '\n';
  }
  in.close();
  std::ofstream(path) << text.str();
}

int run(const std::vector<std::string>& arguments) {
  const bool write_them = arguments.size() == 2 && arguments[0] == "--write";
  if (!arguments.empty() && !write_them)
    throw input_error("unknown arguments", "use --write data/devices.json, or none");
  const std::vector<Entry> entries = catalogue_entries();
  const std::map<std::string, Shares> measured = measured_shares(read_model("llama-3-8b"), entries);
  print_spread(entries, measured);
  if (write_them) write_devices(arguments[1], entries, measured);
  return 0;
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  try {
    return motley::run({argv + 1, argv + argc});
  } catch (const motley::Error& error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
  }
}
