#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/open_files.hpp"
#include "motley/base/version.hpp"
#include "motley/cli/command.hpp"

namespace motley::cli {
namespace {

constexpr const char* description =
    "motley plans and runs large language models on unlike GPUs and networks: describe the devices, make a plan,\n"
    "see why it is good, and run it.";

constexpr const char* footer =
    "first steps:\n"
    "  motley cluster show examples/clusters/motivating-box.toml\n"
    "  motley plan serve --cluster examples/clusters/motivating-box.toml --model llama-2-70b -o plan.json\n"
    "  motley explain plan.json\n"
    "  motley report plan.json -o plan.html\n"
    "  motley serve plan.json --model DIR --local\n"
    "\n"
    "exit codes: 0 success, 1 negative answer (does not fit, violations), 2 bad usage or input, 3 environment,\n"
    "            4 limit reached, 5 a worker or peer failed, 70 a bug, 130 interrupted";

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* verb : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(verb->get_name());
  return names;
}

struct NamedVerb {
  const CLI::App* verb;
  std::string name;  // "motley plan serve"
  int next;          // argument after its words
};

NamedVerb named_verb(const CLI::App& app, int argc, char** argv) {
  NamedVerb named{&app, app.get_name(), 1};
  for (; named.next < argc; ++named.next) {
    const char* word = argv[named.next];
    const auto names = verb_names(*named.verb);
    if (std::find(names.begin(), names.end(), word) == names.end()) break;
    named.verb = named.verb->get_subcommand(word);
    named.name += std::string(" ") + word;
  }
  return named;
}

// For "--modle" of a verb that has --model.
std::string option_hint(const NamedVerb& named, int argc, char** argv) {
  const std::string otherwise = fmt::format("`{} --help` has the options and an example", named.name);
  std::vector<std::string> names;
  for (const auto* option : named.verb->get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  for (int i = named.next; i < argc; ++i) {
    const std::string word = std::string(argv[i]).substr(0, std::string_view(argv[i]).find('='));
    if (word.starts_with("--") && std::find(names.begin(), names.end(), word) == names.end())
      return did_you_mean(word, names, otherwise, '`');
  }
  return otherwise;
}

// CLI11's own text for a wrong verb says only that one is required: the word that is none, and the verbs that are.
Error usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const NamedVerb named = named_verb(app, argc, argv);
  if (const auto names = verb_names(*named.verb); !names.empty()) {
    const std::string all = fmt::format("choose one of {}", fmt::join(names, ", "));
    if (named.next == argc || argv[named.next][0] == '-')
      return input_error(fmt::format("`{}` needs a command", named.name), all);
    return input_error(fmt::format("`{1}` has no command \"{0}\"", argv[named.next], named.name),
                       did_you_mean(argv[named.next], names, all, '`'));
  }
  return input_error(error.what(), option_hint(named, argc, argv));
}

int main(int argc, char** argv) {
  CLI::App app(description, "motley");
  app.footer(footer);
  app.set_version_flag("--version", program_version());
  app.require_subcommand(1);
  Action action;
  for (const auto add : {add_plan, add_explain, add_compare, add_simulate, add_verify, add_report}) add(app, action);
#ifdef MOTLEY_WITH_RUNTIME
  for (const auto add : {add_serve, add_generate, add_train, add_up, add_join, add_chat, add_status, add_drain,
                         add_link, add_bench, add_coordinate, add_group})
    add(app, action);
#endif
  for (const auto add : {add_cluster, add_model, add_doctor}) add(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return app.exit(CLI::CallForHelp());
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report_error(usage_error(app, error, argc, argv));
  }
  raise_open_files();  // connections and weights take many
  try {
    return action();
  } catch (const Error& error) {
    return report_error(error);
  } catch (const std::exception& error) {
    return report_error(Error(ErrorCode::internal, error.what()));
  }
}

}  // namespace
}  // namespace motley::cli

int main(int argc, char** argv) { return motley::cli::main(argc, argv); }
