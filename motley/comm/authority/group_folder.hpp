// A group's secrets on disk: what a coordinator or a member carries to its machine.
//
//   authority.pem                 the authority's certificate
//   token                         the join token
//   certificate.pem, key.pem      of the coordinator, or of one member
//   authority-key.pem             where certificates are issued
//
// Keys and token can be read by their owner alone.
#pragma once

#include <optional>
#include <string>

#include "motley/comm/authority/authority.hpp"

namespace motley {

struct GroupFolder {
  std::string group;  // named by the authority's certificate
  std::string token;
  TlsIdentity identity;
  std::optional<Authority> authority;  // where its key is there
};

// A new group: an authority, a coordinator's certificate for a year, a token. The folder is made where it is missing.
// Throws an input error where one of the files already exists: nothing is overwritten. An environment error leaves none
// of them, so that the same call may be made again.
GroupFolder create_group_folder(const std::string& folder, const std::string& group);

// A folder for one member, with a certificate from the group's authority. Files that are there already must be the
// same. Throws an input error where they are not, or where the group's folder holds no authority's key.
GroupFolder issue_member_folder(const GroupFolder& group, const std::string& member, int valid_days,
                                const std::string& folder);

// A group's secret: a file of one line, without its end. Throws an input error where it is empty: that would be none.
std::string read_secret(const std::string& file);

// Throws an input error, with the file, where one is missing, is not what it should be, or does not fit the others.
GroupFolder read_group_folder(const std::string& folder);

// Of a coordinator's folder: members that ask for their certificates believe no other name. Throws an input error where
// the certificate names another, or has expired.
void check_coordinators_certificate(const std::string& certificate, const std::string& folder);

}  // namespace motley
