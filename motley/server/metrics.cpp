#include "motley/server/metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>

namespace motley {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

const Buckets seconds_buckets{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300};
const Buckets interval_buckets{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5};

// The driver counts for itself; ours follows.
void follow(Counter& counter, double value) { counter.Increment(std::max(0.0, value - counter.Value())); }

// The gauges of one family that there are now.
struct Gauges {
  prometheus::Family<Gauge>& family;
  std::map<prometheus::Labels, Gauge*> members = {};

  void set(const std::map<prometheus::Labels, double>& values) {
    for (const auto& [labels, value] : values) {
      const auto [member, fresh] = members.try_emplace(labels);
      if (fresh) member->second = &family.Add(labels);
      member->second->Set(value);
    }
    std::erase_if(members, [&](const auto& member) {
      const bool gone = !values.contains(member.first);
      if (gone) family.Remove(member.second);
      return gone;
    });
  }
};

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;

  prometheus::Family<Counter>& counter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<Gauge>& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  Histogram& histogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
  }

  prometheus::Family<Counter>& requests =
      counter("motley_requests_total", "HTTP requests answered, by path and status.");
  Histogram& first_token = histogram("motley_time_to_first_token_seconds",
                                     "Time from a request's arrival to its first token.", seconds_buckets);
  Histogram& token_interval = histogram("motley_time_per_output_token_seconds",
                                        "Mean time per output token after the first, per choice.", interval_buckets);
  Histogram& duration = histogram("motley_request_duration_seconds",
                                  "Time from a completion request's arrival to its end.", seconds_buckets);

  Counter& prompt_tokens = counter("motley_prompt_tokens_total", "Prompt tokens computed.").Add({});
  Counter& generated_tokens = counter("motley_generated_tokens_total", "Tokens generated.").Add({});
  Counter& preemptions =
      counter("motley_preemptions_total", "Sequences returned to the queue because KV blocks ran out.").Add({});
  Counter& prefix_tokens =
      counter("motley_prefix_cache_queries_total", "Prompt tokens that were looked for in the prefix cache.").Add({});
  Counter& found_tokens =
      counter("motley_prefix_cache_hits_total", "Of these, the tokens that were there: they are not computed.").Add({});
  prometheus::Family<Counter>& replayed_tokens = counter(
      "motley_replayed_tokens_total", "Tokens that a stage computed again, after a loss, a change or preemption.");
  Gauge& ready = gauge("motley_ready", "1 when every route has produced a token and nothing has failed.").Add({});
  Gauge& free_blocks = gauge("motley_kv_blocks_free", "Free KV blocks.").Add({});
  Gauge& total_blocks = gauge("motley_kv_blocks", "KV blocks.").Add({});
  Gauge& uptime = gauge("motley_uptime_seconds", "Time since the workers became ready.").Add({});
  Gauge& epoch =
      gauge("motley_plan_epoch", "Number of the plan in force; starts at 1 and grows by 1 with each change.").Add({});
  Gauge& held = gauge("motley_requests_held", "Requests held until a plan takes effect.").Add({});
  Gauges waiting{gauge("motley_requests_waiting", "Sequences in the queue, by route.")};
  Gauges running{gauge("motley_requests_running", "Running sequences, by route.")};
  Gauges worker_up{gauge("motley_worker_up", "1 while the worker process of the device runs.")};
  prometheus::Family<Counter>& worker_busy =
      counter("motley_worker_busy_seconds_total", "Time the worker spent computing.");
  prometheus::Family<Counter>& worker_wait =
      counter("motley_worker_wait_seconds_total", "Time the worker spent waiting for other workers.");
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

void Metrics::count_request(const std::string& path, int status) {
  impl_->requests.Add({{"path", path}, {"status", std::to_string(status)}}).Increment();
}
void Metrics::observe_first_token(double seconds) { impl_->first_token.Observe(seconds); }
void Metrics::observe_token_interval(double seconds) { impl_->token_interval.Observe(seconds); }
void Metrics::observe_duration(double seconds) { impl_->duration.Observe(seconds); }

std::string Metrics::text(const DriverStatus& status) {
  follow(impl_->prompt_tokens, static_cast<double>(status.prompt_tokens));
  follow(impl_->generated_tokens, static_cast<double>(status.generated_tokens));
  follow(impl_->preemptions, static_cast<double>(status.preemptions));
  follow(impl_->prefix_tokens, static_cast<double>(status.prefix_tokens));
  follow(impl_->found_tokens, static_cast<double>(status.found_tokens));
  for (const auto& [stage, tokens] : status.replayed_tokens)
    follow(impl_->replayed_tokens.Add({{"stage", stage}}), static_cast<double>(tokens));
  impl_->ready.Set(status.ready ? 1 : 0);
  impl_->free_blocks.Set(static_cast<double>(status.free_blocks));
  impl_->total_blocks.Set(static_cast<double>(status.total_blocks));
  impl_->uptime.Set(status.uptime_s);
  impl_->epoch.Set(static_cast<double>(status.epoch));
  impl_->held.Set(static_cast<double>(status.held));
  std::map<prometheus::Labels, double> waiting, running, worker_up;
  for (std::size_t route = 0; route < status.plan->routes.size(); ++route) {
    const prometheus::Labels labels{{"route", status.plan->routes[route].id}};
    if (route < status.waiting.size()) waiting[labels] = static_cast<double>(status.waiting[route]);
    if (route < status.running.size()) running[labels] = static_cast<double>(status.running[route]);
  }
  for (const auto& worker : status.workers) {
    const prometheus::Labels labels{{"device", worker.device}, {"stage", worker.stage}};
    worker_up[labels] = worker.alive ? 1 : 0;
    follow(impl_->worker_busy.Add(labels), worker.busy_s);
    follow(impl_->worker_wait.Add(labels), worker.waited_s);
  }
  impl_->waiting.set(waiting);
  impl_->running.set(running);
  impl_->worker_up.set(worker_up);
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace motley
