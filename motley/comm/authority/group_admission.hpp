// Who may come into a group: tokens that expire and can be taken back, which names were certified by them, and members
// that may not come any more.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace motley {

// What is known, to be kept over the end of a process. Times are seconds since 1970.
struct AdmissionRecord {
  struct Token {
    double expires_s = 0;
    bool revoked = false;
    bool operator==(const Token&) const = default;
  };
  // Of a name, while a certificate that names it is valid.
  struct Certified {
    std::string key;       // that has the name: its fingerprint
    std::string token;     // the start of the one that it came by; empty: not known
    double expires_s = 0;  // its newest certificate
    bool revoked = false;
    bool operator==(const Certified&) const = default;
  };
  std::map<std::string, Token> tokens = {};
  std::map<std::string, Certified> certified = {};  // by name
  std::set<std::string> revoked_members = {};       // for good
  bool operator==(const AdmissionRecord&) const = default;
};

// Who asks for a certificate.
struct Applicant {
  std::string name, key;  // the key's fingerprint
  std::string token;      // empty: a certificate of that name was shown instead
};

// Safe to use from several threads. A change is kept before it counts: where that fails, it has not happened.
class GroupAdmission {
 public:
  static constexpr std::size_t most_names = 2048, most_names_of_token = 1024;  // certified at once

  explicit GroupAdmission(AdmissionRecord kept = {}) : record_(std::move(kept)) {}
  // Without tokens and certificates that have expired.
  AdmissionRecord record() const;
  // What is given every change from now on; may throw. Empty: nothing is.
  void keep_with(std::function<void(const AdmissionRecord&)> keep);

  // The name of the driver's own machine, and the token that alone brings it in, with whatever key it comes: who keeps
  // the deployment may take it up where nothing else is left. Both hold while this process lives, and are not kept.
  std::string reserve(const std::string& member);
  // A new one, in addition to those that are valid, for this many seconds. Throws an input error where these are not
  // positive.
  std::string new_token(double lifetime_s);
  // Every token so far is refused from now on.
  void revoke_tokens();
  // This member is refused from now on, whatever it shows, and with it every token so far, since it knows one, and
  // every name that the same token certified, but for members that are `there`. Returns the names of these.
  std::vector<std::string> revoke(const std::string& member, const std::set<std::string>& there);

  struct Certification {
    std::string objection = {};  // why there is none; empty: there is one
    bool first = false;          // of this name
  };
  // A key has one name, which no other key gets while a certificate of it is valid. Throws what keeping throws.
  Certification certify(const Applicant& applicant, double valid_s);

  // Why that is refused; empty: it is not.
  std::string token_objection(const std::string& token) const;
  std::string member_objection(const std::string& member) const;

 private:
  struct Reserved {
    std::string name, token;
  };
  static std::string objection_to(const Applicant& applicant, const AdmissionRecord& record, const Reserved& reserved);
  template <class Apply>
  void change(const Apply& apply);

  std::mutex changing_;  // held while a change is kept, which may take its time
  std::function<void(const AdmissionRecord&)> keep_;
  mutable std::mutex mutex_;
  AdmissionRecord record_;
  Reserved reserved_;
};

}  // namespace motley
