#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "motley/base/printable.hpp"
#include "motley/cli/command.hpp"
#include "motley/hub/named_model.hpp"
#include "motley/model/warnings.hpp"
#include "motley/report/description_report.hpp"
#include "motley/report/rank_bytes.hpp"

namespace motley::cli {
namespace {

struct MemoryOptions {
  std::string model;
  std::string layers;
  int degree = 1;
  std::vector<double> shares;
  std::string weight_type, kv_type;
  CacheRoom caches = {.tokens = 4096};
  StepLimits step;
  Output output;
};

// "A,B": half-open, as in plans.
LayerRange parse_layers(const std::string& text, std::int64_t layers) {
  if (text.empty()) return {0, layers};
  LayerRange range;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, range.first);
  const bool comma = first.ec == std::errc() && first.ptr != end && *first.ptr == ',';
  const auto last =
      comma ? std::from_chars(first.ptr + 1, end, range.end) : std::from_chars_result{end, std::errc::invalid_argument};
  if (last.ec != std::errc() || last.ptr != end || range.first < 0 || range.end > layers || range.size() < 1)
    throw input_error(
        fmt::format("--layers must be a range within the model's {1} layers, found \"{0}\"", text, layers),
        "give the first layer and the end of the range, as in --layers 0,20");
  return range;
}

int memory(const MemoryOptions& options) {
  const Model model = read_named_model(options.model);
  const LayerRange layers = parse_layers(options.layers, model.arch.layers);
  const DType weight_type = options.weight_type.empty() ? model.arch.checkpoint_type
                                                        : parse_dtype_option(options.weight_type, "--weight-type");
  const DType kv_type =
      options.kv_type.empty() ? dtype_row(weight_type).computed_in : parse_dtype_option(options.kv_type, "--kv-type");
  if (!supports(kv_type, Support::priced, Use::kv))
    throw input_error(fmt::format("--kv-type must be a type of keys and values, found {}", name_of(kv_type)),
                      "choose " + names_with(Support::priced, Use::kv));
  check_kv_type(model.arch, kv_type);
  if (double sum = 0; !options.shares.empty()) {
    for (const double share : options.shares) sum += share;
    if (std::abs(sum - 1) > share_tolerance)
      throw input_error(fmt::format("--shares must sum to 1, found {:.6g}", sum),
                        "give one fraction per rank, as in --shares 0.5,0.25,0.25");
  }
  CacheRoom caches = options.caches;
  if (has_states(model.arch)) caches.sequences = std::max<std::int64_t>(1, caches.sequences);
  const std::vector<RankBytes> ranks = rank_bytes(model.arch, with_ends(model.arch, layers), options.degree,
                                                  options.shares, weight_type, kv_type, caches, options.step);
  emit(options.output, rank_bytes_json(ranks),
       fmt::format("{}: layers {}-{} on {} device{}, {} weights, room for {} tokens of {} keys and values\n{}",
                   printable(model.name), layers.first, layers.end - 1, options.degree, options.degree == 1 ? "" : "s",
                   name_of(weight_type), options.caches.tokens, name_of(kv_type), rank_bytes_report(ranks)));
  return 0;
}

}  // namespace

void add_model(CLI::App& parent, Action& action) {
  auto options = std::make_shared<MemoryOptions>();
  auto* group = parent.add_subcommand("model", "Show a model and the memory of its parts");
  group->require_subcommand(1);
  group->footer(
      "examples:\n"
      "  motley model show llama-2-70b\n"
      "  motley model memory llama-2-70b --layers 0,20 --tp 2 --kv-tokens 8192\n"
      "  motley model quantize data/models/tales --type q8_0 -o tales-q8_0.gguf\n"
      "  motley model init data/models/tales --seed 1 -o fresh");

  auto* show_verb = group->add_subcommand("show", "Show shape, parameters, bytes and FLOPs");
  show_verb->footer("example: motley model show llama-2-70b");
  show_verb
      ->add_option("model", options->model,
                   "Folder, config.json, GGUF file, OWNER/NAME on the hub, or a name (llama-2-70b)")
      ->required()
      ->type_name("MODEL");
  add_output_options(*show_verb, options->output);
  show_verb->callback([options, &action] {
    action = [options] {
      const Model model = read_named_model(options->model);
      warn(model_warnings(model), options->output.quiet);
      emit(options->output, model_json(model), model_report(model));
      return 0;
    };
  });

  auto* memory_verb =
      group->add_subcommand("memory", "Show the bytes of each rank of a stage, as planner and engine count");
  memory_verb->footer("example: motley model memory llama-2-70b --layers 0,20 --tp 2 --kv-tokens 8192");
  memory_verb
      ->add_option("model", options->model,
                   "Folder, config.json, GGUF file, OWNER/NAME on the hub, or a name (llama-2-70b)")
      ->required()
      ->type_name("MODEL");
  memory_verb->add_option("--layers", options->layers, "Half-open range of layers, as in 0,20 (default: all)")
      ->type_name("A,B");
  memory_verb->add_option("--tp", options->degree, "Tensor-parallel degree (default 1)")->check(CLI::Range(1, 4096));
  memory_verb->add_option("--shares", options->shares, "Shares of the ranks, which sum to 1 (default: equal)")
      ->delimiter(',');
  memory_verb->add_option("--weight-type", options->weight_type,
                          "Weights: fp32, bf16, fp16, int8, q8_0 to iq4_xs, or file (default: the model's)");
  memory_verb->add_option("--kv-type", options->kv_type, "Type of keys and values (default: the weight type)");
  memory_verb->add_option("--kv-tokens", options->caches.tokens, "Tokens that the KV cache holds (default 4096)")
      ->check(CLI::NonNegativeNumber);
  memory_verb
      ->add_option("--kv-sequences", options->caches.sequences,
                   "Slots for sequences, for windows and states (default 0: windows are whole)")
      ->check(CLI::Range(0, 1 << 20));
  memory_verb->add_option("--max-tokens", options->step.max_tokens, "Most tokens in one step (default 512)")
      ->check(CLI::Range(1, 1 << 20));
  memory_verb->add_option("--max-sequences", options->step.max_sequences, "Most sequences in one step (default 32)")
      ->check(CLI::Range(1, 1 << 16));
  add_output_options(*memory_verb, options->output);
  add_model_quantize(*group, action);
  add_model_init(*group, action);
  memory_verb->callback([options, &action] { action = [options] { return memory(*options); }; });
}

}  // namespace motley::cli
