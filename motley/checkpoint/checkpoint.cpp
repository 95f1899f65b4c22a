#include "motley/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

#include <utility>

#include "motley/base/binding.hpp"
#include "motley/base/value.hpp"

namespace motley {

Checkpoint::Checkpoint(const std::filesystem::path& folder) {
  const auto index_path = folder / "model.safetensors.index.json";
  std::error_code ignored;
  if (!std::filesystem::exists(index_path, ignored)) {
    contents_ = folder / "model.safetensors";
    auto file = std::make_unique<SafetensorsFile>(contents_);
    for (const auto& [name, tensor] : file->tensors()) file_of_.emplace(name, "model.safetensors");
    files_.emplace("model.safetensors", std::move(file));
    return;
  }
  contents_ = index_path;
  const Value index = read_document(index_path);
  const Value* weight_map = index.find("weight_map");
  if (!weight_map || !weight_map->is_object())
    throw input_error(fmt::format("{}: `weight_map` is missing", index_path.string()),
                      "the file is damaged: copy or download it again");
  for (const auto& [name, file_name] : weight_map->as_object()) {
    const std::string file = file_name.is_string() ? file_name.as_string() : "";
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..")
      throw input_error(
          fmt::format("{}: {} must be in a file of the same folder, not in \"{}\"", index_path.string(), name, file),
          "keep all files of a model in the folder of its config.json");
    if (!files_.contains(file)) files_.emplace(file, std::make_unique<SafetensorsFile>(folder / file));
    if (!files_.at(file)->tensors().contains(name))
      throw input_error(fmt::format("{} lists {} in {}, which does not contain it", index_path.string(), name, file),
                        "the file is damaged: copy or download it again");
    file_of_.emplace(name, file);
  }
}

Checkpoint::Found Checkpoint::find(const std::string& name) const {
  constexpr std::string_view prefix = "model.";
  const std::string other = name.starts_with(prefix) ? name.substr(prefix.size()) : std::string(prefix) + name;
  auto entry = file_of_.find(name);
  if (entry == file_of_.end()) entry = file_of_.find(other);
  if (entry == file_of_.end()) {
    std::vector<std::string> names;
    for (const auto& [stored, file] : file_of_) names.push_back(stored);
    const std::string near = closest(name, names);
    throw input_error(
        fmt::format("config.json needs the tensor {}, which {} does not contain", name, contents_.string()),
        near.empty() ? "take config.json and weights from the same model"
                     : fmt::format("the file contains {}; take config.json and weights from the same model", near));
  }
  const SafetensorsFile& file = *files_.at(entry->second);
  return {file.path(), file.tensors().at(entry->first)};
}

}  // namespace motley
