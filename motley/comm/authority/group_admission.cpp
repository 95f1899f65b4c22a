#include "motley/comm/authority/group_admission.hpp"

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/comm/authority/authority.hpp"

namespace motley {

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
