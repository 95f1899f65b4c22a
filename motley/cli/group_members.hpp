// Commands that are started once per member of a group: who the members are, which of them this is, and how they trust
// each other.
#pragma once

#include <string>
#include <vector>

#include "motley/cli/command.hpp"
#include "motley/comm/net/epoch.hpp"
#include "motley/comm/transport/fabric.hpp"

namespace motley::cli {

struct MemberOptions {
  std::string members;  // "10.0.0.1:4711" or "anna=10.0.0.1:4711" of all, comma between
  int rank = -1;
  std::string folder;  // from `motley group issue`: certificate and secret
  std::string certificate, private_key, authority;
  std::string key_file;
  bool plain = false;
  std::string transport = "shm";  // between members of one host

  bool certified() const { return !folder.empty() || !certificate.empty(); }
};

// --members, --rank, --key, --folder, --certificate, --private-key, --authority, --plain.
void add_member_options(CLI::App& verb, MemberOptions& options, int most_members);

// The parts of a list with commas between; none of an empty one.
std::vector<std::string> split(const std::string& text);

// One epoch of all members; without a name, a member is called by its rank. Throws an input error that names the
// address, or the rank, that is wrong.
Epoch epoch_of_members(const MemberOptions& options, const std::string& group);

// For the member that listens at `address`. With a certificate the connection is under TLS on the loopback, too.
FabricOptions fabric_of_member(const MemberOptions& options, const std::string& address);

}  // namespace motley::cli
