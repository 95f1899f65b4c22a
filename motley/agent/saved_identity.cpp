#include "motley/agent/saved_identity.hpp"

#include <array>
#include <ctime>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/value.hpp"

namespace motley {
namespace {

using Texts = std::array<std::pair<const char*, std::string*>, 4>;

Texts texts_of(Enrolment& enrolment) {
  return {{{"certificate", &enrolment.identity.certificate},
           {"private_key", &enrolment.identity.key},
           {"authority", &enrolment.identity.authority},
           {"key", &enrolment.key}}};
}

}  // namespace

std::optional<Enrolment> read_saved_identity(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  try {
    const Value kept = parse_json(read_file(file), file.string());
    Enrolment enrolment;
    for (const auto& [name, text] : texts_of(enrolment)) {
      const Value* given = kept.is_object() ? kept.find(name) : nullptr;
      if (given == nullptr || !given->is_string()) return std::nullopt;
      *text = given->as_string();
    }
    TlsContext{enrolment.identity};  // throws where the texts are no identity
    enrolment.valid_s =
        static_cast<double>(certificate_facts(enrolment.identity.certificate).expires_s - std::time(nullptr));
    if (enrolment.valid_s > 0 && !enrolment.key.empty()) return enrolment;
  } catch (const Error&) {
    // Damaged: it enrols as a new one does.
  }
  return std::nullopt;
}

void save_identity(const std::filesystem::path& file, const Enrolment& enrolment) {
  Enrolment kept = enrolment;
  Value value = Value::object();
  for (const auto& [name, text] : texts_of(kept)) value.set(name, *text);
  replace_file(file, to_json(value), Readers::owner);
}

std::string saved_key(const std::filesystem::path& file, const std::string& member) {
  try {
    const std::string kept = read_file(file.string());
    return apply_for_certificate(member, kept).key;  // throws where the text is not a key
  } catch (const Error&) {
    // There is none yet, or it is damaged.
  }
  std::string made = apply_for_certificate(member).key;
  try {
    std::error_code ignored;
    std::filesystem::create_directories(file.parent_path(), ignored);
    replace_file(file.string(), made, Readers::owner);
  } catch (const Error&) {
    // It serves this process alone.
  }
  return made;
}

}  // namespace motley
