#include "motley/model/model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "motley/base/error.hpp"
#include "motley/base/paths.hpp"
#include "motley/checkpoint/digest.hpp"
#include "motley/model/config.hpp"
#include "motley/model/families/families.hpp"
#include "motley/model/gguf_config.hpp"
#include "motley/model/part_tensors.hpp"
#include "motley/model/quantisation.hpp"
#include "motley/model/stored_model.hpp"

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
                      "give a Hugging Face folder, a config.json, a GGUF file, or a name such as llama-2-70b");
  }
  if (fs::exists(path, ignored)) return path;
  if (path.has_parent_path() || path.extension() == ".json" || is_gguf(path))
    throw input_error(fmt::format("{}: no such file or folder", name_or_path),
                      "give a Hugging Face folder, a config.json, a GGUF file, or a name such as llama-2-70b");

  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data_folder() / "models"))
    if (fs::is_regular_file(entry.path() / "config.json", ignored)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  if (std::find(names.begin(), names.end(), name_or_path) != names.end())
    return data_folder() / "models" / name_or_path / "config.json";
  throw input_error(fmt::format("\"{}\" must be a file, a folder or the name of a known model", name_or_path),
                    did_you_mean(name_or_path, names, fmt::format("known models: {}", fmt::join(names, ", "))));
}

// Types of a file's matrices belong to the architecture: its bytes follow from them.
void take_tensor_types(Model& model, const std::string& source) {
  if (model.tensor_types.empty()) return;
  for (const TensorSpec& tensor : part_tensors(model.arch, whole_model(model.arch))) {
    const auto found = model.tensor_types.find(tensor.type_name());
    if (tensor.may_be_quantised() && found == model.tensor_types.end())
      throw input_error(fmt::format("{}: the type of the tensor {} is missing", source, tensor.name),
                        "take the types from the model's GGUF file: plan again with it");
    if (found != model.tensor_types.end() && dtype_row(found->second).file_name.empty())
      throw input_error(fmt::format("{}: {} cannot be the type of {}", source, name_of(found->second), tensor.name),
                        "take the types from the model's GGUF file: plan again with it");
  }
  set_tensor_types(model.arch, model.tensor_types);
  model.arch.checkpoint_type = DType::file;
}

// What config.json says of a folder whose experts are quantised.
void take_quantised_experts(Model& model, const std::string& source) {
  const std::optional<DType> type = family_of(model.arch).quantised_experts;
  if (!has_quantised_experts(model.config, type)) return;
  for (const TensorSpec& tensor : part_tensors(model.arch, whole_model(model.arch)))
    if (tensor.may_be_quantised())
      model.tensor_types.emplace(tensor.type_name(), tensor.stacked_name.empty() ? DType::bf16 : *type);
  take_tensor_types(model, source);
}

std::string head_tensor_name(const Architecture& arch) {
  return std::string(names_of_role(family_of(arch), "head").hugging_face).append(".weight");
}

// Under all names that files have for them.
std::vector<std::string> tensor_names(const Architecture& arch) {
  std::vector<std::string> names = {head_tensor_name(arch)};  // where it is tied, it is the embedding
  for (const TensorSpec& tensor : part_tensors(arch, whole_model(arch))) {
    names.push_back(tensor.name);
    if (!tensor.stacked_name.empty()) names.push_back(tensor.stacked_name);
  }
  return names;
}

// What the weights in the folder of config.json say, where there are some that can be read: planning needs none.
void read_weights(Model& model, const fs::path& config_json) {
  std::optional<Checkpoint> checkpoint;
  try {
    checkpoint.emplace(config_json.parent_path(), tensor_naming);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
    return;
  }
  try {
    if (has_own_head(model.arch.tied_embeddings, embedding_tensors(model.arch).front().name,
                     head_tensor_name(model.arch), *checkpoint)) {
      model.config.set("tie_word_embeddings", false);
      model.arch.tied_embeddings = false;
    }
  } catch (Error& error) {
    throw error.prepend_context(config_json.string());
  }
  model.unread = unread_tensors(checkpoint->names(), tensor_names(model.arch));
}

