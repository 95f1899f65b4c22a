#include "motley/server/service.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <array>
#include <chrono>
#include <set>
#include <utility>

#include "motley/server/completion.hpp"
#include "motley/server/metrics.hpp"
#include "motley/server/openai_api.hpp"
#include "motley/server/plan_report.hpp"
#include "motley/text/serial_queue.hpp"

namespace motley {
namespace {

const std::string models_prefix = "/v1/models/";

// Takes the same time wherever the two differ.
bool equal_secrets(std::string_view a, std::string_view b) {
  const auto digest = [](std::string_view text) {
    std::array<unsigned char, SHA256_DIGEST_LENGTH> bytes{};
    SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes.data());
    return bytes;
  };
  const auto left = digest(a), right = digest(b);
  return CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

HttpResponse json_response(const Value& value, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.body = to_json(value) + "\n";
  return response;
}

std::string decode_percent(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool coded = text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += coded ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (coded) i += 2;
  }
  return out;
}

bool is_completion_path(std::string_view path) { return path == "/v1/completions" || path == "/v1/chat/completions"; }

}  // namespace

struct Service::Impl {
  using Clock = std::chrono::steady_clock;

  Serving serving;
  const ServiceOptions options;
  const std::int64_t created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string refusal = "the workers are starting";  // empty: requests are served
  std::set<std::shared_ptr<Completion>> open;        // the generator's events hold them weakly
  SerialQueue queue;                                 // last: its jobs use the rest

  Impl(ServePlan plan, std::shared_ptr<TextCodec> codec, ServiceOptions the_options) : options(std::move(the_options)) {
    serving.plan = std::move(plan);
    serving.codec = std::move(codec);
    serving.post = [this](std::function<void()> job) { queue.post(std::move(job)); };
  }

  void handle(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, Clock::time_point arrival) {
    try {
      route(request, exchange, arrival);
    } catch (const ApiError& error) {
      HttpResponse response = error_response(error);
      if (error.status == 405)
        response.headers.emplace_back("Allow", is_completion_path(request.path) ? "POST" : "GET");
      reply(request, exchange, std::move(response));
    } catch (const Error& error) {
      reply(request, exchange, error_response(to_api_error(error)));
    } catch (const std::exception& error) {
      reply(request, exchange, error_response(ApiError(500, error.what())));
    }
  }

  void reply(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, HttpResponse response) {
    // Labels come from this program alone, so that strangers cannot make more of them.
    static const std::set<std::string> known = {
        "/health", "/ready", "/plan", "/metrics", "/v1/models", "/v1/completions", "/v1/chat/completions"};
    const std::string path = request.path.starts_with(models_prefix) ? "/v1/models" : request.path;
    serving.metrics.count_request(known.contains(path) ? path : "other", response.status);
    exchange->reply(std::move(response));
  }

  void route(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, Clock::time_point arrival) {
    const auto get = [&](HttpResponse (Impl::*answer)()) {
      require_method(request, "GET");
      reply(request, exchange, (this->*answer)());
    };
    if (request.path == "/health") return get(&Impl::health);
    if (request.path == "/ready") return get(&Impl::ready);
    authorize(request);
    if (request.path == "/v1/models") return get(&Impl::models);
    if (request.path == "/plan") return get(&Impl::plan);
    if (request.path == "/metrics") return get(&Impl::metrics);
    if (request.path.starts_with(models_prefix)) {
      require_method(request, "GET");
      check_model(decode_percent(request.path.substr(models_prefix.size())));
      return reply(request, exchange, json_response(model()));
    }
    if (request.path == "/v1/chat/completions") return complete(request, ApiKind::chat, exchange, arrival);
    if (request.path == "/v1/completions") return complete(request, ApiKind::completion, exchange, arrival);
    throw ApiError(404, fmt::format("there is nothing at {}", request.path), {}, "not_found");
  }

  void authorize(const HttpRequest& request) const {
    if (options.api_key.empty()) return;
    const std::string_view given = request.authorization;
    if (!given.starts_with("Bearer ") || !equal_secrets(given.substr(7), options.api_key))
      throw ApiError(401, "the API key is missing or wrong: send `Authorization: Bearer KEY`", {}, "invalid_api_key");
  }

