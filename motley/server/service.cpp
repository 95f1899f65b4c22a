#include "motley/server/service.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <future>
#include <set>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/base/foreign.hpp"
#include "motley/base/value.hpp"
#include "motley/model/families/families.hpp"
#include "motley/plan/shared.hpp"
#include "motley/server/completion.hpp"
#include "motley/server/metrics.hpp"
#include "motley/server/openai_api.hpp"
#include "motley/server/prepared_request.hpp"
#include "motley/server/serial_queue.hpp"
#include "motley/serving/running_plan.hpp"

namespace motley {
namespace {

const std::string models_prefix = "/v1/models/";
constexpr std::size_t max_plan_values = std::size_t{1} << 20;
constexpr std::size_t max_order_bytes = std::size_t{64} << 10;  // of a body that this thread parses

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

bool is_json(std::string_view content_type) {
  std::string type(content_type.substr(0, content_type.find(';')));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.pop_back();
  std::ranges::transform(type, type.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c | 32 : c; });
  return type == "application/json";
}

// Who asks, by the key that is shown; each may do what those before it may.
enum class Caller { stranger, client, operator_ };

}  // namespace

struct Service::Impl {
  Serving serving;
  std::shared_ptr<const ServePlan> first_plan;
  const ServiceOptions options;
  const std::int64_t created =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string refusal = "the workers are starting";  // empty: requests are served
  std::set<std::shared_ptr<Completion>> open;        // the generator's events hold them weakly

  SerialQueue queue;    // its jobs use all of the above, which is theirs alone
  SerialQueue prompts;  // prepares requests, so that a long prompt holds up no stream; ends before `queue`

  Impl(ServePlan plan, std::shared_ptr<TextCodec> codec, ServiceOptions the_options) : options(std::move(the_options)) {
    first_plan = std::make_shared<const ServePlan>(std::move(plan));
    serving.model = first_plan->model;
    serving.codec = std::move(codec);
    if (serving.codec) prepare_chats();
    serving.post = [this](std::function<void()> job) { queue.post(std::move(job)); };
  }

  // What the family's chats need of the model's own vocabulary.
  void prepare_chats() {
    const Family& family = family_of(serving.model.arch);
    const auto special_token = [&](std::string_view text) -> std::optional<std::int32_t> {
      const std::vector<std::int32_t> tokens = serving.codec->encode(text, false);
      const bool known = tokens.size() == 1 && tokens[0] < serving.model.arch.vocabulary;
      return known && serving.codec->decode(tokens, true).empty() ? std::optional(tokens[0]) : std::nullopt;
    };
    for (const std::string_view text : family.end_texts)
      if (const auto token = special_token(text)) serving.chat_ends.push_back(*token);
    if (!options.split_reasoning) return;
    serving.reasoning = family.reasoning;
    for (const std::string_view text : reasoning_marks(family.reasoning))
      if (const auto token = special_token(text)) serving.marks.emplace(*token, text);
  }

  void handle(const std::shared_ptr<const HttpRequest>& request, const std::shared_ptr<Exchange>& exchange,
              Instant arrival) {
    answer(*request, exchange, [&] { route(request, exchange, arrival); });
  }

  // Runs `work`; what it throws is the answer.
  template <class Work>
  void answer(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, Work work) {
    try {
      work();
    } catch (const ApiError& error) {
      HttpResponse response = error_response(error);
      if (error.status == 405)
        response.headers.emplace_back("Allow", request.path == "/plan"     ? "GET, POST"
                                               : takes_posts(request.path) ? "POST"
                                                                           : "GET");
      reply(request, exchange, std::move(response));
    } catch (const Error& error) {
      reply(request, exchange, error_response(to_api_error(error)));
    } catch (const std::exception& error) {
      reply(request, exchange, error_response(ApiError(500, error.what())));
    }
  }

