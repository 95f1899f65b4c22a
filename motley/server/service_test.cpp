#include "motley/server/service.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "motley/server/service_fixture_test.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {
namespace {

using namespace std::chrono_literals;

TEST_F(ServiceTest, AnswersAChat) {
  auto call = chat(R"(, "temperature": 0, "seed": 9, "max_tokens": 20)");
  const GenerateRequest asked = script.wait_for(1);
  EXPECT_EQ(codec->decode(asked.prompt, false), "<|im_start|>user\nHello there<|im_end|>\n\n<|im_start|>assistant\n");
  EXPECT_EQ(asked.max_new_tokens, 20);
  EXPECT_FALSE(asked.ignore_eos);
  EXPECT_EQ(asked.sampling.seed, 9U);
  EXPECT_EQ(asked.sampling.temperature, 0);
  const auto tokens = encode("Good day 🙂");
  script.tokens(1, tokens);
  script.end(1, FinishReason::stop);
  const std::string answer = call.answer();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK")) << answer;
  EXPECT_TRUE(has(answer, R"("message":{"role":"assistant","content":"Good day 🙂","refusal":null})")) << answer;
  EXPECT_TRUE(has(answer, R"("finish_reason":"stop")") && has(answer, R"("model":"tiny")")) << answer;
  EXPECT_TRUE(has(answer, "\"usage\":{\"prompt_tokens\":" + std::to_string(asked.prompt.size()) +
                              ",\"completion_tokens\":" + std::to_string(tokens.size())))
      << answer;
}

TEST_F(ServiceTest, StreamsAChat) {
  auto call = chat(R"(, "stream": true, "stream_options": {"include_usage": true}, "return_token_ids": true)");
  EXPECT_TRUE(has(call.client().receive_until("\"role\":\"assistant\""), "text/event-stream"));  // before any token
  const auto tokens = encode("Hi 👩‍👧");
  script.tokens(1, tokens);
  script.end(1, FinishReason::length);
  const std::string answer = call.client().receive_until("0\r\n\r\n");
  EXPECT_TRUE(has(answer, R"("finish_reason":"length")") && has(answer, R"("usage":null)") &&
              has(answer, R"("choices":[],"usage":{)"))
      << answer;
  EXPECT_TRUE(has(answer, "data: [DONE]\n\n")) << answer;
  EXPECT_FALSE(has(answer, "\xef\xbf\xbd")) << answer;  // no part of a character
  std::string ids;
  for (auto at = answer.find("\"token_ids\":["); at != std::string::npos; at = answer.find("\"token_ids\":[", at + 1))
    ids += answer.substr(at + 13, answer.find(']', at) - at - 13) + ",";
  std::string expected;
  for (const auto token : tokens) expected += std::to_string(token) + ",";
  EXPECT_EQ(ids, expected);
}

TEST_F(ServiceTest, StopsAtAStopString) {
  auto call = chat(R"(, "stop": ["o n"], "logprobs": true, "top_logprobs": 2)");
  script.tokens(1, encode("Hello new world"));
  EXPECT_TRUE(script.wait_for_cancel(1));
  const std::string answer = call.answer();
  EXPECT_TRUE(has(answer, R"("content":"Hell")")) << answer;
  EXPECT_TRUE(has(answer, R"("finish_reason":"stop")")) << answer;
  // The logprobs are of the tokens that begin in the text that was given out.
  EXPECT_TRUE(has(answer, "\"top_logprobs\":[{\"token\":")) << answer;
  EXPECT_FALSE(has(answer, "\"token\":\" world\"")) << answer;
}

TEST_F(ServiceTest, StopStringsWaitForTheLeastNumberOfTokens) {
  auto call = chat(R"(, "stop": "e", "min_tokens": 4)");
  script.tokens(1, encode("eeeeee"));
  EXPECT_TRUE(script.wait_for_cancel(1));
  EXPECT_TRUE(has(call.answer(), R"("finish_reason":"stop")"));
}

TEST_F(ServiceTest, SeveralChoicesAndPrompts) {
  Call call(server.port(), "/v1/completions", R"({"prompt": ["a", "b"], "n": 2, "seed": 5, "max_tokens": 3})");
  for (std::size_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(script.wait_for(id).sampling.seed, id % 2 == 1 ? 5U : 6U);
    script.tokens(id, encode(std::to_string(id)));
  }
  for (std::size_t id = 4; id >= 1; --id) script.end(id, FinishReason::length);
  const std::string answer = call.answer();
  EXPECT_TRUE(has(answer, R"({"index":0,"text":"1",)") && has(answer, R"({"index":3,"text":"4",)")) << answer;
}

// A step's events of several requests, with one that ends in the middle of it and one that a stop string ends.
TEST_F(ServiceTest, EventsThatComeTogetherKeepTheirOrder) {
  const auto ask_for = [&](const std::string& more) {
    return Call(server.port(), "/v1/completions", R"({"prompt": "a")" + more + "}");
  };
  auto first = ask_for("");
  script.wait_for(1);
  auto second = ask_for(R"(, "stop": "cc")");
  script.wait_for(2);
  auto third = ask_for("");
  script.wait_for(3);
  std::vector<GenerateEvent> events;
  const std::vector<std::vector<std::int32_t>> tokens = {encode("Hi 🙂 you"), encode("abccdd"), encode("x 🙂 y z")};
  for (std::size_t at = 0; at < 30; ++at)
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (at < tokens[i].size()) events.push_back(ScriptedGenerator::token_event(i + 1, tokens[i][at]));
      if (at == tokens[i].size()) events.push_back(ScriptedGenerator::end_event(i + 1, FinishReason::length));
    }
  service.take(events);
  EXPECT_TRUE(has(first.answer(), R"("text":"Hi 🙂 you")"));
  const std::string stopped = second.answer();
  EXPECT_TRUE(has(stopped, R"("text":"ab")") && has(stopped, R"("finish_reason":"stop")")) << stopped;
  EXPECT_TRUE(has(third.answer(), R"("text":"x 🙂 y z")"));
  EXPECT_TRUE(script.wait_for_cancel(2));
}

