// Chats of families that think: what ends their answers, and what of these is reasoning.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "motley/server/service_fixture_test.hpp"
#include "motley/text/text_codec_fixture_test.hpp"

namespace motley {
namespace {

// A small tokenizer with further special tokens, and a chat template.
struct ChatModel {
  ChatModel(const std::vector<std::string>& special, const std::string& chat_template) {
    Value tokenizer = read_document(text_data / "byte_level/tokenizer.json");
    Value added = *tokenizer.find("added_tokens");
    for (const std::string& text : special)
      added.push_back(Value::object({{"id", added.as_array().back().find("id")->as_integer() + 1},
                                     {"content", text},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false},
                                     {"normalized", false},
                                     {"special", true}}));
    tokenizer.set("added_tokens", std::move(added));
    folder.write("tokenizer.json", to_json(tokenizer)).copy(text_data / "byte_level/tokenizer_config.json");
    folder.write("chat_template.jinja", chat_template);
  }
  const Folder folder;
};

class ChatTest : private ChatModel, public ServiceTest {
 protected:
  ChatTest(const std::vector<std::string>& special, const std::string& chat_template, const std::string& family,
           bool split = true)
      : ChatModel(special, chat_template), ServiceTest(folder.path(), family, {.split_reasoning = split}) {}

  // What becomes of a text that the model writes.
  std::string answer_of(const std::string& text, const std::string& more = "") {
    auto call = chat(more);
    script.tokens(1, encode(text));
    script.end(1, FinishReason::stop);
    return call.answer();
  }
  // The pieces of one key in all chunks.
  static std::string joined(const std::string& answer, const std::string& key) {
    std::string all;
    const std::string before = "\"" + key + "\":\"";
    for (auto at = answer.find(before); at != std::string::npos; at = answer.find(before, at + 1)) {
      const auto begin = at + before.size();
      all += answer.substr(begin, answer.find('"', begin) - begin);
    }
    return all;
  }
  static std::string usage(std::size_t reasoning_tokens) {
    return "\"prompt_tokens_details\":{\"cached_tokens\":0},\"completion_tokens_details\":{\"reasoning_tokens\":" +
           std::to_string(reasoning_tokens) + "}";
  }
};

const std::vector<std::string> harmony_tokens = {"<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|call|>"};
const std::string harmony_template =
    "{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}<|start|>assistant";
const std::string harmony_answer =
    "<|channel|>analysis<|message|>It is day.<|end|><|start|>assistant<|channel|>final<|message|>Good day.";

class HarmonyTest : public ChatTest {
 protected:
  explicit HarmonyTest(bool split = true) : ChatTest(harmony_tokens, harmony_template, "gpt_oss", split) {}
};

TEST_F(HarmonyTest, EndsAtItsOwnTokens) {
  auto call = chat();
  const std::vector<std::int32_t> ends = {encode("<|return|>").at(0), encode("<|call|>").at(0)};
  EXPECT_EQ(script.wait_for(1).stop_tokens, ends);
  auto on = chat(R"(, "ignore_eos": true)");
  EXPECT_TRUE(script.wait_for(2).stop_tokens.empty());
  Call completion(server.port(), "/v1/completions", R"({"prompt": "a"})");
  EXPECT_TRUE(script.wait_for(3).stop_tokens.empty()) << "not a chat";
  for (std::size_t id = 1; id <= 3; ++id) script.end(id, FinishReason::stop);
  for (Call* one : {&call, &on, &completion}) EXPECT_TRUE(one->answer().starts_with("HTTP/1.1 200 "));
}

TEST_F(HarmonyTest, AnalysisIsReasoning) {
  const std::string answer = answer_of(harmony_answer);
  EXPECT_TRUE(has(answer, R"("message":{"role":"assistant","content":"Good day.","refusal":null,)"
                          R"("reasoning_content":"It is day."})"))
      << answer;
  // From <|message|> to <|end|>.
  EXPECT_TRUE(has(answer, usage(encode("It is day.").size() + 2))) << answer;
}

TEST_F(HarmonyTest, StreamsBothApart) {
  const std::string answer =
      answer_of(harmony_answer, R"(, "stream": true, "stream_options": {"include_usage": true})");
  EXPECT_EQ(joined(answer, "reasoning_content"), "It is day.") << answer;
  EXPECT_EQ(joined(answer, "content"), "Good day.") << answer;
  EXPECT_FALSE(has(answer, "<|")) << answer;
  EXPECT_TRUE(has(answer, usage(encode("It is day.").size() + 2))) << answer;
}

TEST_F(HarmonyTest, StopStringsDoNotReachOverMessages) {
  const std::string answer = answer_of(harmony_answer, R"(, "stop": ["day.Good", "y.f"], "logprobs": true)");
  EXPECT_TRUE(has(answer, R"("content":"Good day.","refusal":null,"reasoning_content":"It is day.")")) << answer;
  EXPECT_TRUE(has(answer, R"("token":"<|channel|>")")) << "all tokens have one";
}

TEST_F(HarmonyTest, CompletionsAreLeftAsTheyAre) {
  Call call(server.port(), "/v1/completions", R"({"prompt": "a"})");
  script.tokens(1, encode(harmony_answer));
  script.end(1, FinishReason::stop);
  const std::string answer = call.answer();
  EXPECT_TRUE(has(answer, R"("text":"analysisIt is day.assistantfinalGood day.")")) << answer;
  EXPECT_FALSE(has(answer, "reasoning")) << answer;
}

class WholeHarmonyTest : public HarmonyTest {
 protected:
  WholeHarmonyTest() : HarmonyTest(false) {}
};

TEST_F(WholeHarmonyTest, ThinkingCanStay) {
  const std::string answer = answer_of(harmony_answer);
  EXPECT_TRUE(has(answer, R"("content":"analysisIt is day.assistantfinalGood day.","refusal":null})")) << answer;
  EXPECT_TRUE(has(answer, usage(0))) << answer;
}

// A template that opens the thinking itself, unless it is told not to.
const std::string thinking_template =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% elif opened %}<think>\n"
    "{% endif %}";

