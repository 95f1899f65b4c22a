#include "motley/trainer/data/tokenise.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/parallel.hpp"
#include "motley/checkpoint/digest.hpp"
#include "motley/text/text_codec.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

// A part of a text, in bytes: [first, end).
struct TextRange {
  std::size_t first = 0, end = 0;
};

struct Document {
  std::string text;
  std::vector<TextRange> learned;  // whose tokens count for the loss; ordered
  bool starts = true;              // begins with the special tokens that the tokenizer puts before a text
  bool ends = true;                // is followed by the EOS token
};

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

// What a line of a .jsonl file stands for: `text`, all of it learned; `prompt` and `completion`, the latter learned
// with its EOS token; or `messages`, the assistant's turns learned, each to its end as the chat template writes it, and
// no special tokens but the template's. A conversation whose earlier turns the template renders otherwise once it goes
// on is one document for each of the assistant's turns, which ends with it. Throws input errors that begin with
// `place`.
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

// A document's part that is tokenised by itself, so that long texts take bounded memory: up to the last line that ends
// within this many bytes and is followed by a letter, where tokenizers cut in any case; else all of `text`.
std::string_view first_part(std::string_view text, std::size_t most_bytes) {
  if (text.size() <= most_bytes) return text;
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (std::size_t end = most_bytes; end > 0; --end)
    if (text[end - 1] == '\n' && is_letter(text[end])) return text.substr(0, end);
  return text;
}

constexpr std::string_view format_version = "motley tokens 1";  // another whenever other tokens come of a text
constexpr std::size_t part_bytes = 1 << 20;                     // of a text, tokenised at once
constexpr std::size_t batch_bytes = 1 << 20;                    // of lines, tokenised side by side
constexpr std::size_t batch_lines = 1024;

// ---- how a model's tokenizer begins and ends texts ----

struct Ends {
  std::vector<std::int32_t> before;
  std::int32_t eos = 0;
};

std::optional<std::int32_t> configured_eos(const fs::path& model) {
  for (const char* name : {"config.json", "generation_config.json"}) {
    std::error_code ignored;
    if (!fs::is_regular_file(model / name, ignored)) continue;
    const Value config = read_document(model / name);
    const Value* eos = config.find("eos_token_id");
    if (eos && eos->is_array() && !eos->as_array().empty()) eos = &eos->as_array().front();
    if (eos && eos->is_integer()) return static_cast<std::int32_t>(eos->as_integer());
  }
  return std::nullopt;
}

Ends ends_of(TextCodec& codec, const fs::path& model) {
  const std::optional<std::int32_t> named = codec.eos_token(), eos = named ? named : configured_eos(model);
  if (!eos)
    throw input_error(fmt::format("{}: the model names no EOS token, which separates documents", model.string()),
                      "name it as `eos_token` in tokenizer_config.json");
  const auto plain = codec.encode("a", false), full = codec.encode("a", true);
  const auto text = std::ranges::search(full, plain);
  return {{full.begin(), text.begin()}, *eos};
}

// ---- one document ----

struct Tokenised {
  std::vector<std::int32_t> tokens;
  std::vector<bool> learned;
  void add(std::int32_t token, bool counts) {
    tokens.push_back(token);
    learned.push_back(counts);
  }
};

