#include "motley/text/text_codec.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/text/decode_stream_fixture_test.hpp"
#include "motley/text/text_codec_fixture_test.hpp"

namespace motley {
namespace {

const fs::path data = text_data;
const std::vector<std::string> tokenizers = {"byte_level", "sentencepiece_like", "metaspace"};

const Value& goldens() {
  static const Value value = read_document(data / "goldens.json");
  return value;
}

std::shared_ptr<TextCodec> with_template(const std::string& text, const std::string& tokenizer = "byte_level") {
  const Folder folder;
  folder.copy(data / tokenizer / "tokenizer.json").copy(data / tokenizer / "tokenizer_config.json");
  folder.write("chat_template.jinja", text);
  return TextCodec::open(folder.path());
}

Value chat(const std::string& content) {
  return Value::array({Value::object({{"role", "user"}, {"content", content}})});
}

class Tokenizers : public testing::TestWithParam<std::string> {
 protected:
  std::shared_ptr<TextCodec> codec = TextCodec::open(data / GetParam());
  const Value& golden = member(member(goldens(), "tokenizers"), GetParam());
};

TEST_P(Tokenizers, EncodeAndDecodeAsTransformers) {
  for (const auto& row : member(golden, "texts").as_array()) {
    const auto& text = member(row, "text").as_string();
    const auto tokens = tokens_of(member(row, "tokens"));
    EXPECT_EQ(codec->encode(text, false), tokens) << text;
    EXPECT_EQ(codec->encode(text, true), tokens_of(member(row, "with_special"))) << text;
    EXPECT_EQ(codec->decode(tokens, false), member(row, "decoded").as_string()) << text;
    EXPECT_EQ(codec->decode(tokens, true), member(row, "decoded_plain").as_string()) << text;
  }
  for (const auto& row : member(golden, "random").as_array())
    EXPECT_EQ(codec->decode(tokens_of(member(row, "tokens")), false), member(row, "decoded").as_string());
}

TEST_P(Tokenizers, StreamsGiveTheWholeTextInWholeCharacters) {
  for (const auto& row : member(golden, "texts").as_array()) {
    const auto tokens = tokens_of(member(row, "tokens"));
    SingleStream stream(*codec, false);
    std::string text;
    for (const auto token : tokens) {
      const std::string piece = stream.push(token);
      // Half a character would be refused as invalid UTF-8.
      EXPECT_NO_THROW(codec->encode(piece, false));
      text += piece;
    }
    EXPECT_EQ(text + stream.finish(), member(row, "decoded").as_string());
  }
}

TEST_P(Tokenizers, StreamsDoNotHoldBackBytesThatAreNoText) {
  for (const auto& row : member(golden, "random").as_array()) {
    const auto tokens = tokens_of(member(row, "tokens"));
    EXPECT_NO_THROW(codec->encode(streamed(*codec, tokens), false));
  }
  // 0x80 never starts a character.
  std::int32_t lone = -1;
  for (std::int32_t token = 0; token < codec->vocabulary_size(); ++token)
    if (codec->token_bytes(token) == std::vector<std::uint8_t>{0x80}) lone = token;
  ASSERT_GE(lone, 0);
  SingleStream stream(*codec, false);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(stream.push(lone), "");  // may still become one
  EXPECT_NE(stream.push(lone), "");
}

TEST_P(Tokenizers, TokenBytesJoinToTheText) {
  for (const auto& row : member(golden, "texts").as_array()) {
    const auto tokens = tokens_of(member(row, "tokens"));
    const std::string decoded = member(row, "decoded").as_string();
    std::string joined;
    for (const auto token : tokens)
      for (const auto byte : codec->token_bytes(token)) joined += static_cast<char>(byte);
    // Vocabularies with a metaspace put one space in front that decoding takes away.
    EXPECT_TRUE(joined == decoded || joined == " " + decoded) << joined;
  }
}

TEST_P(Tokenizers, ChatTemplatesAsTransformers) {
  for (const auto& [name, text] : member(goldens(), "templates").as_object()) {
    const auto templated = with_template(text.as_string(), GetParam());
    for (const auto& row : member(golden, "chats").as_array()) {
      if (member(row, "template").as_string() != name) continue;
      const Value& messages = member(member(goldens(), "chats"), member(row, "chat").as_string());
      const bool prompt = member(row, "add_generation_prompt").as_bool();
      SCOPED_TRACE(name + ", " + member(row, "chat").as_string());
      if (const Value* expected = row.find("text")) {
        EXPECT_EQ(templated->apply_chat_template(messages, prompt), expected->as_string());
      } else {
        const Error error = error_of([&] { templated->apply_chat_template(messages, prompt); });
        EXPECT_EQ(error.code(), ErrorCode::input);
        EXPECT_NE(error.message().find(member(row, "error").as_string()), std::string::npos) << error.message();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Tokenizers, testing::ValuesIn(tokenizers));

TEST(TextCodec, TakesTheDefaultOfSeveralNamedTemplates) {
  const auto codec = TextCodec::open(data / "metaspace");
  EXPECT_TRUE(codec->has_chat_template());
  EXPECT_EQ(codec->apply_chat_template(member(member(goldens(), "chats"), "multi"), true),
            member(member(member(goldens(), "tokenizers"), "metaspace"), "own_template").as_string());
}

TEST(TextCodec, WithoutATemplateSaysSo) {
  const auto codec = TextCodec::open(data / "byte_level");
  EXPECT_FALSE(codec->has_chat_template());
  EXPECT_EQ(error_of([&] { codec->apply_chat_template(chat("hi"), true); }).code(), ErrorCode::input);
}

TEST(TextCodec, TextOfOneTokenKeepsItsSpace) {
  const auto codec = TextCodec::open(data / "sentencepiece_like");
  const auto tokens = codec->encode("the the", false);
  std::string joined;
  for (const auto token : tokens) joined += codec->token_text(token);
  EXPECT_EQ(joined, " the the");
}

TEST(TextCodec, SkipsSpecialTokens) {
  const auto codec = TextCodec::open(data / "byte_level");
  const auto tokens = codec->encode("<|im_start|>one<|im_end|>two", false);
  EXPECT_EQ(codec->decode(tokens, true), "onetwo");
  SingleStream stream(*codec, true);
  std::string text;
  for (const auto token : tokens) text += stream.push(token);
  EXPECT_EQ(text + stream.finish(), "onetwo");
}

TEST(TextCodec, SaysWhereTokensEnd) {
  const auto codec = TextCodec::open(data / "byte_level");
  const std::string text = "Zoë<|im_end|> counted";
  const auto placed = codec->encode_placed(text);
  EXPECT_EQ(placed.tokens, codec->encode(text, false));
  ASSERT_EQ(placed.ends.size(), placed.tokens.size());
  EXPECT_TRUE(std::ranges::is_sorted(placed.ends));
  EXPECT_EQ(placed.ends.back(), 21);  // characters, not bytes
  const auto special = std::ranges::find(placed.tokens, codec->eos_token());
  ASSERT_NE(special, placed.tokens.end());
  EXPECT_EQ(placed.ends[static_cast<std::size_t>(special - placed.tokens.begin())], 13);
}

TEST(TextCodec, KnowsTheTokenThatEndsTexts) {
  EXPECT_EQ(TextCodec::open(data / "byte_level")->token_text(*TextCodec::open(data / "byte_level")->eos_token()),
            "<|im_end|>");
  EXPECT_TRUE(TextCodec::open(data / "gguf/llama-bpe.gguf")->eos_token());
  const Folder folder;
  folder.copy(data / "byte_level/tokenizer.json");
  EXPECT_EQ(TextCodec::open(folder.path())->eos_token(), std::nullopt);
}

TEST(TextCodec, AddedTokensAreTheirOwnText) {
  const auto codec = TextCodec::open(data / "byte_level");
  EXPECT_EQ(codec->token_text(1), "<|im_start|>");
  EXPECT_EQ(codec->token_text(420), "<tool>");
  EXPECT_EQ(codec->vocabulary_size(), 420);
}

// What a tokenizer's file says of batches of training is not for texts that are served.
TEST(TextCodec, NeitherCutsNorPads) {
  std::string tokenizer = read_file(data / "byte_level/tokenizer.json");
  const auto put = [&](const std::string& key, const std::string& value) {
    const std::string null = "\"" + key + "\":null";
    const auto place = tokenizer.find(null);
    ASSERT_NE(place, std::string::npos);
    tokenizer.replace(place, null.size(), "\"" + key + "\": " + value);
  };
  put("truncation", R"({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0})");
  put("padding", R"({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                     "pad_type_id": 0, "pad_token": "<|end|>"})");
  const Folder folder;
  folder.write("tokenizer.json", tokenizer);
  const std::string text = "The miller counted 123 ducks.";
  EXPECT_EQ(TextCodec::open(folder.path())->encode(text, false),
            TextCodec::open(data / "byte_level")->encode(text, false));
}

TEST(TextCodec, SplitsSpecialTokensWhereTheModelSaysSo) {
  const auto tokens = [](const std::string& config) {
    const Folder folder;
    folder.copy(data / "byte_level/tokenizer.json").write("tokenizer_config.json", config);
    return TextCodec::open(folder.path())->encode("<|im_end|>", false).size();
  };
  EXPECT_EQ(tokens("{}"), 1U);
  EXPECT_GT(tokens("{\"split_special_tokens\": true}"), 1U);
}

TEST(TextCodec, TemplatesAreReadAsTransformersReadsThem) {
  EXPECT_EQ(with_template("a\n  {% if true %}\nb{% endif %}\n")->apply_chat_template(chat("hi"), true), "a\nb");
  Folder folder;
  folder.copy(data / "byte_level/tokenizer.json").write("chat_template.jinja", "{{ bos_token }} {{ eos_token }}");
  folder.write("special_tokens_map.json", R"({"bos_token": {"content": "old"}, "eos_token": "older"})");
  folder.write("tokenizer_config.json",
               R"({"eos_token": "new", "chat_template": "the file of its own is before this"})");
  EXPECT_EQ(TextCodec::open(folder.path())->apply_chat_template(chat("hi"), true), "old new");
}

TEST(TextCodec, TemplatesGetArgumentsBesidesTheMessages) {
  const auto codec = with_template(
      "{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %} [no thought]{% endif %}"
      "{{ tools }}{{ add_generation_prompt }}{{ x.y if x is defined else '-' }}");
  EXPECT_EQ(codec->apply_chat_template(chat("hi"), true), "hiNoneTrue-");
  const Value arguments = parse_json(
      R"({"enable_thinking": false, "x": {"y": 7}, "messages": [], "tools": 1, "add_generation_prompt": 0, "self": 1})",
      "arguments");
  EXPECT_EQ(codec->apply_chat_template(chat("hi"), true, arguments), "hi [no thought]NoneTrue7");
}

TEST(TextCodec, RefusesWhatIsNoText) {
  const auto codec = TextCodec::open(data / "byte_level");
  for (const std::string bad : {"\xff", "abc\xc3", "\xed\xa0\x80", "\xc0\xaf", "\xf5\x80\x80\x80"}) {
    const Error error = error_of([&] { codec->encode(bad, false); });
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_NE(error.message().find("UTF-8"), std::string::npos) << error.message();
  }
  EXPECT_EQ(error_of([&] { codec->decode({-1}, false); }).code(), ErrorCode::input);
  EXPECT_EQ(error_of([&] { SingleStream(*codec, false).push(-1); }).code(), ErrorCode::input);
  EXPECT_EQ(codec->decode({1 << 30}, false), "");  // unknown to the vocabulary: no text
}

TEST(TextCodec, NamesTheFileThatIsWrong) {
  const auto expect = [](const Folder& folder, const std::string& name) {
    const Error error = error_of([&] { TextCodec::open(folder.path()); });
    EXPECT_EQ(error.code(), ErrorCode::input) << error.message();
    EXPECT_NE(error.message().find(folder.path() / name), std::string::npos) << error.message();
    EXPECT_NE(error.hint(), "") << error.message();
  };
  const fs::path good = data / "byte_level/tokenizer.json";
  expect(Folder(), "tokenizer.json");
  for (const std::string bad : {"", "{", "{}", "[]", "null", "{\"model\": {\"type\": \"BPE\"}}", "\xff\xfe"})
    expect(Folder().write("tokenizer.json", bad), "tokenizer.json");
  const std::string whole = read_file(good);
  for (const std::size_t kept : {std::size_t{100}, whole.size() / 2, whole.size() - 2})
    expect(Folder().write("tokenizer.json", whole.substr(0, kept)), "tokenizer.json");
  expect(Folder().copy(good).write("tokenizer_config.json", "{,}"), "tokenizer_config.json");
  expect(Folder().copy(good).write("tokenizer_config.json", "[1]"), "tokenizer_config.json");
  expect(Folder().copy(good).write("tokenizer_config.json", "{\"chat_template\": 7}"), "tokenizer_config.json");
  expect(Folder().copy(good).write("chat_template.jinja", "{% for %}"), "chat_template.jinja");
  expect(Folder().copy(good).write("chat_template.jinja", "line\n{{ 'open' "), "chat_template.jinja");
  expect(Folder().copy(good).write("chat_template.jinja", std::string(100000, '(')  // deep, and no template
                                                              .insert(0, "{{")),
         "chat_template.jinja");
}

// Templates come from strangers: what they may not do, and how long and how large they may grow.
TEST(TextCodec, HoldsTemplatesInTheirBounds) {
  const std::vector<std::string> hostile = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
      "{% for a in range(99999) %}{% for b in range(999) %}xxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
      "{{ 'x' * 10000000000 }}",
      "{{ [0] * 10000000000 }}",
      "{{ '%9999999999d' % 1 }}",
      "{{ '{:>9999999999}'.format(1) }}",
      "{{ 'x' | center(9999999999) }}",
      "{% set ns = namespace(x='xxxxxxxx') %}{% for a in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x "
      "}}",
      "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = ns.x + [range(99999) | list] %}{% endfor "
      "%}",
      "{{ 3 ** 1000000000 }}",
      "{% for a in range(20) %}{{ 'x' * 1000000 }}{% endfor %}",
      // One operation in C, between whose beginning and end no line of Python runs.
      "{% set a = messages[0].content * 20000000 %}{{ a ~ 'y' in [a ~ 'n'] * 9999 }}",
      "{{ range(1000000000) | list }}",
      "{{ ''.__class__.__mro__[1].__subclasses__() }}",
      "{{ raise_exception.__globals__.keys() }}",
      "{{ messages.append(1) }}",
      "{% include '/etc/passwd' %}",
      "{% import 'os' as os %}",
      "{{ cycler.__init__.__globals__.os.popen('true') }}",
      "{% set ns = namespace(__class__=1) %}",
  };
  for (const auto& text : hostile) {
    SCOPED_TRACE(text);
    std::shared_ptr<TextCodec> codec;  // stays null where the constants of a template are too much for reading it
    const Error error = error_of([&] {
      codec = with_template(text);
      codec->apply_chat_template(chat("hi"), true);
    });
    EXPECT_EQ(error.code(), ErrorCode::input) << error.message();
    EXPECT_NE(error.hint(), "") << error.message();
    if (codec) {
      EXPECT_EQ(codec->decode(codec->encode("still here", false), false), "still here");
    }
  }
}

// So do vocabularies, and the regular expressions by which they cut texts.
TEST(TextCodec, HoldsRegularExpressionsInTheirBounds) {
  const Folder folder;
  folder.write("tokenizer.json",
               R"({"version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null, "decoder": null,
                   "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated",
                                     "invert": false},
                   "model": {"type": "BPE", "vocab": {"x": 0, "y": 1, " ": 2}, "merges": []}})");
  const auto codec = TextCodec::open(folder.path());
  EXPECT_EQ(codec->encode("xx y", false), (std::vector<std::int32_t>{0, 0, 2, 1}));
  std::string text;
  for (int i = 0; i < 400; ++i)
    text += std::string(23, 'x') + " ";  // each takes a tenth of a second and does not match
  EXPECT_NE(error_of([&] { codec->encode(text, false); }).message().find("the tokenizer took longer than 2 s"),
            std::string::npos);
  const Error gave_up = error_of([&] { codec->encode(std::string(60, 'x'), false); });
  EXPECT_EQ(gave_up.code(), ErrorCode::input) << gave_up.message();
  EXPECT_EQ(codec->encode("xxy", false), (std::vector<std::int32_t>{0, 0, 1}));
}

TEST(TextCodec, RefusesAgainAndAgain) {
  const auto codec = with_template(
      "{% if messages[0].content == 'refuse' %}{{ raise_exception('not that') }}{% endif %}"
      "{% if messages[0].content == 'divide' %}{{ 1 / (messages | length - 1) }}{% endif %}{{ messages[0].content }}");
  const auto message = [&](const std::string& content) {
    return error_of([&] { codec->apply_chat_template(chat(content), true); }).message();
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        EXPECT_EQ(message("refuse"), "the chat template refuses the messages: not that");
        EXPECT_EQ(message("divide"), "the chat template fails: ZeroDivisionError: division by zero");
        EXPECT_EQ(codec->apply_chat_template(chat("good"), true), "good");
        EXPECT_EQ(error_of([&] { codec->encode("\xff", false); }).code(), ErrorCode::input);
      }
    });
  for (auto& thread : threads) thread.join();
}

