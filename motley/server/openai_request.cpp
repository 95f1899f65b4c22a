#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>
#include <span>
#include <utility>

#include "motley/base/binding.hpp"
#include "motley/base/error.hpp"
#include "motley/base/foreign.hpp"
#include "motley/server/openai_api.hpp"

namespace motley {
namespace {

constexpr std::int64_t max_choices = 16;  // of one prompt
constexpr std::size_t max_prompts = 64;   // of one request
// Of all messages with what is in them: a template runs for each. A message of text has three.
constexpr std::size_t max_message_values = 65536;
constexpr std::size_t max_template_values = 1024;  // of `chat_template_kwargs`, with what is in them
constexpr std::size_t max_stops = 16;
constexpr std::size_t max_stop_bytes = 1024;  // of one stop string
constexpr std::int64_t max_top_logprobs = 20;
constexpr std::size_t max_biased_tokens = 1024;

// Accepted, since they change nothing here.
const std::set<std::string, std::less<>> ignored_keys = {
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_retention", "parallel_tool_calls",
};

// Known to clients, and able to change the answer: taken with a value that changes nothing here, and otherwise refused,
// so that no client believes that they worked.
const Value& neutral_values() {
  static const Value table = parse_json(R"({
    "tools": [[]], "tool_choice": ["none", "auto"], "functions": [[]], "function_call": ["none", "auto"],
    "repetition_penalty": [1], "length_penalty": [1], "best_of": [1], "use_beam_search": [false],
    "add_generation_prompt": [true], "continue_final_message": [false], "documents": [[]],
    "skip_special_tokens": [true], "spaces_between_special_tokens": [true], "include_stop_str_in_output": [false],
    "stop_token_ids": [[]], "bad_words": [[]], "modalities": [[], ["text"]], "audio": [], "prediction": [],
    "suffix": [""], "web_search_options": [], "verbosity": ["medium"], "guided_json": []
  })",
                                        "neutral values");
  return table;
}

const std::set<std::string, std::less<>> reasoning_efforts = {"none", "minimal", "low", "medium", "high", "xhigh"};

// Arguments of chat templates that the server gives itself, or that `transformers` takes for its own.
const std::set<std::string, std::less<>> own_template_arguments = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
};

// Reads the members of a request's body. A null is the same as an absent member.
class Fields {
 public:
  explicit Fields(Value& body) : body_(body) {
    if (!body.is_object())
      throw ApiError(400, fmt::format("the request body must be an object, not {}", body.type_name()));
  }

  const Value* find(const std::string& key) {
    known_.push_back(key);
    const Value* value = body_.find(key);
    return value && !value->is_null() ? value : nullptr;
  }

  // The member itself, since a copy of a long one costs as much again.
  Value take(const std::string& key) {
    known_.push_back(key);
    for (auto& [name, value] : body_.as_object())
      if (name == key) return std::exchange(value, Value());
    return {};
  }

  bool boolean(const std::string& key) {
    const Value* value = find(key);
    if (value && !value->is_bool()) refuse(key, "must be true or false");
    return value && value->as_bool();
  }

  std::optional<std::int64_t> integer(const std::string& key, std::int64_t least, std::int64_t most) {
    const Value* value = find(key);
    if (!value) return {};
    if (!value->is_integer()) refuse(key, "must be an integer");
    if (value->as_integer() < least || value->as_integer() > most)
      refuse(key, fmt::format("must be {}", range_text(least, most)));
    return value->as_integer();
  }

  std::optional<float> number(const std::string& key, double least, double most) {
    const Value* value = find(key);
    if (!value) return {};
    if (!value->is_number()) refuse(key, "must be a number");
    const double number = value->as_number();
    if (!(number >= least && number <= most)) refuse(key, fmt::format("must be from {} to {}", least, most));
    return static_cast<float>(number);
  }

  std::string string(const std::string& key) {
    const Value* value = find(key);
    if (value && !value->is_string()) refuse(key, "must be a string");
    return value ? value->as_string() : std::string();
  }

  // That a client makes up.
  std::string name(const std::string& key) {
    constexpr std::size_t most_bytes = 1024;
    std::string value = string(key);
    if (value.size() > most_bytes) refuse(key, fmt::format("must have at most {} bytes", most_bytes));
    return value;
  }

