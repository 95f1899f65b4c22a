// Plans of mixtures of experts next to plans of dense models with as many layers and bytes: how long the search takes,
// and how near the simulator comes to the prediction. The piles are those of examples/clusters and tests/data/piles.
//
//   mixture_bench [PILE...] [MODEL...]      by name; all that are not named
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "bench/saturated.hpp"
#include "motley/planner/serve/plan_serve.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> piles() {
  std::set<fs::path> found;
  for (const char* folder : {"examples/clusters", "tests/data/piles"})
    for (const auto& entry : fs::directory_iterator(fs::path(MOTLEY_SOURCE_DIR) / folder)) found.insert(entry.path());
  return {found.begin(), found.end()};
}

// One FFN as wide as all experts of its widest layer.
Model dense_like(const Model& mixture) {
  const Architecture& arch = mixture.arch;
  std::int64_t columns = 0;
  for (const LayerKind& kind : arch.kinds)
    columns = std::max(columns, kind.ffn * std::max<std::int64_t>(1, kind.experts.count));
  Model dense;
  dense.name = mixture.name + ", dense";
  dense.config = Value::object({{"model_type", "llama"},
                                {"num_hidden_layers", arch.layers},
                                {"hidden_size", arch.hidden},
                                {"intermediate_size", columns},
                                {"num_attention_heads", arch.heads},
                                {"num_key_value_heads", arch.kinds.front().kv_heads},
                                {"head_dim", arch.kinds.front().head_dim},
                                {"vocab_size", arch.vocabulary},
                                {"max_position_embeddings", arch.context},
                                {"torch_dtype", "bfloat16"}});
  dense.arch = read_architecture(dense.config, dense.name);
  return dense;
}

struct Planned {
  double seconds = 0, predicted = 0, simulated = 0;  // to plan; tokens per second
  std::string reason = {};                           // where there is no plan
};

Planned plan(const Cluster& cluster, const Model& model) {
  const ServeOptions options{
      .objective = Objective::throughput, .deadline_s = 600, .front = Front::skip, .weight_type = DType::q4_k};
  const ServeOutcome outcome = plan_serve(cluster, model, default_workload(), options);
  if (!outcome.plan) return {.reason = outcome.reason};
  if (const auto violations = verify(*outcome.plan); !violations.empty()) return {.reason = violations.front().what};
  const ServeCost cost = price_serve(*outcome.plan, {});
  return {.seconds = outcome.plan->search.elapsed_s,
          .predicted = cost.tokens_per_s,
          .simulated = saturated_tokens_per_s(*outcome.plan, cost)};
}

void compare(const fs::path& pile, const std::string& name) {
  const Cluster cluster = read_cluster(pile);
  const Model mixture = read_model(name);
  const Planned of_mixture = plan(cluster, mixture), of_dense = plan(cluster, dense_like(mixture));
  for (const Planned& planned : {of_mixture, of_dense})
    if (!planned.reason.empty())
      return fmt::print("| {} | {} | {} | | | | | |\n", pile.stem().string(), name, planned.reason);
  fmt::print("| {} | {} | {:.2f} s | {:.2f} s | {:.2f} | {:.0f} | {:.3f} | {:.3f} |\n", pile.stem().string(), name,
             of_mixture.seconds, of_dense.seconds, of_mixture.seconds / of_dense.seconds, of_mixture.predicted,
             of_mixture.simulated / of_mixture.predicted, of_dense.simulated / of_dense.predicted);
  std::fflush(stdout);
}

}  // namespace
}  // namespace motley

int main(int argc, char** argv) {
  using namespace motley;
  std::vector<std::filesystem::path> asked;
  std::vector<std::string> models;
  for (const std::string& name : std::vector<std::string>(argv + 1, argv + argc)) {
    const auto all = piles();
    const auto pile = std::ranges::find_if(all, [&](const std::filesystem::path& path) { return path.stem() == name; });
    if (pile == all.end())
      models.push_back(name);
    else
      asked.push_back(*pile);
  }
  if (models.empty()) models = {"mixtral-8x7b", "qwen3-235b-a22b", "glm-4.5-air", "gpt-oss-120b"};
  fmt::print(
      "| pile | model | planned in | dense | ratio | tokens/s, predicted | simulated / predicted | dense |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const std::filesystem::path& pile : asked.empty() ? piles() : asked)
    for (const std::string& model : models) compare(pile, model);
}
