#include "motley/comm/session/state_sync.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "motley/base/error.hpp"

namespace motley {

// The same size for all, as all_gather needs it.
struct StateSync::Word {
  std::array<char, 128> address;  // where the state is given; empty where it is not
  StateDigest manifest;
};

namespace {

// The caller's bytes are not read after its call.
struct Withdrawal {
  StateSource& source;
  ~Withdrawal() { source.withdraw(); }
};

}  // namespace

StateSync::StateSync(StateSyncOptions options, StateAccess access)
    : options_(std::move(options)),
      access_(std::move(access)),
      // One snapshot: the next epoch's state is another, and the old one is not pulled any more.
      source_(StateListener(options_.listen, options_.identity, options_.key),
              {.group = options_.group, .bytes_per_s = options_.give_bytes_per_s, .snapshots = 1}) {}

OperationOutcome StateSync::operator()(SessionStep& step) {
  const auto& [epoch, boundary, holders] = step.start;
  // All see the same list: either all go on, or none.
  if (boundary == 0 || holders.size() == epoch.members.size()) return {};
  const auto rank = static_cast<std::uint32_t>(step.communicator.rank());
  return give_and_take(step, std::find(holders.begin(), holders.end(), rank) != holders.end());
}

OperationOutcome StateSync::give_and_take(SessionStep& step, bool holds) {
  Communicator& group = step.communicator;
  const Withdrawal withdrawal{source_};
  std::vector<Word> words(static_cast<std::size_t>(group.size()), Word{});
  Word& mine = words[static_cast<std::size_t>(group.rank())];
  if (holds) {
    // Nothing is copied: the members wait for each other below.
    const auto buffers = access_.save();
    StateSnapshot snapshot{describe_state({0, step.step}, buffers), {}, {}};
    for (const auto& buffer : buffers) snapshot.items.push_back(buffer.bytes);
    mine.manifest = digest(snapshot.manifest);
    source_.publish(std::move(snapshot));
    const std::string address = source_.address();
    address.copy(mine.address.data(), mine.address.size() - 1);
  }
  const OperationOptions patient{.timeout_s = options_.timeout_s + 30};
  if (auto outcome = group.all_gather(std::as_writable_bytes(std::span(words)), patient);
      outcome.status != OperationStatus::ok)
    return outcome;
  if (!holds) {
    std::vector<StatePeer> peers;
    StateDigest wanted;
    for (int rank = 0; rank < group.size(); ++rank) {
      auto& [address, manifest] = words[static_cast<std::size_t>(rank)];
      address.back() = '\0';
      if (address.front() == '\0') continue;
      // The first holder's state counts; whose is another will say that it does not hold this one.
      if (peers.empty()) wanted = manifest;
      peers.push_back({fmt::format("rank {}", rank), [where = std::string(address.data()), this] {
                         return connect_for_state(where, options_.identity, options_.key);
                       }});
    }
    last_pull_ = pull_state(options_.group, wanted, peers, access_.place,
                            {.bytes_per_s = options_.take_bytes_per_s, .timeout_s = options_.timeout_s});
    if (!last_pull_.complete) {
      std::string cause = "the state: " + last_pull_.cause;
      for (const auto& [name, report] : last_pull_.peers)
        if (!report.fault.empty()) cause += fmt::format("; {} {}", name, report.fault);
      group.revoke(cause);  // the others wait
      return unsuccessful(OperationStatus::aborted, std::move(cause));
    }
    access_.load();
  }
  // Until no member needs the state any more.
  return group.barrier(patient);
}

}  // namespace motley
