#include "motley/cli/api_options.hpp"

#include "motley/base/error.hpp"
#include "motley/server/web_access.hpp"

namespace motley::cli {

void add_operator_key_option(CLI::App& verb, std::string& key, const std::string& help) {
  verb.add_option("--operator-key", key, help)->envname("MOTLEY_OPERATOR_KEY")->type_name("KEY");
}

void add_api_options(CLI::App& verb, ApiOptions& options) {
  verb.add_option("--api-key", options.api_key, "Key that clients must send as a bearer token")
      ->envname("MOTLEY_API_KEY")
      ->type_name("KEY");
  add_operator_key_option(verb, options.operator_key,
                          "Key that `motley deployment` needs to change anything (default: a new one)");
  verb.add_option("--cors", options.origins, "Origin whose pages may use the API, or * for all; repeatable")
      ->type_name("ORIGIN")
      ->expected(1)
      ->take_all()
      ->check([](const std::string& origin) {
        try {
          check_origin(origin);
        } catch (const Error& error) {
          return with_hint(error);
        }
        return std::string();
      });
  verb.add_option("--new-per-address", options.new_per_address,
                  "Connections of one address that have asked nothing yet (default 512)")
      ->check(CLI::Range(1, 1 << 20));
  verb.add_option("--reasoning", options.reasoning,
                  "Split thinking off the answers of chats: auto or none (default auto)")
      ->check(CLI::IsMember({"auto", "none"}));
  verb.add_option("--prefix-cache", options.prefix_cache,
                  "Compute once what prompts begin with alike: on or off (default on)")
      ->check(CLI::IsMember({"on", "off"}));
  verb.add_flag("--share-prefixes", options.share_prefixes,
                "Also for unlike API keys: answers' times then show what others asked");
}

void apply_api_options(const ApiOptions& options, const OperatorKey& key, ServeSettings& settings) {
  if (key.text() == options.api_key)
    throw input_error("--operator-key and --api-key are the same: every client could change the deployment",
                      "give two keys, or leave out --operator-key");
  settings.api_key = options.api_key;
  settings.operator_key = key.text();
  settings.origins = options.origins;
  settings.new_per_address = static_cast<std::size_t>(options.new_per_address);
  settings.split_reasoning = options.reasoning == "auto";
  settings.prefix_cache = options.prefix_cache == "on";
  settings.share_prefixes = options.share_prefixes;
}

void serve(const ServePlan& plan, ServedDeployment& deployment, StopSignals& signals, const ServeSettings& settings,
           OperatorKey& key) {
  PlanServer server(plan, deployment, signals, settings);
  // A server without its file still serves: commands to it then need a key that was chosen.
  try {
    key.keep(settings.host, server.port());
  } catch (const Error& error) {
    settings.report("operator", with_hint(error));
  }
  server.start();
  server.run();
}

}  // namespace motley::cli