TEST_F(ServiceTest, AStepIsDecodedByOneCall) {
  std::deque<Call> calls;
  std::vector<GenerateEvent> step, end;
  for (std::size_t id = 1; id <= 5; ++id) {
    calls.emplace_back(server.port(), "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Hi"}]})");
    script.wait_for(id);
    step.push_back(ScriptedGenerator::token_event(id, encode("Hello").back()));
    end.push_back(ScriptedGenerator::end_event(id, FinishReason::length));
  }
  codec->decodes = 0;
  service.take(step);
  service.take(end);
  for (Call& call : calls) EXPECT_TRUE(call.answer().starts_with("HTTP/1.1 200 "));
  EXPECT_EQ(codec->decodes, 1);
}

TEST_F(ServiceTest, ACodecThatFailsEndsTheRequest) {
  auto call = chat();
  script.wait_for(1);
  codec->broken = true;
  script.token(1, 300);
  const std::string answer = call.answer();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 500 ") && has(answer, "no decoder")) << answer;
  EXPECT_TRUE(script.wait_for_cancel(1));
}

TEST_F(ServiceTest, ASlowTemplateHoldsUpNoStream) {
  auto stream = chat(R"(, "stream": true)");
  script.wait_for(1);
  auto slow = chat("", "a slow one");
  codec->slow_begun.wait(false);
  script.tokens(1, encode("at once"));
  script.end(1, FinishReason::stop);
  EXPECT_TRUE(has(stream.client().receive_until("0\r\n\r\n"), "[DONE]"));
  codec->end_slow();
  script.tokens(2, encode("at last"));
  script.end(2, FinishReason::stop);
  EXPECT_TRUE(has(slow.answer(), "at last"));
}

// A stream goes on while a plan waits for its turn to be read.
TEST_F(ServiceTest, PlansAreReadBesideStreams) {
  auto stream = chat(R"(, "stream": true)");
  script.wait_for(1);
  auto slow = chat("", "a slow one");
  codec->slow_begun.wait(false);
  Call plan(server.port(), "/plan", "{\"format\": \"motley.plan/1\"", "Authorization: Bearer operator\r\n");
  EXPECT_TRUE(has(get("/health"), "ok"));  // it has arrived
  script.tokens(1, encode("at once"));
  script.end(1, FinishReason::stop);
  EXPECT_TRUE(has(stream.client().receive_until("0\r\n\r\n"), "[DONE]"));
  EXPECT_FALSE(has(get("/metrics"), "\"/plan\"")) << "it is not answered yet";
  codec->end_slow();
  EXPECT_TRUE(has(plan.answer(), "the plan:1"));
  EXPECT_TRUE(has(get("/metrics"), "\"/plan\""));
}

