// Tokens per second of single cards as published (data/inference), beside what the form `motley` predicts of them with
// the catalogue's figures: one stream of 1,024 tokens, the model in 16 bits. The last column is the share of the memory
// bandwidth with which the prediction would be the published figure. The summary leaves out A100 and H100, whose
// figures are that engine's launches (data/inference/README.md).
//
//   cards_bench
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/cost/serve/serve_cost.hpp"
#include "motley/cost/train/run_table.hpp"
#include "motley/planner/serve/serve.hpp"

namespace motley {
namespace {

constexpr double output_tokens = 1024;

std::string source(const std::string& path) { return std::string(MOTLEY_SOURCE_DIR) + "/" + path; }

// "3090 24GB" -> "3090"; the catalogue knows the short names.
std::string card_name(const std::string& text) { return text.substr(0, text.rfind(' ')); }

Cluster single(const std::string& card) {
  const std::string text =
      fmt::format("format = \"motley.cluster/1\"\n[[machine]]\nname = \"box\"\ndevices = [\"{}\"]\n", card);
  Cluster cluster = resolve(read<ClusterDescription>(parse_toml(text, card), card), card);
  cluster.types.front().reserve_bytes = 0;  // the model fills the smallest card to the brim
  return cluster;
}

// Of all output tokens but the first, which comes out of the prompt.
double decode_tokens_per_s(const Cluster& cluster, const Model& model) {
  Workload workload = default_workload();
  workload.classes.front().prompt_tokens = {.mean = 1, .trace = ""};
  workload.classes.front().output_tokens = {.mean = output_tokens, .trace = ""};
  const ServeOutcome outcome =
      plan_serve(cluster, model, workload,
                 {.objective = Objective::latency, .step = {.max_tokens = 16}, .weight_type = DType::fp16});
  if (!outcome.plan) throw input_error(outcome.reason, outcome.hint);
  const RouteCost route = price_serve(*outcome.plan, {}).routes.front();
  return (output_tokens - 1) / (route.latency_s - route.first_token_s);
}

void compare(const Model& model) {
  fmt::print(
      "| card | published, tokens/s | predicted | ratio | bandwidth share | fitting |\n|---|---|---|---|---|---|\n");
  double worst = 0;
  std::vector<double> ratios;
  for (const RunRow& row : read_run_table(source("data/inference/cards.csv"))) {
    if (row.count("count") != 1 || row.text("model") != "llama-3-8b" || row.text("weights") != "f16") continue;
    const std::string card = card_name(row.text("card"));
    const double published = row.number("decode_tokens_per_s");
    Cluster cluster;
    try {
      cluster = single(card);
    } catch (const Error&) {
      fmt::print("| {} | {:.2f} | not in the catalogue | | | |\n", card, published);
      continue;
    }
    const double predicted = decode_tokens_per_s(cluster, model);
    // Twice the share halves the time that the memory takes, and leaves the rest.
    Efficiency& share = cluster.types.front().efficiency;
    const double given = share.bandwidth;
    share.bandwidth = 2 * given;
    const double memory_s = 2 * (1 / predicted - 1 / decode_tokens_per_s(cluster, model));
    const double fitting = given * memory_s / (1 / published - 1 / predicted + memory_s);
    fmt::print("| {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", card, published, predicted,
               predicted / published, given, fitting);
    if (card.starts_with("A100") || card.starts_with("H100")) continue;
    ratios.push_back(predicted / published);
    worst = std::max(worst, std::abs(ratios.back() - 1));
  }
  std::ranges::sort(ratios);
  fmt::print("\nwithout A100 and H100: median ratio {:.2f}, worst error {:.0f} %\n", ratios.at(ratios.size() / 2),
             100 * worst);
}

}  // namespace
}  // namespace motley

int main() {
  try {
    motley::compare(motley::read_model("llama-3-8b"));
  } catch (const motley::Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
