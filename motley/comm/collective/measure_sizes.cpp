#include "motley/comm/collective/measure_sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>

#include "motley/base/error.hpp"

namespace motley {
namespace {

struct MeasuredOperation {
  OperationOutcome (*call)(Communicator&, std::span<std::byte>, CollectiveElement, const OperationOptions&);
  double (*bus_factor)(double ranks);
};

const std::map<std::string, MeasuredOperation>& operations() {
  static const std::map<std::string, MeasuredOperation> table{
      {"all-reduce",
       {[](auto& group, auto data, auto element, const auto& options) {
          return group.all_reduce(data, element, options);
        },
        [](double n) { return 2 * (n - 1) / n; }}},
      {"reduce-scatter",
       {[](auto& group, auto data, auto element, const auto& options) {
          return group.reduce_scatter(data, element, options);
        },
        [](double n) { return (n - 1) / n; }}},
      {"all-gather",
       {[](auto& group, auto data, auto, const auto& options) { return group.all_gather(data, options); },
        [](double n) { return (n - 1) / n; }}},
      {"broadcast",
       {[](auto& group, auto data, auto, const auto& options) { return group.broadcast(data, 0, options); },
        [](double) { return 1.0; }}},
      {"reduce",
       {[](auto& group, auto data, auto element, const auto& options) {
          return group.reduce(data, element, 0, options);
        },
        [](double) { return 1.0; }}}};
  return table;
}

void must_be_ok(const OperationOutcome& outcome) {
  if (outcome.status != OperationStatus::ok)
    throw Error(ErrorCode::peer, fmt::format("{}: {}", name(outcome.status), outcome.cause),
                "start all ranks again together, with the same command and each with its own --rank");
}

// Element i of rank r is (r + 1) (i mod 5): exact in fp32, as is the sum.
std::int64_t wrong_elements(Communicator& group, const SizesToMeasure& asked, std::int64_t bytes) {
  if (asked.operation != "all-reduce" || asked.element != CollectiveElement::fp32) return 0;
  std::vector<float> values(static_cast<std::size_t>(bytes) / sizeof(float));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(group.rank() + 1) * static_cast<float>(i % 5);
  must_be_ok(group.all_reduce(std::as_writable_bytes(std::span(values)), CollectiveElement::fp32, {}));
  const auto sum = static_cast<float>(group.size() * (group.size() + 1) / 2);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) wrong += values[i] != sum * static_cast<float>(i % 5);
  return wrong;
}

// Rank 0 decides how often, by the first calls; then all do it alike.
MeasuredSize measure(Communicator& group, const SizesToMeasure& asked, std::int64_t bytes) {
  const auto& operation = operations().at(asked.operation);
  std::vector<std::byte> data(static_cast<std::size_t>(bytes));
  const OperationOptions options{.timeout_s = 120};
  const auto call = [&](int times) {
    must_be_ok(group.barrier({}));
    double time_s = 0;
    for (int i = 0; i < times; ++i) {
      const auto outcome = operation.call(group, data, asked.element, options);
      must_be_ok(outcome);
      time_s += outcome.time_s;
    }
    return time_s / times;
  };
  MeasuredSize size{bytes, 0, 0, wrong_elements(group, asked, bytes)};
  call(1);
  size.repeats = static_cast<int>(std::clamp(asked.seconds / std::max(call(2), 1e-7), 2.0, 1e5));
  must_be_ok(group.broadcast(std::as_writable_bytes(std::span(&size.repeats, 1)), 0, {}));
  auto time_s = static_cast<float>(call(size.repeats));
  must_be_ok(group.all_reduce(std::as_writable_bytes(std::span(&time_s, 1)), CollectiveElement::fp32,
                              {.reduction = CollectiveReduction::max}));
  size.time_s = static_cast<double>(time_s);
  size.peak_extra_bytes = group.peak_extra_bytes();
  for (int peer = 0; peer < group.size(); ++peer)
    if (peer != group.rank()) size.streams = std::max(size.streams, group.traffic(peer).streams);
  return size;
}

}  // namespace

std::vector<std::string> measured_operations() {
  std::vector<std::string> names;
  for (const auto& [each, operation] : operations()) names.push_back(each);
  return names;
}

double bus_factor(const std::string& operation, int ranks) { return operations().at(operation).bus_factor(ranks); }

std::vector<MeasuredSize> measure_sizes(Communicator& group, const SizesToMeasure& asked) {
  // Whole elements for every rank.
  const std::int64_t unit = element_bytes(asked.element) * group.size();
  std::vector<MeasuredSize> sizes;
  for (double size = asked.from_bytes; size <= asked.to_bytes; size *= asked.factor)
    sizes.push_back(measure(group, asked, std::max(unit, static_cast<std::int64_t>(size) / unit * unit)));
  must_be_ok(group.barrier({}));
  return sizes;
}

}  // namespace motley