std::int64_t characters(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// Which of the tokens end inside a range that is learned; one across the border to it does.
std::vector<bool> learned_of(const TextCodec::Placed& placed, const Document& document) {
  const std::string_view text = document.text;
  std::vector<bool> learned(placed.tokens.size());
  std::size_t token = 0;
  for (const TextRange& range : document.learned) {
    const std::int64_t first = characters(text.substr(0, range.first)), end = characters(text.substr(0, range.end));
    while (token < learned.size() && placed.ends[token] <= first) ++token;
    while (token < learned.size() && placed.ends[token] <= end) learned[token++] = true;
  }
  return learned;
}

Tokenised tokenise_document(const Document& document, const Ends& ends, TextCodec& codec) {
  const bool whole = document.learned.front().first == 0 && document.learned.front().end >= document.text.size();
  Tokenised result;
  if (document.starts)
    for (const std::int32_t token : ends.before) result.add(token, whole);
  const TextCodec::Placed placed =
      whole ? TextCodec::Placed{codec.encode(document.text, false), {}} : codec.encode_placed(document.text);
  const std::vector<bool> learned =
      whole ? std::vector<bool>(placed.tokens.size(), true) : learned_of(placed, document);
  for (std::size_t i = 0; i < placed.tokens.size(); ++i) result.add(placed.tokens[i], learned[i]);
  if (document.ends) result.add(ends.eos, true);
  return result;
}

// ---- files ----

// What goes wrong in `work` is told with the place in the data.
template <class Work>
void at(const std::string& place, const Work& work) {
  try {
    work();
  } catch (Error& error) {
    error.prepend_context(place);
    throw;
  }
}

class Tokeniser {
 public:
  Tokeniser(const TokeniseOptions& options, TextCodec& codec, Ends ends, MarkedTokenWriter& writer)
      : options_(options), codec_(codec), ends_(std::move(ends)), writer_(writer) {}

  void text(std::string_view text) {
    std::size_t done = 0;
    do {
      const std::string_view part = first_part(text.substr(done), part_bytes);
      const bool starts = done == 0, ends = part.size() == text.size() - done;
      at(options_.file.string(), [&] {
        write(tokenise_document({std::string(part), {{0, part.size()}}, starts, ends}, ends_, codec_));
      });
      done += part.size();
      report(done, text.size());
    } while (done < text.size());
  }

  void lines(std::string_view text) {
    std::size_t done = 0, number = 0;
    while (done < text.size()) {
      const std::size_t start = done;
      std::vector<std::pair<std::string, std::string_view>> batch;  // with the place of each line
      while (done < text.size() && batch.size() < batch_lines && done - start < batch_bytes) {
        const std::string_view line = text.substr(done, text.find('\n', done) - done);
        done = std::min(text.size(), done + line.size() + 1);
        ++number;
        if (line.find_first_not_of(" \t\r") != std::string_view::npos)
          batch.emplace_back(fmt::format("{}:{}", options_.file.string(), number), line);
      }
      std::vector<std::vector<Tokenised>> results(batch.size());
      in_parallel(batch.size(), options_.threads, [&](std::size_t i) {
        at(batch[i].first, [&] {
          for (const Document& document : documents_of_line(batch[i].second, codec_))
            results[i].push_back(tokenise_document(document, ends_, codec_));
        });
      });
      for (std::size_t i = 0; i < batch.size(); ++i)
        at(batch[i].first, [&] {
          for (const Tokenised& result : results[i]) write(result);
        });
      report(done, text.size());
    }
  }

 private:
  void write(const Tokenised& result) {
    for (std::size_t i = 0; i < result.tokens.size(); ++i) {
      if (result.tokens[i] < 0 || result.tokens[i] >= options_.vocabulary)
        throw input_error(fmt::format("token {}, at position {} of the tokens, is outside the model's vocabulary of {}",
                                      result.tokens[i], writer_.size(), options_.vocabulary),
                          "use the tokenizer that belongs to the model");
      writer_.add(result.tokens[i], result.learned[i]);
    }
  }

  void report(std::size_t done, std::size_t all) const {
    if (options_.progress)
      options_.progress(static_cast<double>(done) / static_cast<double>(std::max<std::size_t>(all, 1)));
  }

  const TokeniseOptions& options_;
  TextCodec& codec_;
  Ends ends_;
  MarkedTokenWriter& writer_;
};

std::string cache_name(const fs::path& model, std::span<const std::byte> content, const std::string& kind) {
  std::string parts = fmt::format("{}\n{}", format_version, kind);
  const auto add = [&](std::span<const std::byte> bytes) {
    const auto digest = sha256_of(bytes);
    parts.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  };
  add(content);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
                           "config.json", "generation_config.json"}) {
    std::error_code ignored;
    const std::string text = fs::is_regular_file(model / name, ignored) ? read_file(model / name) : std::string();
    add(std::as_bytes(std::span(text)));
  }
  const auto digest = sha256_of(std::as_bytes(std::span(parts)));
  return fmt::format("{:02x}.tokens", fmt::join(std::as_bytes(std::span(digest)), ""));
}

void make_folder(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed)
    throw Error(ErrorCode::environment, fmt::format("cannot make {}: {}", folder.string(), failed.message()),
                "check that the folder above exists and is writable");
}

std::optional<TokenFile> open_kept(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  try {
    return TokenFile::open_marked(path);
  } catch (const Error&) {
    return std::nullopt;  // damaged: written again
  }
}

}  // namespace

TokenFile tokenise(const TokeniseOptions& options) {
  const auto file = map_data(options.file);
  const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  const bool lines = options.file.extension() == ".jsonl";
  fs::path kept;
  if (!options.cache.empty()) {
    make_folder(options.cache);
    kept = options.cache / cache_name(options.model, file->bytes(), options.file.extension().string());
    if (auto tokens = open_kept(kept)) return *std::move(tokens);
  }
  const auto codec = TextCodec::open(options.model);
  MarkedTokenWriter writer(options.cache.empty() ? fs::temp_directory_path() : options.cache);
  Tokeniser tokeniser(options, *codec, ends_of(*codec, options.model), writer);
  if (lines)
    tokeniser.lines(text);
  else
    tokeniser.text(text);
  if (kept.empty()) return writer.finish_unnamed();
  writer.finish(kept);
  return TokenFile::open_marked(kept);
}

}  // namespace motley
