#include "motley/server/openai_api.hpp"

#include <gtest/gtest.h>

namespace motley {
namespace {

constexpr std::int64_t vocabulary = 1000;

CompletionRequest parse(const std::string& json, ApiKind kind) {
  return parse_completion_request(parse_json(json, "request body"), kind, vocabulary);
}
CompletionRequest chat(const std::string& more) {
  return parse(R"({"messages": [{"role": "user", "content": "hi"}])" + more + "}", ApiKind::chat);
}
CompletionRequest completion(const std::string& more) {
  return parse(R"({"prompt": "hi")" + more + "}", ApiKind::completion);
}

TEST(OpenAiRequest, Defaults) {
  const auto request = chat("");
  EXPECT_EQ(request.n, 1);
  EXPECT_FALSE(request.stream);
  EXPECT_FALSE(request.max_tokens);
  EXPECT_EQ(request.sampling, Sampling());
  EXPECT_EQ(completion("").max_tokens, 16);
}

TEST(OpenAiRequest, ReadsEveryParameter) {
  const auto request = chat(R"(, "model": "m", "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": -3,
      "max_tokens": 7, "max_completion_tokens": 9, "stop": ["a", "b"], "logprobs": true, "top_logprobs": 5, "n": 2,
      "presence_penalty": -1, "frequency_penalty": 1.5, "logit_bias": {"5": -100, "999": 2}, "stream": true,
      "stream_options": {"include_usage": true}, "ignore_eos": true, "min_tokens": 3, "return_token_ids": true,
      "user": "someone", "store": false, "tools": [], "response_format": {"type": "text"})"
                            R"(, "tool_choice": null)");
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.min_tokens, 3);
  EXPECT_EQ(request.seed, -3);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.stream && request.include_usage && request.ignore_eos && request.return_token_ids);
  Sampling expected;
  expected.temperature = 0.5F;
  expected.top_p = 0.9F;
  expected.top_k = 40;
  expected.min_p = 0.05F;
  expected.presence_penalty = -1;
  expected.frequency_penalty = 1.5F;
  expected.logprobs = 5;
  expected.logit_bias = {{5, -100.0F}, {999, 2.0F}};
  EXPECT_EQ(request.sampling, expected);
}

TEST(OpenAiRequest, Prompts) {
  EXPECT_EQ(std::get<std::string>(completion("").prompts.at(0)), "hi");
  const auto several = parse(R"({"prompt": ["a", [1, 2], "b"]})", ApiKind::completion).prompts;
  ASSERT_EQ(several.size(), 3U);
  EXPECT_EQ(std::get<std::vector<std::int32_t>>(several[1]), (std::vector<std::int32_t>{1, 2}));
  const auto tokens = parse(R"({"prompt": [7, 8, 9]})", ApiKind::completion).prompts;
  EXPECT_EQ(std::get<std::vector<std::int32_t>>(tokens.at(0)), (std::vector<std::int32_t>{7, 8, 9}));
}

TEST(OpenAiRequest, MessagesAreMadePlain) {
  const auto request = parse(
      R"({"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})",
      ApiKind::chat);
  const Value& message = request.messages.as_array().at(0);
  EXPECT_EQ(message.find("role")->as_string(), "system");
  EXPECT_EQ(message.find("content")->as_string(), "a\nb");
}

TEST(OpenAiRequest, ExtremesOfSampling) {
  EXPECT_EQ(chat(R"(, "top_p": 0)").sampling.top_p, 0);
  EXPECT_EQ(chat(R"(, "top_k": -1)").sampling.top_k, 0);
  EXPECT_EQ(completion(R"(, "logprobs": 0)").sampling.logprobs, 0);
  EXPECT_EQ(chat(R"(, "logprobs": false)").sampling.logprobs, -1);
}

TEST(OpenAiRequest, TakesWhatChangesNothing) {
  for (const std::string same :
       {R"("tool_choice": "none")", R"("tool_choice": "auto", "tools": [])", R"("function_call": "auto")",
        R"("repetition_penalty": 1)", R"("repetition_penalty": 1.0)", R"("best_of": 1)", R"("best_of": null)",
        R"("modalities": ["text"])", R"("suffix": "")", R"("skip_special_tokens": true)", R"("verbosity": null)"}) {
    EXPECT_NO_THROW(chat(", " + same)) << same;
    EXPECT_NO_THROW(completion(", " + same)) << same;
  }
}

