#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>
#include <filesystem>

#include "motley/base/error.hpp"
#include "motley/base/printable.hpp"
#include "motley/base/value.hpp"
#include "motley/cli/command.hpp"
#include "motley/comm/authority/group_folder.hpp"

namespace motley::cli {
namespace {

constexpr double day_s = 24 * 3600;

struct GroupVerbOptions {
  std::string folder, group = "group", member, into;
  int days = 30;
  bool json = false;
};

std::string date(std::int64_t time_s) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(time_s)));
}

std::string validity(const CertificateFacts& facts) {
  const double left_s = static_cast<double>(facts.expires_s - std::time(nullptr));
  if (left_s <= 0) return fmt::format("expired on {}", date(facts.expires_s));
  return fmt::format("valid until {} ({:.1f} days)", date(facts.expires_s), left_s / day_s);
}

Value facts_json(const CertificateFacts& facts) {
  return Value::object({{"name", facts.name}, {"fingerprint", facts.fingerprint}, {"expires_s", facts.expires_s}});
}

// What is there, never what is secret.
void show(const GroupFolder& group, const std::string& folder, const std::string& next, bool json) {
  const CertificateFacts authority = certificate_facts(group.identity.authority);
  const CertificateFacts own = certificate_facts(group.identity.certificate);
  if (json) {
    const Value result = Value::object({{"group", group.group},
                                        {"folder", folder},
                                        {"authority", facts_json(authority)},
                                        {"certificate", facts_json(own)},
                                        {"issues", group.authority.has_value()},
                                        {"token_file", (std::filesystem::path(folder) / "token").string()}});
    fmt::print("{}\n", to_json(result, 1));
    return;
  }
  fmt::print("group        {}, in {}\n", printable(group.group), folder);
  fmt::print("authority    {}\n             {}; its key is {}\n", authority.fingerprint, validity(authority),
             group.authority ? "here: this folder can issue certificates" : "elsewhere");
  fmt::print("certificate  of \"{}\", {}\n", printable(own.name), validity(own));
  fmt::print("token        in {}\n", (std::filesystem::path(folder) / "token").string());
  if (!next.empty()) fmt::print("\n{}", next);
}

int create(const GroupVerbOptions& options) {
  const GroupFolder made = create_group_folder(options.folder, options.group);
  show(made, options.folder,
       fmt::format("next, here:           motley group serve --folder {} --listen HOST:4700\n"
                   "then, at each member: MOTLEY_TOKEN=(a file with the token) MOTLEY_AUTHORITY={}\n"
                   "or instead:           motley group issue {} MEMBER, and copy the folder to the member\n",
                   options.folder, certificate_facts(made.identity.authority).fingerprint, options.folder),
       options.json);
  return 0;
}

int issue(const GroupVerbOptions& options) {
  std::string into = options.into;
  if (into.empty()) {
    if (options.member.find('/') != std::string::npos || options.member.starts_with('.'))
      throw input_error(fmt::format("a folder cannot be named \"{}\"", options.member), "give a folder with -o DIR");
    into = (std::filesystem::path(options.folder) / "members" / options.member).string();
  }
  const GroupFolder made = issue_member_folder(read_group_folder(options.folder), options.member, options.days, into);
  show(made, into, "", options.json);
  return 0;
}

int show_folder(const GroupVerbOptions& options) {
  show(read_group_folder(options.folder), options.folder, "", options.json);
  return 0;
}

auto add_group_verb(CLI::App& verbs, Action& action, const char* name, const char* what, const char* footer,
                    int (*run)(const GroupVerbOptions&)) {
  const auto [verb, options] = add_verb<GroupVerbOptions>(verbs, action, name, what, run);
  verb->footer(footer);
  verb->add_option("DIR", options->folder, "Folder of the group")->required();
  verb->add_flag("--json", options->json, "Print JSON instead of text");
  return std::pair(verb, options);
}

}  // namespace

void add_group(CLI::App& parent, Action& action) {
  auto* verbs =
      parent.add_subcommand("group", "Groups of processes: authority and certificates, coordinator, collectives");
  verbs->require_subcommand(1);
  verbs->footer(
      "A process joins a group with its token. The coordinator keeps the authority and certifies members that show "
      "the\n"
      "token. Connections between machines use TLS 1.3 with these certificates on both sides.\n"
      "\n"
      "examples:\n"
      "  motley group create lab --group lab        authority, certificate of the coordinator and token, in ./lab\n"
      "  motley group serve --folder lab --listen 10.0.0.5:4700\n"
      "  motley group show lab                      fingerprint that members need, and expiry dates");
  const auto [create_verb, to_create] =
      add_group_verb(*verbs, action, "create", "Create an authority, the coordinator's certificate and the token",
                     "Only you can read the keys and the token. Existing files are kept.\n"
                     "\n"
                     "examples:\n"
                     "  motley group create lab\n"
                     "  motley group create run7 --group run7 --json",
                     create);
  create_verb->add_option("--group", to_create->group, "Name of the group")->type_name("NAME")->capture_default_str();
  const auto [issue_verb, to_issue] = add_group_verb(
      *verbs, action, "issue", "Issue a member's certificate and key, with the token, in a folder",
      "For members that do not request a certificate from the coordinator. The folder is secret: copy it "
      "over a safe channel.\n"
      "\n"
      "examples:\n"
      "  motley group issue lab anna                write lab/members/anna\n"
      "  motley group issue lab 1 -o rank1 --days 7\n"
      "  motley group issue lab coordinator -o standby   for a standby coordinator of the group",
      issue);
  issue_verb->add_option("MEMBER", to_issue->member, "Member id that the certificate names")->required();
  issue_verb->add_option("-o,--output", to_issue->into, "Folder of the member (default DIR/members/MEMBER)")
      ->type_name("DIR");
  issue_verb->add_option("--days", to_issue->days, "Lifetime of the certificate in days")
      ->check(CLI::Range(1, 3650))
      ->capture_default_str();
  add_group_verb(*verbs, action, "show", "Show names, fingerprint and expiry dates of a folder",
                 "examples:\n"
                 "  motley group show lab\n"
                 "  motley group show lab --json",
                 show_folder);
  add_group_serve(*verbs, action);
  add_group_bench(*verbs, action);
}

}  // namespace motley::cli