  void reply(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange, HttpResponse response) {
    // Labels come from this program alone, so that strangers cannot make more of them.
    static const std::set<std::string> known = {"/health",    "/ready",          "/plan",
                                                "/drain",     "/link",           "/metrics",
                                                "/v1/models", "/v1/completions", "/v1/chat/completions"};
    const std::string path = request.path.starts_with(models_prefix) ? "/v1/models" : request.path;
    serving.metrics.count_request(known.contains(path) ? path : "other", response.status);
    exchange->reply(std::move(response));
  }

  void route(const std::shared_ptr<const HttpRequest>& shared, const std::shared_ptr<Exchange>& exchange,
             Instant arrival) {
    const HttpRequest& request = *shared;
    const auto get = [&](HttpResponse (Impl::*page)()) {
      require_method(request, "GET");
      reply(request, exchange, (this->*page)());
    };
    if (request.path == "/health") return get(&Impl::health);
    if (request.path == "/ready") return get(&Impl::ready);
    const Caller caller = caller_of(request);
    const auto operate = [&](HttpResponse (Impl::*change)(const HttpRequest&)) {
      require_operator(request, caller);
      reply(request, exchange, (this->*change)(request));
    };
    if (request.path == "/plan" && request.method == "POST") {
      require_operator(request, caller);
      return change_plan(shared, exchange);
    }
    if (request.path == "/drain") return operate(&Impl::drain);
    if (request.path == "/link") return operate(&Impl::invite);
    if (caller == Caller::stranger)
      throw ApiError(401, "the API key is missing or wrong: send `Authorization: Bearer KEY`", {}, "invalid_api_key");
    if (request.path == "/v1/models") return get(&Impl::models);
    if (request.path == "/plan") return get(&Impl::plan);
    if (request.path == "/metrics") return get(&Impl::metrics);
    if (request.path.starts_with(models_prefix)) {
      require_method(request, "GET");
      require_model(decode_percent(request.path.substr(models_prefix.size())), serving.model);
      return reply(request, exchange, json_response(model()));
    }
    if (request.path == "/v1/chat/completions") return prepare(shared, ApiKind::chat, exchange, arrival);
    if (request.path == "/v1/completions") return prepare(shared, ApiKind::completion, exchange, arrival);
    throw ApiError(404, fmt::format("the path {} does not exist", shortened(request.path)), {}, "not_found");
  }

  Caller caller_of(const HttpRequest& request) const {
    const bool bearer = request.authorization.starts_with("Bearer ");
    const std::string_view given = bearer ? std::string_view(request.authorization).substr(7) : std::string_view();
    const auto is = [&](const std::string& key) { return !key.empty() && equal_secrets(given, key); };
    if (is(options.operator_key)) return Caller::operator_;
    return options.api_key.empty() || is(options.api_key) ? Caller::client : Caller::stranger;
  }

  static void require_method(const HttpRequest& request, const std::string& method) {
    if (request.method == method) return;
    throw ApiError(405, fmt::format("{} takes {}, not {}", request.path, method, request.method), {},
                   "method_not_allowed");
  }

  DriverStatus status() const {
    DriverStatus status = serving.generator ? serving.generator->status() : DriverStatus();
    if (!status.plan) status.plan = first_plan;
    return status;
  }

  HttpResponse health() { return json_response(Value::object({{"status", "ok"}})); }

  HttpResponse ready() {
    const DriverStatus now = status();
    if (refusal.empty() && now.ready) return json_response(Value::object({{"ready", true}}));
    const std::string reason = !refusal.empty() ? refusal
                               : now.phase == DeploymentPhase::failed
                                   ? "the deployment has failed"
                                   : fmt::format("another plan takes effect: {}", name_of(now.phase));
    return json_response(Value::object({{"ready", false}, {"reason", reason}}), 503);
  }

  Value model() {
    return Value::object({{"id", serving.model.name},
                          {"object", "model"},
                          {"created", created},
                          {"owned_by", "motley"},
                          {"max_model_len", serving.model.arch.context}});
  }

  HttpResponse models() {
    return json_response(Value::object({{"object", "list"}, {"data", Value::array({model()})}}));
  }
  HttpResponse plan() {
    Value report = running_plan(status());
    if (options.machines != nullptr)
      for (const Value more = options.machines->describe(); const auto& [name, value] : more.as_object())
        report.set(name, value);
    return json_response(report);
  }

