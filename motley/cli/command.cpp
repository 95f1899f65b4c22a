#include "motley/cli/command.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string_view>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"

namespace motley::cli {
namespace {

// For an error whose cause says nothing of what to do.
std::string_view hint_for(ErrorCode code) {
  switch (code) {
    case ErrorCode::negative:
    case ErrorCode::input:
    case ErrorCode::interrupted: return {};
    case ErrorCode::environment: return "run `motley doctor`; memory, disk or file descriptors may be exhausted";
    case ErrorCode::limit: return "raise the limit or reduce the work; the command's --help has the limits";
    case ErrorCode::peer: return "read the log of the other process; all must run the same version of motley";
    case ErrorCode::internal: return "this is a bug: report it with the command and its files";
  }
  return {};
}

}  // namespace

int report_error(const Error& error) {
  fmt::print(stderr, "error: {}\n", printable(error.what()));
  const std::string_view hint = error.hint().empty() ? hint_for(error.code()) : std::string_view(error.hint());
  if (!hint.empty()) fmt::print(stderr, "\nhint: {}\n", printable_lines(hint));
  return static_cast<int>(error.code());
}

void add_output_options(CLI::App& verb, Output& output) {
  verb.add_flag("--json", output.json, "Print JSON instead of tables");
  verb.add_option("-o,--output", output.file, "Write the result to this file as JSON")->type_name("FILE");
  verb.add_flag("-q,--quiet", output.quiet, "Print no progress on stderr");
}

void print_text(std::FILE* to, std::string_view text) {
  const std::string shown = printable_lines(text);
  std::fwrite(shown.data(), 1, shown.size(), to);
  std::fflush(to);
}

void emit(const Output& output, const Value& artefact, const std::string& text) {
  if (!output.file.empty()) {
    write_file(output.file, to_json(artefact, 1) + "\n");
    if (!output.quiet) fmt::print(stderr, "wrote {}\n", output.file);
  }
  if (!output.json) return print_text(stdout, text);
  fmt::print("{}\n", to_json(artefact, 1));
  std::fflush(stdout);
}

int emit_infeasible(const Output& output, const std::string& reason, const std::string& hint, const std::string& of) {
  emit(Output{.json = output.json, .file = "", .quiet = output.quiet},
       Value::object({{"status", "infeasible"}, {"reason", reason}, {"hint", hint}}),
       fmt::format("does not fit: {}{}\n{}", of.empty() ? "" : of + ": ", reason,
                   hint.empty() ? "" : "\nhint: " + hint + "\n"));
  return static_cast<int>(ErrorCode::negative);
}

double parse_quantity_option(const std::string& text, const std::string& option, Dimension dimension,
                             bool (*allowed)(double), const char* what, const char* example) {
  try {
    if (const double value = parse_quantity(text, dimension); allowed(value)) return value;
  } catch (const Error&) {  // told below, with an example that suits an option
  }
  throw input_error(fmt::format("{} must be {}, found \"{}\"", option, what, text),
                    fmt::format("give a number with its unit, as in {} \"{}\"", option, example));
}

double parse_seconds_option(const std::string& text, const std::string& option) {
  return parse_quantity_option(text, option, Dimension::seconds, is_not_negative, "a time of at least 0 s", "10 s");
}

double parse_bytes_option(const std::string& text, const std::string& option) {
  return parse_quantity_option(text, option, Dimension::bytes, is_positive, "a size above 0 B", "24 GiB");
}

void require_sound(const std::vector<Violation>& violations, const std::string& file) {
  if (!violations.empty())
    throw input_error(fmt::format("{}: {}: {}", file, violations[0].place, violations[0].what),
                      fmt::format("run `motley verify {}` to list all violations", file));
}

void require_sound(const ServePlan& plan, const std::string& file) { require_sound(verify(plan), file); }

int thread_count(int asked) {
  return asked > 0 ? asked : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void check_output_folder(const Output& output) {
  const auto folder = std::filesystem::path(output.file).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder))
    throw Error(ErrorCode::environment, fmt::format("{}: the folder {} does not exist", output.file, folder.string()),
                fmt::format("create the folder: mkdir -p {}", folder.string()));
}

void warn(const std::vector<std::string>& warnings, bool quiet) {
  if (quiet) return;
  for (const auto& warning : warnings) fmt::print(stderr, "warning: {}\n", printable(warning));
}

DType parse_dtype_option(const std::string& text, const std::string& option) {
  std::vector<std::string> names;
  for (const auto& entry : enum_names<DType>()) {
    if (entry.name == text) return entry.value;
    names.emplace_back(entry.name);
  }
  throw input_error(fmt::format("{} \"{}\" is not one of {}", option, text, fmt::join(names, ", ")),
                    did_you_mean(text, names, "", '`'));
}

std::optional<DType> runnable_dtype(const std::string& text, const std::string& option, Use use) {
  if (text.empty()) return std::nullopt;
  const DType type = parse_dtype_option(text, option);
  if (!supports(type, Support::planned, use))
    throw input_error(fmt::format("{} must be a type that the engine computes in, found {}", option, text),
                      "choose " + names_with(Support::planned, use));
  return type;
}

}  // namespace motley::cli
