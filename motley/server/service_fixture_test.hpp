// For tests of the service: one whose generator plays what the test writes.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/server/http_client_test.hpp"
#include "motley/server/http_server.hpp"
#include "motley/server/service.hpp"

namespace motley {

inline const std::string metaspace_folder = MOTLEY_SOURCE_DIR "/tests/data/text/metaspace";
constexpr std::int32_t end_token = 2;  // </s>

inline ServePlan small_plan(const std::shared_ptr<TextCodec>& codec, const std::string& family = "llama") {
  ServePlan plan;
  plan.model.name = "tiny";
  plan.model.arch.family = family;
  plan.model.arch.context = 200;
  plan.model.arch.vocabulary = codec ? codec->vocabulary_size() + 16 : 520;  // some were added later
  plan.model.arch.eos_tokens = {end_token};
  plan.routes.push_back({"r0", {}, 1});
  return plan;
}

// A codec that shows what is asked of it, and whose template waits at "slow" until it is let go.
class WatchedCodec final : public TextCodec {
 public:
  explicit WatchedCodec(std::shared_ptr<TextCodec> inner) : inner_(std::move(inner)) {}

  std::vector<std::int32_t> encode(std::string_view text, bool special) override {
    ++encodes;
    return inner_->encode(text, special);
  }
  Placed encode_placed(std::string_view text) override { return inner_->encode_placed(text); }
  std::optional<std::int32_t> eos_token() override { return inner_->eos_token(); }
  std::vector<std::string> decode_all(const std::vector<std::vector<std::int32_t>>& lists, bool skip) override {
    ++decodes;
    if (broken) throw Error(ErrorCode::internal, "no decoder");
    return inner_->decode_all(lists, skip);
  }
  std::string token_text(std::int32_t token) override { return inner_->token_text(token); }
  std::vector<std::uint8_t> token_bytes(std::int32_t token) override { return inner_->token_bytes(token); }
  std::int64_t vocabulary_size() override { return inner_->vocabulary_size(); }
  bool has_chat_template() override { return inner_->has_chat_template(); }
  std::string apply_chat_template(const Value& messages, bool prompt, const Value& arguments) override {
    ++templates;
    last_arguments = to_json(arguments);
    if (to_json(messages).find("slow") != std::string::npos) {
      slow_begun = true;
      slow_begun.notify_all();
      slow_may_end.wait(false);
    }
    return inner_->apply_chat_template(messages, prompt, arguments);
  }

  std::atomic<int> decodes = 0, encodes = 0, templates = 0;
  std::string last_arguments;  // of a template
  std::atomic<bool> slow_begun = false, slow_may_end = false, broken = false;

  void end_slow() {
    slow_may_end = true;
    slow_may_end.notify_all();
  }

 private:
  std::shared_ptr<TextCodec> inner_;
};

// A generator whose answers the test writes.
class ScriptedGenerator final : public Generator {
 public:
  struct Request {
    GenerateRequest asked;
    bool cancelled = false;
  };

  std::uint64_t generate(GenerateRequest request) override {
    const std::lock_guard lock(mutex_);
    if (full_after-- == 0) throw Error(ErrorCode::limit, "the queue is full");
    requests_.push_back({std::move(request)});
    changed_.notify_all();
    return requests_.size();
  }
  void cancel(std::uint64_t id) override {
    const std::lock_guard lock(mutex_);
    requests_.at(id - 1).cancelled = true;
    changed_.notify_all();
  }
  void change_plan(ServePlan plan) override {
    const std::lock_guard lock(mutex_);
    plans.push_back(std::move(plan));
  }
  std::vector<ServePlan> plans;
  DriverStatus status() const override {
    DriverStatus status;
    status.ready = true;
    status.workers.resize(0);
    status.waiting = {3};
    status.running = {1};
    status.generated_tokens = 12;
    return status;
  }

  const GenerateRequest& wait_for(std::size_t id) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(5), [&] { return requests_.size() >= id; }))
      throw std::runtime_error("no such request came");
    return requests_[id - 1].asked;
  }
  bool wait_for_cancel(std::size_t id) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(5), [&] { return requests_.at(id - 1).cancelled; });
  }
  static GenerateEvent token_event(std::size_t id, std::int32_t token) {
    GenerateEvent event;
    event.request = id;
    event.token.emplace();
    event.token->token = token;
    event.token->logprob = -0.25F;
    event.token->top = {{token, -0.25F}, {end_token, -2}};
    return event;
  }
  static GenerateEvent end_event(std::size_t id, FinishReason reason, const std::string& cause = {}) {
    GenerateEvent event;
    event.request = id;
    event.finished = reason;
    event.stop_cause = cause;
    return event;
  }
  void token(std::size_t id, std::int32_t token) {
    wait_for(id);
    service->take({token_event(id, token)});
  }
  void end(std::size_t id, FinishReason reason, const std::string& cause = {}) {
    wait_for(id);
    service->take({end_event(id, reason, cause)});
  }
  void tokens(std::size_t id, const std::vector<std::int32_t>& list) {
    for (const auto one : list) token(id, one);
  }

  std::int64_t full_after = -1;
  Service* service = nullptr;  // takes the events

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> requests_;
};

class ServiceTest : public testing::Test {
 protected:
  explicit ServiceTest(const std::filesystem::path& model = metaspace_folder, const std::string& family = "llama",
                       ServiceOptions options = {.operator_key = "operator"})
      : codec(std::make_shared<WatchedCodec>(TextCodec::open(model))),
        service(small_plan(codec, family), codec, std::move(options)) {
    script.service = &service;
    service.attach(script);
    codec->encodes = 0;
  }

  ~ServiceTest() override { codec->end_slow(); }

  // Sends a request and reads its answer when the script has been played.
  class Call {
   public:
    Call(int port, std::string path, std::string body, const std::string& headers = {}) : client_(port) {
      client_.send(http_post(path, body, headers + "Connection: close\r\n"));
    }
    std::string answer() { return client_.receive_all(); }
    RawClient& client() { return client_; }

   private:
    RawClient client_;
  };

  Call chat(const std::string& more = "", const std::string& content = "Hello there") {
    return {server.port(), "/v1/chat/completions",
            R"({"messages": [{"role": "user", "content": ")" + content + "\"}]" + more + "}"};
  }
  std::string get(const std::string& path, const std::string& headers = "") {
    return ask(server.port(), http_get_request(path, headers + "Connection: close\r\n"));
  }
  std::vector<std::int32_t> encode(const std::string& text) { return codec->encode(text, false); }

  std::shared_ptr<WatchedCodec> codec;
  ScriptedGenerator script;
  Service service;
  Server server{[this](HttpRequest r, std::shared_ptr<Exchange> e) { service.handle(std::move(r), std::move(e)); },
                {.port = 0}};
};

}  // namespace motley
