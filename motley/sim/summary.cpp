#include "motley/sim/summary.hpp"

#include <algorithm>

namespace motley::sim {
namespace {

RequestSummary summary_of(std::string name, const Workload& workload,
                          const std::vector<const RequestRecord*>& records) {
  RequestSummary summary{
      .name = std::move(name), .requests = std::ssize(records), .ttft_s = {}, .tpot_s = {}, .latency_s = {}};
  std::vector<double> ttft_s, tpot_s, latency_s;
  std::int64_t kept = 0;
  for (const RequestRecord* record : records) {
    const Deadline& deadline = workload.classes[static_cast<std::size_t>(record->request_class)].deadline;
    kept += in_time(*record, deadline) ? 1 : 0;
    summary.refused += record->refused ? 1 : 0;
    if (!record->finished()) continue;
    ++summary.finished;
    ttft_s.push_back(record->ttft_s());
    latency_s.push_back(record->latency_s());
    if (record->emitted > 1) tpot_s.push_back(record->tpot_s());
  }
  summary.unfinished = summary.requests - summary.finished - summary.refused;
  summary.slo_attainment = records.empty() ? 1 : static_cast<double>(kept) / static_cast<double>(records.size());
  summary.ttft_s = percentiles_of(std::move(ttft_s));
  summary.tpot_s = percentiles_of(std::move(tpot_s));
  summary.latency_s = percentiles_of(std::move(latency_s));
  return summary;
}

}  // namespace

Percentiles percentiles_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double share) {
    const double place = share * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {at(0.50), at(0.90), at(0.99)};
}

bool in_time(const RequestRecord& record, const Deadline& deadline) {
  const auto keeps = [](double seconds, double deadline_s) { return deadline_s <= 0 || seconds <= deadline_s; };
  return record.finished() && keeps(record.ttft_s(), deadline.first_token_s) &&
         keeps(record.tpot_s(), deadline.per_token_s) && keeps(record.latency_s(), deadline.total_s);
}

void summarize(const Workload& workload, const std::vector<RequestRecord>& records, const SimOptions& options,
               double measured_s, const std::vector<std::int64_t>& tokens, SimResult& result) {
  std::vector<const RequestRecord*> judged;
  for (const RequestRecord& record : records)
    if (record.arrival_s >= options.measure_from_s && record.arrival_s < options.measure_until_s)
      judged.push_back(&record);
  const auto rate = [&](std::int64_t count) { return measured_s > 0 ? static_cast<double>(count) / measured_s : 0; };
  std::int64_t all_tokens = 0;
  for (std::size_t i = 0; i < workload.classes.size(); ++i) {
    std::vector<const RequestRecord*> members;
    for (const RequestRecord* record : judged)
      if (record->request_class == static_cast<std::int32_t>(i)) members.push_back(record);
    result.classes.push_back(summary_of(workload.classes[i].name, workload, members));
    result.classes.back().tokens_per_s = rate(tokens[i]);
    all_tokens += tokens[i];
  }
  result.all = summary_of("all", workload, judged);
  result.all.tokens_per_s = rate(all_tokens);
}

std::string chain_name(const ServePlan& plan, const Router& router, std::size_t chain) {
  const std::size_t route = router.chains()[chain].route;
  if (!router.decode_chain(route)) return plan.routes[route].id;
  return plan.routes[route].id + (chain == route ? " prefill" : " decode");
}

}  // namespace motley::sim