  // A page in a browser cannot send this type to another origin without being allowed to.
  static void require_post(const HttpRequest& request) {
    require_method(request, "POST");
    if (!is_json(request.content_type))
      throw ApiError(415, fmt::format("{} takes `Content-Type: application/json`", request.path), {},
                     "unsupported_media_type");
  }

  static void require_operator(const HttpRequest& request, Caller caller) {
    require_post(request);
    if (caller != Caller::operator_)
      throw ApiError(401,
                     fmt::format("{} takes the operator's key alone, which commands of the server's own user find by "
                                 "themselves: see --operator-key",
                                 request.path),
                     {}, "invalid_operator_key");
  }

  static bool takes_posts(const std::string& path) {
    return is_completion_path(path) || path == "/drain" || path == "/link";
  }

  static Value parse_order(const HttpRequest& request) {
    if (request.body.size() > max_order_bytes)
      throw ApiError(413, fmt::format("{} takes at most {} bytes", request.path, max_order_bytes), {}, "too_large");
    return parse_json(request.body, "the request");
  }

  static bool flag(const Value& body, const char* name) {
    const Value* given = body.is_object() ? body.find(name) : nullptr;
    if (given != nullptr && !given->is_bool())
      throw input_error(fmt::format("\"{}\" must be true or false", name), "leave it out for false");
    return given != nullptr && given->as_bool();
  }

  // The link is a secret: it goes to the output of the process that serves, and no answer has it.
  HttpResponse invite(const HttpRequest& request) {
    const Value body = parse_order(request);
    if (options.machines == nullptr)
      throw ApiError(400, "no machine can join this deployment: it was not started by `motley up`", {}, "no_members");
    const Value* lifetime = body.is_object() ? body.find("token_lifetime_s") : nullptr;
    if (lifetime != nullptr && !lifetime->is_number())
      throw input_error("\"token_lifetime_s\" must be a number", "leave it out for the deployment's own");
    const auto asked_s = lifetime != nullptr ? std::optional(lifetime->as_number()) : std::nullopt;
    const double lifetime_s = options.machines->invite(flag(body, "revoke"), asked_s);
    return json_response(Value::object({{"token_lifetime_s", lifetime_s}}), 202);
  }

  HttpResponse drain(const HttpRequest& request) {
    require_serving();
    const Value body = parse_order(request);
    if (options.machines == nullptr)
      throw ApiError(400, "this deployment has one machine: there is none to be drained", {}, "no_members");
    const Value* member = body.find("member");
    if (member == nullptr || !member->is_string())
      throw input_error("the request has no \"member\"", "name a machine: {\"member\": \"box\"}");
    const bool revoke = flag(body, "revoke");
    Value::Array same_link;
    for (const std::string& other : options.machines->drain(member->as_string(), revoke)) same_link.push_back(other);
    Value answer = Value::object({{revoke ? "revoked" : "draining", member->as_string()}});
    if (revoke) answer.set("same_link", Value(std::move(same_link)));
    return json_response(answer, 202);
  }

  void change_plan(const std::shared_ptr<const HttpRequest>& request, const std::shared_ptr<Exchange>& exchange) {
    require_serving();
    prompts.post([this, request, exchange] {
      const auto read = std::make_shared<std::packaged_task<ServePlan()>>([&] {
        return read_plan<ServePlan>(parse_json_within(request->body, "the plan", max_plan_values), "the plan");
      });
      (*read)();
      queue.post([this, request, exchange, read] {
        answer(*request, exchange, [&] { reply(*request, exchange, take_plan(read->get_future().get())); });
      });
    });
  }

  HttpResponse take_plan(ServePlan plan) {
    require_serving();
    const std::uint64_t before = status().epoch;
    if (!plan.model.digest.empty() && !serving.model.digest.empty() && plan.model.digest != serving.model.digest)
      throw input_error("the plan was made for other files of the model than are served",
                        "plan again for the model that is served");
    serving.generator->change_plan(std::move(plan));
    return json_response(Value::object({{"epoch", static_cast<std::int64_t>(before)}}), 202);
  }

