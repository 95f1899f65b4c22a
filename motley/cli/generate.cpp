#include "motley/server/generate_answers.hpp"

#include "motley/cli/command.hpp"
#include "motley/cli/serving_options.hpp"
#include "motley/serving/local_deployment.hpp"

namespace motley::cli {

namespace {

struct GenerateOptions {
  ServingOptions serving;
  GenerateFiles files;
  bool quiet = false;
};

int generate(const GenerateOptions& options) {
  const ServePlan plan = serving_plan(options.serving);
  EventLog events(shown(options.quiet));
  LocalDeployment deployment(local_fleet(options.serving));
  return generate_answers(plan, deployment, serve_settings(options.serving, plan, events), options.files);
}

}  // namespace

void add_generate(CLI::App& parent, Action& action) {
  const auto [verb, options] = add_verb<GenerateOptions>(
      parent, action, "generate", "Answer a file of requests by a plan's workers on this machine", generate);
  verb->footer(
      "examples:\n"
      "  motley generate plan.json --model DIR --input prompts.jsonl --output answers.jsonl\n"
      "\n"
      "A line of the input is a request of OpenAI's batch format:\n"
      "  {\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/completions\",\n"
      "   \"body\": {\"prompt\": \"Once\", \"max_tokens\": 32}}\n"
      "Started again with the same files, it answers what has no answer yet.");
  add_serving_options(*verb, options->serving);
  verb->add_option("--input", options->files.input, "Requests, one a line")->required()->type_name("FILE");
  verb->add_option("--output", options->files.output, "Answers, one line appended for each")
      ->required()
      ->type_name("FILE");
  verb->add_flag("-q,--quiet", options->quiet, "Print no progress on stderr");
}

}  // namespace motley::cli
