#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <thread>
#include <utility>

#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/serving_options.hpp"
#include "motley/server/client.hpp"
#include "motley/server/plan_server.hpp"
#include "motley/serving/local_deployment.hpp"

namespace motley::cli {
namespace {

struct ChatOptions {
  std::string url;
  ServingOptions serving;
  std::vector<std::string> messages;
  std::string system;
  double temperature = 0.7;
  std::int64_t max_tokens = 256;
  std::int64_t seed = 0;
  Output output;
};

// A server of our own, for as long as the conversation lasts.
class OwnServer {
 public:
  OwnServer(const ServingOptions& options, bool quiet)
      : events_(shown(quiet)),
        plan_(serving_plan(options)),
        deployment_(local_fleet(options)),
        server_(plan_, deployment_, signals_, settings(options)) {
    server_.start();
    thread_ = std::thread([this] {
      try {
        server_.run();
      } catch (const Error&) {
        // Its requests have failed with it.
      }
    });
  }
  ~OwnServer() {
    ::kill(::getpid(), SIGTERM);  // drains, as Ctrl-C does
    thread_.join();
  }
  OwnServer(const OwnServer&) = delete;
  OwnServer& operator=(const OwnServer&) = delete;
  ServerAddress address() const { return {.port = std::to_string(server_.port()), .api_key = {}}; }

 private:
  ServeSettings settings(const ServingOptions& options) {
    ServeSettings own = serve_settings(options, plan_, events_);
    own.port = 0;
    return own;
  }

  EventLog events_;
  const ServePlan plan_;
  LocalDeployment deployment_;
  StopSignals signals_{interrupted};
  PlanServer server_;
  std::thread thread_;
};

Value turn(const std::string& role, const std::string& text) {
  return Value::object({{"role", role}, {"content", text}});
}

std::string first_model(const ServerAddress& server) {
  constexpr const char* named_by_model =
      "give the --url of an OpenAI API, or start one: motley serve PLAN --model DIR --local";
  const Value models = http_get(server, "/v1/models");
  const Value* list = models.find("data");
  if (list == nullptr || !list->is_array() || list->as_array().empty())
    throw Error(ErrorCode::peer, "the server lists no model", named_by_model);
  const Value* id = list->as_array()[0].find("id");
  if (id == nullptr || !id->is_string()) throw Error(ErrorCode::peer, "the server lists no model", named_by_model);
  return id->as_string();
}

Value reply_json(const std::string& message, const StreamedReply& reply) {
  Value ids = Value::array();
  for (const auto id : reply.token_ids) ids.push_back(Value(static_cast<std::int64_t>(id)));
  return Value::object({{"message", message},
                        {"reasoning", reply.reasoning},
                        {"answer", reply.text},
                        {"finish_reason", reply.finish_reason},
                        {"token_ids", ids},
                        {"prompt_tokens", reply.prompt_tokens},
                        {"completion_tokens", reply.completion_tokens},
                        {"first_token_s", reply.first_token_s},
                        {"total_s", reply.total_s}});
}

int converse(const ServerAddress& server, const ChatOptions& options) {
  const std::string model = first_model(server);
  Value history = Value::array();
  if (!options.system.empty()) history.push_back(turn("system", options.system));
  Value replies = Value::array();

  const auto answer = [&](const std::string& message) {
    history.push_back(turn("user", message));
    const Value request = Value::object({{"model", model},
                                         {"messages", history},
                                         {"temperature", options.temperature},
                                         {"max_tokens", options.max_tokens},
                                         {"seed", options.seed},
                                         {"return_token_ids", true}});
    bool thinking = false;
    const auto show = [&](std::string_view piece) {
      if (options.output.json) return;
      if (std::exchange(thinking, false)) fmt::print(stderr, "\n\n");
      print_text(stdout, piece);
    };
    const auto show_reasoning = [&](std::string_view piece) {
      if (options.output.json || options.output.quiet) return;
      thinking = true;
      print_text(stderr, piece);
    };
    const StreamedReply reply = stream_chat(server, request, show, show_reasoning);
    if (!options.output.json) fmt::print("\n");
    std::fflush(stdout);
    history.push_back(turn("assistant", reply.text));
    replies.push_back(reply_json(message, reply));
    const double decode_s = reply.total_s - reply.first_token_s;
    if (!options.output.quiet)
      fmt::print(
          stderr, "  [{} tokens; first after {}{}]\n", reply.completion_tokens, human_seconds(reply.first_token_s),
          reply.completion_tokens > 1 && decode_s > 0
              ? fmt::format(", then {:.1f} tokens/s", static_cast<double>(reply.completion_tokens - 1) / decode_s)
              : "");
  };

  if (!options.messages.empty()) {
    for (const auto& message : options.messages) {
      if (!options.output.json) fmt::print("> {}\n", printable(message));
      std::fflush(stdout);
      answer(message);
    }
  } else {
    const bool person = ::isatty(STDIN_FILENO) == 1;
    if (person) fmt::print(stderr, "model {}; an empty line or Ctrl-D ends the chat\n", printable(model));
    std::string line;
    while ((person ? (void)fmt::print(stderr, "> ") : void()), std::getline(std::cin, line)) {
      if (line.empty()) break;
      answer(line);
    }
  }
  if (!options.output.file.empty() || options.output.json) emit(options.output, replies, "");
  return 0;
}

int chat(const ChatOptions& options) {
  if (options.serving.plan.empty() && options.serving.planning.cluster.empty())
    return converse(parse_server_url(options.url.empty() ? "http://127.0.0.1:8000" : options.url), options);
  if (!options.url.empty())
    throw input_error("--url and a plan cannot be combined", "give --url for a running server, or a plan to start one");
  const OwnServer server(options.serving, options.output.quiet);
  return converse(server.address(), options);
}

}  // namespace

void add_chat(CLI::App& parent, Action& action) {
  const auto [verb, options] = add_verb<ChatOptions>(
      parent, action, "chat", "Chat with a running server, or with a plan that is started for it", chat);
  verb->footer(
      "examples:\n"
      "  motley chat                                             use the server on 127.0.0.1:8000\n"
      "  motley chat plan.json --model DIR                       start the plan's workers on this machine\n"
      "  motley chat --message \"Tell me a tale about a fox.\"     ask one question; repeat --message for more turns");
  verb->add_option("--url", options->url, "URL of the server (default http://127.0.0.1:8000)")->type_name("URL");
  add_serving_options(*verb, options->serving);
  verb->add_option("--message", options->messages, "Message to send instead of reading lines; repeatable")
      ->type_name("TEXT")
      ->expected(1)
      ->take_all();
  verb->add_option("--system", options->system, "System message")->type_name("TEXT");
  verb->add_option("--temperature", options->temperature,
                   "Sampling temperature; 0 takes the most likely token (default 0.7)")
      ->check(CLI::Range(0.0, 2.0));
  verb->add_option("--max-answer-tokens", options->max_tokens, "Most tokens of an answer (default 256)")
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--answer-seed", options->seed, "Seed of the sampling (default 0)");
  add_output_options(*verb, options->output);
}

}  // namespace motley::cli
