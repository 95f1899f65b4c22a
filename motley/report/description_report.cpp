#include "motley/report/description_report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/cost/form/term.hpp"
#include "motley/report/table.hpp"

namespace motley {
namespace {

std::string flops_text(const DeviceType& type) {
  for (const char* dtype : {"bf16", "fp16", "fp32"})
    if (const auto it = type.flop_per_s.find(dtype); it != type.flop_per_s.end())
      return fmt::format("{}/s {}", human_flop(it->second), dtype);
  return "";
}

void add_type_cells(std::vector<std::string>& cells, const DeviceType& type) {
  cells.push_back(human_bytes(static_cast<double>(type.memory_bytes)));
  cells.push_back(human_rate(type.memory_bandwidth_bytes_per_s));
  cells.push_back(flops_text(type));
}

// Of each size that layers have.
std::string heads_text(const Architecture& a) {
  std::vector<std::string> texts;
  for (const LayerKind& kind : a.kinds) {
    std::string text = fmt::format("{} heads, {} key/value heads, head size {}", a.heads, kind.kv_heads, kind.head_dim);
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
  }
  return fmt::format("{}", fmt::join(texts, "; or "));
}

std::string ffn_text(const Architecture& arch, const LayerKind& kind, std::int64_t layers) {
  std::string text = fmt::format("{}{}", kind.ffn, arch.gated ? ", gated" : "");
  const Experts& experts = kind.experts;
  if (experts.count > 0) {
    text = fmt::format("{} experts of {}; a token takes {}", experts.count, text, experts.active);
    if (experts.shared_ffn > 0) text += fmt::format(" and a shared one of {}", experts.shared_ffn);
  }
  return layers == arch.layers ? text : fmt::format("{} (in {} layers)", text, layers);
}

std::int64_t states_of_sequence(const Architecture& arch) {
  const Shard whole = make_shards(arch, 1).front();
  return sum_over_layers(arch, {0, arch.layers}, [&](std::int64_t layer) { return state_bytes(arch, layer, whole); });
}

}  // namespace

std::string cluster_report(const Cluster& cluster) {
  Table devices({"machine", "site", "devices", ">memory", ">bandwidth", ">compute"});
  for (const auto& machine : cluster.machines) {
    std::map<int, int> counts;
    for (const int device : machine.devices) ++counts[cluster.devices[static_cast<std::size_t>(device)].type];
    bool first = true;
    for (const auto& [type_index, count] : counts) {
      const DeviceType& type = cluster.types[static_cast<std::size_t>(type_index)];
      std::vector<std::string> cells{first ? machine.name : "", first ? machine.site : "",
                                     fmt::format("{} x {}", count, type.name)};
      add_type_cells(cells, type);
      devices.add(std::move(cells));
      first = false;
    }
  }
  std::string out = fmt::format("{}: {} device{} in {} machine{}\n\n{}", printable(cluster.description.name),
                                cluster.devices.size(), cluster.devices.size() == 1 ? "" : "s", cluster.machines.size(),
                                cluster.machines.size() == 1 ? "" : "s", devices.render());

  Table links({"link", "", ">latency", ">bandwidth"});
  const auto add = [&](const std::string& from, const std::string& to, const PathSpeed& path) {
    links.add({from, to, human_seconds(path.latency_s), human_rate(path.bandwidth_bytes_per_s)});
  };
  for (std::size_t a = 0; a < cluster.machines.size(); ++a) {
    const Machine& machine = cluster.machines[a];
    if (machine.devices.size() > 1) add(machine.name, "inside", cluster.link(machine.devices[0], machine.devices[1]));
    for (std::size_t b = a + 1; b < cluster.machines.size(); ++b)
      if (!machine.devices.empty() && !cluster.machines[b].devices.empty())
        add(machine.name, cluster.machines[b].name, cluster.link(machine.devices[0], cluster.machines[b].devices[0]));
  }
  if (!links.empty()) out.append("\n").append(links.render());
  return out;
}

std::string catalogue_report() {
  Table table({"name", "vendor", ">memory", ">bandwidth", ">compute"});
  for (const auto& type : device_catalogue()) {
    std::vector<std::string> cells{type.name, type.vendor};
    add_type_cells(cells, type);
    table.add(std::move(cells));
  }
  return table.render();
}

std::string model_report(const Model& model) {
  const Architecture& a = model.arch;
  const auto bytes = [](std::int64_t count) { return human_bytes(static_cast<double>(count)); };
  const std::int64_t parameters = total_parameters(a);
  Table table({"", ""});
  table.add({"family", a.family});
  table.add({"layers", fmt::format("{} of hidden size {}", a.layers, a.hidden)});
  table.add({"attention", heads_text(a)});
  const auto with_delta = std::ranges::find_if(a.kinds, [](const LayerKind& kind) { return bool(kind.delta); });
  if (with_delta != a.kinds.end()) {
    const DeltaNet& delta = with_delta->delta;
    table.add({"delta nets", fmt::format("in {} of the layers: {} key heads of {}, {} value heads of {}",
                                         a.layers - attention_layers(a), delta.key_heads, delta.key_dim,
                                         delta.value_heads, delta.value_dim)});
  }
  const std::vector<std::int64_t> counts = kind_counts(a, {0, a.layers});
  for (std::size_t kind = 0; kind < counts.size(); ++kind) {
    const auto alike = [&](const LayerKind& other) {
      return other.ffn == a.kinds[kind].ffn && other.experts == a.kinds[kind].experts;
    };
    if (static_cast<std::size_t>(std::ranges::find_if(a.kinds, alike) - a.kinds.begin()) < kind) continue;
    std::int64_t layers = 0;
    for (std::size_t other = 0; other < counts.size(); ++other) layers += alike(a.kinds[other]) ? counts[other] : 0;
    table.add({"ffn", ffn_text(a, a.kinds[kind], layers)});
  }
  table.add({"vocabulary", fmt::format("{}{}", a.vocabulary, a.tied_embeddings ? ", embedding and head tied" : "")});
  table.add({"context", fmt::format("{} tokens", a.context)});
  table.add({"parameters", fmt::format("{} ({}); {} per layer", parameters,
                                       human_count(static_cast<double>(parameters)), block_parameters(a, 0))});
  if (const std::int64_t active = active_parameters(a); active < parameters)
    table.add({"active", fmt::format("{} ({}) of a token", active, human_count(static_cast<double>(active)))});
  table.add({"weights", fmt::format("{} as bf16, {} as fp32", bytes(bytes_of(DType::bf16, parameters)),
                                    bytes(bytes_of(DType::fp32, parameters)))});
  const double flops = blocks_flops(a, 0) + head_flops(a);
  table.add({"compute", human_flop(flops) + " per token at context 0"});
  table.add({"kv cache", fmt::format("{} per token as bf16, all layers",
                                     bytes(kv_bytes_per_token(a, {0, a.layers}, DType::bf16)))});
  if (const std::int64_t of_sequence = states_of_sequence(a); of_sequence > 0)
    table.add({"states", fmt::format("{} per sequence, all delta nets", bytes(of_sequence))});
  return fmt::format("{}\n{}", printable(model.name), table.render());
}

Value model_json(const Model& model) {
  const Architecture& a = model.arch;
  const auto count = [](const LayerKind& kind) { return kind.experts.count; };
  const Experts& experts = std::ranges::max_element(a.kinds, {}, count)->experts;
  return Value::object({{"name", model.name},
                        {"family", a.family},
                        {"layers", a.layers},
                        {"hidden", a.hidden},
                        {"heads", a.heads},
                        {"kv_heads", a.kinds.front().kv_heads},
                        {"head_dim", a.kinds.front().head_dim},
                        {"ffn", a.kinds.front().ffn},
                        {"experts", experts.count},
                        {"active_experts", experts.active},
                        {"vocabulary", a.vocabulary},
                        {"context_tokens", a.context},
                        {"tied_embeddings", a.tied_embeddings},
                        {"parameters", total_parameters(a)},
                        {"active_parameters", active_parameters(a)},
                        {"block_parameters", block_parameters(a, 0)},
                        {"flop_per_token", blocks_flops(a, 0) + head_flops(a)},
                        {"kv_bytes_per_token", kv_bytes_per_token(a, {0, a.layers}, DType::bf16)},
                        {"state_bytes_per_sequence", states_of_sequence(a)}});
}

}  // namespace motley
