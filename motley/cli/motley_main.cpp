#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
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
  std::string name;                               // "motley plan serve"
  std::vector<std::string>::const_iterator next;  // after its words
};

NamedVerb named_verb(const CLI::App& app, const std::vector<std::string>& words) {
  NamedVerb named{&app, app.get_name(), words.begin()};
  for (; named.next != words.end(); ++named.next) {
    const auto names = verb_names(*named.verb);
    if (std::ranges::find(names, *named.next) == names.end()) break;
    named.verb = named.verb->get_subcommand(*named.next);
    named.name += " " + *named.next;
  }
  return named;
}

// For "--modle" of a verb that has --model.
std::string option_hint(const NamedVerb& named, const std::vector<std::string>& words) {
  const std::string otherwise = fmt::format("`{} --help` has the options and an example", named.name);
  std::vector<std::string> names;
  for (const auto* option : named.verb->get_options())
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  for (auto next = named.next; next != words.end(); ++next) {
    const std::string word = next->substr(0, next->find('='));
    if (word.starts_with("--") && std::ranges::find(names, word) == names.end())
      return did_you_mean(word, names, otherwise, '`');
  }
  return otherwise;
}

// CLI11's own text for a wrong verb says only that one is required: the word that is none, and the verbs that are.
Error usage_error(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
  const NamedVerb named = named_verb(app, words);
  if (const auto names = verb_names(*named.verb); !names.empty()) {
    const std::string all = fmt::format("choose one of {}", fmt::join(names, ", "));
    if (named.next == words.end() || named.next->starts_with('-'))
      return input_error(fmt::format("`{}` needs a command", named.name), all);
    return input_error(fmt::format("`{1}` has no command \"{0}\"", *named.next, named.name),
                       did_you_mean(*named.next, names, all, '`'));
  }
  return input_error(error.what(), option_hint(named, words));
}

int main(int argc, char** argv) {
  CLI::App app(description, "motley");
  app.footer(footer);
  app.set_version_flag("--version", program_version());
  app.require_subcommand(1);
  Action action;
  using Add = void (*)(CLI::App&, Action&);
  const auto add_verbs = [&](const std::string& title, std::initializer_list<Add> verbs) {
    for (const Add add : verbs) {
      add(app, action);
      app.get_subcommands([](CLI::App*) { return true; }).back()->group(title);
    }
  };
  add_verbs("Plan", {add_plan, add_explain, add_compare, add_simulate, add_verify, add_report});
#ifdef MOTLEY_WITH_RUNTIME
  add_verbs("Run a plan", {add_serve, add_generate, add_train, add_chat, add_deployment});
  add_verbs("Run on several machines", {add_up, add_join});
  add_verbs("Collectives and groups of processes", {add_group});
#endif
  add_verbs("Describe and measure", {add_cluster, add_model, add_doctor});
  const std::vector<std::string> words = renamed({argv + 1, argv + argc});
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    return app.exit(CLI::CallForHelp());
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return report_error(usage_error(app, error, words));
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
