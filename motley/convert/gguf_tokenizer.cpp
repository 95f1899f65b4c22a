// tokenizer.json -> tokenizer.ggml.*: what llama.cpp's converter asks the library `tokenizers` for, read from the file.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>

#include "motley/base/binding.hpp"
#include "motley/convert/gguf_keys.hpp"
#include "motley/model/families/families.hpp"

namespace motley {
namespace {

namespace fs = std::filesystem;

// Of tokenizer.ggml.token_type.
enum TokenType : std::int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

// A member along the way; null where one is missing.
const Value* at(const Value* value, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) value = value ? value->find(key) : nullptr;
  return value;
}

std::string text_at(const Value* value, std::initializer_list<std::string_view> keys) {
  const Value* found = at(value, keys);
  return found && found->is_string() ? found->as_string() : std::string();
}

bool true_at(const Value* value, std::initializer_list<std::string_view> keys) {
  const Value* found = at(value, keys);
  return found && found->is_bool() && found->as_bool();
}

// The steps of a `Sequence`, or the one step that stands for itself.
std::vector<const Value*> steps_of(const Value* value, std::string_view list) {
  std::vector<const Value*> steps;
  if (!value || value->is_null()) return steps;
  const Value* several = text_at(value, {"type"}) == "Sequence" ? value->find(list) : nullptr;
  if (!several || !several->is_array()) return {value};
  for (const Value& step : several->as_array()) steps.push_back(&step);
  return steps;
}

class TokenizerWriter {
 public:
  TokenizerWriter(const fs::path& folder, const Model& model, GgufWriter& writer)
      : file_((folder / "tokenizer.json").string()),
        tokenizer_(read_document(file_)),
        vocabulary_(static_cast<std::size_t>(model.arch.vocabulary)),
        form_(*family_of(model.arch).gguf),
        model_(model),
        writer_(writer) {
    const fs::path config = folder / "tokenizer_config.json", chat = folder / "chat_template.jinja";
    if (fs::is_regular_file(config)) config_ = read_document(config);
    template_ = text_at(&config_, {"chat_template"});
    if (template_.empty() && fs::is_regular_file(chat)) template_ = read_file(chat);
  }

