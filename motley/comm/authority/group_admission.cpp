#include "motley/comm/authority/group_admission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/comm/authority/authority.hpp"
#include "motley/comm/authority/machine_name.hpp"

namespace motley {

namespace {

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Tells tokens apart, and is too little to be shown as one.
std::string start_of(const std::string& token) { return token.substr(0, 16); }

template <class Entries>
void forget_expired(Entries& entries) {
  std::erase_if(entries, [now_s = unix_time_s()](const auto& entry) { return entry.second.expires_s <= now_s; });
}

std::string revocation_of(const std::string& member, const AdmissionRecord& record) {
  const auto certified = record.certified.find(member);
  const bool revoked =
      record.revoked_members.contains(member) || (certified != record.certified.end() && certified->second.revoked);
  return revoked ? fmt::format("the member \"{}\" has been revoked", member) : "";
}

}  // namespace

// Why this key does not get this name.
std::string GroupAdmission::objection_to(const Applicant& applicant, const AdmissionRecord& record,
                                         const Reserved& reserved) {
  if (std::string revoked = revocation_of(applicant.name, record); !revoked.empty()) return revoked;
  if (const auto token = record.tokens.find(applicant.token); token != record.tokens.end() && token->second.revoked)
    return "the token has been revoked";  // since it was looked at
  const bool renews = applicant.token.empty();
  const std::string folded = folded_machine_name(applicant.name);
  const bool owned = !renews && !reserved.token.empty() && same_secret(applicant.token, reserved.token);
  if (owned && applicant.name == reserved.name) return {};
  if (!renews && folded == folded_machine_name(reserved.name))
    return fmt::format("another machine is called \"{}\": choose another name with --name (it is the driver's)",
                       reserved.name);
  std::size_t of_token = 0;
  for (const auto& [name, certified] : record.certified) {
    const bool same = name == applicant.name;
    if (same && (renews || certified.key == applicant.key)) return {};
    if (same || folded_machine_name(name) == folded)
      return fmt::format(
          "another machine is called \"{}\": choose another name with --name (this one is free again in "
          "{}, if that machine stays away)",
          name, human_seconds(certified.expires_s - unix_time_s()));
    if (certified.key == applicant.key) return fmt::format("this key has a name already: \"{}\"", name);
    if (!renews && certified.token == start_of(applicant.token)) ++of_token;
  }
  if (record.certified.size() >= GroupAdmission::most_names || of_token >= GroupAdmission::most_names_of_token)
    return "too many names have been certified: get a new link (motley deployment invite), and revoke the one that let "
           "them in";
  return {};
}

AdmissionRecord GroupAdmission::record() const {
  const std::lock_guard lock(mutex_);
  AdmissionRecord record = record_;
  forget_expired(record.tokens);
  forget_expired(record.certified);
  return record;
}

void GroupAdmission::keep_with(std::function<void(const AdmissionRecord&)> keep) {
  const std::lock_guard changing(changing_);
  keep_ = std::move(keep);
}

template <class Apply>
void GroupAdmission::change(const Apply& apply) {
  const std::lock_guard changing(changing_);
  AdmissionRecord next = record_;  // which changes under both mutexes
  forget_expired(next.certified);
  apply(next);
  if (next == record_) return;
  if (keep_) {
    AdmissionRecord kept = next;
    forget_expired(kept.tokens);  // that one has expired, and not that it is unknown, is told while this process lives
    keep_(kept);
  }
  const std::lock_guard lock(mutex_);
  record_ = std::move(next);
}

std::string GroupAdmission::reserve(const std::string& member) {
  const std::lock_guard lock(mutex_);
  reserved_ = {member, make_join_token()};
  return reserved_.token;
}

std::string GroupAdmission::new_token(double lifetime_s) {
  if (!(lifetime_s > 0))
    throw input_error(fmt::format("a token's lifetime must be positive, found {} s", lifetime_s),
                      "give a time such as \"24 h\"");
  const std::string token = make_join_token();
  change([&](AdmissionRecord& record) { record.tokens[token] = {unix_time_s() + lifetime_s}; });
  return token;
}

void GroupAdmission::revoke_tokens() {
  change([](AdmissionRecord& record) {
    for (auto& [token, state] : record.tokens) state.revoked = true;
  });
}

std::vector<std::string> GroupAdmission::revoke(const std::string& member, const std::set<std::string>& there) {
  std::vector<std::string> stay;
  change([&](AdmissionRecord& record) {
    for (auto& [token, state] : record.tokens) state.revoked = true;
    record.revoked_members.insert(member);
    const auto found = record.certified.find(member);
    if (found == record.certified.end() || found->second.token.empty()) return;
    for (auto& [name, certified] : record.certified) {
      if (name == member || certified.revoked || certified.token != found->second.token) continue;
      if (there.contains(name))
        stay.push_back(name);
      else
        certified.revoked = true;
    }
  });
  return stay;
}

GroupAdmission::Certification GroupAdmission::certify(const Applicant& applicant, double valid_s) {
  Certification made;
  Reserved reserved;
  {
    const std::lock_guard lock(mutex_);
    reserved = reserved_;
  }
  change([&](AdmissionRecord& record) {
    if (made.objection = objection_to(applicant, record, reserved); !made.objection.empty()) return;
    AdmissionRecord::Certified& certified = record.certified[applicant.name];
    made.first = certified.key.empty();
    if (made.first) certified.token = start_of(applicant.token);
    certified.key = applicant.key;
    certified.expires_s = std::max(certified.expires_s, unix_time_s() + valid_s);
  });
  return made;
}

std::string GroupAdmission::token_objection(const std::string& token) const {
  const std::lock_guard lock(mutex_);
  if (!reserved_.token.empty() && same_secret(token, reserved_.token)) return {};
  const AdmissionRecord::Token* found = nullptr;
  for (const auto& [known, state] : record_.tokens)
    if (same_secret(token, known)) found = &state;
  if (found == nullptr) return "the token is not this group's";
  if (found->revoked) return "the token has been revoked";
  if (const double ago_s = unix_time_s() - found->expires_s; ago_s >= 0)
    return fmt::format("the token expired {} ago", human_seconds(ago_s));
  return {};
}

std::string GroupAdmission::member_objection(const std::string& member) const {
  const std::lock_guard lock(mutex_);
  return revocation_of(member, record_);
}

}  // namespace motley