  [[noreturn]] static void refuse(const std::string& key, const std::string& message) {
    throw ApiError(400, fmt::format("`{}` {}", key, message), key, "invalid_value");
  }

  // To be called when everything has been asked for.
  void refuse_unknown() const {
    for (const auto& [key, value] : body_.as_object()) {
      if (ignored_keys.contains(key) || std::ranges::find(known_, key) != known_.end()) continue;
      if (const Value* neutral = neutral_values().find(key)) {
        const auto& values = neutral->as_array();
        if (!value.is_null() && std::ranges::find(values, value) == values.end())
          throw ApiError(400, fmt::format("`{}` is not supported", key), key, "unsupported_parameter");
        continue;
      }
      const std::string near = did_you_mean(key, known_, "", '`'), name = shortened(key);
      throw ApiError(400, fmt::format("unknown parameter `{}`{}{}", name, near.empty() ? "" : "; ", near), name,
                     "unknown_parameter");
    }
  }

 private:
  static std::string range_text(std::int64_t least, std::int64_t most) {
    return most == std::numeric_limits<std::int64_t>::max() ? fmt::format("at least {}", least)
                                                            : fmt::format("from {} to {}", least, most);
  }

  Value& body_;
  std::vector<std::string> known_;
};

constexpr std::int64_t no_limit = std::numeric_limits<std::int64_t>::max();

std::vector<std::int32_t> read_tokens(const Value& list, const std::string& key, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(list.as_array().size());
  for (const auto& item : list.as_array()) {
    if (!item.is_integer()) Fields::refuse(key, "must be a string, a list of strings, or token ids");
    if (item.as_integer() < 0 || item.as_integer() >= vocabulary)
      Fields::refuse(key, fmt::format("has token {}; the vocabulary has {}", item.as_integer(), vocabulary));
    tokens.push_back(static_cast<std::int32_t>(item.as_integer()));
  }
  return tokens;
}

// A string, a list of strings, a list of token ids, or a list of such lists.
std::vector<Prompt> read_prompts(Fields& fields, std::int64_t vocabulary) {
  Value value = fields.take("prompt");
  if (value.is_null()) Fields::refuse("prompt", "is missing");
  if (value.is_string()) return {std::move(value.as_string())};
  if (!value.is_array()) Fields::refuse("prompt", "must be a string, a list of strings, or token ids");
  auto& list = value.as_array();
  if (list.empty()) Fields::refuse("prompt", "is empty");
  if (list[0].is_integer()) return {read_tokens(value, "prompt", vocabulary)};
  if (list.size() > max_prompts)
    Fields::refuse("prompt", fmt::format("has {} prompts; at most {} fit one request", list.size(), max_prompts));
  std::vector<Prompt> prompts;
  for (auto& item : list) {
    if (item.is_array())
      prompts.emplace_back(read_tokens(item, "prompt", vocabulary));
    else if (item.is_string())
      prompts.emplace_back(std::move(item.as_string()));
    else
      Fields::refuse("prompt", "must be a string, a list of strings, or token ids");
  }
  return prompts;
}

// Content given in parts becomes one string, a line for each part.
Value joined_parts(const Value& parts, const std::string& place) {
  std::string text;
  for (const auto& part : parts.as_array()) {
    const Value* type = part.find("type");
    const Value* piece = part.find("text");
    if (!type || !type->is_string() || type->as_string() != "text" || !piece || !piece->is_string())
      throw ApiError(400, "only parts of type `text` are supported", place, "unsupported_parameter");
    text += (text.empty() ? "" : "\n") + piece->as_string();
  }
  return text;
}

std::size_t count_values(const Value& value) {
  std::size_t count = 1;
  if (value.is_array())
    for (const auto& item : value.as_array()) count += count_values(item);
  if (value.is_object())
    for (const auto& [key, item] : value.as_object()) count += count_values(item);
  return count;
}

