#include "motley/comm/authority/group_folder.hpp"

#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/base/files.hpp"
#include "motley/base/value.hpp"
#include "motley/comm/net/handshake.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

constexpr const char* authority_file = "authority.pem";
constexpr const char* authority_key_file = "authority-key.pem";
constexpr const char* certificate_file = "certificate.pem";
constexpr const char* key_file = "key.pem";
constexpr const char* token_file = "token";

struct FolderFile {
  std::string name, text;
  Readers readers = Readers::owner;
};

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  return text;
}

constexpr const char* writable = "check that the folder is writable, and that the disk has space";

enum class Present { refused, same };  // files that are there already

// A refusal and a failure leave everything as it was.
void write_folder(const std::string& folder, const std::vector<FolderFile>& files, Present present) {
  std::vector<const FolderFile*> missing;
  for (const FolderFile& file : files) {
    const std::string path = (fs::path(folder) / file.name).string();
    if (!fs::exists(path))
      missing.push_back(&file);
    else if (present == Present::refused || trimmed(read_file(path)) != trimmed(file.text))
      throw input_error(fmt::format("{} already exists", path),
                        "choose another folder: existing files are not overwritten");
  }
  if (!fs::exists(folder)) {
    std::error_code failure;
    if (const fs::path parent = fs::absolute(folder).parent_path(); !parent.empty())
      fs::create_directories(parent, failure);
    if (::mkdir(folder.c_str(), 0700) != 0)
      throw environment_error(fmt::format("cannot create the folder {}", folder), writable);
  }
  std::size_t written = 0;
  try {
    for (; written < missing.size(); ++written)
      replace_file(fs::path(folder) / missing[written]->name, missing[written]->text, missing[written]->readers);
  } catch (const Error&) {
    std::error_code ignored;
    for (std::size_t i = 0; i <= written; ++i) fs::remove(fs::path(folder) / missing[i]->name, ignored);
    throw;
  }
}

std::vector<FolderFile> files_of(const GroupFolder& group) {
  return {{authority_file, group.identity.authority, Readers::all},
          {token_file, group.token + "\n"},
          {certificate_file, group.identity.certificate, Readers::all},
          {key_file, group.identity.key}};
}

}  // namespace

GroupFolder create_group_folder(const std::string& folder, const std::string& group) {
  constexpr int coordinator_days = 365;
  const Authority authority = Authority::create(group);
  GroupFolder made{group, make_join_token(), authority.issue(std::string(coordinator_name), coordinator_days),
                   authority};
  auto files = files_of(made);
  files.push_back({authority_key_file, authority.key()});
  write_folder(folder, files, Present::refused);
  return made;
}

GroupFolder issue_member_folder(const GroupFolder& group, const std::string& member, int valid_days,
                                const std::string& folder) {
  if (!group.authority)
    throw input_error("this folder does not have the authority's key, which signs certificates",
                      fmt::format("use the folder from `motley group create`: it has {}", authority_key_file));
  GroupFolder made{group.group, group.token, group.authority->issue(member, valid_days), std::nullopt};
  write_folder(folder, files_of(made), Present::same);
  return made;
}

std::string read_secret(const std::string& file) {
  std::string secret = trimmed(read_file(file));
  if (secret.empty())
    throw input_error(fmt::format("{} is empty", file),
                      "it holds the group's secret in one line: copy the token from the coordinator's folder");
  return secret;
}

GroupFolder read_group_folder(const std::string& folder) {
  const auto path = [&](const char* name) { return (fs::path(folder) / name).string(); };
  if (!fs::exists(path(authority_file)))
    throw input_error(fmt::format("{} is not a group's folder: {} is missing", folder, authority_file),
                      fmt::format("make one with `motley group create {}`", folder));
  GroupFolder group;
  group.identity = {read_file(path(certificate_file)), read_file(path(key_file)), read_file(path(authority_file))};
  group.token = read_secret(path(token_file));
  const auto checked = [&](const char* name, const auto& read) {
    try {
      return read();
    } catch (Error& error) {
      throw error.prepend_context(path(name));
    }
  };
  group.group = checked(authority_file, [&] { return certificate_facts(group.identity.authority).name; });
  if (!is_issued_by(group.identity.certificate, group.identity.authority))
    throw input_error(
        fmt::format("{} is not signed by the authority in the same folder", path(certificate_file)),
        fmt::format("copy all files of one folder; make a member's with `motley group issue DIR MEMBER`"));
  checked(key_file, [&] { return TlsContext(group.identity); });
  if (fs::exists(path(authority_key_file)))
    group.authority = checked(authority_key_file, [&] {
      return Authority::load(group.identity.authority + read_file(path(authority_key_file)));
    });
  return group;
}

void check_coordinators_certificate(const std::string& certificate, const std::string& folder) {
  const CertificateFacts facts = certificate_facts(certificate);
  const std::string renewal = fmt::format(
      "run rm {0}/certificate.pem {0}/key.pem, then on the machine with the authority's key: motley group issue DIR "
      "{1} -o {0}",
      folder, coordinator_name);
  if (facts.name != coordinator_name)
    throw input_error(fmt::format("{}/certificate.pem names \"{}\", not \"{}\"", folder, facts.name, coordinator_name),
                      renewal);
  if (facts.expires_s <= std::time(nullptr))
    throw input_error(fmt::format("{}/certificate.pem has expired", folder), renewal);
}

}  // namespace motley
