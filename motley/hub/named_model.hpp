// What --model names: a file, a folder, a name in data/models, or OWNER/NAME[:FILE.gguf] on the Hugging Face hub.
#pragma once

#include <optional>
#include <string>

#include "motley/model/model.hpp"

namespace motley {

// A model on the hub: a repository, and a file in it where that is a GGUF file's.
struct HubName {
  std::string repository;
  std::string file;
  bool operator==(const HubName&) const = default;
};
// None where the text has another form. It says nothing about whether there is such a model, here or there.
std::optional<HubName> parse_hub_name(const std::string& text);

enum class ModelFiles { configuration, all };

// A path that read_model() and workers take, or a name in data/models. What exists here wins; otherwise the files that
// are needed and not in the cache are downloaded. `revision` of a hub's model: empty for the newest.
struct LocatedModel {
  std::string path;
  std::string source, revision;  // of a hub's model
};
LocatedModel locate_model(const std::string& named, ModelFiles files, const std::string& revision = {});

// For planning: the configuration alone is located.
Model read_named_model(const std::string& named, const std::string& revision = {});
// The revision that a plan was made for, where it is for this name.
std::string planned_revision(const Model& planned, const std::string& named);

}  // namespace motley