Value read_messages(Fields& fields) {
  Value messages = fields.take("messages");
  if (messages.is_null()) Fields::refuse("messages", "is missing");
  if (!messages.is_array() || messages.as_array().empty())
    Fields::refuse("messages", "must be a list of at least one message");
  if (count_values(messages) > max_message_values)
    Fields::refuse("messages", fmt::format("must hold at most {} values, as {} messages of text have",
                                           max_message_values, max_message_values / 3));
  std::size_t index = 0;
  for (auto& message : messages.as_array()) {
    const std::string place = fmt::format("messages[{}]", index++);
    const Value* role = message.find("role");
    if (!role || !role->is_string()) Fields::refuse(place + ".role", "must be a string");
    if (role->as_string() == "developer") message.set("role", "system");
    const Value* content = message.find("content");
    if (content && content->is_array()) {
      message.set("content", joined_parts(*content, place + ".content"));
    } else if (!(content && content->is_string()) && !message.find("tool_calls")) {
      Fields::refuse(place + ".content", "must be a string or a list of parts");
    }
  }
  return messages;
}

// Those that templates of several families know must have the types that they expect, since a template takes the text
// "false" for true.
Value read_template_arguments(Fields& fields) {
  const std::string key = "chat_template_kwargs", thinking = "enable_thinking", effort = "reasoning_effort";
  const Value* given = fields.find(key);
  if (given && !given->is_object()) Fields::refuse(key, "must be an object");
  Value arguments = given ? *given : Value::object();
  if (count_values(arguments) > max_template_values)
    Fields::refuse(key, fmt::format("must hold at most {} values", max_template_values));
  for (const auto& name : own_template_arguments)
    if (arguments.find(name)) Fields::refuse(key + "." + name, "is given by the server itself");
  if (const Value* value = arguments.find(thinking); value && !value->is_null() && !value->is_bool())
    Fields::refuse(key + "." + thinking, "must be true or false");
  if (const Value* value = arguments.find(effort); value && !value->is_null() && !value->is_string())
    Fields::refuse(key + "." + effort, "must be a string");
  if (const Value* value = fields.find(effort)) {
    if (arguments.find(effort)) Fields::refuse(effort, "is in `chat_template_kwargs`, too");
    if (!value->is_string() || !reasoning_efforts.contains(value->as_string()))
      Fields::refuse(effort, fmt::format("must be one of {}", fmt::join(reasoning_efforts, ", ")));
    arguments.set(effort, *value);
  }
  return arguments;
}

std::vector<std::string> read_stops(Fields& fields) {
  const Value* value = fields.find("stop");
  if (!value) return {};
  const std::span items = value->is_array() ? std::span(value->as_array()) : std::span(value, 1);
  if (items.size() > max_stops)
    Fields::refuse("stop", fmt::format("has {} strings; at most {} are allowed", items.size(), max_stops));
  std::vector<std::string> stops;
  for (const auto& item : items) {
    if (!item.is_string() || item.as_string().empty() || item.as_string().size() > max_stop_bytes)
      Fields::refuse("stop", fmt::format("must be a string of 1 to {} bytes, or a list of such", max_stop_bytes));
    stops.push_back(item.as_string());
  }
  return stops;
}

std::map<std::int32_t, float> read_logit_bias(Fields& fields, std::int64_t vocabulary) {
  const Value* value = fields.find("logit_bias");
  std::map<std::int32_t, float> bias;
  if (!value) return bias;
  if (!value->is_object() || value->as_object().size() > max_biased_tokens)
    Fields::refuse("logit_bias", fmt::format("must be an object of at most {} token ids", max_biased_tokens));
  for (const auto& [key, amount] : value->as_object()) {
    const bool digits = !key.empty() && key.size() <= 9 && key.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t token = digits ? std::atoll(key.c_str()) : -1;
    if (token < 0 || token >= vocabulary)
      Fields::refuse("logit_bias", fmt::format("has \"{}\", which is not a token id", shortened(key)));
    if (!amount.is_number() || !(std::abs(amount.as_number()) <= 100))
      Fields::refuse("logit_bias", "must have values from -100 to 100");
    bias[static_cast<std::int32_t>(token)] = static_cast<float>(amount.as_number());
  }
  return bias;
}

