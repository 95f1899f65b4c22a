#include "motley/cli/group_members.hpp"

#include <fmt/format.h>

#include <set>
#include <sstream>

#include "motley/base/error.hpp"
#include "motley/comm/authority/group_folder.hpp"
#include "motley/comm/net/listener.hpp"

namespace motley::cli {

void add_member_options(CLI::App& verb, MemberOptions& options, int most_members) {
  verb.add_option("--members", options.members,
                  "Addresses of all members: HOST:PORT or NAME=HOST:PORT, comma-separated");
  verb.add_option("--rank", options.rank, "Rank of this process: its place in --members, from 0")
      ->check(CLI::Range(0, most_members - 1));
  verb.add_option("--key", options.key_file, "File with the group's secret, equal on all members");
  auto* folder =
      verb.add_option("--folder", options.folder, "Folder from `motley group issue`: certificate, key and secret")
          ->type_name("DIR");
  auto* certificate = verb.add_option("--certificate", options.certificate, "Certificate of this member (PEM)")
                          ->type_name("FILE")
                          ->excludes(folder);
  auto* private_key =
      verb.add_option("--private-key", options.private_key, "Private key of the certificate (PEM)")->type_name("FILE");
  auto* authority =
      verb.add_option("--authority", options.authority, "CA certificate that signs the members' certificates (PEM)")
          ->type_name("FILE");
  certificate->needs(private_key)->needs(authority);
  verb.add_flag("--plain", options.plain, "Use no TLS between machines");
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

Epoch epoch_of_members(const MemberOptions& options, const std::string& group) {
  Epoch epoch;
  epoch.group = group;
  std::set<std::string> addresses;
  for (const auto& member : split(options.members)) {
    const auto equals = member.find('=');
    const std::string address = equals == std::string::npos ? member : member.substr(equals + 1);
    if (!addresses.insert(address).second)
      throw input_error(fmt::format("--members has the address {} twice: every member needs its own", address),
                        "give each member a port of its own");
    epoch.members.push_back(
        {.id = equals == std::string::npos ? std::to_string(epoch.members.size()) : member.substr(0, equals),
         .incarnation = 0,
         .host = host_of(address),
         .address = address});
  }
  if (options.rank < 0)
    throw input_error("--members needs --rank", "give the place of this member in --members, from 0");
  if (options.rank >= static_cast<int>(epoch.members.size()))
    throw input_error(fmt::format("--rank must be less than the number of members, found {} of {}", options.rank,
                                  epoch.members.size()),
                      "count the addresses of --members from 0");
  return epoch;
}

FabricOptions fabric_of_member(const MemberOptions& options, const std::string& address) {
  FabricOptions fabric;
  fabric.listen = address;
  if (!options.folder.empty()) {
    GroupFolder folder = read_group_folder(options.folder);
    fabric.key = folder.token;
    fabric.identity = folder.identity;
  }
  if (!options.certificate.empty())
    fabric.identity =
        TlsIdentity{read_file(options.certificate), read_file(options.private_key), read_file(options.authority)};
  if (!options.key_file.empty()) fabric.key = read_secret(options.key_file);
  if (fabric.identity) fabric.encryption = Encryption::always;
  if (options.plain) fabric.encryption = Encryption::never;
  fabric.shared_memory = options.transport == "shm" ? SharedMemoryUse::same_host : SharedMemoryUse::never;
  return fabric;
}

}  // namespace motley::cli