class TagsTest : public ChatTest {
 protected:
  TagsTest() : ChatTest({}, thinking_template, "qwen3") {}  // its tags are no tokens: each comes in pieces
};

TEST_F(TagsTest, TextBetweenTagsIsReasoning) {
  ASSERT_GT(encode("</think>").size(), 2U);
  const std::string answer = answer_of("<think>\nIt is day.\n</think>\n\nGood day.");
  EXPECT_TRUE(has(answer, R"("content":"Good day.","refusal":null,"reasoning_content":"It is day.")")) << answer;
}

TEST_F(TagsTest, TemplatesMayOpenTheThinking) {
  const std::string answer =
      answer_of("It is day.\n</think>\n\nGood day.", R"(, "stream": true, "chat_template_kwargs": {"opened": true})");
  EXPECT_EQ(joined(answer, "reasoning_content"), "It is day.") << answer;
  EXPECT_EQ(joined(answer, "content"), "Good day.") << answer;
}

TEST_F(TagsTest, OrCloseIt) {
  const std::string answer = answer_of("Good day.", R"(, "chat_template_kwargs": {"enable_thinking": false})");
  EXPECT_TRUE(has(answer, R"("content":"Good day.","refusal":null})")) << answer;
  EXPECT_TRUE(has(answer, usage(0))) << answer;
}

TEST_F(TagsTest, AnAnswerMayEndWhileItThinks) {
  auto call = chat(R"(, "max_tokens": 5)");
  script.tokens(1, encode("<think>It is day. </"));
  script.end(1, FinishReason::length);
  const std::string answer = call.answer();
  EXPECT_TRUE(has(answer, R"("content":"","refusal":null,"reasoning_content":"It is day. </")")) << answer;
}