// Of two requests the one with a single prompt does not wait for all of the other's.
TEST_F(ServiceTest, RequestsTakeTurnsWithTheirPrompts) {
  auto slow = chat("", "a slow one");
  codec->slow_begun.wait(false);
  std::string prompts = "\"p\"";
  for (int i = 1; i < 20; ++i) prompts += ", \"p\"";
  Call many(server.port(), "/v1/completions", R"({"max_tokens": 1, "prompt": [)" + prompts + "]}");
  EXPECT_TRUE(has(get("/health"), "ok"));  // it has arrived
  Call one(server.port(), "/v1/completions", R"({"max_tokens": 1, "prompt": "the only one"})");
  EXPECT_TRUE(has(get("/health"), "ok"));
  const auto only = codec->encode("the only one", true);
  codec->end_slow();
  EXPECT_NE(script.wait_for(1).prompt, only) << "the slow one was first";
  EXPECT_EQ(script.wait_for(2).prompt, only);
  script.wait_for(22);
  for (std::size_t id = 1; id <= 22; ++id) script.end(id, FinishReason::stop);
  for (Call* call : {&slow, &many, &one}) EXPECT_TRUE(call->answer().starts_with("HTTP/1.1 200 "));
}

// Far beyond the context a text is encoded as far as it takes to know.
TEST_F(ServiceTest, OfAPromptThatIsFarTooLongAPartIsEncoded) {
  std::string body = R"({"prompt": ")";
  for (int i = 0; i < 1000000; ++i) body += "word ";
  Call call(server.port(), "/v1/completions", body + "\"}");
  const std::string answer = call.answer();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 ") && has(answer, "the prompt has more than 200 tokens")) << answer;
  EXPECT_EQ(codec->encodes, 1);
}

TEST_F(ServiceTest, PromptsOfClientsThatHaveLeftAreNotPrepared) {
  auto slow = chat("", "a slow one");
  codec->slow_begun.wait(false);
  auto left = chat();
  EXPECT_TRUE(has(get("/health"), "ok"));  // it has arrived
  left.client().close();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(has(get("/health"), "ok"));  // its end is seen
  codec->end_slow();
  script.end(1, FinishReason::stop);
  EXPECT_TRUE(slow.answer().starts_with("HTTP/1.1 200 "));
  auto other = chat();
  script.end(2, FinishReason::stop);
  EXPECT_TRUE(other.answer().starts_with("HTTP/1.1 200 "));
  EXPECT_EQ(codec->templates, 2);
}

// A request that is being prepared when serving ends reaches no generator.
TEST_F(ServiceTest, DetachingRefusesWhatIsBeingPrepared) {
  auto slow = chat("", "a slow one");
  codec->slow_begun.wait(false);
  service.detach();
  codec->end_slow();
  const std::string answer = slow.answer();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 ") && has(answer, "shutting down")) << answer;
}

TEST_F(ServiceTest, LogprobsOfCompletions) {
  Call call(server.port(), "/v1/completions", R"({"prompt": "a", "logprobs": 2})");
  script.tokens(1, encode("Hello"));
  script.end(1, FinishReason::stop);
  const std::string answer = call.answer();
  EXPECT_TRUE(has(answer, "\"token_logprobs\":[-0.25,") && has(answer, "\"text_offset\":[0,") &&
              has(answer, "\"</s>\":-2.0"))
      << answer;
}

