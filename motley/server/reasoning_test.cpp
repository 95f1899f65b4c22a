#include "motley/server/reasoning.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace motley {
namespace {

void append(AnswerText& all, const AnswerText& more) {
  all.reasoning += more.reasoning;
  all.content += more.content;
}

// A text in which the marks are special tokens, and what it becomes when it comes in such pieces.
AnswerText marked(Reasoning form, std::string_view text, std::string_view prompt, std::size_t piece) {
  ReasoningStream stream(form, prompt);
  AnswerText all;
  while (!text.empty()) {
    std::size_t length = std::min(piece, text.size());
    bool marked = false;
    for (const std::string_view mark : reasoning_marks(form)) {
      if (marked) break;
      marked = text.starts_with(mark);
      if (marked) append(all, stream.mark(mark));
      length = marked ? mark.size() : std::min(length, text.find(mark));
    }
    if (!marked) append(all, stream.push(text.substr(0, length)));
    text.remove_prefix(length);
  }
  append(all, stream.finish());
  return all;
}

// The same where they are text.
AnswerText written(Reasoning form, std::string_view text, std::string_view prompt, std::size_t piece) {
  ReasoningStream stream(form, prompt);
  AnswerText all;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size())))
    append(all, stream.push(text.substr(0, piece)));
  append(all, stream.finish());
  return all;
}

struct Split {
  std::string_view text, reasoning, content, prompt = {};
};

TEST(Reasoning, TagsAreFoundAcrossBorders) {
  const std::vector<Split> splits = {
      {"<think>\nIt is\n\nday.\n</think>\n\nGood day. <think>", "It is\n\nday.", "Good day. <think>"},
      {"\n <think></think>\nYes", "", "Yes"},
      {"a < b, a </thin> b\n</think> No", "a < b, a </thin> b", "No", "<|im_start|>assistant\n<think>\n"},
      {"Plain <think>text</think>", "", "Plain <think>text</think>"},
      {" Plain", "", " Plain"},
      {"<thin ice", "", "<thin ice"},
      {"<think>never ends </think", "never ends </think", ""},
      {"Answer", "", "Answer", "<|im_start|>assistant\n<think>\n\n</think>\n\n"},
      {"<", "", "<"},
      {"", "", ""},
  };
  for (const Split& split : splits)
    for (std::size_t piece = 1; piece <= split.text.size() + 1; ++piece) {
      const AnswerText found = written(Reasoning::tags, split.text, split.prompt, piece);
      EXPECT_EQ(found.reasoning, split.reasoning) << split.text << ", by " << piece;
      EXPECT_EQ(found.content, split.content) << split.text << ", by " << piece;
    }
}

TEST(Reasoning, ChannelsOfHarmony) {
  constexpr std::string_view begun = "<|end|><|start|>assistant";
  const std::vector<Split> splits = {
      {"<|channel|>analysis<|message|>It is day.<|end|><|start|>assistant<|channel|>final<|message|>Good day.",
       "It is day.", "Good day.", begun},
      {"<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
       "<|start|>assistant<|channel|>commentary<|message|>I "
       "look.<|end|><|start|>assistant<|channel|>final<|message|>So.",
       "One.\nTwo.", "I look.\nSo.", begun},
      {" to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}", "", "{\"a\": 1}", begun},
      {"<|channel|>analysis<|message|>", "", "", begun},
      {"<|channel|>final<|message|>Yes<|end|><|start|>assistant<|chan", "", "Yes", begun},
      {"no header at all", "", "no header at all", begun},
      {"Good day.<|channel|>analysis<|message|>Then", "Then", "Good day.", "another template"},
  };
  for (const Split& split : splits)
    for (std::size_t piece = 1; piece <= split.text.size() + 1; ++piece) {
      const AnswerText found = marked(Reasoning::harmony, split.text, split.prompt, piece);
      EXPECT_EQ(found.reasoning, split.reasoning) << split.text << ", by " << piece;
      EXPECT_EQ(found.content, split.content) << split.text << ", by " << piece;
    }
}

TEST(Reasoning, TagsMayBeSpecialTokens) {
  ReasoningStream stream(Reasoning::tags);
  AnswerText all = stream.mark("<think>");
  EXPECT_TRUE(stream.thinking());
  append(all, stream.push("well\n"));
  append(all, stream.mark("<think>"));
  append(all, stream.mark("</think>"));
  EXPECT_FALSE(stream.thinking());
  append(all, stream.mark("</think>"));
  append(all, stream.push("\nyes"));
  append(all, stream.mark("<think>"));
  append(all, stream.finish());
  EXPECT_EQ(all.reasoning, "well");
  EXPECT_EQ(all.content, "yes");
}

TEST(Reasoning, WithoutAFormAllIsContent) {
  ReasoningStream stream;
  EXPECT_EQ(stream.push("<think>a</think>b").content, "<think>a</think>b");
  EXPECT_TRUE(stream.finish().content.empty());
  EXPECT_TRUE(reasoning_marks(Reasoning::none).empty());
}

constexpr std::string_view of_gemma = "<|turn>model\n";

