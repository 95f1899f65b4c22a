#include "motley/comm/authority/group_admission.hpp"

#include <fmt/format.h>

#include <chrono>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/comm/authority/authority.hpp"

namespace motley {

namespace {

double unix_time_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

GroupAdmission::GroupAdmission(const AdmissionRecord& kept) : revoked_members_(kept.revoked_members) {
  for (const auto& [token, state] : kept.tokens)
    tokens_[token] = {.expires = deadline_in(state.expires_s - unix_time_s()), .revoked = state.revoked};
}

AdmissionRecord GroupAdmission::record() const {
  const std::lock_guard lock(mutex_);
  AdmissionRecord record{.revoked_members = revoked_members_};
  for (const auto& [token, state] : tokens_)
    if (const double left_s = seconds_until(state.expires); left_s > 0)
      record.tokens[token] = {unix_time_s() + left_s, state.revoked};
  return record;
}

std::string GroupAdmission::new_token(double lifetime_s) {
  if (!(lifetime_s > 0))
    throw input_error(fmt::format("a token's lifetime must be positive, found {} s", lifetime_s),
                      "give a time such as \"24 h\"");
  const std::string token = make_join_token();
  const std::lock_guard lock(mutex_);
  tokens_[token] = {.expires = deadline_in(lifetime_s)};
  return token;
}

void GroupAdmission::revoke_tokens() {
  const std::lock_guard lock(mutex_);
  for (auto& [token, state] : tokens_) state.revoked = true;
}

void GroupAdmission::revoke(const std::string& member) {
  revoke_tokens();
  const std::lock_guard lock(mutex_);
  revoked_members_.insert(member);
}

std::string GroupAdmission::token_objection(const std::string& token) const {
  const std::lock_guard lock(mutex_);
  const Token* found = nullptr;
  for (const auto& [known, state] : tokens_)
    if (same_secret(token, known)) found = &state;
  if (found == nullptr) return "the token is not this group's";
  if (found->revoked) return "the token has been revoked";
  if (const double ago_s = seconds_since(found->expires); ago_s >= 0)
    return fmt::format("the token expired {} ago", human_seconds(ago_s));
  return {};
}

std::string GroupAdmission::member_objection(const std::string& member) const {
  const std::lock_guard lock(mutex_);
  return revoked_members_.contains(member) ? fmt::format("the member \"{}\" has been revoked", member) : "";
}

}  // namespace motley