  void write() {
    read_tokens();
    if (text_at(&tokenizer_, {"model", "type"}) != "BPE")
      refuse(fmt::format("a tokenizer of type \"{}\" is not supported", text_at(&tokenizer_, {"model", "type"})),
             "supported: BPE");
    // Bytes that have no token are spelled in tokens of their own only by SentencePiece's kinds.
    const bool pieces = true_at(&tokenizer_, {"model", "byte_fallback"});
    const std::string kind = !pieces ? "gpt2" : space_prefix() ? "llama" : std::string(form_.pieces_kind);
    const bool listed = pieces && kind != "llama";
    writer_.set_text("tokenizer.ggml.model", kind);
    if (!listed) writer_.set_text("tokenizer.ggml.pre", pieces ? "default" : rule_name());
    writer_.set_texts("tokenizer.ggml.tokens", texts_);
    writer_.set_i32s("tokenizer.ggml.token_type", types_);
    kind == "llama" ? write_scores() : writer_.set_texts("tokenizer.ggml.merges", merges());
    if (pieces) writer_.set_bool("tokenizer.ggml.add_space_prefix", space_prefix());
    write_special_tokens(/*begins=*/listed);
    if (!template_.empty()) writer_.set_text("tokenizer.chat_template", template_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const std::string& hint) const {
    throw input_error(fmt::format("{}: {}", file_, what), hint);
  }

  // Texts and types by id; ids without a token are padding.
  void read_tokens() {
    for (std::size_t id = 0; id < vocabulary_; ++id) texts_.push_back(fmt::format("[PAD{}]", id));
    types_.assign(vocabulary_, TokenType::unused);
    const Value* vocabulary = at(&tokenizer_, {"model", "vocab"});
    if (!vocabulary || !vocabulary->is_object())
      refuse("`model.vocab` is missing", "take tokenizer.json from the model's folder");
    for (const auto& [text, id] : vocabulary->as_object()) set_token(text, id, type_of_text(text));
    for (const Value* token : added_tokens()) {
      const std::string text = text_at(token, {"content"});
      const bool visible = std::ranges::find(form_.visible_tokens, text) != form_.visible_tokens.end();
      const bool special = !visible && (true_at(token, {"special"}) || looks_special(text));
      const Value* id = token->find("id");
      if (!id)
        refuse(fmt::format("the added token \"{}\" has no id", text), "take tokenizer.json from the model's folder");
      set_token(text, *id, special ? TokenType::control : TokenType::user_defined);
    }
    if (const std::string text = text_at(&tokenizer_, {"model", "unk_token"}); !text.empty())
      if (const auto id = id_of(text)) types_[static_cast<std::size_t>(*id)] = TokenType::unknown;
  }

  void set_token(const std::string& text, const Value& id, TokenType type) {
    if (!id.is_integer() || id.as_integer() < 0 || static_cast<std::size_t>(id.as_integer()) >= vocabulary_)
      refuse(fmt::format("the token \"{}\" has an id outside of the vocabulary of {}", text, vocabulary_),
             "take config.json and tokenizer.json from the same model");
    const auto place = static_cast<std::size_t>(id.as_integer());
    texts_[place] = text;
    types_[place] = type;
    ids_[text] = id.as_integer();
  }

  std::vector<const Value*> added_tokens() const {
    std::vector<const Value*> tokens;
    const Value* list = tokenizer_.find("added_tokens");
    if (list && list->is_array())
      for (const Value& token : list->as_array()) tokens.push_back(&token);
    return tokens;
  }

  // As llama.cpp's converter has it: control tokens that are not marked as special.
  static bool looks_special(std::string_view text) {
    return text == "<pad>" || text == "<mask>" || (text.starts_with("<|") && text.ends_with("|>")) ||
           (text.starts_with("<unused") && text.ends_with(">"));
  }

  static TokenType type_of_text(std::string_view text) {
    return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">") ? TokenType::byte : TokenType::normal;
  }

