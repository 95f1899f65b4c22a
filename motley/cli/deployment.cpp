// What can be asked of a deployment that runs: what it does, another plan, fewer machines or more.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/api_options.hpp"
#include "motley/cli/command.hpp"
#include "motley/report/status_report.hpp"
#include "motley/server/client.hpp"

namespace motley::cli {
namespace {

constexpr double drain_s = 30;  // for a plan without the machine to take effect

struct DeploymentOptions {
  std::string url = "http://127.0.0.1:8000";
  int port = 0;  // 0: that of the URL
  std::string api_key, operator_key;
  std::string plan, member, token_lifetime;
  bool revoke = false;
  Output output;
};

void add_deployment_options(CLI::App& verb, DeploymentOptions& options) {
  verb.add_option("--url", options.url, "URL of the server (default http://127.0.0.1:8000)")->type_name("URL");
  verb.add_option("--port", options.port, "Port of a server on this machine, instead of --url")
      ->check(CLI::Range(1, 65535))
      ->excludes("--url");
  verb.add_option("--api-key", options.api_key, "Key of the server")->envname("MOTLEY_API_KEY")->type_name("KEY");
  add_operator_key_option(verb, options.operator_key, "Operator's key, where the server was given one");
}

// Called with the operator's key, which holds for everything; with the client's where there is no other.
ServerAddress server_of(const DeploymentOptions& options) {
  ServerAddress server = parse_server_url(options.url);
  if (options.port > 0) server.port = std::to_string(options.port);
  if (server.host == "localhost") server.host = "127.0.0.1";  // another user may listen at the same port of [::1]
  server.api_key = options.operator_key;
  if (server.api_key.empty()) server.api_key = kept_operator_key(server.host, server.port);
  if (server.api_key.empty()) server.api_key = options.api_key;
  return server;
}

int show_status(const DeploymentOptions& options) {
  const Value status = http_get(server_of(options), "/plan");
  const std::string text = status_report(status);  // also where JSON is asked for: it checks what came
  emit(options.output, status, text);
  return 0;
}

// Until the plan serves, or the deployment goes on without it.
int apply_plan(const DeploymentOptions& options) {
  const ServePlan plan = read_plan_file<ServePlan>(options.plan);
  require_sound(plan, options.plan);
  const ServerAddress server = server_of(options);
  const double before = answer_number(http_post(server, "/plan", write(plan)), "epoch");
  const Instant start = Clock::now();
  std::string last;
  while (true) {
    const Value status = http_get(server, "/plan");
    const std::string state = answer_text(status, "state");
    const double epoch = answer_number(status, "epoch");
    if (state == "failed")
      throw Error(ErrorCode::peer, fmt::format("the deployment has failed: {}", answer_text(status, "failure")));
    if (epoch > before && state == "serving") {
      if (!(to_json(answer_field(answer_field(status, "plan"), "stages")) ==
            to_json(answer_field(write(plan), "stages"))))
        throw Error(ErrorCode::peer, "the plan did not take effect: the server runs another one",
                    "see `motley deployment status`, and the server's own messages");
      emit(options.output, status,
           fmt::format("plan number {:.0f} serves, after {}\n", epoch, human_seconds(seconds_since(start))));
      return 0;
    }
    if (state != last && !options.output.quiet) fmt::print(stderr, "[{:7.2f}s] {}\n", seconds_since(start), state);
    last = state;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// Until the plan in force does without the machine.
int drain(const DeploymentOptions& options) {
  const ServerAddress server = server_of(options);
  const Value answer =
      http_post(server, "/drain", Value::object({{"member", options.member}, {"revoke", options.revoke}}));
  std::string others;
  if (options.revoke)
    for (const Value& other : answer_list(answer, "same_link"))
      others +=
          fmt::format("{0} came by the same link and stays; cut it off with: motley deployment drain {0} --revoke\n",
                      other.as_string());
  const Instant start = Clock::now();
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
    const Value status = http_get(server, "/plan");
    const std::string state = answer_text(status, "state");
    const bool used = std::ranges::any_of(answer_list(status, "workers"), [&](const Value& worker) {
      return answer_text(worker, "device").starts_with(options.member + "/");
    });
    if (state == "down" || (used && seconds_since(start) > drain_s))
      throw Error(ErrorCode::peer, fmt::format("no plan does without {}: the deployment is {}", options.member, state),
                  "see `motley deployment status`; let another machine join first");
    if (used || state != "serving") continue;
    emit(options.output, status,
         fmt::format("{} is not used any more, after {}\n{}", options.member, human_seconds(seconds_since(start)),
                     others));
    return 0;
  }
}

int invite(const DeploymentOptions& options) {
  Value asked = Value::object({{"revoke", options.revoke}});
  if (!options.token_lifetime.empty())
    asked.set("token_lifetime_s", parse_seconds_option(options.token_lifetime, "--token-lifetime"));
  const Value answer = http_post(server_of(options), "/link", asked);
  emit(options.output, answer,
       fmt::format("the process that serves has printed an invitation{}; it admits new machines for {}\n",
                   options.revoke ? ", and refuses those before it" : "",
                   human_seconds(answer_number(answer, "token_lifetime_s"))));
  return 0;
}

auto add_deployment_verb(CLI::App& verbs, Action& action, const char* name, const char* what, const char* footer,
                         int (*run)(const DeploymentOptions&)) {
  const auto [verb, options] = add_verb<DeploymentOptions>(verbs, action, name, what, run);
  verb->footer(footer);
  add_deployment_options(*verb, *options);
  add_output_options(*verb, options->output);
  return std::pair(verb, options);
}

}  // namespace

void add_deployment(CLI::App& parent, Action& action) {
  auto* verbs = parent.add_subcommand("deployment", "See and change what a running deployment does");
  verbs->require_subcommand(1);
  verbs->footer(
      "examples:\n"
      "  motley deployment status           plan, requests and workers of the server on 127.0.0.1:8000\n"
      "  motley deployment drain attic      do without this machine");
  add_deployment_verb(*verbs, action, "status", "Show what a running deployment does: plan, requests, workers",
                      "examples:\n"
                      "  motley deployment status                      the server on 127.0.0.1:8000\n"
                      "  motley deployment status --port 8080 --json   all that GET /plan says",
                      show_status);
  const auto [apply_verb, to_apply] =
      add_deployment_verb(*verbs, action, "apply", "Let a running deployment serve another plan for its model",
                          "Steps under way end, the workers get their parts of the new plan, and open\n"
                          "requests go on with the tokens that they would have had. The plan's devices are\n"
                          "those that the server can start workers on.\n"
                          "\n"
                          "examples:\n"
                          "  motley plan serve --from plan.json --without box/3 -o smaller.json\n"
                          "  motley deployment apply smaller.json --port 8000",
                          apply_plan);
  apply_verb->add_option("plan", to_apply->plan, "Plan file")->type_name("PLAN")->required();
  const auto [drain_verb, to_drain] = add_deployment_verb(
      *verbs, action, "drain", "Let a running deployment do without one of its machines",
      "The deployment plans without the machine and its workers end; open requests go on. Its agent stays connected,\n"
      "and is planned with again once it has been restarted.\n"
      "\n"
      "examples:\n"
      "  motley deployment drain attic              returns when no worker runs there any more\n"
      "  motley deployment drain attic --port 8080\n"
      "  motley deployment drain attic --revoke     cut it off at once, and refuse it and all earlier invitations",
      drain);
  drain_verb->add_option("member", to_drain->member, "Name of the machine, as `motley deployment status` shows it")
      ->type_name("MEMBER")
      ->required();
  drain_verb->add_flag("--revoke", to_drain->revoke,
                       "Refuse its certificate and all earlier invitations; a new one is printed");
  const auto [invite_verb, to_invite] = add_deployment_verb(
      *verbs, action, "invite", "Let `motley up` print a new invitation, by which machines join",
      "An invitation is a secret, so it appears where `motley up` writes its output, and not here. Machines that have\n"
      "joined do not need it: they renew their certificates by those that they have.\n"
      "\n"
      "examples:\n"
      "  motley deployment invite             earlier invitations stay valid until they expire\n"
      "  motley deployment invite --revoke    refuse the earlier ones",
      invite);
  invite_verb
      ->add_option("--token-lifetime", to_invite->token_lifetime,
                   "How long the invitation admits new machines (default: as given to `motley up`)")
      ->type_name("TIME");
  invite_verb->add_flag("--revoke", to_invite->revoke, "Refuse all earlier invitations");
}

}  // namespace motley::cli
