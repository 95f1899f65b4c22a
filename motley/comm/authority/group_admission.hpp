// Who may come into a group: tokens that expire and can be taken back, and members that may not come any more.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "motley/base/clock.hpp"

namespace motley {

// What is known, to be kept over the end of a process.
struct AdmissionRecord {
  struct Token {
    double expires_s = 0;  // since 1970
    bool revoked = false;
    bool operator==(const Token&) const = default;
  };
  std::map<std::string, Token> tokens = {};
  std::set<std::string> revoked_members = {};
  bool operator==(const AdmissionRecord&) const = default;
};

// Safe to use from several threads.
class GroupAdmission {
 public:
  explicit GroupAdmission(const AdmissionRecord& kept = {});
  // Without tokens that have expired.
  AdmissionRecord record() const;

  // A new one, beside those that are valid; for so many seconds. Throws an input error where these are not positive.
  std::string new_token(double lifetime_s);
  // Every token so far is refused from now on.
  void revoke_tokens();
  // This member is refused from now on, whatever it shows, and with it every token so far, since it knows one.
  void revoke(const std::string& member);

  // Why that is refused; empty: it is not.
  std::string token_objection(const std::string& token) const;
  std::string member_objection(const std::string& member) const;

 private:
  struct Token {
    Instant expires;
    bool revoked = false;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Token> tokens_;
  std::set<std::string> revoked_members_;
};

}  // namespace motley
