#include "motley/checkpoint/checkpoint.hpp"

#include <fmt/format.h>

#include "motley/base/binding.hpp"
#include "motley/base/value.hpp"

namespace motley {
namespace {

constexpr std::size_t most_inside = 1 << 20;  // tensors of a model that lie inside others

// Those of each expert of a tensor [experts, rows, columns], or of biases [experts, rows].
std::vector<StoredTensor> slabs_of(const std::filesystem::path& file, const std::string& name,
                                   const StoredTensor& tensor) {
  const bool bias = name.ends_with(".bias");
  if (tensor.shape.size() != (bias ? 2 : 3) || tensor.shape.front() < 1 ||
      tensor.shape.front() > most_experts_in_tensor)
    throw input_error(fmt::format("{}: the tensor {} must be of 1 to {} experts and rows{}, found {}", file.string(),
                                  name, most_experts_in_tensor, bias ? "" : " of columns", shape_text(tensor.shape)),
                      "convert the model again");
  const auto count = static_cast<std::size_t>(tensor.shape.front());
  std::vector<StoredTensor> slabs(count, tensor);
  const std::size_t bytes = tensor.bytes.size() / count;
  for (std::size_t i = 0; i < count; ++i) {
    slabs[i].shape.erase(slabs[i].shape.begin());
    slabs[i].bytes = tensor.bytes.subspan(i * bytes, bytes);
    slabs[i].offset += i * bytes;
  }
  return slabs;
}

void check_inside(const std::filesystem::path& file, std::size_t count) {
  if (count > most_inside)
    throw input_error(fmt::format("{}: at most {} tensors inside others are read", file.string(), most_inside),
                      copy_again);
}

constexpr const char *embedding_suffix = "embed_tokens.weight", *head_name = "lm_head.weight";

// The language model of one that sees, too, by the names that it has alone.
std::string without_modality(const std::string& name) {
  constexpr std::string_view prefix = "model.", part = "language_model.";
  if (name.starts_with(part)) return name.substr(part.size());
  if (name.starts_with(prefix) && name.substr(prefix.size()).starts_with(part))
    return std::string(prefix) + name.substr(prefix.size() + part.size());
  return name;
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& folder_or_gguf, NamingOf naming) {
  if (is_gguf(folder_or_gguf)) {
    open_gguf_file(folder_or_gguf, naming);
    return;
  }
  std::error_code ignored;
  if (const auto config = folder_or_gguf / "config.json"; naming != nullptr && std::filesystem::exists(config, ignored))
    naming_ = naming(read_document(config));
  open_folder(folder_or_gguf, "model");
}

void Checkpoint::open_gguf_file(const std::filesystem::path& path, NamingOf naming) {
  contents_ = path;
  gguf_ = open_gguf(path);
  if (naming != nullptr) naming_ = naming(gguf_.front()->metadata());
  const TensorNaming& named = naming_;
  for (const auto& file : gguf_)
    for (const auto& [stored, tensor] : file->tensors()) {
      for (const TensorInside& one : tensors_inside(named.packed, named.heads, file->path(), stored, tensor))
        add(*file, stored, one.name, {&file->path(), &inside_.emplace_back(one.tensor)});
      const TensorNames* known = names_of(named.names, stored);
      if (known == nullptr) continue;
      const std::string name = hugging_face_name(named.names, stored);
      const bool in_pairs = known->paired_rows && named.head_rows > 0 && named.head_rows % 2 == 0 &&
                            !tensor.shape.empty() && tensor.shape.front() % named.head_rows == 0;
      if (known->role.starts_with("experts.")) {
        for (std::int64_t expert = 0; const StoredTensor& one : slabs_of(file->path(), stored, tensor))
          add(*file, stored, with_expert(name, expert++), {&file->path(), &inside_.emplace_back(one)});
        check_inside(file->path(), inside_.size());
      } else
        add(*file, stored, name,
            {&file->path(), &tensor, in_pairs ? named.head_rows : 0, known->one_more ? 1.0F : 0.0F, known->minus_exp});
    }
}

void Checkpoint::add(const GgufFile& file, const std::string& stored, const std::string& name, const Place& place) {
  if (!places_.emplace(name, place).second)
    throw input_error(fmt::format("{}: the tensor {} is in another part, too", file.path().string(), stored),
                      "keep the parts of one model together, under their names");
}

void Checkpoint::add(const SafetensorsFile& file, const std::string& stored) {
  const StoredTensor& tensor = file.tensors().at(stored);
  const std::string name = without_modality(stored);
  const std::vector<TensorInside> inside = tensors_inside(naming_.packed, naming_.heads, file.path(), name, tensor);
  if (inside.empty()) places_.emplace(name, Place{&file.path(), &tensor});
  for (const TensorInside& one : inside)
    places_.emplace(one.name, Place{&file.path(), &inside_.emplace_back(one.tensor)});
  check_inside(file.path(), inside_.size());
}

void Checkpoint::open_folder(const std::filesystem::path& folder, const std::string& stem) {
  const auto index_path = folder / (stem + ".safetensors.index.json");
  std::error_code ignored;
  if (!std::filesystem::exists(index_path, ignored)) {
    contents_ = folder / (stem + ".safetensors");
    files_.emplace(contents_.filename(), std::make_unique<SafetensorsFile>(contents_));
    for (const auto& [name, tensor] : files_.begin()->second->tensors()) add(*files_.begin()->second, name);
    return;
  }
  contents_ = index_path;
  const Value index = read_document(index_path);
  const Value* weight_map = index.find("weight_map");
  if (!weight_map || !weight_map->is_object())
    throw input_error(fmt::format("{}: `weight_map` is missing", index_path.string()), copy_again);
  for (const auto& [name, file_name] : weight_map->as_object()) {
    const std::string file = file_name.is_string() ? file_name.as_string() : "";
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == "..")
      throw input_error(
          fmt::format("{}: {} must be in a file of the same folder, not in \"{}\"", index_path.string(), name, file),
          "keep all files of a model in the folder of its config.json");
    if (!files_.contains(file)) files_.emplace(file, std::make_unique<SafetensorsFile>(folder / file));
    if (!files_.at(file)->tensors().contains(name))
      throw input_error(fmt::format("{} lists {} in {}, which does not contain it", index_path.string(), name, file),
                        copy_again);
    add(*files_.at(file), name);
  }
}

std::vector<Checkpoint::File> Checkpoint::files() const {
  std::vector<File> all;
  for (const auto& file : gguf_) all.push_back({file->path(), file->header().size()});
  for (const auto& [name, file] : files_)  // 8 bytes of length stand before the text
    all.push_back({file->path(), sizeof(std::uint64_t) + file->header().size()});
  if (gguf_.empty() && contents_.extension() == ".json")
    all.push_back({contents_, std::filesystem::file_size(contents_)});
  return all;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> all;
  for (const auto& [name, place] : places_)
    if (!name.ends_with(scales_ending)) all.push_back(name);
  return all;
}

std::map<std::string, Checkpoint::Place>::const_iterator Checkpoint::lookup(const std::string& name) const {
  constexpr std::string_view prefix = "model.";
  const auto entry = places_.find(name);
  if (entry != places_.end()) return entry;
  return places_.find(name.starts_with(prefix) ? name.substr(prefix.size()) : std::string(prefix) + name);
}

Checkpoint::Found Checkpoint::find(const std::string& name) const {
  auto entry = lookup(name);
  if (entry == places_.end() && name.ends_with(embedding_suffix)) entry = lookup(head_name);
  if (entry != places_.end()) {
    const Place& place = entry->second;
    Found found{*place.file, *place.tensor, place.interleaved, place.added, place.minus_exp};
    if (found.tensor.scales_apart) {
      const Found scales = find(entry->first + std::string(scales_ending));
      found.scales = &scales.tensor;
      found.scales_file = &scales.file;
    }
    return found;
  }
  if (!gguf_.empty()) {
    const std::string own = gguf_name(naming_.names, name);
    throw input_error(fmt::format("{}: the tensor {} is missing", contents_.string(), own.empty() ? name : own),
                      "the file is not a whole model: copy or download it again");
  }
  const std::string near = closest(name, names());
  throw input_error(fmt::format("config.json needs the tensor {}, which {} does not contain", name, contents_.string()),
                    near.empty()
                        ? "take config.json and weights from the same model"
                        : fmt::format("the file contains {}; take config.json and weights from the same model", near));
}

}  // namespace motley