TEST(OpenAiRequest, TemplateArguments) {
  EXPECT_EQ(chat("").template_arguments, Value::object());
  EXPECT_EQ(chat(R"(, "chat_template_kwargs": {})").template_arguments, Value::object());
  EXPECT_EQ(chat(R"(, "chat_template_kwargs": {"enable_thinking": false})").template_arguments,
            Value::object({{"enable_thinking", false}}));
  EXPECT_EQ(chat(R"(, "reasoning_effort": "low", "chat_template_kwargs": {"x": [1]})").template_arguments,
            Value::object({{"x", Value::array({Value(1)})}, {"reasoning_effort", "low"}}));
  EXPECT_EQ(chat(R"(, "chat_template_kwargs": {"reasoning_effort": "mine"})").template_arguments,
            Value::object({{"reasoning_effort", "mine"}}));
  EXPECT_EQ(chat(R"(, "reasoning_effort": null)").template_arguments, Value::object());
  std::string many = "1";
  for (int i = 0; i < 1024; ++i) many += ",1";
  EXPECT_THROW(chat(R"(, "chat_template_kwargs": {"x": [)" + many + "]}"), ApiError);
}

struct Bad {
  std::string body;
  std::string param;
};

TEST(OpenAiRequest, RefusalsNameTheKey) {
  const std::vector<Bad> chats = {
      {R"("temperature": 3)", "temperature"},
      {R"("temperature": -0.1)", "temperature"},
      {R"("temperature": "hot")", "temperature"},
      {R"("top_p": 1.1)", "top_p"},
      {R"("top_k": 1.5)", "top_k"},
      {R"("top_k": -2)", "top_k"},
      {R"("min_p": 2)", "min_p"},
      {R"("n": 0)", "n"},
      {R"("n": 17)", "n"},
      {R"("n": 1e3)", "n"},
      {R"("max_tokens": 0)", "max_tokens"},
      {R"("max_completion_tokens": -5)", "max_completion_tokens"},
      {R"("min_tokens": 5, "max_tokens": 4)", "min_tokens"},
      {R"("stop": "")", "stop"},
      {R"("stop": [1])", "stop"},
      {R"("stop": {"a": 1})", "stop"},
      {R"("stop": ["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "stop"},
      {R"("logprobs": 5)", "logprobs"},
      {R"("top_logprobs": 3)", "top_logprobs"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
      {R"("presence_penalty": 2.5)", "presence_penalty"},
      {R"("frequency_penalty": -3)", "frequency_penalty"},
      {R"("logit_bias": [])", "logit_bias"},
      {R"("logit_bias": {"1000": 1})", "logit_bias"},
      {R"("logit_bias": {"-1": 1})", "logit_bias"},
      {R"("logit_bias": {"x": 1})", "logit_bias"},
      {R"("logit_bias": {"1": 101})", "logit_bias"},
      {R"("stream": 1)", "stream"},
      {R"("stream_options": {"include_usage": true})", "stream_options"},
      {R"("stream": true, "stream_options": {"include": true})", "stream_options.include"},
      {R"("tools": [{"type": "function"}])", "tools"},
      {R"("tool_choice": "required")", "tool_choice"},
      {R"("tool_choice": {"type": "function", "function": {"name": "f"}})", "tool_choice"},
      {R"("repetition_penalty": 1.1)", "repetition_penalty"},
      {R"("best_of": 2)", "best_of"},
      {R"("chat_template_kwargs": [])", "chat_template_kwargs"},
      {R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs.messages"},
      {R"("chat_template_kwargs": {"chat_template": "x"})", "chat_template_kwargs.chat_template"},
      {R"("chat_template_kwargs": {"enable_thinking": "false"})", "chat_template_kwargs.enable_thinking"},
      {R"("chat_template_kwargs": {"reasoning_effort": 1})", "chat_template_kwargs.reasoning_effort"},
      {R"("reasoning_effort": "much")", "reasoning_effort"},
      {R"("reasoning_effort": 2)", "reasoning_effort"},
      {R"("reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"})", "reasoning_effort"},
      {R"("response_format": {"type": "json_object"})", "response_format"},
      {R"("temprature": 1)", "temprature"},
      {R"("something_else": 1)", "something_else"},
      {R"("prompt": "x")", "prompt"},
      {R"("seed": 1.5)", "seed"},
      {R"("model": 7)", "model"},
      {R"("ignore_eos": "yes")", "ignore_eos"},
  };
  for (const auto& bad : chats) {
    SCOPED_TRACE(bad.body);
    try {
      chat(", " + bad.body);
      ADD_FAILURE() << "accepted";
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 400);
      EXPECT_EQ(error.param, bad.param);
    }
  }
  const std::vector<Bad> messages = {
      {"null", "messages"},
      {"[]", "messages"},
      {"{}", "messages"},
      {"\"hi\"", "messages"},
      {"[1]", "messages[0].role"},
      {R"([{"content": "x"}])", "messages[0].role"},
      {R"([{"role": "user"}])", "messages[0].content"},
      {R"([{"role": "user", "content": 5}])", "messages[0].content"},
      {R"([{"role": "user", "content": [{"type": "image_url"}]}])", "messages[0].content"},
  };
  for (const auto& bad : messages) {
    SCOPED_TRACE(bad.body);
    try {
      parse("{\"messages\": " + bad.body + "}", ApiKind::chat);
      ADD_FAILURE() << "accepted";
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param, bad.param);
    }
  }
  for (const std::string prompt :
       {"null", "5", "[]", "[1, \"a\"]", "[[\"a\"]]", "[1000]", "[-1]", "[99999999999]", "{}", "[{}]"}) {
    SCOPED_TRACE(prompt);
    EXPECT_THROW(parse("{\"prompt\": " + prompt + "}", ApiKind::completion), ApiError);
  }
  for (const std::string more : {R"(, "suffix": "x")", R"(, "best_of": 3)", R"(, "logprobs": true)"})
    EXPECT_THROW(completion(more), ApiError) << more;
  EXPECT_THROW(parse("[]", ApiKind::chat), ApiError);
}