  std::optional<std::int64_t> id_of(const std::string& text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  // The name of the rule by which a text is split before its bytes are merged.
  std::string rule_name() const {
    std::vector<std::string> patterns;
    bool split = false, byte_level = false;
    for (const Value* step : steps_of(tokenizer_.find("pre_tokenizer"), "pretokenizers")) {
      const std::string type = text_at(step, {"type"});
      if (type == "ByteLevel") {
        byte_level = true;
        if (step->find("use_regex") ? true_at(step, {"use_regex"}) : !split) patterns.emplace_back(gpt2_words);
      } else if (type == "Digits" && true_at(step, {"individual_digits"})) {
        patterns.emplace_back(one_digit);
      } else {
        split = true;
        patterns.push_back(type == "Split" ? text_at(step, {"pattern", "Regex"}) : type);
      }
    }
    std::string known;
    for (const PreTokenizer& one : pre_tokenizers()) {
      const auto end = std::ranges::find(one.patterns, std::string_view());
      const std::string name(one.names.substr(0, one.names.find(' ')));
      if (byte_level && std::ranges::equal(patterns, std::span(one.patterns.begin(), end))) return name;
      known += (known.empty() ? "" : ", ") + name;
    }
    refuse("its rule for splitting a text is none that is known by name",
           fmt::format("known: {}; serve the folder itself: --weight-type quantises it as it is loaded", known));
  }

  // Pairs are written with a space between, so one inside a part is spelled as byte level does.
  std::vector<std::string> merges() const {
    std::vector<std::string> lines;
    const Value* list = at(&tokenizer_, {"model", "merges"});
    if (!list || !list->is_array()) refuse("`model.merges` is missing", "take tokenizer.json from the model's folder");
    for (const Value& merge : list->as_array()) {
      if (merge.is_string()) {
        lines.push_back(merge.as_string());
        continue;
      }
      if (!merge.is_array() || merge.as_array().size() != 2 || !merge.as_array()[0].is_string() ||
          !merge.as_array()[1].is_string())
        refuse("an entry of `model.merges` is not a pair of texts", "take tokenizer.json from the model's folder");
      std::array<std::string, 2> parts;
      for (std::size_t i = 0; i < 2; ++i)
        for (const char c : merge.as_array()[i].as_string()) parts[i] += c == ' ' ? "\u0120" : std::string(1, c);
      lines.push_back(parts[0] + " " + parts[1]);
    }
    return lines;
  }

  // llama.cpp merges the pair whose result has the highest score: that of its place among the merges.
  void write_scores() {
    std::vector<float> scores(vocabulary_, -1e6F);
    float score = 0;
    for (const std::string& merge : merges()) {
      std::string text = merge;
      text.erase(text.find(' '), 1);
      if (const auto id = id_of(text)) scores[static_cast<std::size_t>(*id)] = --score;
    }
    writer_.set_f32s("tokenizer.ggml.scores", scores);
  }

  bool space_prefix() const {
    for (const Value* step : steps_of(tokenizer_.find("normalizer"), "normalizers"))
      if (text_at(step, {"type"}) == "Prepend") return true;
    for (const Value* step : steps_of(tokenizer_.find("pre_tokenizer"), "pretokenizers"))
      if (text_at(step, {"type"}) == "Metaspace") return text_at(step, {"prepend_scheme"}) != "never";
    return false;
  }

  // What tokenizer_config.json names, else the number in config.json.
  std::optional<std::int64_t> special_token(const std::string& kind) const {
    const Value* named = config_.find(kind + "_token");
    if (named && named->is_object()) named = named->find("content");
    if (named && named->is_string())
      if (const auto id = id_of(named->as_string())) return id;
    const Value* number = model_.config.find(kind + "_token_id");
    if (number && number->is_array() && !number->as_array().empty()) number = &number->as_array().front();
    return number && number->is_integer() ? std::optional(number->as_integer()) : std::nullopt;
  }

  // Whether a prompt begins (ends) with the token: by the template of the post-processor, or by tokenizer_config.json.
  std::optional<bool> is_added(const std::string& kind, const std::optional<std::int64_t>& token) const {
    for (const Value* step : steps_of(tokenizer_.find("post_processor"), "processors")) {
      const Value* parts = step->find("single");
      if (text_at(step, {"type"}) != "TemplateProcessing" || !parts || !parts->is_array() || parts->as_array().empty())
        continue;
      const Value& part = kind == "bos" ? parts->as_array().front() : parts->as_array().back();
      const std::string name = text_at(&part, {"SpecialToken", "id"});
      return token && !name.empty() && id_of(name) == token;
    }
    const Value* stated = config_.find(fmt::format("add_{}_token", kind));
    if (stated && stated->is_bool()) return stated->as_bool();
    return std::nullopt;
  }

  // `begins`: with BOS, whatever the folder says.
  void write_special_tokens(bool begins) {
    const std::array<std::pair<const char*, const char*>, 4> kinds = {
        {{"bos", "bos"}, {"eos", "eos"}, {"unk", "unknown"}, {"pad", "padding"}}};
    for (const auto& [kind, key] : kinds)
      if (const auto id = special_token(kind))
        writer_.set_u32(fmt::format("tokenizer.ggml.{}_token_id", key), static_cast<std::uint32_t>(*id));
    const auto bos = begins ? true : is_added("bos", special_token("bos")), eos = is_added("eos", special_token("eos"));
    if (bos) writer_.set_bool("tokenizer.ggml.add_bos_token", *bos);
    if (eos) writer_.set_bool("tokenizer.ggml.add_eos_token", *eos);
  }

  std::string file_;
  Value tokenizer_, config_;
  std::string template_;
  std::size_t vocabulary_;
  const GgufForm& form_;
  const Model& model_;
  GgufWriter& writer_;
  std::vector<std::string> texts_;
  std::vector<std::int32_t> types_;
  std::map<std::string, std::int64_t> ids_;
};

}  // namespace

void write_tokenizer(const fs::path& folder, const Model& model, GgufWriter& writer) {
  if (fs::is_regular_file(folder / "tokenizer.json")) return TokenizerWriter(folder, model, writer).write();
  writer.set_text("tokenizer.ggml.model", "no_vocab");  // llama.cpp loads no file without this key
}

}  // namespace motley
