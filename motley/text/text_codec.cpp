#include "motley/text/text_codec.hpp"

#include <fmt/format.h>

#include <cstring>

#include "motley/base/error.hpp"
#include "motley/checkpoint/gguf.hpp"
#include "motley/model/families/families.hpp"
#include "motley/text/text_processes.hpp"

namespace motley {
namespace {

// Chat templates come with the model and are not trusted.
constexpr TextWork template_work{"the chat template",
                                 "send fewer or shorter messages; if all messages fail, replace the model's template",
                                 2, std::uint64_t{512} << 20};

// Nor are a tokenizer's regular expressions. Long texts take longer: ten times what a busy processor needs.
TextWork tokenizer_work(std::size_t text_bytes) {
  return {"the tokenizer",
          "send less text; if all texts fail, copy tokenizer.json again from where the model came from",
          2 + static_cast<double>(text_bytes) / (100 << 10), (std::uint64_t{512} << 20) + 256 * text_bytes};
}

bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U; };
    const unsigned first = byte(i);
    const std::size_t length = first < 0x80   ? 1
                               : first < 0xC2 ? 0
                               : first < 0xE0 ? 2
                               : first < 0xF0 ? 3
                               : first < 0xF5 ? 4
                                              : 0;
    if (length == 0) return false;
    const unsigned second = byte(i + 1);
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
        (first == 0xF4 && second > 0x8F))
      return false;
    for (std::size_t at = 1; at < length; ++at)
      if ((byte(i + at) & 0xC0U) != 0x80) return false;
    i += length;
  }
  return true;
}

void check_text(const std::filesystem::path& file, const std::string& key, const Value& value) {
  if (value.is_string() && !is_utf8(value.as_string()))
    throw input_error(fmt::format("{}: {}: a text that is not valid UTF-8", file.string(), key),
                      "convert the model again with a current llama.cpp, or serve its Hugging Face folder");
  if (!value.is_array()) return;
  for (const Value& item : value.as_array()) check_text(file, key, item);
}

// What the file's `tokenizer.ggml.pre` stands for.
Value pre_tokenizer(const std::filesystem::path& file, const Value* stated) {
  const std::string name = stated == nullptr ? "default" : stated->is_string() ? stated->as_string() : "";
  std::string known;
  for (const PreTokenizer& one : pre_tokenizers()) {
    for (std::size_t at = 0, end = 0; end != std::string_view::npos; at = end + 1) {
      end = one.names.find(' ', at);
      if (one.names.substr(at, end - at) != name) continue;
      Value patterns = Value::array();
      for (const std::string_view pattern : one.patterns)
        if (!pattern.empty()) patterns.push_back(std::string(pattern));
      return Value::object(
          {{"patterns", patterns}, {"whole_words_first", one.whole_words_first}, {"begins", one.begins}});
    }
    known.append(known.empty() ? "" : " ").append(one.names);
  }
  throw input_error(fmt::format("{}: tokenizer.ggml.pre: the pre-tokenizer '{}' is unknown", file.string(), name),
                    fmt::format("known: {}", known));
}

template <class Number>
std::string packed(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

template <class Number>
std::vector<Number> unpacked(const std::string& bytes) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(Number));
  return numbers;
}

std::string flag(bool value) { return value ? "1" : "0"; }

void check_token(std::int32_t token) {
  if (token < 0) throw input_error(fmt::format("{} is not a token id", token), "use token ids of at least 0");
}

class ProcessCodec final : public TextCodec {
 public:
  explicit ProcessCodec(const std::filesystem::path& model)
      : processes_([model, gguf = is_gguf(model)]() -> TextParts {
          if (gguf) return {"open_gguf", model.string(), tokenizer_keys(model)};
          return {"open_folder", model.string()};
        }) {
    const Value facts = parse_json(processes_.answer().at(0), "the tokenizer");
    vocabulary_size_ = facts.find("vocabulary")->as_integer();
    if (const Value* eos = facts.find("eos"); eos->is_integer())
      eos_token_ = static_cast<std::int32_t>(eos->as_integer());
    has_chat_template_ = facts.find("template")->as_bool();
    processes_.call(template_work, {"load_template"});
  }

  std::vector<std::int32_t> encode(std::string_view text, bool add_special_tokens) override {
    return unpacked<std::int32_t>(
        processes_.call(tokenizer_work(text.size()), {"encode", std::string(text), flag(add_special_tokens)}).at(0));
  }

  Placed encode_placed(std::string_view text) override {
    const TextParts placed = processes_.call(tokenizer_work(text.size()), {"encode_placed", std::string(text)});
    return {unpacked<std::int32_t>(placed.at(0)), unpacked<std::int64_t>(placed.at(1))};
  }

  std::vector<std::string> decode_all(const std::vector<std::vector<std::int32_t>>& lists,
                                      bool skip_special_tokens) override {
    TextParts request = {"decode", flag(skip_special_tokens)};
    std::size_t tokens_bytes = 0;
    for (const auto& tokens : lists) {
      for (const auto token : tokens) check_token(token);
      tokens_bytes += request.emplace_back(packed(tokens)).size();
    }
    return processes_.call(tokenizer_work(tokens_bytes), request);
  }

  std::string token_text(std::int32_t token) override { return of_token("token_text", token); }

  std::vector<std::uint8_t> token_bytes(std::int32_t token) override {
    const std::string bytes = of_token("token_bytes", token);
    return {bytes.begin(), bytes.end()};
  }

  std::int64_t vocabulary_size() override { return vocabulary_size_; }
  std::optional<std::int32_t> eos_token() override { return eos_token_; }
  bool has_chat_template() override { return has_chat_template_; }

  std::string apply_chat_template(const Value& messages, bool add_generation_prompt, const Value& arguments) override {
    if (!messages.is_array() || messages.as_array().empty())
      throw input_error("messages: expected a list of at least one",
                        R"(such as [{"role": "user", "content": "hello"}])");
    for (const auto& message : messages.as_array())
      if (!message.is_object())
        throw input_error(fmt::format("messages: expected a list of objects, found {}", message.type_name()),
                          R"(such as [{"role": "user", "content": "hello"}])");
    if (!has_chat_template_)
      throw input_error("the model has no chat template",
                        "add chat_template.jinja to its folder, or send plain text to /v1/completions");
    return processes_
        .call(template_work, {"render", to_json(messages), flag(add_generation_prompt), to_json(arguments)})
        .at(0);
  }

 private:
  std::string of_token(const char* method, std::int32_t token) {
    check_token(token);
    return processes_.call(tokenizer_work(0), {method, packed(std::vector{token})}).at(0);
  }

  TextProcesses processes_;
  std::int64_t vocabulary_size_ = 0;
  std::optional<std::int32_t> eos_token_;
  bool has_chat_template_ = false;
};

}  // namespace

std::string tokenizer_keys(const std::filesystem::path& file) {
  Value keys = Value::object();
  const GgufFile gguf(file);
  for (const auto& [key, value] : gguf.metadata().as_object()) {
    if (!key.starts_with("tokenizer.")) continue;
    check_text(file, key, value);
    keys.set(key, value);
  }
  if (const Value* kind = keys.find("tokenizer.ggml.model"); kind != nullptr && *kind == Value("gpt2"))
    keys.set("pre_tokenizer", pre_tokenizer(file, keys.find("tokenizer.ggml.pre")));
  return to_json(keys);
}

std::shared_ptr<TextCodec> TextCodec::open(const std::filesystem::path& model) {
  return std::make_shared<ProcessCodec>(model);
}

}  // namespace motley