// Where all matrices are fp32, or all bf16, that is the type of the weights, as of a folder.
Model read_gguf_model(const fs::path& path) {
  const auto parts = open_gguf(path);
  Model model;
  const Value* name = parts.front()->metadata().find("general.name");
  model.name = name && name->is_string() && !name->as_string().empty() ? name->as_string() : path.stem().string();
  model.config = gguf_config(parts);
  model.tensor_types = gguf_tensor_types(parts);
  for (const DType alike : {DType::fp32, DType::bf16})
    if (std::all_of(model.tensor_types.begin(), model.tensor_types.end(),
                    [&](const auto& tensor) { return tensor.second == alike; })) {
      model.tensor_types.clear();
      model.config.set("torch_dtype", dtype_row(alike).config_name);
      break;
    }
  model.arch = read_architecture(model.config, path.string());
  take_tensor_types(model, path.string());
  model.digest = digest_of(parts);
  std::vector<std::string> names;
  for (const auto& part : parts)
    for (const auto& [stored, tensor] : part->tensors()) {
      const Family& family = family_of(model.arch);
      const std::string known = hugging_face_name(family.tensors, stored);
      const std::vector<std::string> inside = names_inside(family.gguf->packed, stored);
      names.insert(names.end(), inside.begin(), inside.end());
      if (inside.empty()) names.push_back(known.empty() ? stored : known);
    }
  model.unread = unread_tensors(names, tensor_names(model.arch));
  return model;
}

}  // namespace

Schema<Model> schema_of(Bound<Model>) {
  return Schema<Model>("model", "The model that is served.")
      .field("name", &Model::name, "Shown in reports.", {.required = true})
      .field("config", &Model::config, "The model's config.json.", {.required = true})
      .field("tensor_types", &Model::tensor_types, "Types of the matrices of a GGUF file, by name: for `file`.")
      .field("source", &Model::source, "Where it came from: `OWNER/NAME[:FILE.gguf]` on the Hugging Face hub.")
      .field("revision", &Model::revision, "Commit of the source.")
      .field(
          "digest", &Model::digest,
          "`sha256:` of config.json and the headers of the weights, which `motley serve` compares. Default: not known.")
      .field("context", &Model::context, "The longest sequence, in tokens. Default: the model's own.",
             {.min = 1, .max = max_context})
      .derive([](Model& model, const Reader& reader) {
        const std::string& path = reader.path();
        if (!model.digest.empty() && !is_digest(model.digest))
          reader.member("digest", *reader.value().find("digest"))
              .fail(fmt::format("expected sha256: and 64 hexadecimal digits, found \"{}\"", model.digest),
                    "leave it out, or plan again");
        model.arch = read_architecture(model.config,
                                       fmt::format("{}: {}{}config", reader.source(), path, path.empty() ? "" : "."));
        take_tensor_types(model, reader.source());
        set_context(model, model.context.value_or(0));
      });
}

void set_tensor_types(Architecture& arch, std::map<std::string, DType> types) {
  std::vector<LayerKind> kinds;
  std::vector<std::uint16_t> kind_of_layer;
  for (std::int64_t layer = 0; layer < arch.layers; ++layer) {
    LayerKind kind = arch.kind(layer);
    kind.tensor_types.clear();
    for (const TensorSpec& tensor : block_tensors(arch, layer))
      if (const auto type = types.find(tensor.type_name()); type != types.end())
        kind.tensor_types.emplace(tensor.role, type->second);
    const auto known = std::ranges::find(kinds, kind);
    kind_of_layer.push_back(static_cast<std::uint16_t>(known - kinds.begin()));
    if (known == kinds.end()) kinds.push_back(std::move(kind));
  }
  arch.kinds = std::move(kinds);
  arch.kind_of_layer = arch.kinds.size() > 1 ? std::move(kind_of_layer) : std::vector<std::uint16_t>{};
  arch.tensor_types = std::move(types);
}

void set_context(Model& model, std::int64_t tokens) {
  if (tokens == 0) return;
  const std::int64_t positions = model.arch.position_rows - model.arch.position_offset;
  if (model.arch.position == PositionKind::learned && tokens > positions)
    throw input_error(fmt::format("a context of {} tokens is beyond the {} positions that {} has learned", tokens,
                                  positions, model.name),
                      fmt::format("choose at most {}", positions));
  model.context = tokens;
  model.arch.context = tokens;
}

Model read_model(const std::string& name_or_path) {
  const fs::path path = find_config(name_or_path);
  if (is_gguf(path)) return read_gguf_model(path);
  Model model;
  model.name = fs::weakly_canonical(path).parent_path().filename();
  model.config = text_config(read_document(path));
  model.arch = read_architecture(model.config, path.string());
  refuse_quantised_folder(path.parent_path());
  model.digest = folder_digest(path);
  read_weights(model, path);
  take_quantised_experts(model, path.string());

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