TEST(TextCodec, TellsItsOwnRefusalsFromFaults) {
  const auto message = [](const std::string& text) {
    return error_of([&] { with_template(text)->apply_chat_template(chat("hi"), true); }).message();
  };
  EXPECT_EQ(message("{{ raise_exception('no system message, please') }}"),
            "the chat template refuses the messages: no system message, please");
  EXPECT_EQ(message("{% for m in messages %}{{ m.tool.name }}{% endfor %}"),
            "the chat template fails: UndefinedError: 'dict object' has no attribute 'tool'");
  EXPECT_NE(message("{{ messages.append(1) }}").find("the chat template fails: SecurityError: "), std::string::npos);
}

// The names, and their order, are those of `transformers`.
TEST(TextCodec, KnowsReasoningByAllItsNames) {
  const auto codec = with_template("{% for m in messages %}<{{ m.reasoning_content }}|{{ m.thinking }}>{% endfor %}");
  const auto text = [&](const Value& message) { return codec->apply_chat_template(Value::array({message}), true); };
  const Value::Member role{"role", "assistant"};
  EXPECT_EQ(text(Value::object({role, {"reasoning_content", "why"}})), "<why|why>");
  EXPECT_EQ(text(Value::object({role, {"reasoning", "why"}})), "<why|why>");
  EXPECT_EQ(text(Value::object({role, {"thinking", "why"}})), "<why|why>");
  EXPECT_EQ(text(Value::object({role, {"thinking", "b"}, {"reasoning", "c"}, {"reasoning_content", "a"}})), "<a|b>");
  EXPECT_EQ(text(Value::object({role, {"thinking", "b"}, {"reasoning", "c"}})), "<b|b>");
  EXPECT_EQ(text(Value::object({role, {"reasoning_content", Value()}, {"reasoning", "c"}})), "<c|c>");
  EXPECT_EQ(text(Value::object({role})), "<|>");
}