  // One call of the codec for all streams.
  void take(const std::vector<GenerateEvent>& events) {
    struct Taken {
      std::shared_ptr<Completion> completion;
      std::size_t choice = 0;
      const GenerateEvent* event = nullptr;
      bool decoded = false;
    };
    std::vector<Taken> all;
    std::vector<StreamToken> tokens;
    for (const GenerateEvent& event : events) {
      const auto found = serving.requests.find(event.request);
      if (found == serving.requests.end()) continue;
      const auto [owner, choice] = found->second;
      if (event.finished) serving.requests.erase(found);
      const auto completion = owner.lock();
      if (!completion) continue;
      DecodeStream* stream = event.prompt_scores ? nullptr : completion->stream(choice);
      all.push_back({completion, choice, &event, stream != nullptr});
      if (stream) tokens.push_back({stream, event.token ? std::optional(event.token->token) : std::nullopt});
    }
    std::vector<std::string> texts;
    try {
      if (!tokens.empty()) texts = decode_streams(*serving.codec, tokens, true);
    } catch (const Error& error) {
      for (const Taken& taken : all) taken.completion->fail(to_api_error(error));
      return;
    }
    auto text = texts.begin();
    for (const Taken& taken : all)
      taken.completion->take(taken.choice, *taken.event, taken.decoded ? *text++ : std::string());
  }

  HttpResponse metrics() {
    HttpResponse response;
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = serving.metrics.text(status());
    return response;
  }

  void require_serving() const {
    if (!refusal.empty()) throw ApiError(503, refusal, {}, "unavailable");
  }

  // A request on its way to complete(), by the other thread.
  struct Preparing {
    std::shared_ptr<const HttpRequest> request;
    std::shared_ptr<Exchange> exchange;
    Instant arrival;
    std::shared_ptr<TextCodec> codec;
    Preparation work;
  };

  void prepare(const std::shared_ptr<const HttpRequest>& request, ApiKind kind,
               const std::shared_ptr<Exchange>& exchange, Instant arrival) {
    require_post(*request);
    require_serving();
    prepare_on(std::make_shared<Preparing>(Preparing{
        request, exchange, arrival, serving.codec, {request->body, kind, serving.model, serving.codec.get()}}));
  }

  // One step, behind those of other requests.
  void prepare_on(const std::shared_ptr<Preparing>& preparing) {
    prompts.post([this, preparing] {
      if (preparing->exchange->gone()) return;
      std::exception_ptr failure;
      try {
        if (preparing->work.step()) return prepare_on(preparing);
      } catch (...) {
        failure = std::current_exception();
      }
      queue.post([this, preparing, failure] {
        answer(*preparing->request, preparing->exchange, [&] {
          if (failure) std::rethrow_exception(failure);
          PreparedRequest prepared = preparing->work.take();
          keep_apart(*preparing->request, prepared.request);
          complete(std::move(prepared), preparing->exchange, preparing->arrival);
        });
      });
    });
  }

  // Of another key nothing is found, and no name is the same.
  void keep_apart(const HttpRequest& from, CompletionRequest& request) const {
    const std::string key = options.share_prefixes ? std::string() : from.authorization;
    request.cache_salt = fmt::format("{}:{}{}", key.size(), key, request.cache_salt);
    if (!request.prompt_cache_key.empty())
      request.prompt_cache_key = fmt::format("{}:{}", request.cache_salt, request.prompt_cache_key);
  }

  void complete(PreparedRequest prepared, const std::shared_ptr<Exchange>& exchange, Instant arrival) {
    require_serving();
    const auto completion = std::make_shared<Completion>(serving, std::move(prepared.request), exchange, arrival);
    completion->start(prepared.prompts, [this, weak = std::weak_ptr(completion)] { open.erase(weak.lock()); });
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
  impl_->queue.post([impl = impl_.get(), request = std::make_shared<const HttpRequest>(std::move(request)),
                     exchange = std::move(exchange),
                     arrival = Clock::now()] { impl->handle(request, exchange, arrival); });
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