TEST(OpenAiRequest, OnlyAnEchoMayAskForNoTokens) {
  EXPECT_TRUE(completion(R"(, "echo": true, "max_tokens": 0)").echo);
  EXPECT_EQ(completion(R"(, "echo": true, "max_tokens": 0)").max_tokens, 0);
  EXPECT_THROW(completion(R"(, "max_tokens": 0)"), ApiError);
  EXPECT_THROW(chat(R"(, "echo": true)"), ApiError);
  EXPECT_THROW(chat(R"(, "max_tokens": 0)"), ApiError);
}

TEST(OpenAiRequest, SuggestsTheKeyThatWasMeant) {
  try {
    chat(R"(, "temprature": 1)");
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_NE(error.message().find("`temperature`"), std::string::npos) << error.message();
  }
}

TEST(OpenAiRequest, QuotesNothingAtLength) {
  const std::string key(1 << 20, 'k');
  try {
    chat(", \"" + key + "\": 1");
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_LT(to_json(error_value(error)).size(), 500U);
  }
}

TEST(OpenAiRequest, MessagesHoldSoManyValues) {
  const auto with_calls = [](std::size_t values) {
    std::string items = "0";
    for (std::size_t i = 1; i < values; ++i) items += ",0";
    return parse(R"({"messages": [{"role": "assistant", "tool_calls": [)" + items + "]}]}", ApiKind::chat);
  };
  EXPECT_NO_THROW(with_calls(65536 - 4));
  EXPECT_THROW(with_calls(65536 - 3), ApiError);
}

TEST(OpenAiAnswer, Errors) {
  const HttpResponse response = error_response(ApiError(429, "full", {}, "queue_full"));
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(
      response.body,
      "{\"error\":{\"message\":\"full\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"queue_full\"}}\n");
  ASSERT_EQ(response.headers.size(), 1U);
  EXPECT_EQ(response.headers[0].first, "Retry-After");
  EXPECT_EQ(to_api_error(Error(ErrorCode::peer, "gone")).status, 503);
  EXPECT_EQ(to_api_error(Error(ErrorCode::internal, "bug")).status, 500);
  EXPECT_EQ(to_api_error(input_error("bad", "do so")).message(), "bad (do so)");
}

const AnswerHead head{ApiKind::chat, "id", "m", 5};

