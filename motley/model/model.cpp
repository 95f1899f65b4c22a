#include "motley/model/model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "motley/base/hints.hpp"
#include "motley/base/paths.hpp"

namespace motley {

std::string text(const LayerRange& range) { return fmt::format("[{}, {})", range.first, range.end); }

namespace {

namespace fs = std::filesystem;

// config.json of a folder, of itself, or of a name in the data folder.
fs::path find_config(const std::string& name_or_path) {
  std::error_code ignored;
  const fs::path path = name_or_path;
  if (fs::is_directory(path, ignored)) {
    if (fs::is_regular_file(path / "config.json", ignored)) return path / "config.json";
    throw input_error(fmt::format("{}: config.json is missing in this folder", name_or_path),
                      "give a Hugging Face folder, a config.json, or a name such as llama-2-70b");
  }
  if (fs::exists(path, ignored)) return path;
  if (path.has_parent_path() || path.extension() == ".json")
    throw input_error(fmt::format("{}: no such file or folder", name_or_path),
                      "give a Hugging Face folder, a config.json, or a name such as llama-2-70b");

  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data_folder() / "models"))
    if (fs::is_regular_file(entry.path() / "config.json", ignored)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  if (std::find(names.begin(), names.end(), name_or_path) != names.end())
    return data_folder() / "models" / name_or_path / "config.json";
  throw input_error(fmt::format("\"{}\" must be a file, a folder or the name of a known model", name_or_path),
                    did_you_mean(name_or_path, names, fmt::format("known models: {}", fmt::join(names, ", "))));
}

}  // namespace

template <>
const Schema<Model>& schema<Model>() {
  static const auto table =
      Schema<Model>("model", "The model that is served.")
          .field("name", &Model::name, "Shown in reports.", {.required = true})
          .field("config", &Model::config, "The model's config.json.", {.required = true})
          .derive([](Model& model, const Reader& reader) {
            const std::string& path = reader.path();
            model.arch = read_architecture(
                model.config, fmt::format("{}: {}{}config", reader.source(), path, path.empty() ? "" : "."));
          });
  return table;
}

Model read_model(const std::string& name_or_path) {
  const fs::path path = find_config(name_or_path);
  Model model;
  model.name = fs::weakly_canonical(path).parent_path().filename();
  model.config = read_document(path);
  model.arch = read_architecture(model.config, path.string());

  // What ends a generation is said by generation_config.json where there is one: chat models list their end of turn
  // there.
  const fs::path generation_path = path.parent_path() / "generation_config.json";
  if (fs::is_regular_file(generation_path)) {
    const Value generation = read_document(generation_path);
    if (const Value* eos = generation.find("eos_token_id"); eos && !eos->is_null()) {
      const Reader root(generation, generation_path.string());
      model.arch.eos_tokens = read_eos_tokens(root.member("eos_token_id", *eos), model.arch.vocabulary);
      model.config.set("eos_token_id", *eos);
    }
  }
  return model;
}

}  // namespace motley