TEST_F(ServiceTest, AnEchoBeginsWithThePromptAndItsLogprobs) {
  Call call(server.port(), "/v1/completions", R"({"prompt": "Hi", "logprobs": 1, "echo": true, "max_tokens": 1})");
  const GenerateRequest asked = script.wait_for(1);
  EXPECT_EQ(asked.prompt_logprobs, 1);
  ASSERT_GE(asked.prompt.size(), 2U);
  GenerateEvent scores{.request = 1};
  scores.prompt_scores.emplace(asked.prompt.size() - 1, TokenScore{-0.5F, {{end_token, -3}}});
  service.take({scores});
  script.token(1, encode("Hello").at(0));
  script.end(1, FinishReason::length);
  const std::string answer = call.answer();
  EXPECT_TRUE(has(answer, R"("text":"Hi)") && has(answer, R"("token_logprobs":[null,-0.5,)") &&
              has(answer, R"("top_logprobs":[null,{"</s>":-3.0})") && has(answer, ",-0.25]"))
      << answer;
}

TEST_F(ServiceTest, AStreamedEchoBeginsWithThePrompt) {
  Call call(server.port(), "/v1/completions", R"({"prompt": "Hi", "echo": true, "max_tokens": 0, "stream": true})");
  EXPECT_EQ(script.wait_for(1).max_new_tokens, 0);
  EXPECT_FALSE(script.wait_for(1).prompt_logprobs);
  script.end(1, FinishReason::length);
  const std::string answer = call.answer();
  EXPECT_TRUE(has(answer, R"("text":"Hi")") && has(answer, R"("finish_reason":"length")")) << answer;
}

TEST_F(ServiceTest, AClientThatLeavesCancels) {
  for (const std::string more : {"", R"(, "stream": true)"}) {
    const std::size_t id = more.empty() ? 1 : 2;
    auto call = chat(more);
    script.wait_for(id);
    call.client().close();
    EXPECT_TRUE(script.wait_for_cancel(id));
    script.tokens(id, encode("to no client"));
    script.end(id, FinishReason::cancelled);
  }
  EXPECT_TRUE(has(get("/health"), "ok"));
}

TEST_F(ServiceTest, AFailedDeploymentEndsWhatIsOpen) {
  auto whole = chat();
  script.wait_for(1);
  auto stream = chat(R"(, "stream": true)");
  script.wait_for(2);
  script.tokens(2, encode("begun"));
  service.refuse("the deployment failed: box/1 died");
  script.end(1, FinishReason::failed, "box/1 died");
  script.end(2, FinishReason::failed, "box/1 died");
  const std::string answer = whole.answer();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 ") && has(answer, "box/1 died") && has(answer, "server_error"))
      << answer;
  const std::string events = stream.client().receive_until("0\r\n\r\n");
  EXPECT_TRUE(has(events, "data: {\"error\":{\"message\":\"the deployment failed: box/1 died\"")) << events;
  EXPECT_TRUE(get("/ready").starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(chat().answer().starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(get("/health").starts_with("HTTP/1.1 200 "));
}

TEST_F(ServiceTest, DetachingEndsWhatIsOpen) {
  auto call = chat();
  script.wait_for(1);
  service.detach();
  EXPECT_TRUE(call.answer().starts_with("HTTP/1.1 503 "));
  EXPECT_TRUE(script.wait_for_cancel(1));
}

TEST_F(ServiceTest, AFullQueueTakesNothing) {
  script.full_after = 2;
  const std::string answer = chat(R"(, "n": 3)").answer();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 429 ") && has(answer, "Retry-After: ") && has(answer, "queue_full"))
      << answer;
  EXPECT_TRUE(script.wait_for_cancel(1) && script.wait_for_cancel(2));
}

TEST_F(ServiceTest, ErrorsOfRequests) {
  const auto post = [&](const std::string& path, const std::string& body) {
    return ask(server.port(), http_post(path, body));
  };
  const auto refused = [&](const std::string& body, int status, const std::string& part) {
    const std::string answer = post("/v1/chat/completions", body);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + std::to_string(status) + " ")) << body.substr(0, 100) << answer;
    EXPECT_TRUE(has(answer, part) && has(answer, "{\"error\":{\"message\":\"")) << body.substr(0, 100) << answer;
  };
  refused("", 400, "request body");
  refused("{", 400, "request body:1");
  refused("{\"messages\": \"\xff\"}", 400, "UTF-8");
  refused(std::string(100000, '['), 400, "nesting");
  refused(R"({"model": "tiny", "model": "tiny"})", 400, "twice");
  refused(R"({"messages": [{"role": "user", "content": "x"}], "model": "other"})", 404, "model_not_found");
  refused(R"({"messages": [{"role": "user", "content": "x"}], "temperature": 9})", 400, "\"param\":\"temperature\"");
  refused(R"({"messages": [{"role": "user", "content": ")" + std::string(2000, 'z') + "\"}]}", 400,
          "context_length_exceeded");
  EXPECT_TRUE(has(post("/v1/completions", R"({"prompt": ""})"), "no tokens"));
  EXPECT_TRUE(post("/v1/nothing", "{}").starts_with("HTTP/1.1 404 "));
  const std::string wrong_method = get("/v1/chat/completions");
  EXPECT_TRUE(wrong_method.starts_with("HTTP/1.1 405 ") && has(wrong_method, "Allow: POST")) << wrong_method;
  EXPECT_TRUE(has(post("/health", ""), "Allow: GET"));
}

