#include "motley/workers/worker_group.hpp"

#include <limits>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/comm/collective/collective_defaults.hpp"

namespace motley {
namespace {

OperationOptions as_long_as_it_takes(std::stop_token stop) {
  return {.timeout_s = std::numeric_limits<double>::infinity(), .stop = std::move(stop)};
}

Epoch epoch_of(std::string name, const std::vector<std::string>& members, std::uint64_t number,
               const std::vector<WorkerAddress>& addresses) {
  Epoch epoch{.group = std::move(name), .number = number, .members = {}, .plan_digest = {}};
  for (std::size_t rank = 0; rank < members.size(); ++rank) {
    const WorkerAddress& at = addresses.at(rank);
    epoch.members.push_back({.id = members[rank], .incarnation = 0, .host = at.host, .address = at.address});
  }
  return epoch;
}

std::vector<std::string> names(const Epoch& epoch, const std::vector<int>& ranks) {
  std::vector<std::string> all;
  for (const int rank : ranks) all.push_back(epoch.members.at(static_cast<std::size_t>(rank)).id);
  return all;
}

std::unique_ptr<Transport> connect(Fabric& fabric, const Epoch& epoch, int rank, double timeout_s,
                                   const std::stop_token& stop, std::int64_t window_bytes) {
  try {
    return fabric.connect(epoch, rank, timeout_s, stop, window_bytes);
  } catch (const ConnectError& error) {
    throw GroupBroken(error.what(), error.hint(), names(epoch, error.ranks));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::input) throw;
    throw GroupBroken(error.what(), error.hint(), {});
  }
}

std::vector<std::int64_t> in_bytes(std::vector<std::int64_t> bounds, std::size_t tensor_bytes) {
  const std::int64_t row_bytes = static_cast<std::int64_t>(tensor_bytes) / bounds.back();
  for (std::int64_t& bound : bounds) bound *= row_bytes;
  return bounds;
}

template <class Byte>
std::span<Byte> interval(std::span<Byte> tensor, std::span<const std::int64_t> bounds, std::size_t index) {
  return tensor.subspan(static_cast<std::size_t>(bounds[index]),
                        static_cast<std::size_t>(bounds[index + 1] - bounds[index]));
}

}  // namespace

WorkerGroup::WorkerGroup(std::string name, const std::vector<std::string>& members, int rank, std::uint64_t epoch,
                         const std::vector<WorkerAddress>& addresses, Fabric& fabric, double timeout_s,
                         std::stop_token stop, std::int64_t window_bytes)
    : communicator_(epoch_of(name, members, epoch, addresses),
                    connect(fabric, epoch_of(name, members, epoch, addresses), rank, timeout_s, stop, window_bytes)),
      options_(as_long_as_it_takes(stop)) {}

void WorkerGroup::tell(ActivityLog& log, std::vector<int> places) {
  log_ = &log;
  places_ = std::move(places);
}

template <class Operation>
void WorkerGroup::meet(const Operation& operation) {
  wait(Doing::meeting, rank() == 0 ? size() - 1 : 0, operation);  // one of the others
}

template <class Operation>
void WorkerGroup::wait(Doing doing, int peer, const Operation& operation) {
  if (log_ != nullptr) log_->set(doing, places_.at(static_cast<std::size_t>(peer)));
  check(operation());
  if (log_ != nullptr) log_->set(Doing::computing);
}

void WorkerGroup::check(const OperationOutcome& outcome) {
  waited_s_ += outcome.waited_s;
  if (outcome.status == OperationStatus::ok) return;
  const Epoch& epoch = communicator_.epoch();
  std::string text = fmt::format("{}: {}", epoch.group, outcome.cause);
  for (const int suspect : outcome.suspects)
    text += fmt::format(" ({})", epoch.members.at(static_cast<std::size_t>(suspect)).id);
  throw GroupBroken(text, {}, names(epoch, outcome.suspects));
}

void WorkerGroup::add_up_along(const CollectiveGroup& group) {
  constexpr std::int64_t bytes = std::int64_t{1} << 20;  // the program is for vectors of any size
  communicator_.use_plans({grouped_program({.ranks = size(), .bytes = bytes}, group, {})});
  in_rounds_ = true;
}

void WorkerGroup::all_reduce(std::span<std::byte> data, CollectiveElement element) {
  // Of two terms there is one order and one rounding; small vectors are added in rank order by the library itself.
  if (in_rounds_ || size() <= 2 || static_cast<std::int64_t>(data.size()) <= one_round_bytes)
    return meet([&] { return communicator_.all_reduce(data, element, options_); });
  const std::int64_t elements = static_cast<std::int64_t>(data.size()) / element_bytes(element);
  const auto bounds = in_bytes(crossing_bounds(elements, size()), data.size());
  reduce_scatter(data, bounds, element);
  all_gather(data, bounds);
}

void WorkerGroup::reduce_scatter(std::span<std::byte> data, std::span<const std::int64_t> bounds,
                                 CollectiveElement element) {
  const std::span<std::byte> mine = interval(data, bounds, static_cast<std::size_t>(rank()));
  std::vector<std::int64_t> part_bytes;
  for (std::size_t r = 0; r + 1 < bounds.size(); ++r) part_bytes.push_back(bounds[r + 1] - bounds[r]);
  const std::vector<std::int64_t> mine_bytes(part_bytes.size(), static_cast<std::int64_t>(mine.size()));
  terms_.resize(mine.size() * part_bytes.size());
  meet([&] { return communicator_.all_to_all(data, part_bytes, terms_, mine_bytes, options_); });
  std::vector<const std::byte*> terms;
  for (std::size_t r = 0; r < part_bytes.size(); ++r) terms.push_back(terms_.data() + r * mine.size());
  reduce_terms(element, CollectiveReduction::sum, mine, terms);
}

void WorkerGroup::all_gather(std::span<std::byte> data, std::span<const std::int64_t> bounds) {
  meet([&] { return communicator_.all_gather(data, bounds, options_); });
}

void WorkerGroup::send(std::span<const std::byte> data, int peer) {
  wait(Doing::sending, peer, [&] { return communicator_.send(data, peer, options_); });
}

void WorkerGroup::receive(std::span<std::byte> data, int peer) {
  wait(Doing::receiving, peer, [&] { return communicator_.recv(data, peer, options_); });
}

std::vector<std::int64_t> crossing_bounds(std::int64_t rows, int receivers) {
  std::vector<std::int64_t> bounds;
  for (std::int64_t j = 0; j <= receivers; ++j) bounds.push_back(j * rows / receivers);
  return bounds;
}

int crossing_sender(int receiver, int senders, int receivers) { return receiver * senders / receivers; }

}  // namespace motley