// chat: `logprobs: true, top_logprobs: k`; completions: `logprobs: k`. -1: none.
std::int32_t read_logprobs(Fields& fields, ApiKind kind) {
  if (kind == ApiKind::completion)
    return static_cast<std::int32_t>(fields.integer("logprobs", 0, max_top_logprobs).value_or(-1));
  const bool wanted = fields.boolean("logprobs");
  const auto top = fields.integer("top_logprobs", 0, max_top_logprobs);
  if (top && !wanted) Fields::refuse("top_logprobs", "needs `logprobs: true`");
  return wanted ? static_cast<std::int32_t>(top.value_or(0)) : -1;
}

Sampling read_sampling(Fields& fields, ApiKind kind, std::int64_t vocabulary) {
  Sampling sampling;
  sampling.temperature = fields.number("temperature", 0, 2).value_or(1);
  sampling.top_p = fields.number("top_p", 0, 1).value_or(1);
  sampling.top_k = static_cast<std::int32_t>(std::min(fields.integer("top_k", -1, no_limit).value_or(0), vocabulary));
  sampling.top_k = std::max(sampling.top_k, 0);  // some clients write "all" as -1
  sampling.min_p = fields.number("min_p", 0, 1).value_or(0);
  sampling.presence_penalty = fields.number("presence_penalty", -2, 2).value_or(0);
  sampling.frequency_penalty = fields.number("frequency_penalty", -2, 2).value_or(0);
  sampling.logit_bias = read_logit_bias(fields, vocabulary);
  sampling.logprobs = read_logprobs(fields, kind);
  return sampling;
}

void read_stream_options(Fields& fields, CompletionRequest& request) {
  request.stream = fields.boolean("stream");
  const Value* options = fields.find("stream_options");
  if (!options) return;
  if (!request.stream) Fields::refuse("stream_options", "needs `stream: true`");
  if (!options->is_object()) Fields::refuse("stream_options", "must be an object");
  for (const auto& [key, value] : options->as_object()) {
    if (key == "include_obfuscation") continue;  // padding of chunks, which is not needed on this connection
    if (key != "include_usage") Fields::refuse("stream_options." + shortened(key), "is unknown");
    if (!value.is_bool()) Fields::refuse("stream_options.include_usage", "must be true or false");
    request.include_usage = value.as_bool();
  }
}

void refuse_other_formats(Fields& fields) {
  const Value* format = fields.find("response_format");
  if (!format) return;
  const Value* type = format->find("type");
  if (!type || !type->is_string() || type->as_string() != "text")
    throw ApiError(400, "only `response_format: {\"type\": \"text\"}` is supported", "response_format",
                   "unsupported_parameter");
}

}  // namespace

CompletionRequest parse_completion_request(Value body, ApiKind kind, std::int64_t vocabulary) {
  Fields fields(body);
  CompletionRequest request;
  request.kind = kind;
  request.model = fields.string("model");
  if (kind == ApiKind::completion) {
    request.echo = fields.boolean("echo");
    request.max_tokens = fields.integer("max_tokens", 0, no_limit);
    if (request.max_tokens == 0 && !request.echo) Fields::refuse("max_tokens", "must be at least 1 without `echo`");
    request.prompts = read_prompts(fields, vocabulary);
    if (!request.max_tokens) request.max_tokens = 16;  // OpenAI's default
  } else {
    request.messages = read_messages(fields);
    request.max_tokens = fields.integer("max_tokens", 1, no_limit);
    if (const auto newer = fields.integer("max_completion_tokens", 1, no_limit)) request.max_tokens = newer;
    request.template_arguments = read_template_arguments(fields);
    refuse_other_formats(fields);
  }
  request.n = fields.integer("n", 1, max_choices).value_or(1);
  request.min_tokens = fields.integer("min_tokens", 0, no_limit).value_or(0);
  if (request.max_tokens && request.min_tokens > *request.max_tokens)
    Fields::refuse("min_tokens", "must not exceed `max_tokens`");
  request.ignore_eos = fields.boolean("ignore_eos");
  request.return_token_ids = fields.boolean("return_token_ids");
  request.stop = read_stops(fields);
  request.seed = fields.integer("seed", std::numeric_limits<std::int64_t>::min(), no_limit);
  request.cache_salt = fields.name("cache_salt");
  request.prompt_cache_key = fields.name("prompt_cache_key");
  request.sampling = read_sampling(fields, kind, vocabulary);
  read_stream_options(fields, request);
  fields.refuse_unknown();
  return request;
}

}  // namespace motley