TEST_F(ServiceTest, OtherPaths) {
  EXPECT_TRUE(has(get("/v1/models"), R"({"object":"list","data":[{"id":"tiny","object":"model",)"));
  EXPECT_TRUE(has(get("/v1/models/tiny"), R"("max_model_len":200)"));
  EXPECT_TRUE(has(get("/v1/models/%74iny"), R"("id":"tiny")"));
  EXPECT_TRUE(get("/v1/models/other").starts_with("HTTP/1.1 404 "));
  EXPECT_TRUE(has(get("/ready"), R"({"ready":true})"));
  const std::string plan = get("/plan");
  EXPECT_TRUE(has(plan, R"("tokens_per_s":{"predicted":)") && has(plan, R"("format":"motley.plan/1")")) << plan;
  const std::string metrics = get("/metrics");
  EXPECT_TRUE(has(metrics, "motley_requests_waiting{route=\"r0\"} 3") &&
              has(metrics, "motley_generated_tokens_total 12"))
      << metrics;
  EXPECT_TRUE(has(metrics, "motley_requests_total{path=\"/v1/models\",status=\"200\"} 3")) << metrics;
}

TEST_F(ServiceTest, TakesAnotherPlan) {
  const std::string key = "Connection: close\r\nAuthorization: Bearer operator\r\n";
  const auto post = [&](const std::string& path, const std::string& body) {
    return ask(server.port(), http_post(path, body, key));
  };
  const std::string other = to_json(write(toy_plan({{1}})));
  EXPECT_TRUE(post("/plan", other).starts_with("HTTP/1.1 202 "));
  ASSERT_EQ(script.plans.size(), 1u);
  EXPECT_EQ(script.plans[0].model.name, "tales");
  std::string as_text = http_post("/plan", other, key);
  as_text.replace(as_text.find("application/json"), 16, "text/plain");
  EXPECT_TRUE(ask(server.port(), as_text).starts_with("HTTP/1.1 415 "));
  const std::string broken = post("/plan", R"({"format": "motley.plan/1", "kind": "rent"})");
  EXPECT_TRUE(broken.starts_with("HTTP/1.1 400 ") && has(broken, "the plan:1: kind")) << broken;
  service.refuse("closing time");
  EXPECT_TRUE(post("/plan", other).starts_with("HTTP/1.1 503 "));
  EXPECT_EQ(script.plans.size(), 1u);
}

TEST(Service, AsksForItsKey) {
  ScriptedGenerator script;
  Service service(small_plan(nullptr), nullptr, {.api_key = "secret"});
  service.attach(script);
  const Server server([&](HttpRequest r, std::shared_ptr<Exchange> e) { service.handle(std::move(r), std::move(e)); },
                      {.port = 0});
  const auto get = [&](const std::string& path, const std::string& headers) {
    return ask(server.port(), http_get_request(path, headers + "Connection: close\r\n"));
  };
  EXPECT_TRUE(get("/v1/models", "Authorization: Bearer secret\r\n").starts_with("HTTP/1.1 200 "));
  for (const std::string wrong :
       {"", "Authorization: Bearer secre\r\n", "Authorization: Bearer secret2\r\n", "Authorization: secret\r\n"}) {
    EXPECT_TRUE(get("/v1/models", wrong).starts_with("HTTP/1.1 401 ")) << wrong;
    EXPECT_TRUE(get("/plan", wrong).starts_with("HTTP/1.1 401 ")) << wrong;
  }
  EXPECT_TRUE(get("/health", "").starts_with("HTTP/1.1 200 "));
}

struct CountedMachines final : JoinedMachines {
  Value describe() const override { return Value::object({{"members", Value(Value::Array{"box"})}}); }
  std::vector<std::string> drain(const std::string&, bool) override {
    ++drained;
    return {};
  }
  double invite(bool, std::optional<double>) override {
    ++links;
    return 60;
  }
  int drained = 0, links = 0;
};

