#include "motley/fleet/saved_deployment.hpp"

#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/value.hpp"

namespace motley {
namespace {

const Value& part_of(const Value& value, const char* name) {
  const Value* part = value.is_object() ? value.find(name) : nullptr;
  if (part == nullptr) throw input_error("no deployment", "start a new one");
  return *part;
}

AdmissionRecord admission_of(const Value& value) {
  AdmissionRecord record;
  for (const Value& token : part_of(value, "tokens").as_array())
    record.tokens[part_of(token, "token").as_string()] = {part_of(token, "expires_s").as_number(),
                                                          part_of(token, "revoked").as_bool()};
  for (const Value& entry : part_of(value, "certified").as_array())
    record.certified[part_of(entry, "name").as_string()] = {
        part_of(entry, "key").as_string(), part_of(entry, "token").as_string(), part_of(entry, "expires_s").as_number(),
        part_of(entry, "revoked").as_bool()};
  for (const Value& member : part_of(value, "revoked_members").as_array())
    record.revoked_members.insert(member.as_string());
  return record;
}

}  // namespace

std::string to_text(const SavedDeployment& deployment) {
  Value::Array tokens, certified, members;
  for (const auto& [token, state] : deployment.admission.tokens)
    tokens.push_back(Value::object({{"token", token}, {"expires_s", state.expires_s}, {"revoked", state.revoked}}));
  for (const auto& [name, of_name] : deployment.admission.certified)
    certified.push_back(Value::object({{"name", name},
                                       {"key", of_name.key},
                                       {"token", of_name.token},
                                       {"expires_s", of_name.expires_s},
                                       {"revoked", of_name.revoked}}));
  for (const std::string& member : deployment.admission.revoked_members) members.push_back(member);
  return to_json(Value::object({{"authority", deployment.authority},
                                {"key", deployment.key},
                                {"coordinator", deployment.coordinator},
                                {"driver", deployment.driver},
                                {"relay", deployment.relay},
                                {"tokens", Value(std::move(tokens))},
                                {"certified", Value(std::move(certified))},
                                {"revoked_members", Value(std::move(members))}}));
}

std::optional<SavedDeployment> saved_deployment_of(const std::string& text) {
  try {
    const Value kept = parse_json(text, "a deployment");
    SavedDeployment deployment{.authority = part_of(kept, "authority").as_string(),
                               .key = part_of(kept, "key").as_string(),
                               .coordinator = part_of(kept, "coordinator").as_string(),
                               .driver = part_of(kept, "driver").as_string(),
                               .admission = admission_of(kept),
                               .relay = part_of(kept, "relay").as_string()};
    Authority::load(deployment.authority);
    return deployment;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<SavedDeployment> read_saved_deployment(const std::filesystem::path& file) {
  return std::filesystem::exists(file) ? saved_deployment_of(read_file(file)) : std::nullopt;
}

void save_deployment(const std::filesystem::path& file, const SavedDeployment& deployment) {
  replace_file(file, to_text(deployment), Readers::owner);
}

}  // namespace motley
