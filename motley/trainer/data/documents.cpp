#include "motley/trainer/data/documents.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr const char* forms =
    R"(a line is {"text": "..."}, {"prompt": "...", "completion": "..."} or {"messages": [...]})";

const std::string& text_at(const Value& line, std::string_view key) {
  const Value* value = line.find(key);
  if (!value) throw input_error(fmt::format("the key `{}` is missing", key), forms);
  if (!value->is_string())
    throw input_error(fmt::format("`{}` must be a string, found {}", key, value->type_name()), forms);
  return value->as_string();
}

std::size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

bool is_assistant(const Value& message) {
  const Value* role = message.find("role");
  return role && role->is_string() && role->as_string() == "assistant";
}

// A turn of the assistant as it is generated: what the conversation renders to before and after it.
struct Turn {
  std::string before, after;
};

std::vector<Turn> assistant_turns(const Value::Array& messages, TextCodec& codec) {
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!is_assistant(messages[i])) continue;
    const auto first_messages = [&](std::size_t end) {
      return Value(Value::Array(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(end)));
    };
    turns.push_back({i == 0 ? std::string() : codec.apply_chat_template(first_messages(i), true),
                     codec.apply_chat_template(first_messages(i + 1), false)});
  }
  return turns;
}

std::vector<Document> conversation(const Value& messages, TextCodec& codec) {
  if (!codec.has_chat_template())
    throw input_error("`messages` need a chat template, and the model has none",
                      "add chat_template.jinja to the model's folder, or give `prompt` and `completion`");
  const std::string whole = codec.apply_chat_template(messages, false);
  const std::vector<Turn> turns = assistant_turns(messages.as_array(), codec);
  if (turns.empty())
    throw input_error("`messages` has no turn of the assistant: there is nothing to learn from it",
                      "remove the line, or give it a message whose `role` is \"assistant\"");
  const bool goes_on = std::ranges::all_of(turns, [&](const Turn& turn) { return whole.starts_with(turn.after); });
  std::vector<Document> documents;
  for (const Turn& turn : turns) {
    if (documents.empty() || !goes_on) documents.push_back({goes_on ? whole : turn.after, {}, false, false});
    documents.back().learned.push_back({common_prefix(turn.before, turn.after), turn.after.size()});
  }
  return documents;
}

Value parse_line(std::string_view line) {
  Value value;
  try {
    value = parse_json(line, "the line");
  } catch (const Error& error) {
    throw input_error(error.message(), forms);  // without the place in this line: the file's is told
  }
  if (!value.is_object()) throw input_error(fmt::format("expected an object, found {}", value.type_name()), forms);
  return value;
}

}  // namespace

std::vector<Document> documents_of_line(std::string_view line, TextCodec& codec) {
  const Value value = parse_line(line);
  if (const Value* messages = value.find("messages")) return conversation(*messages, codec);
  if (value.find("prompt") || value.find("completion")) {
    const std::string& prompt = text_at(value, "prompt");
    const std::string text = prompt + text_at(value, "completion");
    return {{text, {{prompt.size(), text.size()}}}};
  }
  if (!value.find("text"))
    throw input_error("the line has neither `text`, nor `prompt` and `completion`, nor `messages`", forms);
  const std::string& text = text_at(value, "text");
  return {{text, {{0, text.size()}}}};
}

std::string_view first_part(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return text;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (std::size_t end = most_bytes; end > 0; --end)
    if (text[end - 1] == '\n' && is_letter(text[end])) return text.substr(0, end);
  return text;
}

}  // namespace motley