const std::vector<Split> gemma_splits = {
    {"<|channel>thought\nIt is\n\nday.\n<channel|>Good day.", "It is\n\nday.", "Good day.", of_gemma},
    {"Good day.", "", "Good day.", of_gemma},
    {"<|channel>thought\n<channel|>Good day.", "", "Good day.", of_gemma},
    {"<|channel>thought<channel|>\n Good day.", "", "Good day.", of_gemma},
    {"\n<|channel>thought\nOne.<channel|>\n\nTwo.", "One.", "Two.", of_gemma},
    // Empty marks and needless ones, which the models write now and then.
    {"<|channel><|channel>thought\nOne.<channel|>Two.<channel|>", "One.", "Two.", of_gemma},
    {"Yes. <|channel>thought\n<channel|>", "", "Yes. ", of_gemma},
    {"<channel|>Yes", "", "Yes", of_gemma},
    {"<|channel>thought\nOne.<channel|>Two. <|channel>thought\nThree.<channel|> Four.", "One.\nThree.", "Two.  Four.",
     of_gemma},
    // Other channels, and names that only begin so.
    {"<|channel>final\nYes.<channel|> No.", "", "final\nYes. No.", of_gemma},
    {"<|channel>thoughtful\nYes.<channel|>", "", "thoughtful\nYes.", of_gemma},
    {"<|channel>th<channel|>e", "", "the", of_gemma},
    {"a < b, <|chan b <channel> c", "", "a < b, <|chan b <channel> c", of_gemma},
    {"<|channel>thought\na <chann b </think>", "a <chann b </think>", "", of_gemma},
    // Cut off.
    {"<|channel>thought\nNever ends. <chann", "Never ends. <chann", "", of_gemma},
    {"<|channel>tho", "", "", of_gemma},
    {"One <|chan", "", "One <|chan", of_gemma},
    {" \n", "", " \n", of_gemma},
    {"", "", "", of_gemma},
    // What the template has begun, or closed.
    {"It is day.\n<channel|>Good day.", "It is day.", "Good day.", "<|turn>model\n<|channel>thought\n"},
    {"Good day.", "", "Good day.", "<|turn>model\n<|channel>thought\n<channel|>"},
};

TEST(Reasoning, TheChannelOfThoughts) {
  for (const Split& split : gemma_splits)
    for (std::size_t piece = 1; piece <= split.text.size() + 1; ++piece)
      for (const auto& take : {written, marked}) {
        const AnswerText found = take(Reasoning::channels, split.text, split.prompt, piece);
        EXPECT_EQ(found.reasoning, split.reasoning) << split.text << ", by " << piece;
        EXPECT_EQ(found.content, split.content) << split.text << ", by " << piece;
      }
}

TEST(Reasoning, AMarkInAThoughtIsNone) {
  ReasoningStream stream(Reasoning::channels);
  AnswerText all = stream.mark("<|channel>");
  EXPECT_FALSE(stream.thinking()) << "it has no name yet";
  append(all, stream.push("thought"));
  append(all, stream.push("\n"));
  EXPECT_TRUE(stream.thinking());
  append(all, stream.push("well"));
  append(all, stream.mark("<|channel>"));
  append(all, stream.mark("<channel|>"));
  EXPECT_FALSE(stream.thinking());
  append(all, stream.push("yes"));
  append(all, stream.finish());
  EXPECT_EQ(all.reasoning, "well");
  EXPECT_EQ(all.content, "yes");
}

// However a text is cut, nothing of it is lost but tags and blanks.
RC_GTEST_PROP(Reasoning, IsTheSameInAnyPieces, (std::vector<std::size_t> choices)) {
  const std::vector<std::string_view> pieces = {"<think>", "</think>", "<", "</", "think>", " ", "\n", "a", "é"};
  std::string text;
  for (const std::size_t choice : choices) text += pieces[choice % pieces.size()];
  const AnswerText whole = written(Reasoning::tags, text, {}, text.size() + 1);
  const std::size_t piece = *rc::gen::inRange<std::size_t>(1, 9);
  const AnswerText cut = written(Reasoning::tags, text, {}, piece);
  RC_ASSERT(cut.reasoning == whole.reasoning && cut.content == whole.content);
  if (text.find("<think>") == std::string::npos) RC_ASSERT(whole.content == text);
}

RC_GTEST_PROP(Reasoning, AreTheSameChannelsInAnyPieces, (std::vector<std::size_t> choices)) {
  const std::vector<std::string_view> pieces = {"<|channel>", "<channel|>", "thought", "\n", " ",
                                                "<|chan",     "<channel",   "tho",     "<",  "é"};
  std::string text;
  for (const std::size_t choice : choices) text += pieces[choice % pieces.size()];
  const AnswerText whole = written(Reasoning::channels, text, {}, text.size() + 1);
  const std::size_t piece = *rc::gen::inRange<std::size_t>(1, 12);
  const AnswerText cut = written(Reasoning::channels, text, {}, piece);
  RC_ASSERT(cut.reasoning == whole.reasoning && cut.content == whole.content);
  if (text.find("<|channel>") == std::string::npos && text.find("<channel|>") == std::string::npos)
    RC_ASSERT(whole.content == text);
}

}  // namespace
}  // namespace motley