TEST(TextCodec, TakesTheDefaultOfTemplatesByName) {
  const auto codec = [](const std::string& templates) {
    const Folder folder;
    folder.copy(data / "byte_level/tokenizer.json");
    folder.write("tokenizer_config.json", "{\"chat_template\": " + templates + "}");
    return TextCodec::open(folder.path());
  };
  EXPECT_EQ(codec(R"({"default": "D", "tool_use": "T"})")->apply_chat_template(chat("hi"), true), "D");
  EXPECT_EQ(codec(R"([{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}])")
                ->apply_chat_template(chat("hi"), true),
            "D");
  EXPECT_FALSE(codec(R"({"tool_use": "T"})")->has_chat_template());
  EXPECT_EQ(error_of([&] { codec(R"({"default": 7})"); }).code(), ErrorCode::input);
}

TEST(TextCodec, KnowsTokensThatAModelNamesItself) {
  Folder folder;
  folder.copy(data / "byte_level/tokenizer.json")
      .write("chat_template.jinja", "{{ mark_token }}{{ image_token }}{{ old_token }}{{ messages[0].content }}");
  folder.write("special_tokens_map.json", R"({"old_token": {"content": "<old>"}, "eos_token": "<|im_end|>"})");
  folder.write("tokenizer_config.json",
               R"({"extra_special_tokens": {"mark_token": "<tool>", "messages": "x"}, "image_token": "<image>"})");
  const auto codec = TextCodec::open(folder.path());
  EXPECT_EQ(codec->apply_chat_template(chat("hi"), true), "<tool><image><old>hi");
  // Answers leave them out.
  EXPECT_EQ(codec->decode(codec->encode("a<tool>b", false), true), "ab");
  EXPECT_NE(TextCodec::open(data / "byte_level")->decode(codec->encode("a<tool>b", false), true), "ab");
}

