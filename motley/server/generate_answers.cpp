#include "motley/server/generate_answers.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/base/foreign.hpp"
#include "motley/server/answer_file.hpp"
#include "motley/server/service.hpp"
#include "motley/server/start_up.hpp"

namespace motley {
namespace {

constexpr double report_every_s = 1;
constexpr double lasting_report_every_s = 10;  // where what stands before is not overwritten

struct Answer {
  std::int64_t line = 0;
  std::string custom_id;
  HttpResponse response;
};

// Answers that have come, and what ended the deployment. Filled by the service's and the driver's threads.
class Inbox {
 public:
  void put(Answer answer) {
    const std::lock_guard lock(mutex_);
    answers_.push_back(std::move(answer));
    changed_.notify_all();
  }
  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = error;
    changed_.notify_all();
  }
  // Nothing: none has come for a while. Throws what ended the deployment once all answers before it are taken.
  std::optional<Answer> take(std::chrono::duration<double> patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return !answers_.empty() || failure_; });
    if (answers_.empty() && failure_) throw Error(*failure_);
    if (answers_.empty()) return std::nullopt;
    Answer answer = std::move(answers_.front());
    answers_.pop_front();
    return answer;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Answer> answers_;
  std::optional<Error> failure_;
};

class BatchExchange final : public Exchange {
 public:
  BatchExchange(Inbox& inbox, std::int64_t line, std::string custom_id)
      : inbox_(inbox), line_(line), custom_id_(std::move(custom_id)) {}
  void reply(HttpResponse response) override { inbox_.put({line_, custom_id_, std::move(response)}); }
  // BatchReader takes no request that streams, and no client leaves.
  void start_stream() override {}
  void send(std::string) override {}
  void end() override {}
  bool gone() const override { return false; }
  void on_gone(std::function<void()>) override {}

 private:
  Inbox& inbox_;
  const std::int64_t line_;
  const std::string custom_id_;
};

// How many of the requests are answered, and how many are left.
struct BatchCount {
  std::int64_t requests = 0, answered = 0;
};

BatchCount compare(const GenerateFiles& files, const AnswerFile& answers) {
  BatchReader reader(files.input);
  BatchCount count;
  NameSet names;
  while (const auto request = reader.next()) {
    if (!names.insert(request->custom_id))
      throw input_error(fmt::format("{}:{}: the custom_id `{}` was used before", files.input.string(), request->line,
                                    shortened(request->custom_id)),
                        "give each line a custom_id of its own");
    ++count.requests;
    count.answered += answers.answered().contains(request->custom_id) ? 1 : 0;
  }
  if (count.answered < static_cast<std::int64_t>(answers.answered().size()))
    throw input_error(
        fmt::format("{} holds {} answers to requests that {} does not have", files.output.string(),
                    static_cast<std::int64_t>(answers.answered().size()) - count.answered, files.input.string()),
        "name another --output, or the --input that it was made from");
  return count;
}

// Two for each place in a step, so that one follows at once where another ends.
std::int64_t most_open(const ServePlan& plan) {
  std::int64_t places = 0;
  for (const Route& route : plan.routes) {
    std::int64_t batches = 1;
    for (const Hop& hop : route.path) batches = std::max(batches, plan.stage(hop.stage).batches());
    places += plan.step.max_sequences * batches * std::max<std::int64_t>(1, std::ssize(route.path));
  }
  return 2 * places;
}

class BatchProgress {
 public:
  BatchProgress(Report report, BatchCount count) : report_(std::move(report)), count_(count) {}
  void add(const Value& body) {
    ++count_.answered;
    ++answered_here_;
    const Value* usage = body.is_object() ? body.find("usage") : nullptr;
    const Value* tokens = usage != nullptr ? usage->find("completion_tokens") : nullptr;
    if (tokens != nullptr && tokens->is_number()) tokens_ += tokens->as_number();
  }
  void show() {
    const double now_s = seconds_since(start_);
    const bool lasts = count_.answered == count_.requests || now_s >= next_lasting_s_;
    if (answered_here_ == 0 || (!lasts && now_s < next_s_)) return;
    next_s_ = now_s + report_every_s;
    if (lasts) next_lasting_s_ = now_s + lasting_report_every_s;
    const auto left = static_cast<double>(count_.requests - count_.answered);
    report_("answers", fmt::format("{} of {}, {:.1f} tokens/s, {:.0f} s left{}", count_.answered, count_.requests,
                                   tokens_ / now_s, left * now_s / static_cast<double>(answered_here_),
                                   lasts ? "" : fmt::format(", {} %", 100 * count_.answered / count_.requests)));
  }

 private:
  const Report report_;
  BatchCount count_;
  std::int64_t answered_here_ = 0;
  double tokens_ = 0, next_s_ = 0, next_lasting_s_ = 0;
  const Instant start_ = Clock::now();
};

Value answer_line(const Answer& answer, Value body) {
  const std::string id = fmt::format("batch_req_{}", answer.line);
  return Value::object({{"id", id},
                        {"custom_id", answer.custom_id},
                        {"response", Value::object({{"status_code", std::int64_t{answer.response.status}},
                                                    {"request_id", id},
                                                    {"body", std::move(body)}})},
                        {"error", Value()}});
}

}  // namespace

int generate_answers(ServePlan plan, ServedDeployment& deployment, ServeSettings settings, const GenerateFiles& files) {
  AnswerFile answers(files.output);
  const BatchCount count = compare(files, answers);
  if (count.answered == count.requests) {
    settings.report("answers", fmt::format("all {} are there", count.requests));
    return 0;
  }

  Inbox inbox;
  const std::int64_t window = most_open(plan);
  Service service(plan, open_codec(settings, plan.model.arch.vocabulary), {});
  settings.max_queue = std::numeric_limits<std::int32_t>::max();  // `window` bounds it
  DriverOptions options = driver_options(settings, deployment);
  options.on_events = [&service](std::vector<GenerateEvent> events) { service.take(std::move(events)); };
  Driver driver(std::move(plan), deployment.fleet(), std::move(options));
  driver.on_failure([&](const Error& error) { inbox.fail(error); });
  service.attach(driver);
  struct Detach {
    Service& service;
    ~Detach() { service.detach(); }
  } detach{service};

  BatchReader reader(files.input);
  BatchProgress progress(settings.report, count);
  std::int64_t open = 0;
  bool more = true;
  const auto ask = [&](const BatchRequest& request) {
    ++open;
    service.handle({.method = "POST",
                    .path = request.url,
                    .authorization = {},
                    .content_type = "application/json",
                    .body = to_json(request.body)},
                   std::make_shared<BatchExchange>(inbox, request.line, request.custom_id));
  };
  while (more || open > 0) {
    while (more && open < window) {
      const auto request = reader.next();
      more = request.has_value();
      if (request && !answers.answered().contains(request->custom_id)) ask(*request);
    }
    progress.show();
    if (open == 0) continue;
    const auto answer = inbox.take(std::chrono::duration<double>(report_every_s));
    if (!answer) continue;
    --open;
    Value body = parse_json(answer->response.body, "answer");
    // A request may be wrong, and its error is its answer. What is wrong with the deployment is not.
    if (answer->response.status == 429 || answer->response.status >= 500)
      throw Error(ErrorCode::peer, fmt::format("request `{}`: {}", shortened(answer->custom_id), answer->response.body),
                  "run the same command again: it goes on from there");
    progress.add(body);
    answers.append(answer_line(*answer, std::move(body)));
  }
  progress.show();
  return 0;
}

}  // namespace motley
