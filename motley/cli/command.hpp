// What the verbs share: output options, and the way a verb is added to the program.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "motley/base/units.hpp"
#include "motley/base/value.hpp"
#include "motley/model/model.hpp"
#include "motley/plan/serve_plan.hpp"

namespace motley::cli {

// What the chosen verb does; its result is the exit code.
using Action = std::function<int()>;

// Each in the file of its name: plan_serve.cpp adds `motley plan serve`. They add the verb to `parent` and set `action`
// when it is chosen.
void add_plan(CLI::App& parent, Action& action);
void add_plan_serve(CLI::App& plan_verbs, Action& action);
void add_plan_rent(CLI::App& plan_verbs, Action& action);
void add_plan_train(CLI::App& plan_verbs, Action& action);
void add_plan_offload(CLI::App& plan_verbs, Action& action);
void add_plan_collectives(CLI::App& plan_verbs, Action& action);
void add_explain(CLI::App& parent, Action& action);
void add_compare(CLI::App& parent, Action& action);
void add_simulate(CLI::App& parent, Action& action);
void add_verify(CLI::App& parent, Action& action);
void add_report(CLI::App& parent, Action& action);
void add_cluster(CLI::App& parent, Action& action);
void add_cluster_probe(CLI::App& cluster_verbs, Action& action);  // where the runtime is built
void add_model(CLI::App& parent, Action& action);
void add_model_init(CLI::App& model_verbs, Action& action);
void add_model_quantize(CLI::App& model_verbs, Action& action);
void add_doctor(CLI::App& parent, Action& action);
void add_serve(CLI::App& parent, Action& action);
void add_generate(CLI::App& parent, Action& action);
void add_train(CLI::App& parent, Action& action);
void add_up(CLI::App& parent, Action& action);
void add_join(CLI::App& parent, Action& action);
void add_chat(CLI::App& parent, Action& action);
void add_deployment(CLI::App& parent, Action& action);
void add_group(CLI::App& parent, Action& action);
void add_group_serve(CLI::App& group_verbs, Action& action);
void add_group_bench(CLI::App& group_verbs, Action& action);

// The words of a command line, without the program's name: a command that has another name now by that, which stderr is
// told (renamed.cpp).
std::vector<std::string> renamed(std::vector<std::string> words);

// A verb that does `run` on its options, once they are read.
template <typename Options>
std::pair<CLI::App*, std::shared_ptr<Options>> add_verb(CLI::App& parent, Action& action, const std::string& name,
                                                        const std::string& what, int (*run)(const Options&)) {
  const auto options = std::make_shared<Options>();
  auto* verb = parent.add_subcommand(name, what);
  verb->callback([options, run, &action] { action = [options, run] { return run(*options); }; });
  return {verb, options};
}

// Prints the error with its hint on stderr. Returns the exit code.
int report_error(const Error& error);

// Results go to stdout (for people, or JSON), artefacts to a file, everything else to stderr.
struct Output {
  bool json = false;
  std::string file;
  bool quiet = false;
};
void add_output_options(CLI::App& verb, Output& output);

// Text of several lines, with what a terminal would obey written out.
void print_text(std::FILE* to, std::string_view text);

// The artefact goes to -o FILE; stdout gets it as JSON with --json, otherwise `text`.
void emit(const Output& output, const Value& artefact, const std::string& text);
// That there is no plan: no file is written. `of`: what does not fit, where more than one could be meant. Returns the
// exit code.
int emit_infeasible(const Output& output, const std::string& reason, const std::string& hint,
                    const std::string& of = {});

inline bool is_positive(double value) { return value > 0; }
inline bool is_not_negative(double value) { return value >= 0; }
// "12" is refused, "10 s" is 10. `what` is allowed and an `example`, for people.
double parse_quantity_option(const std::string& text, const std::string& option, Dimension dimension,
                             bool (*allowed)(double), const char* what, const char* example);
double parse_seconds_option(const std::string& text, const std::string& option);
double parse_bytes_option(const std::string& text, const std::string& option);

// Throws an input error with the first violation, for verbs that need a sound plan.
void require_sound(const std::vector<Violation>& violations, const std::string& file);
void require_sound(const ServePlan& plan, const std::string& file);

// At least 1 from --threads; 0 means all cores.
int thread_count(int asked);

// Throws before long work rather than after it: the folder of -o FILE must exist.
void check_output_folder(const Output& output);

// "warning: ..." on stderr, each of them; nothing where quiet.
void warn(const std::vector<std::string>& warnings, bool quiet);

DType parse_dtype_option(const std::string& text, const std::string& option);
// A type that the engine has kernels for or will have: no integers. None of an empty text.
std::optional<DType> runnable_dtype(const std::string& text, const std::string& option, Use use);

}  // namespace motley::cli