TEST(OpenAiAnswer, ChatWithLogprobs) {
  ChoicePart part;
  part.text = "a";
  part.finish_reason = "stop";
  part.logprobs = {
      {{{"a", {97}, -0.5F}, {{"a", {97}, -0.5F}, {"b", {98}, -std::numeric_limits<float>::infinity()}}, 0}}};
  part.token_ids = {{3}};
  EXPECT_EQ(
      to_json(answer_value(head, {part}, {2, 1})),
      R"({"id":"id","object":"chat.completion","created":5,"model":"m","choices":[{"index":0,"message":{"role":"assistant",)"
      R"("content":"a","refusal":null},"logprobs":{"content":[{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[)"
      R"({"token":"a","logprob":-0.5,"bytes":[97]},{"token":"b","logprob":-9999.0,"bytes":[98]}]}],"refusal":null},)"
      R"("finish_reason":"stop","token_ids":[3]}],"usage":{"prompt_tokens":2,"completion_tokens":1,"total_tokens":3,)"
      R"("prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}})");
}

TEST(OpenAiAnswer, Chunks) {
  EXPECT_EQ(event(role_chunk_value(head, 1, UsageInChunks::null)),
            "data: "
            "{\"id\":\"id\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":"
            "1,\"delta\":{"
            "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n");
  ChoicePart part;
  part.text = "line\nbreak";
  EXPECT_EQ(
      to_json(chunk_value(head, part, UsageInChunks::absent)),
      R"({"id":"id","object":"chat.completion.chunk","created":5,"model":"m","choices":[{"index":0,"delta":{"content":)"
      R"("line\nbreak"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(
      to_json(usage_chunk_value(head, {2, 3, 1, 2})),
      R"({"id":"id","object":"chat.completion.chunk","created":5,"model":"m","choices":[],"usage":{"prompt_tokens":2,)"
      R"("completion_tokens":3,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":2},)"
      R"("completion_tokens_details":{"reasoning_tokens":1}}})");
}

TEST(OpenAiAnswer, ReasoningIsApartFromContent) {
  ChoicePart part;
  part.reasoning = "why";
  EXPECT_NE(to_json(chunk_value(head, part, UsageInChunks::absent)).find(R"("delta":{"reasoning_content":"why"})"),
            std::string::npos);
  part.text = "so";
  EXPECT_NE(to_json(answer_value(head, {part}, {}))
                .find(R"("message":{"role":"assistant","content":"so","refusal":null,"reasoning_content":"why"})"),
            std::string::npos);
}

TEST(OpenAiApi, TextEventsEqualChunksOfTheirText) {
  for (const ApiKind kind : {ApiKind::chat, ApiKind::completion})
    for (const UsageInChunks usage : {UsageInChunks::absent, UsageInChunks::null}) {
      const AnswerHead of_kind{kind, "id", "a \"\x01\" model", 5};
      const TextEvents events(of_kind, 3, usage);
      for (const std::string text : {"a", " \"quoted\" \\ \n\t", "\x01", "🙂 é", "</script>"}) {
        ChoicePart part;
        part.index = 3;
        part.text = text;
        EXPECT_EQ(events.event(text), event(chunk_value(of_kind, part, usage)));
      }
    }
  const TextEvents thoughts(head, 0, UsageInChunks::null, &ChoicePart::reasoning);
  ChoicePart part;
  part.reasoning = "\x01 \"why\"";
  EXPECT_EQ(thoughts.event(part.reasoning), event(chunk_value(head, part, UsageInChunks::null)));
}

TEST(OpenAiAnswer, CompletionWithLogprobs) {
  ChoicePart part;
  part.text = "ab";
  part.finish_reason = "length";
  part.logprobs = {{{{"a", {97}, -1}, {{"a", {97}, -1}}, 0}, {{"b", {98}, -2}, {}, 1}}};
  const AnswerHead completion{ApiKind::completion, "id", "m", 5};
  EXPECT_EQ(
      to_json(*answer_value(completion, {part}, {}).find("choices")),
      R"([{"index":0,"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[-1.0,-2.0],"top_logprobs":[{"a":-1.0},{}],)"
      R"("text_offset":[0,1]},"finish_reason":"length"}])");
  part.logprobs->at(0).token.logprob.reset();  // the first of an echoed prompt
  EXPECT_NE(
      to_json(answer_value(completion, {part}, {})).find(R"("token_logprobs":[null,-2.0],"top_logprobs":[null,{}])"),
      std::string::npos);
}

}  // namespace
}  // namespace motley
