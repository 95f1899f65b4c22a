#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "motley/base/error.hpp"
#include "motley/cli/command.hpp"

namespace motley::cli {
namespace {

constexpr const char* description =
    "motley turns a pile of unlike GPUs, joined by unlike networks, into one machine for large language models:\n"
    "describe what you have; it plans how to use it, tells you why, and runs the plan.";

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

int report(const Error& error) {
  fmt::print(stderr, "error: {}\n", error.what());
  if (!error.hint().empty()) fmt::print(stderr, "\nhint: {}\n", error.hint());
  return static_cast<int>(error.code());
}

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* verb : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(verb->get_name());
  return names;
}

// CLI11's own text for a wrong verb says only that one is required: the word that is none, and the verbs that are.
std::optional<Error> wrong_verb(const CLI::App& app, int argc, char** argv) {
  const CLI::App* level = &app;
  for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
    const auto names = verb_names(*level);
    if (names.empty()) return std::nullopt;
    if (std::find(names.begin(), names.end(), argv[i]) == names.end()) {
      const std::string word = closest(argv[i], names);
      return input_error(fmt::format("\"{}\" is no verb of `{}`", argv[i], level->get_name()),
                         word.empty() ? fmt::format("verbs: {}", fmt::join(names, ", ")) : did_you_mean(word));
    }
    level = level->get_subcommand(argv[i]);
  }
  if (const auto names = verb_names(*level); !names.empty())
    return input_error(fmt::format("`{}` needs a verb", level->get_name()),
                       fmt::format("verbs: {}", fmt::join(names, ", ")));
  return std::nullopt;
}

int main(int argc, char** argv) {
  CLI::App app(description, "motley");
  app.footer(footer);
  app.set_version_flag("--version", "motley " MOTLEY_VERSION);
  app.require_subcommand(1);
  Action action;
  for (const auto add : {add_plan, add_explain, add_compare, add_simulate, add_verify, add_report}) add(app, action);
#ifdef MOTLEY_WITH_RUNTIME
  for (const auto add : {add_serve, add_chat, add_bench, add_coordinate, add_group}) add(app, action);
#endif
  for (const auto add : {add_cluster, add_model, add_doctor}) add(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return app.exit(CLI::CallForHelp());
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    if (const auto wrong = wrong_verb(app, argc, argv)) return report(*wrong);
    return report(input_error(error.what(), "see `motley VERB --help`"));
  }
  try {
    return action();
  } catch (const Error& error) {
    return report(error);
  } catch (const std::exception& error) {
    return report(
        Error(ErrorCode::internal, error.what(), "this is a bug: please report it with the command and its files"));
  }
}

}  // namespace
}  // namespace motley::cli

int main(int argc, char** argv) { return motley::cli::main(argc, argv); }