  static void require_method(const HttpRequest& request, const std::string& method) {
    if (request.method == method) return;
    throw ApiError(405, fmt::format("{} takes {}, not {}", request.path, method, request.method), {},
                   "method_not_allowed");
  }

  void check_model(const std::string& name) const {
    const auto& served = serving.plan.model.name;
    if (name != served)
      throw ApiError(404, fmt::format("the model `{}` is not served here; `{}` is", name, served), "model",
                     "model_not_found");
  }

  DriverStatus status() const { return serving.generator ? serving.generator->status() : DriverStatus(); }

  HttpResponse health() { return json_response(Value::object({{"status", "ok"}})); }

  HttpResponse ready() {
    if (refusal.empty() && status().ready) return json_response(Value::object({{"ready", true}}));
    return json_response(
        Value::object({{"ready", false}, {"reason", refusal.empty() ? "the deployment has failed" : refusal}}), 503);
  }

  Value model() {
    return Value::object({{"id", serving.plan.model.name},
                          {"object", "model"},
                          {"created", created},
                          {"owned_by", "motley"},
                          {"max_model_len", serving.plan.model.arch.context}});
  }

  HttpResponse models() {
    return json_response(Value::object({{"object", "list"}, {"data", Value::array({model()})}}));
  }
  HttpResponse plan() { return json_response(plan_report(serving.plan, status())); }

  void take(const std::vector<GenerateEvent>& events) {
    for (const GenerateEvent& event : events) {
      const auto found = serving.requests.find(event.request);
      if (found == serving.requests.end()) continue;
      const auto completion = found->second.completion.lock();
      const std::size_t choice = found->second.choice;
      if (event.finished) serving.requests.erase(found);
      if (completion) completion->take(choice, event);
    }
  }

  HttpResponse metrics() {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = serving.metrics.text(serving.plan, status());
    return response;
  }

  void complete(const HttpRequest& request, ApiKind kind, const std::shared_ptr<Exchange>& exchange,
                Clock::time_point arrival) {
    require_method(request, "POST");
    CompletionRequest parsed =
        parse_completion_request(parse_json(request.body, "request body"), kind, serving.plan.model.arch.vocabulary);
    if (!parsed.model.empty()) check_model(parsed.model);
    if (!refusal.empty()) throw ApiError(503, refusal, {}, "unavailable");
    const auto completion = std::make_shared<Completion>(serving, std::move(parsed), exchange, arrival);
    completion->start([this, weak = std::weak_ptr(completion)] { open.erase(weak.lock()); });
    open.insert(completion);
  }
};

void Service::take(std::vector<GenerateEvent> events) {
  impl_->queue.post([impl = impl_.get(), events = std::move(events)] { impl->take(events); });
}

Service::Service(ServePlan plan, std::shared_ptr<TextCodec> codec, ServiceOptions options)
    : impl_(std::make_unique<Impl>(std::move(plan), std::move(codec), std::move(options))) {}

Service::~Service() { detach(); }

void Service::handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  impl_->queue.post([impl = impl_.get(), request = std::move(request), exchange = std::move(exchange),
                     arrival = Impl::Clock::now()] { impl->handle(request, exchange, arrival); });
}

void Service::attach(Generator& generator) {
  impl_->queue.run([&] {
    impl_->serving.generator = &generator;
    impl_->refusal.clear();
  });
}

void Service::refuse(std::string reason) {
  impl_->queue.post([impl = impl_.get(), reason = std::move(reason)] { impl->refusal = reason; });
}

void Service::detach() {
  impl_->queue.run([&] {
    if (impl_->refusal.empty()) impl_->refusal = "the server is shutting down";
    const auto open = impl_->open;
    for (const auto& completion : open) completion->fail(ApiError(503, impl_->refusal, {}, "unavailable"));
    impl_->serving.generator = nullptr;
  });
}

}  // namespace motley
