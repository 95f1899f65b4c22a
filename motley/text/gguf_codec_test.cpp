#include <gtest/gtest.h>

#include <fstream>

#include "motley/base/error.hpp"
#include "motley/checkpoint/gguf_writer.hpp"
#include "motley/text/text_codec_fixture_test.hpp"

namespace motley {
namespace {

const fs::path gguf_data = text_data / "gguf";

const Value& gguf_goldens() {
  static const Value value = read_document(gguf_data / "goldens.json");
  return value;
}

class GgufTokenizers : public testing::TestWithParam<std::string> {};

TEST_P(GgufTokenizers, EncodeAsLlamaCpp) {
  const auto codec = TextCodec::open(gguf_data / (GetParam() + ".gguf"));
  const Value& golden = member(member(gguf_goldens(), "tokenizers"), GetParam());
  const auto& texts = member(gguf_goldens(), "texts").as_array();
  const auto& tokens = member(golden, "tokens").as_array();
  const auto& with_special = member(golden, "with_special").as_array();
  ASSERT_EQ(texts.size(), tokens.size());
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(codec->encode(texts[i].as_string(), false), tokens_of(tokens[i])) << texts[i].as_string();
  for (std::size_t i = 0; i < with_special.size(); ++i)
    EXPECT_EQ(codec->encode(texts[i].as_string(), true), tokens_of(with_special[i])) << texts[i].as_string();
}

// But for what one of them has no sign of its own for: its own space, and a space in front after special tokens.
TEST_P(GgufTokenizers, DecodeWhatWasEncoded) {
  const auto codec = TextCodec::open(gguf_data / (GetParam() + ".gguf"));
  for (const auto& value : member(gguf_goldens(), "texts").as_array()) {
    const std::string& text = value.as_string();
    if (GetParam() == "sentencepiece" && (text.find("\u2581") != text.npos || text.find("s>") != text.npos)) continue;
    EXPECT_EQ(codec->decode(codec->encode(text, false), false), text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufTokenizers, testing::Values("gpt-2", "llama-bpe", "sentencepiece"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(GgufCodec, TalesAreTheSameFromTheFolder) {
  const auto folder = TextCodec::open(fs::path(MOTLEY_SOURCE_DIR) / "data/models/tales");
  const auto file = TextCodec::open(gguf_data / "gpt-2.gguf");
  EXPECT_EQ(file->vocabulary_size(), folder->vocabulary_size());
  const Value messages = Value::array({Value::object({{"role", "user"}, {"content", "Tell me a tale."}})});
  EXPECT_EQ(file->apply_chat_template(messages, true), folder->apply_chat_template(messages, true));
  for (std::int32_t token = 0; token < 2048; ++token)
    EXPECT_EQ(file->token_bytes(token), folder->token_bytes(token)) << token;
}

// A vocabulary of three tokens, with which something is wrong.
class BadGguf : public testing::Test {
 protected:
  BadGguf() {
    writer.set_text("general.architecture", "llama");
    writer.set_text("tokenizer.ggml.model", "gpt2");
    writer.set_text("tokenizer.ggml.pre", "gpt-2");
  }
  Error error() {
    const Folder folder;
    writer.write(folder.path() / "model.gguf", {});
    return error_of([&] { TextCodec::open(folder.path() / "model.gguf"); });
  }
  void expect(const std::string& what) {
    const Error found = error();
    EXPECT_EQ(found.code(), ErrorCode::input) << found.what();
    EXPECT_NE(found.message().find(what), std::string::npos) << found.what();
    EXPECT_NE(found.message().find("model.gguf: "), std::string::npos) << found.what();
    EXPECT_FALSE(found.hint().empty());
  }
  GgufWriter writer;
};

TEST_F(BadGguf, NoTokens) { expect("tokenizer.ggml.tokens is missing or empty"); }

TEST_F(BadGguf, NoMerges) {
  writer.set_texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
  expect("tokenizer.ggml.merges is missing");
}

TEST_F(BadGguf, MergesOfUnknownTokens) {
  writer.set_texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
  writer.set_texts("tokenizer.ggml.merges", {"a c"});
  expect("the tokenizer cannot be built");
}

TEST_F(BadGguf, MergesWithoutASpace) {
  writer.set_texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
  writer.set_texts("tokenizer.ggml.merges", {"a b", "ab"});
  expect("tokenizer.ggml.merges[1]: expected two tokens");
}

TEST_F(BadGguf, TypesOfOtherTokens) {
  writer.set_texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
  writer.set_texts("tokenizer.ggml.merges", {"a b"});
  writer.set_i32s("tokenizer.ggml.token_type", {1, 1});
  expect("tokenizer.ggml.token_type has 2 entries for 3 tokens");
}

TEST_F(BadGguf, ABeginningOutsideTheVocabulary) {
  writer.set_texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
  writer.set_texts("tokenizer.ggml.merges", {"a b"});
  writer.set_u32("tokenizer.ggml.bos_token_id", 3);
  expect("tokenizer.ggml.bos_token_id: there is no token 3; the file has 3");
}

TEST_F(BadGguf, AnotherType) {
  writer.set_text("tokenizer.ggml.tokens", "a");
  expect("tokenizer.ggml.tokens: expected an array, found str");
}

TEST_F(BadGguf, BytesThatAreNoText) {
  writer.set_texts("tokenizer.ggml.tokens", {"a", "\xff", "b"});
  EXPECT_EQ(error().code(), ErrorCode::input);
}

// Of a text that is there twice, whatever kinds the entries are of, both ids have it, and the first is what it becomes.
TEST(GgufCodec, KeepsATokenThatIsThereTwice) {
  constexpr int normal = 1, unknown = 2, control = 3, defined = 4, unused = 5;
  const Folder folder;
  for (const int kind : {normal, defined, unused, control}) {
    GgufWriter writer;
    writer.set_text("tokenizer.ggml.model", "gpt2");
    writer.set_text("tokenizer.ggml.pre", "gpt-2");
    writer.set_texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<end>", "ab", "<end>", "a"});
    writer.set_texts("tokenizer.ggml.merges", {"a b"});
    writer.set_i32s("tokenizer.ggml.token_type", {normal, normal, normal, control, kind, kind, kind});
    writer.set_u32("tokenizer.ggml.eos_token_id", 5);
    writer.write(folder.path() / "pairs.gguf", {});
    const auto pairs = TextCodec::open(folder.path() / "pairs.gguf");
    EXPECT_EQ(pairs->encode("abba<end>ab", false), (std::vector<std::int32_t>{2, 1, 0, 3, 2}));
    EXPECT_EQ(pairs->decode({4, 6, 5, 2, 0, 3}, false), "aba<end>aba<end>");
    EXPECT_EQ(pairs->decode({4, 5, 3}, true), "ab");
    EXPECT_EQ(pairs->token_text(4), "ab");
    EXPECT_EQ(pairs->vocabulary_size(), 7);

    GgufWriter pieces;
    pieces.set_text("tokenizer.ggml.model", "llama");
    pieces.set_texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a", "b", "ab", "ab", "b"});
    pieces.set_f32s("tokenizer.ggml.scores", {0, 0, 0, -2, -3, -1, -9, -9});
    pieces.set_i32s("tokenizer.ggml.token_type", {unknown, control, control, normal, normal, normal, kind, kind});
    pieces.set_bool("tokenizer.ggml.add_space_prefix", false);
    pieces.write(folder.path() / "pieces.gguf", {});
    const auto scored = TextCodec::open(folder.path() / "pieces.gguf");
    EXPECT_EQ(scored->encode("abb", false), (std::vector<std::int32_t>{5, 4}));
    EXPECT_EQ(scored->decode({6, 7, 5, 4}, false), "abbabb");
  }
}

// Of the kind gemma4: merges by a list, spaces by a sign of their own, bytes for what the vocabulary lacks.
class MergedPieces : public testing::Test {
 protected:
  MergedPieces() {
    constexpr int normal = 1, unknown = 2, control = 3, defined = 4, byte = 6;
    writer.set_text("tokenizer.ggml.model", "gemma4");
    writer.set_texts("tokenizer.ggml.tokens", {"<unk>", "<bos>", "<turn|>", "<|channel>", "<|tool_response>", "<0xC3>",
                                               "<0xA9>", "\u2581", "a", "b", "\n", "\u2581a", "\n\n", "ab"});
    writer.set_i32s("tokenizer.ggml.token_type", {unknown, control, control, defined, defined, byte, byte, normal,
                                                  normal, normal, normal, normal, normal, normal});
    writer.set_u32("tokenizer.ggml.bos_token_id", 1);
    writer.set_u32("tokenizer.ggml.unknown_token_id", 0);
  }
  std::shared_ptr<TextCodec> opened() {
    writer.set_texts("tokenizer.ggml.merges", {"\u2581 a", "\n \n", "a b"});
    writer.write(folder.path() / "model.gguf", {});
    return TextCodec::open(folder.path() / "model.gguf");
  }
  const Folder folder;
  GgufWriter writer;
};

TEST_F(MergedPieces, AreMergedInTheOrderOfTheList) {
  const auto codec = opened();
  EXPECT_EQ(codec->encode("ab ab", false), (std::vector<std::int32_t>{13, 11, 9})) << "no space in front";
  EXPECT_EQ(codec->encode("a\n\n\nb", false), (std::vector<std::int32_t>{8, 12, 10, 9}));
  EXPECT_EQ(codec->encode("\u00e9", false), (std::vector<std::int32_t>{5, 6}));
  EXPECT_EQ(codec->decode({13, 11, 9, 10, 5, 6}, true), "ab ab\n\u00e9");
  EXPECT_EQ(codec->vocabulary_size(), 14);
}

TEST_F(MergedPieces, MarksThatTheFileHasAsTextStay) {
  const auto codec = opened();
  const auto tokens = codec->encode("<|channel>a<turn|><|tool_response>", false);
  EXPECT_EQ(tokens, (std::vector<std::int32_t>{3, 8, 2, 4}));
  EXPECT_EQ(codec->decode(tokens, true), "<|channel>a") << "a tool's answer would follow the last";
  EXPECT_EQ(codec->decode(tokens, false), "<|channel>a<turn|><|tool_response>");
}

// The first files of this kind say that nothing comes before a text, though the model knows none that begins so.
TEST_F(MergedPieces, BeginWithTheBeginning) {
  writer.set_bool("tokenizer.ggml.add_bos_token", false);
  EXPECT_EQ(opened()->encode("a", true), (std::vector<std::int32_t>{1, 8}));
}

TEST_F(MergedPieces, NeedTheList) {
  writer.write(folder.path() / "model.gguf", {});
  const Error error = error_of([&] { TextCodec::open(folder.path() / "model.gguf"); });
  EXPECT_NE(error.message().find("tokenizer.ggml.merges is missing: tokenizers of the kind gemma4"), std::string::npos)
      << error.what();
}

TEST(GgufCodec, UnknownKindsAndRulesAreNamed) {
  const auto message = [](const std::string& kind, const std::string& pre) {
    const Folder folder;
    GgufWriter writer;
    writer.set_text("tokenizer.ggml.model", kind);
    writer.set_text("tokenizer.ggml.pre", pre);
    writer.set_texts("tokenizer.ggml.tokens", {"a"});
    writer.set_texts("tokenizer.ggml.merges", {});
    writer.write(folder.path() / "model.gguf", {});
    return error_of([&] { TextCodec::open(folder.path() / "model.gguf"); });
  };
  EXPECT_NE(message("bert", "default").message().find("the kind 'bert' are not supported"), std::string::npos);
  EXPECT_NE(message("no_vocab", "default").message().find("the file has no tokenizer"), std::string::npos);
  const Error unknown = message("gpt2", "gpt-9");
  EXPECT_NE(unknown.message().find("the pre-tokenizer 'gpt-9' is unknown"), std::string::npos);
  EXPECT_NE(unknown.hint().find("llama-bpe"), std::string::npos);
}

TEST(GgufCodec, ATemplateThatLoopsIsStopped) {
  const Folder folder;
  GgufWriter writer;
  writer.set_text("tokenizer.ggml.model", "gpt2");
  writer.set_text("tokenizer.ggml.pre", "gpt-2");
  writer.set_texts("tokenizer.ggml.tokens", {"a"});
  writer.set_texts("tokenizer.ggml.merges", {});
  writer.set_text("tokenizer.chat_template",
                  "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}");
  writer.write(folder.path() / "model.gguf", {});
  const auto codec = TextCodec::open(folder.path() / "model.gguf");
  const Value messages = Value::array({Value::object({{"role", "user"}, {"content", "a"}})});
  const Error error = error_of([&] { codec->apply_chat_template(messages, true); });
  EXPECT_NE(error.message().find("took longer than 2 s"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace motley
