// motley model init
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "motley/base/paths.hpp"
#include "motley/cli/command.hpp"
#include "motley/convert/initial_weights.hpp"
#include "motley/hub/named_model.hpp"

namespace motley::cli {
namespace {

struct InitOptions {
  std::string model, type, folder;
  std::uint64_t seed = 0;
  int threads = 0;
  bool quiet = false;
};

bool is_initial(DType type) { return type == DType::fp32 || type == DType::bf16 || type == DType::fp16; }

DType initial_type(const InitOptions& options, const Model& model) {
  if (options.type.empty()) return is_initial(model.arch.checkpoint_type) ? model.arch.checkpoint_type : DType::bf16;
  const DType type = parse_dtype_option(options.type, "--type");
  if (!is_initial(type))
    throw input_error(fmt::format("--type must be a type that is trained, found {}", options.type),
                      "choose fp32, bf16 or fp16");
  return type;
}

// The folder of a named model, which may have a tokenizer; empty: it is none.
std::filesystem::path folder_of(const std::string& named) {
  std::error_code ignored;
  for (const std::filesystem::path& folder : {std::filesystem::path(named), data_folder() / "models" / named})
    if (std::filesystem::is_directory(folder, ignored)) return folder;
  return {};
}

int init(const InitOptions& options) {
  const Model model = read_named_model(options.model);
  const DType type = initial_type(options, model);
  const bool terminal = !options.quiet && ::isatty(STDERR_FILENO) == 1;
  const auto progress = [&](double fraction) {
    if (terminal) fmt::print(stderr, "\r\033[K{:3.0f} %", 100 * fraction);
  };
  write_initial_model(
      model, folder_of(locate_model(options.model, ModelFiles::configuration).path), options.folder,
      {.seed = options.seed, .type = type, .threads = thread_count(options.threads), .progress = progress});
  if (terminal) fmt::print(stderr, "\r\033[K");
  if (!options.quiet)
    fmt::print("{}: {} random weights in {}\n", options.folder, total_parameters(model.arch), name_of(type));
  return 0;
}

}  // namespace

void add_model_init(CLI::App& model_verbs, Action& action) {
  const auto [verb, options] = add_verb<InitOptions>(model_verbs, action, "init",
                                                     "Write a model folder with random weights, to be trained", init);
  verb->footer("example: motley model init data/models/tales --seed 1 -o fresh");
  verb->add_option("model", options->model,
                   "Folder, config.json, GGUF file, OWNER/NAME on the hub, or a name (llama-2-70b)")
      ->required()
      ->type_name("MODEL");
  verb->add_option("-o,--output", options->folder, "Folder to write, which must not exist")
      ->required()
      ->type_name("DIR");
  verb->add_option("--seed", options->seed, "Seed of the weights (default 0)")->type_name("N");
  verb->add_option("--type", options->type, "fp32, bf16 or fp16 (default: the configuration's)");
  verb->add_option("--threads", options->threads, "Threads (default: all cores)")->check(CLI::Range(0, 1024));
  verb->add_flag("-q,--quiet", options->quiet, "Print errors only");
}

}  // namespace motley::cli
