#include "motley/cli/command.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "motley/base/units.hpp"

namespace motley::cli {

void add_output_options(CLI::App& verb, Output& output) {
  verb.add_flag("--json", output.json, "Print JSON for machines instead of tables");
  verb.add_option("-o,--output", output.file, "Write the result to this file, as JSON")->type_name("FILE");
  verb.add_flag("-q,--quiet", output.quiet, "No progress on stderr");
}

void emit(const Output& output, const Value& artefact, const std::string& text) {
  if (!output.file.empty()) {
    write_file(output.file, to_json(artefact, 1) + "\n");
    if (!output.quiet) fmt::print(stderr, "wrote {}\n", output.file);
  }
  const std::string shown = output.json ? to_json(artefact, 1) + "\n" : text;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
}

double parse_seconds_option(const std::string& text, const std::string& option) {
  try {
    const double seconds = parse_quantity(text, Dimension::seconds);
    if (seconds < 0) throw input_error(fmt::format("\"{}\" is negative", text));
    return seconds;
  } catch (Error& error) {
    error.prepend_context(option);
    throw;
  }
}

ServePlan load_plan(const std::string& file) { return read_plan_file(file); }

DType parse_dtype_option(const std::string& text, const std::string& option) {
  std::vector<std::string> names;
  for (const auto& entry : enum_names<DType>()) {
    if (entry.name == text) return entry.value;
    names.emplace_back(entry.name);
  }
  throw input_error(fmt::format("{}: \"{}\" is not one of {}", option, text, fmt::join(names, ", ")));
}

}  // namespace motley::cli
