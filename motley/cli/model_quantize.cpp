// motley model quantize
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "motley/base/error.hpp"
#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/convert/quantise.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/model/warnings.hpp"

namespace motley::cli {
namespace {

struct QuantizeOptions {
  std::string model, type, file;
  int threads = 0;
  bool quiet = false;
};

// The types that a file may have its matrices in. llama.cpp calls two of them f32 and f16.
DType parse_file_type(const std::string& text) {
  if (text == "f32") return DType::fp32;
  if (text == "f16") return DType::fp16;
  std::vector<std::string> names = {"f32", "f16"};
  for (const DTypeRow& row : dtypes()) {
    if (row.file_name.empty()) continue;
    if (row.name == text) return row.type;
    if (row.type != DType::fp32 && row.type != DType::fp16) names.emplace_back(row.name);
  }
  throw input_error(fmt::format("--type \"{}\" is not one of {}", text, fmt::join(names, ", ")),
                    did_you_mean(text, names, "", '`'));
}

int quantize(const QuantizeOptions& options) {
  const DType type = parse_file_type(options.type);
  check_output_folder({.file = options.file});
  warn(model_warnings(read_model(options.model)), options.quiet);
  const bool terminal = !options.quiet && ::isatty(STDERR_FILENO) == 1;
  const auto progress = [&](double fraction, const std::string& tensor) {
    if (terminal) fmt::print(stderr, "\r\033[K{:3.0f} % {}", 100 * fraction, printable(tensor));
  };
  const Quantised made = quantise_model(options.model, options.file,
                                        {.type = type, .threads = thread_count(options.threads), .progress = progress});
  if (terminal) fmt::print(stderr, "\r\033[K");
  if (!options.quiet)
    fmt::print("{}: {} of weights, {:.2f} bits each\n", options.file, human_bytes(static_cast<double>(made.bytes)),
               made.bits_per_weight);
  return 0;
}

}  // namespace

void add_model_quantize(CLI::App& model_verbs, Action& action) {
  const auto [verb, options] = add_verb<QuantizeOptions>(
      model_verbs, action, "quantize", "Write a model as a GGUF file, its matrices in one type", quantize);
  verb->footer("example: motley model quantize data/models/tales --type q8_0 -o tales-q8_0.gguf");
  verb->add_option("model", options->model, "Model folder with config.json and weights, or a GGUF file")
      ->required()
      ->type_name("MODEL");
  verb->add_option("--type", options->type,
                   "f32, f16, bf16, q8_0, q4_0 to q5_1, q4_k, q5_k, q6_k, mxfp4, iq4_nl or iq4_xs")
      ->required();
  verb->add_option("-o,--output", options->file, "File to write")->required()->type_name("FILE");
  verb->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(0, 1024));
  verb->add_flag("-q,--quiet", options->quiet, "Print errors only");
}

}  // namespace motley::cli