std::vector<int> children_of(int process) {
  std::vector<int> children;
  for (const auto& thread : fs::directory_iterator(fmt::format("/proc/{}/task", process))) {
    std::ifstream list(thread.path() / "children");
    for (int child = 0; list >> child;) children.push_back(child);
  }
  return children;
}

// Returns when nothing of it is left but what its parent has to take.
void end_process(int process) {
  kill(process, SIGKILL);
  for (std::string line;; usleep(1000)) {
    std::ifstream stat(fmt::format("/proc/{}/stat", process));
    if (!std::getline(stat, line) || line.substr(line.rfind(')')).starts_with(") Z")) return;
  }
}

TEST(TextCodec, GoesOnWhenItsProcessesAreKilled) {
  const auto before = children_of(getpid());
  Folder folder;
  folder.copy(data / "byte_level/tokenizer.json").write("chat_template.jinja", "{{ messages[0].content }}");
  const auto codec = TextCodec::open(folder.path());
  for (const bool original : {false, true, true}) {
    EXPECT_EQ(codec->decode(codec->encode("ducks", false), false), "ducks");
    for (const int process : children_of(getpid())) {
      if (std::ranges::count(before, process) > 0) continue;
      for (const int copy : children_of(process)) end_process(copy);
      if (original) end_process(process);
    }
  }
  EXPECT_EQ(codec->apply_chat_template(chat("hi"), true), "hi");
}