TEST_F(TagsTest, EndsAtTokensOfTheFamily) {
  auto call = chat();
  const std::vector<std::int32_t> ends = {encode("<|im_end|>").at(0), encode("<|end|>").at(0)};
  EXPECT_EQ(script.wait_for(1).stop_tokens, ends);
  script.end(1, FinishReason::stop);
  EXPECT_TRUE(call.answer().starts_with("HTTP/1.1 200 "));
}

// Gemma 4's, whose marks are special tokens of folders.
const std::vector<std::string> gemma4_tokens = {"<eos>",      "<|turn>",    "<turn|>",
                                                "<|channel>", "<channel|>", "<|tool_response>"};
const std::string gemma4_template =
    "{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}<|turn>model\n"
    "{% if not enable_thinking | default(true) %}<|channel>thought\n<channel|>{% endif %}";
const std::string gemma4_answer = "<|channel>thought\nIt is day.\n<channel|>Good day.";

class Gemma4Test : public ChatTest {
 protected:
  explicit Gemma4Test(bool split = true) : Gemma4Test(gemma4_tokens, split) {}
  Gemma4Test(const std::vector<std::string>& special, bool split)
      : ChatTest(special, gemma4_template, "gemma4_text", split) {}
};

TEST_F(Gemma4Test, ThoughtsAreReasoning) {
  const std::string answer = answer_of(gemma4_answer);
  EXPECT_TRUE(has(answer, R"("content":"Good day.","refusal":null,"reasoning_content":"It is day.")")) << answer;
}

TEST_F(Gemma4Test, StreamsBothApart) {
  const std::string answer = answer_of(gemma4_answer, R"(, "stream": true, "stream_options": {"include_usage": true})");
  EXPECT_EQ(joined(answer, "reasoning_content"), "It is day.") << answer;
  EXPECT_EQ(joined(answer, "content"), "Good day.") << answer;
  EXPECT_FALSE(has(answer, "channel")) << answer;
  // From the line break that ends the channel's name to <channel|>.
  EXPECT_TRUE(has(answer, usage(encode("\nIt is day.\n").size() + 1))) << answer;
}

TEST_F(Gemma4Test, TheTemplateMayCloseTheThought) {
  const std::string answer = answer_of("Good day.", R"(, "chat_template_kwargs": {"enable_thinking": false})");
  EXPECT_TRUE(has(answer, R"("content":"Good day.","refusal":null})")) << answer;
  EXPECT_TRUE(has(answer, usage(0))) << answer;
}

TEST_F(Gemma4Test, EndsAtTurnsAndWhereAToolIsToAnswer) {
  auto call = chat();
  const std::vector<std::int32_t> ends = {encode("<eos>").at(0), encode("<turn|>").at(0),
                                          encode("<|tool_response>").at(0)};
  EXPECT_EQ(script.wait_for(1).stop_tokens, ends);
  script.end(1, FinishReason::stop);
  EXPECT_TRUE(call.answer().starts_with("HTTP/1.1 200 "));
}

// As from a GGUF file: its marks are no special tokens.
class Gemma4TextTest : public Gemma4Test {
 protected:
  Gemma4TextTest() : Gemma4Test({"<|turn>", "<turn|>"}, true) {}
};

TEST_F(Gemma4TextTest, MarksMayBeText) {
  ASSERT_GT(encode("<channel|>").size(), 2U);
  const std::string answer = answer_of(gemma4_answer);
  EXPECT_TRUE(has(answer, R"("content":"Good day.","refusal":null,"reasoning_content":"It is day.")")) << answer;
}

class WholeGemma4Test : public Gemma4Test {
 protected:
  WholeGemma4Test() : Gemma4Test(false) {}
};

TEST_F(WholeGemma4Test, ThinkingCanStay) {
  const std::string answer = answer_of(gemma4_answer);
  EXPECT_TRUE(has(answer, R"("content":"thought\nIt is day.\nGood day.","refusal":null})")) << answer;
  EXPECT_TRUE(has(answer, usage(0))) << answer;
}

}  // namespace
}  // namespace motley
