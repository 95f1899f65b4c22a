#include "motley/text/decode_stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "motley/text/decode_stream_fixture_test.hpp"

namespace motley {
namespace {

using Tokens = std::vector<std::int32_t>;

// Token n is the n-th entry; half a character is a replacement until the other half follows. Token 0 is special.
class ToyCodec final : public TextCodec {
 public:
  std::vector<std::string> decode_all(const std::vector<Tokens>& lists, bool skip_special_tokens) override {
    ++calls;
    std::vector<std::string> texts;
    for (const Tokens& tokens : lists) texts.push_back(text_of(tokens, skip_special_tokens));
    return texts;
  }
  Tokens encode(std::string_view, bool) override { return {}; }
  Placed encode_placed(std::string_view) override { return {}; }
  std::optional<std::int32_t> eos_token() override { return std::nullopt; }
  std::string token_text(std::int32_t) override { return {}; }
  std::vector<std::uint8_t> token_bytes(std::int32_t) override { return {}; }
  std::int64_t vocabulary_size() override { return 5; }
  bool has_chat_template() override { return false; }
  std::string apply_chat_template(const Value&, bool, const Value&) override { return {}; }

  int calls = 0;

 private:
  static std::string text_of(const Tokens& tokens, bool skip_special_tokens) {
    std::string text;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] == 0) text += skip_special_tokens ? "" : "<end>";
      if (tokens[i] == 1) text += "a";
      if (tokens[i] == 2) text += " b";
      const bool whole = tokens[i] == 3 && i + 1 < tokens.size() && tokens[i + 1] == 4;
      if (tokens[i] >= 3) text += whole ? "\xf0\x9f\x99\x82" : "\xef\xbf\xbd";
      if (whole) ++i;
    }
    return text;
  }
};

// The text of every step of each list by itself; the last is that of its end.
std::vector<std::vector<std::string>> one_by_one(TextCodec& codec, const std::vector<Tokens>& lists, bool skip) {
  std::vector<std::vector<std::string>> texts;
  for (const Tokens& tokens : lists) {
    SingleStream stream(codec, skip);
    auto& list = texts.emplace_back();
    for (const auto token : tokens) list.push_back(stream.push(token));
    list.push_back(stream.finish());
  }
  return texts;
}

// The same with all lists at once, `stride` tokens of each at a time.
std::vector<std::vector<std::string>> together(TextCodec& codec, const std::vector<Tokens>& lists, bool skip,
                                               std::size_t stride) {
  std::vector<std::vector<std::string>> texts(lists.size());
  std::vector<DecodeStream> streams(lists.size());
  for (std::size_t first = 0, longest = std::ranges::max(lists, {}, &Tokens::size).size(); first <= longest;
       first += stride) {
    std::vector<StreamToken> step;
    std::vector<std::size_t> owners;
    for (std::size_t at = first; at < first + stride; ++at)
      for (std::size_t i = 0; i < lists.size(); ++i) {
        if (at > lists[i].size()) continue;
        step.push_back({&streams[i], at < lists[i].size() ? std::optional(lists[i][at]) : std::nullopt});
        owners.push_back(i);
      }
    const auto answers = decode_streams(codec, step, skip);
    for (std::size_t i = 0; i < answers.size(); ++i) texts[owners[i]].push_back(answers[i]);
  }
  return texts;
}

TEST(DecodeStream, ManyAtOnceGiveWhatEachGivesByItself) {
  const std::string data = MOTLEY_SOURCE_DIR "/tests/data/text/";
  const Value goldens = read_document(data + "goldens.json");
  for (const std::string name : {"byte_level", "sentencepiece_like", "metaspace"}) {
    const auto codec = TextCodec::open(data + name);
    std::vector<Tokens> lists;
    const Value& golden = *goldens.find("tokenizers")->find(name);
    for (const char* rows : {"texts", "random"})  // random tokens are full of halves of characters and special tokens
      for (const auto& row : golden.find(rows)->as_array()) {
        Tokens& tokens = lists.emplace_back();
        for (const auto& token : row.find("tokens")->as_array())
          tokens.push_back(static_cast<std::int32_t>(token.as_integer()));
      }
    for (const bool skip : {false, true}) {
      const auto expected = one_by_one(*codec, lists, skip);
      for (const std::size_t stride : {1U, 3U}) EXPECT_EQ(together(*codec, lists, skip, stride), expected) << name;
    }
  }
}

// However many special tokens come, what is decoded again for each stays short.
TEST(DecodeStream, TokensWithoutTextAreNotKept) {
  ToyCodec codec;
  DecodeStream stream;
  EXPECT_EQ(decode_streams(codec, {{&stream, 1}}, true)[0], "a");
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(decode_streams(codec, {{&stream, 0}}, true)[0], "");
    EXPECT_LT(stream.window.size(), 10U);
  }
  EXPECT_EQ(decode_streams(codec, {{&stream, 2}}, true)[0], " b");
}

TEST(DecodeStream, CallsTheCodecOnceForAStep) {
  ToyCodec codec;
  std::vector<DecodeStream> streams(3);
  const std::vector<StreamToken> step = {{&streams[0], 1}, {&streams[1], 3}, {&streams[2], 0}};
  EXPECT_EQ(decode_streams(codec, step, true), (std::vector<std::string>{"a", "", ""}));
  EXPECT_EQ(codec.calls, 1);
  const std::vector<StreamToken> next = {{&streams[0], 2}, {&streams[1], 4}, {&streams[2], 1}};
  EXPECT_EQ(decode_streams(codec, next, true), (std::vector<std::string>{" b", "\xf0\x9f\x99\x82", "a"}));
  EXPECT_EQ(codec.calls, 2);
  // Nothing is held back.
  const std::vector<StreamToken> end = {{&streams[0], {}}, {&streams[1], {}}, {&streams[2], {}}};
  EXPECT_EQ(decode_streams(codec, end, true), (std::vector<std::string>{"", "", ""}));
  EXPECT_EQ(codec.calls, 2);
  EXPECT_TRUE(decode_streams(codec, {}, true).empty());
}

TEST(DecodeStream, SeveralTokensOfAStreamAreTakenInOrder) {
  ToyCodec codec;
  DecodeStream one, other;
  const std::vector<StreamToken> step = {{&one, 3}, {&one, 4}, {&other, 3}, {&one, 1}, {&other, {}}};
  EXPECT_EQ(decode_streams(codec, step, true),
            (std::vector<std::string>{"", "\xf0\x9f\x99\x82", "", "a", "\xef\xbf\xbd"}));
}

// What was given out as it stood may turn out as a longer character: no byte of it may follow.
TEST(DecodeStream, NeverGivesOutPartOfACharacter) {
  ToyCodec codec;
  SingleStream stream(codec, true);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(stream.push(3), "");
  EXPECT_NE(stream.push(3), "");  // no text is to be expected of that many
  EXPECT_EQ(stream.push(4), "");
  EXPECT_EQ(stream.push(1), "a");
}

}  // namespace
}  // namespace motley