TEST(TextCodec, RefusesMessagesThatAreNone) {
  const auto codec = with_template("{{ messages[0].content }}");
  for (const Value& bad : {Value(), Value(1), Value::array(), Value::array({"text"}), Value::object()})
    EXPECT_EQ(error_of([&] { codec->apply_chat_template(bad, true); }).code(), ErrorCode::input);
  EXPECT_EQ(codec->apply_chat_template(chat("fine"), true), "fine");
}

TEST(TextCodec, ServesSeveralThreadsAtOnce) {
  const auto codec = TextCodec::open(data / "byte_level");
  const std::string text = "The miller 🙂 counted 123 ducks.";
  const auto tokens = codec->encode(text, false);
  std::vector<std::thread> threads;
  std::vector<std::string> results(8);
  for (auto& result : results)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) result = streamed(*codec, tokens);
    });
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, text);
}

TEST(TextCodec, DecodesWhileATemplateRuns) {
  const auto codec = with_template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
  const auto tokens = codec->encode("ducks", false);
  std::atomic<bool> ended = false;
  std::thread endless([&] {
    EXPECT_EQ(error_of([&] { codec->apply_chat_template(chat("hi"), true); }).code(), ErrorCode::input);
    ended = true;
  });
  int decoded = 0;
  for (; !ended; ++decoded) EXPECT_EQ(codec->decode(tokens, false), "ducks");
  endless.join();
  EXPECT_GT(decoded, 2);  // a single one, if it had to wait for the template's end
}

}  // namespace
}  // namespace motley