TEST(Service, TheOperatorsPathsHaveAKeyOfTheirOwn) {
  ScriptedGenerator script;
  CountedMachines machines;
  const auto answer = [&](const ServiceOptions& options, const std::string& request) {
    Service service(small_plan(nullptr), nullptr, options);
    service.attach(script);
    const Server server([&](HttpRequest r, std::shared_ptr<Exchange> e) { service.handle(std::move(r), std::move(e)); },
                        {.port = 0});
    return ask(server.port(), request);
  };
  const auto post = [](const std::string& path, const std::string& body, const std::string& key) {
    return http_post(path, body,
                     "Connection: close\r\n" + (key.empty() ? key : "Authorization: Bearer " + key + "\r\n"));
  };
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"/plan", to_json(write(toy_plan({{1}})))}, {"/drain", R"({"member": "box"})"}, {"/link", "{}"}};
  ServiceOptions options{.machines = &machines};
  for (const auto& [client, operator_] :
       {std::pair<std::string, std::string>{"", "boss"}, {"sesame", "boss"}, {"sesame", ""}, {"", ""}}) {
    options.api_key = client;
    options.operator_key = operator_;
    for (const auto& [path, body] : changes)
      for (const std::string wrong : {"", "sesame", "bos", "boss2", "Boss"})
        EXPECT_TRUE(answer(options, post(path, body, wrong)).starts_with("HTTP/1.1 401 ")) << path << wrong;
  }
  EXPECT_TRUE(script.plans.empty() && machines.drained == 0 && machines.links == 0);
  options.api_key = "sesame";
  options.operator_key = "boss";
  for (const auto& [path, body] : changes)
    EXPECT_TRUE(answer(options, post(path, body, "boss")).starts_with("HTTP/1.1 202 ")) << path;
  EXPECT_TRUE(script.plans.size() == 1 && machines.drained == 1 && machines.links == 1);
  // It opens what clients see, too.
  const std::string plan =
      answer(options, http_get_request("/plan", "Connection: close\r\nAuthorization: Bearer boss\r\n"));
  EXPECT_TRUE(plan.starts_with("HTTP/1.1 200 ") && has(plan, "\"members\":[\"box\"]")) << plan;
  options.machines = nullptr;
  for (const std::string path : {"/drain", "/link"})
    EXPECT_TRUE(has(answer(options, post(path, "{}", "boss")), "\"no_members\"")) << path;
}

TEST_F(ServiceTest, BodiesAreJson) {
  const auto status = [&](const std::string& path, const std::string& type) {
    return ask(server.port(), "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + type +
                                  "Content-Length: 2\r\n\r\n{}")
        .substr(9, 3);
  };
  for (const std::string path : {"/v1/chat/completions", "/v1/completions", "/plan", "/drain", "/link"}) {
    for (const std::string type : {"", "Content-Type: text/plain\r\n", "Content-Type: application/jsonp\r\n",
                                   "Content-Type: multipart/form-data; application/json\r\n",
                                   "Content-Type: application/x-www-form-urlencoded\r\n"})
      EXPECT_EQ(status(path, type), "415") << path << type;
    for (const std::string type :
         {"Content-Type: application/json\r\n", "Content-Type: Application/JSON;charset=utf-8\r\n",
          "Content-Type: application/json ; charset=utf-8\r\n"})
      EXPECT_NE(status(path, type), "415") << path << type;
  }
}

TEST_F(ServiceTest, TemplatesGetTheRequestsArguments) {
  auto call = chat(R"(, "chat_template_kwargs": {"enable_thinking": false, "x": [1, {"y": null}]})");
  script.wait_for(1);
  EXPECT_EQ(codec->last_arguments, R"({"enable_thinking":false,"x":[1,{"y":null}]})");
  script.end(1, FinishReason::stop);
  EXPECT_TRUE(call.answer().starts_with("HTTP/1.1 200 "));
}

TEST(Service, WithoutTextServesTokenIds) {
  ScriptedGenerator script;
  Service service(small_plan(nullptr), nullptr, {});
  const Server server([&](HttpRequest r, std::shared_ptr<Exchange> e) { service.handle(std::move(r), std::move(e)); },
                      {.port = 0});
  EXPECT_TRUE(
      has(ask(server.port(), http_post("/v1/completions", R"({"prompt": [5, 6]})")), "the workers are starting"));
  script.service = &service;
  service.attach(script);
  EXPECT_TRUE(has(ask(server.port(), http_post("/v1/completions", R"({"prompt": "hi"})")), "text_unavailable"));
  RawClient client(server.port());
  client.send(http_post("/v1/completions", R"({"prompt": [5, 6], "logprobs": 0})"));
  EXPECT_EQ(script.wait_for(1).prompt, (std::vector<std::int32_t>{5, 6}));
  script.tokens(1, {7, 8});
  script.end(1, FinishReason::length);
  const std::string answer = client.receive_all();
  EXPECT_TRUE(has(answer, R"("token_ids":[7,8])") && has(answer, R"("tokens":["token_id:7","token_id:8"])")) << answer;
}

}  // namespace
}  // namespace motley
