#include "motley/engine/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "motley/base/value.hpp"

namespace motley {
namespace {

std::optional<at::ScalarType> scalar_type(std::string_view type) {
  if (type == "F32") return at::kFloat;
  if (type == "BF16") return at::kBFloat16;
  if (type == "F16") return at::kHalf;
  return std::nullopt;
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& folder) : contents_(folder / "model.safetensors.index.json") {
  std::error_code ignored;
  if (!std::filesystem::exists(contents_, ignored)) {
    contents_ = folder / "model.safetensors";
    auto file = std::make_unique<SafetensorsFile>(contents_);
    for (const auto& [name, tensor] : file->tensors()) file_of_.emplace(name, "model.safetensors");
    files_.emplace("model.safetensors", std::move(file));
    return;
  }
  const Value index = read_document(contents_);
  const Value* weight_map = index.find("weight_map");
  if (!weight_map || !weight_map->is_object())
    throw input_error(fmt::format("{}: `weight_map` is missing", contents_.string()),
                      "the file is damaged: copy or download it again");
  for (const auto& [name, file_name] : weight_map->as_object()) {
    const std::string file = file_name.is_string() ? file_name.as_string() : "";
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..")
      throw input_error(
          fmt::format("{}: {} must be in a file of the same folder, not in \"{}\"", contents_.string(), name, file),
          "all files of a model stand beside its config.json");
    if (!files_.contains(file)) files_.emplace(file, std::make_unique<SafetensorsFile>(folder / file));
    if (!files_.at(file)->tensors().contains(name))
      throw input_error(fmt::format("{} promises {} in {}, which does not hold it", contents_.string(), name, file),
                        "the file is damaged: copy or download it again");
    file_of_.emplace(name, file);
  }
}

Checkpoint::Found Checkpoint::find(const TensorSpec& tensor) const {
  constexpr std::string_view prefix = "model.";
  const std::string other =
      tensor.name.starts_with(prefix) ? tensor.name.substr(prefix.size()) : std::string(prefix) + tensor.name;
  auto entry = file_of_.find(tensor.name);
  if (entry == file_of_.end()) entry = file_of_.find(other);
  if (entry == file_of_.end()) {
    std::vector<std::string> names;
    for (const auto& [name, file] : file_of_) names.push_back(name);
    const std::string near = closest(tensor.name, names);
    throw input_error(fmt::format("config.json promises {}, {} does not hold it", tensor.name, contents_.string()),
                      near.empty()
                          ? "config.json and weights must come from the same model"
                          : fmt::format("they hold {}; config.json and weights must come from the same model", near));
  }
  const SafetensorsFile& file = *files_.at(entry->second);
  return {&file, &file.tensors().at(entry->first)};
}

void Checkpoint::read(const TensorSpec& tensor, const Slice& slice, at::Tensor to) const {
  const auto [file, stored] = find(tensor);
  if (stored->shape != tensor.shape)
    throw input_error(fmt::format("config.json promises {} {}, {} holds {}", tensor.name, shape_text(tensor.shape),
                                  file->path().string(), shape_text(stored->shape)),
                      "config.json and weights must come from the same model");
  const auto type = scalar_type(stored->type);
  if (!type)
    throw input_error(fmt::format("{}: {} is of type {}", file->path().string(), tensor.name, stored->type),
                      "supported: F32, BF16, F16");
  const std::int64_t width = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
  MOTLEY_CHECK(slice.rows.end <= tensor.shape.at(0) && slice.columns.end <= width);
  const auto element = static_cast<std::int64_t>(at::elementSize(*type));
  const std::byte* first = stored->bytes.data() + (slice.rows.first * width + slice.columns.first) * element;
  const at::Tensor from = at::from_blob(const_cast<std::byte*>(first), {slice.rows.size(), slice.columns.size()},
                                        {width, 1}, at::TensorOptions(*type));
  to.view({slice.rows.size(), slice.columns.size()}).copy_(from);
}

}  // namespace motley
