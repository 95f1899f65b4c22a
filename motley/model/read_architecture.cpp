#include <fmt/format.h>
#include <fmt/ranges.h>

#include "motley/base/error.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/model.hpp"
#include "motley/model/quantisation.hpp"

namespace motley {
namespace {

DType read_checkpoint_type(const Config& config) {
  const std::string_view key = config.has("dtype") ? "dtype" : "torch_dtype";
  if (!config.has(key)) return DType::bf16;
  std::string name = config.text(key, {});
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name == "float") name = "float32";
  if (name == "half") name = "float16";
  std::string known;
  for (const DType type : dtypes_with(Support::planned, Use::values)) {
    if (dtype_row(type).config_name == name) return type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", dtype_row(type).config_name);
  }
  unsupported(config.at(key), fmt::format("a checkpoint of type \"{}\"", name), "supported: " + known);
}

const Family& find_family(const Config& config) {
  std::vector<std::string> names;
  for (const Family* family : families()) names.emplace_back(family->name);
  const std::string known = fmt::format("supported model types: {}", fmt::join(names, ", "));
  if (!config.has("model_type")) config.at("model_type").fail("`model_type` is missing", known);
  const std::string name = config.text("model_type", {});
  for (const Family* family : families())
    if (family->name == name) return *family;
  const std::string near = did_you_mean(name, names);
  std::string hint = near.empty() ? known : near + " " + known;
  if (config.has("text_config")) hint += "; only text models are supported";
  unsupported(config.at("model_type"), fmt::format("model type \"{}\"", name), std::move(hint));
}

// Under which no product of sizes in model/ overflows 64 bits.
constexpr std::int64_t max_expert_columns = 1 << 27;

void check_experts(const Architecture& arch, const Reader& config) {
  for (const LayerKind& kind : arch.kinds)
    if (kind.experts.count * kind.ffn + kind.experts.shared_ffn > max_expert_columns)
      unsupported(config, fmt::format("a layer of {} experts of {} columns", kind.experts.count, kind.ffn),
                  fmt::format("all experts of a layer may have at most {} columns", max_expert_columns));
}

}  // namespace

Architecture read_architecture(const Value& value, std::string source) {
  const Reader root(value, std::move(source));
  const Config config(root);
  const Family& family = find_family(config);
  refuse_quantised(root, family.quantised_experts);
  Architecture arch = family.read(config);
  check_experts(arch, root);
  arch.family = family.name;
  arch.checkpoint_type = read_checkpoint_type(config);
  return arch;
}

}  // namespace motley
