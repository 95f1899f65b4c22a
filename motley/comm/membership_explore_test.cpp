// The membership protocol, explored exhaustively: three ranks, two changes of membership, any loss and delay of
// messages, and the death of one process, be it a rank or the coordinator.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <vector>

#include "motley/comm/coordinator.hpp"
#include "motley/comm/membership.hpp"

namespace motley {
namespace {

constexpr std::size_t rank_count = 3;
constexpr std::uint64_t last_step = 2;
const std::array<std::string, rank_count> names{"a", "b", "c"};

struct Process {
  bool alive = false;
  std::optional<Membership> membership;
  std::vector<MemberReport> reports;             // under way, the newest last
  std::vector<CoordinatorDirective> directives;  // likewise
  MemberReport reported;
  CoordinatorDirective told;
};

// What any process has done or seen, ever: what must not contradict itself.
struct History {
  std::map<std::uint64_t, std::vector<std::string>> lists;               // epoch -> members
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint8_t> sent;  // (epoch, step) -> ranks that gave their part
  std::set<std::pair<std::uint64_t, std::uint64_t>> committed, seen_committed, seen_aborted;
};

struct World {
  std::optional<Coordinator> coordinator;
  GroupLedger disk;
  std::array<Process, rank_count> processes;
  History history;
  double now_s = 0;  // stands still but for the healing
  int changes_left = 2;
  int deaths_left = 1;
  std::uint64_t next_process = 1;
};

std::string fingerprint(const World& world) {
  std::string bytes = world.coordinator->fingerprint();
  for (const Process& process : world.processes) {
    bytes += process.alive ? 'L' : 'D';
    if (!process.membership) continue;
    bytes += process.membership->fingerprint();
    for (const auto& report : process.reports) bytes += encode_control(report);
    bytes += '|';
    for (const auto& directive : process.directives) bytes += encode_control(directive);
    bytes += encode_control(process.told);
  }
  for (const auto& [key, ranks] : world.history.sent)
    bytes += {static_cast<char>(key.first), static_cast<char>(key.second), static_cast<char>(ranks)};
  for (const auto* set : {&world.history.seen_committed, &world.history.seen_aborted}) {
    bytes += '|';
    for (const auto& [epoch, step] : *set) bytes += {static_cast<char>(epoch), static_cast<char>(step)};
  }
  bytes += static_cast<char>(world.changes_left);
  bytes += static_cast<char>(world.deaths_left);
  return bytes;
}

GroupPolicy policy() {
  GroupPolicy policy;
  policy.reconnect_grace_s = -1;  // a lost connection is an eviction: at any moment, rightly or wrongly
  return policy;
}

class Model {
 public:
  std::string failure;

  World beginning() {
    World world;
    world.disk.group = "g";
    world.coordinator.emplace(policy(), world.disk, 0);
    for (const std::size_t rank : {0, 1}) start(world, rank);
    for (const std::size_t rank : {0, 1}) {  // both have a seat before an epoch is proposed
      Membership& member = *world.processes[rank].membership;
      MemberReport asking = member.report();
      asking.presence = MemberPresence::joining;
      persist(world, world.coordinator->report(asking, 0));
    }
    world.history.lists.clear();
    for (std::size_t rank : {0, 1}) tell(world, rank);
    while (world.processes[0].membership->state() != MemberState::active ||
           world.processes[1].membership->state() != MemberState::active)
      exchange(world);
    return world;
  }

  // Everything that may happen next.
  void for_each_successor(const World& world, const std::function<void(const World&)>& visit) {
    const auto branch = [&](const auto& change) {
      World next = world;
      change(next);
      visit(next);
    };
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      const Process& process = world.processes[rank];
      for (std::size_t i = 0; i < process.reports.size(); ++i) {
        branch([&](World& next) { deliver_report(next, rank, i); });
        if (world.deaths_left > 0) die_while_logging(world, rank, i, visit);
      }
      if (!process.alive) {
        if (process.membership && world.coordinator->state(names[rank]) != MemberState::gone)
          branch([&](World& next) { lose_connection(next, rank); });
        continue;
      }
      for (std::size_t i = 0; i < process.directives.size(); ++i)
        branch([&](World& next) { deliver_directive(next, rank, i); });
      const Membership& member = *process.membership;
      if (can_finish(world, rank)) branch([&](World& next) { vote(next, rank, StepVoteKind::commit); });
      if (can_fail(world, rank)) branch([&](World& next) { vote(next, rank, StepVoteKind::abort); });
      if (member.start() && !member.revoked() && another_revoked(world, member.start()->epoch.number))
        branch([&](World& next) {
          act(next, rank, next.processes[rank].membership->peer_revoked(member.start()->epoch.number));
        });
      if (world.deaths_left > 0)
        branch([&](World& next) {
          --next.deaths_left;
          next.processes[rank].alive = false;
          next.processes[rank].directives.clear();
        });
      if (world.changes_left > 0) {
        if (world.coordinator->state(names[rank]) != MemberState::gone)
          branch([&](World& next) {
            --next.changes_left;
            lose_connection(next, rank);
          });
        if (member.report().presence == MemberPresence::ready)
          branch([&](World& next) {
            --next.changes_left;
            next.processes[rank].membership->leave();
            settle(next, rank);
          });
      }
    }
    if (world.changes_left > 0 && !world.processes[2].membership)
      branch([&](World& next) {
        --next.changes_left;
        start(next, 2);
      });
    if (world.deaths_left > 0)
      branch([&](World& next) {
        --next.deaths_left;
        restart_coordinator(next);
      });
  }

  // With nothing lost any more, the group must come to rest: all who live in one epoch, all steps done.
  void check_heals(World world) {
    for (std::size_t rank = 0; rank < rank_count; ++rank)
      if (world.processes[rank].membership && !world.processes[rank].alive &&
          world.coordinator->state(names[rank]) != MemberState::gone)
        lose_connection(world, rank);
    for (int round = 0; round < 30; ++round) {
      world.now_s += 0.2;
      exchange(world);
    }
    std::uint64_t epoch = 0;
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      const Process& process = world.processes[rank];
      if (!process.alive || process.membership->report().presence == MemberPresence::leaving) continue;
      const Membership& member = *process.membership;
      if (is_state_lost(world)) continue;
      if (member.state() != MemberState::active || member.report().state_step != last_step)
        return fail(world, fmt::format("{} ends {} with the state of step {}, epoch {}: {}", names[rank],
                                       describe(member.state()), member.report().state_step, member.report().epoch,
                                       member.waiting_for()));
      if (epoch != 0 && member.start()->epoch.number != epoch) fail(world, "two epochs in force at the end");
      epoch = member.start()->epoch.number;
    }
  }

 private:
  void fail(const World&, const std::string& what) {
    if (failure.empty()) failure = what;
  }

  // The only ones who had it died or were left out too early: then the group waits for a checkpoint, by policy.
  bool is_state_lost(const World& world) const {
    return std::none_of(world.processes.begin(), world.processes.end(), [&](const Process& process) {
      return process.alive && process.membership->report().state_step >= world.disk.committed_step;
    });
  }

  void start(World& world, std::size_t rank) {
    Process& process = world.processes[rank];
    process.alive = true;
    process.membership.emplace("g", Member{names[rank], 0, "h", names[rank]}, world.next_process++, 0, 0);
    process.membership->ready();
    settle(world, rank);
  }

  void check_list(World& world, const Epoch& epoch) {
    std::vector<std::string> list;
    for (const Member& member : epoch.members) list.push_back(fmt::format("{}.{}", member.id, member.incarnation));
    const auto [known, is_new] = world.history.lists.emplace(epoch.number, list);
    if (!is_new && known->second != list) fail(world, fmt::format("epoch {} has two lists", epoch.number));
  }

  void act(World& world, std::size_t rank, const MembershipActions& actions) {
    Process& process = world.processes[rank];
    for (const MembershipAction& action : actions) {
      if (const auto* prepare = std::get_if<PrepareEpoch>(&action)) {
        check_list(world, prepare->epoch);
        process.membership->prepared(prepare->epoch.number);
      } else if (const auto* enter = std::get_if<EnterEpoch>(&action)) {
        check_list(world, enter->start.epoch);
        if (enter->start.holders.empty()) fail(world, "an epoch in which nobody holds the state");
        // Its members fetch the state of the boundary; whether that works is not this model's subject.
        process.membership->holds(enter->start.boundary);
      } else if (const auto* verdict = std::get_if<StepVerdict>(&action)) {
        const std::pair key{verdict->vote.epoch, verdict->vote.step};
        if (verdict->fate == StepFate::committed) world.history.seen_committed.insert(key);
        if (verdict->fate == StepFate::aborted) world.history.seen_aborted.insert(key);
        check_fate(world, key);
      } else if (std::holds_alternative<FencedOut>(action) &&
                 process.membership->report().presence != MemberPresence::leaving) {
        process.membership->rejoin(world.next_process++);
        process.membership->ready();
      }
    }
    settle(world, rank);
  }

  void check_fate(World& world, const std::pair<std::uint64_t, std::uint64_t>& key) {
    const History& history = world.history;
    if (history.seen_aborted.contains(key) && (history.seen_committed.contains(key) || history.committed.contains(key)))
      fail(world, fmt::format("step {} of epoch {} is committed and aborted", key.second, key.first));
    if (history.seen_committed.contains(key) && !history.committed.contains(key))
      fail(world, fmt::format("step {} of epoch {} is seen as committed, but is not", key.second, key.first));
  }

  // Begins the next step as soon as it may, and reports what is new.
  void settle(World& world, std::size_t rank) {
    Process& process = world.processes[rank];
    Membership& member = *process.membership;
    if (member.start() && !member.revoked() && !member.in_doubt() && member.report().active_step == 0 &&
        member.next_step() <= last_step && member.report().presence != MemberPresence::leaving) {
      member.begin_step();
      world.history.sent[{member.start()->epoch.number, member.next_step()}] |= static_cast<std::uint8_t>(1U << rank);
    }
    if (member.revoked() && member.report().active_step > 0 && !member.in_doubt())
      act(world, rank, member.vote(StepVoteKind::abort, {}));
    if (member.report() == process.reported) return;
    process.reported = member.report();
    process.reports.push_back(process.reported);
    if (getenv("CAP") && process.reports.size() > (size_t)atoi(getenv("CAP"))) process.reports.erase(process.reports.begin());
  }

  void vote(World& world, std::size_t rank, StepVoteKind kind) {
    act(world, rank, world.processes[rank].membership->vote(kind, {}));
  }

  static bool is_computing(const Membership& member) {
    return member.start() && member.report().active_step > 0 && !member.in_doubt();
  }
  bool can_finish(const World& world, std::size_t rank) const {
    const Membership& member = *world.processes[rank].membership;
    if (!is_computing(member) || member.revoked()) return false;
    const auto sent = world.history.sent.find({member.start()->epoch.number, member.report().active_step});
    const auto& members = member.start()->epoch.members;
    return std::all_of(members.begin(), members.end(), [&](const Member& other) {
      const auto place = std::find(names.begin(), names.end(), other.id) - names.begin();
      return (sent->second >> place & 1) == 1;
    });
  }
  // Somebody it waits for is not there.
  bool can_fail(const World& world, std::size_t rank) const {
    const Membership& member = *world.processes[rank].membership;
    if (!is_computing(member)) return false;
    const auto& members = member.start()->epoch.members;
    return std::any_of(members.begin(), members.end(), [&](const Member& other) {
      const auto place = static_cast<std::size_t>(std::find(names.begin(), names.end(), other.id) - names.begin());
      const Process& process = world.processes[place];
      return !process.alive || process.membership->report().member.incarnation != other.incarnation ||
             process.membership->state() == MemberState::gone;
    });
  }
  bool another_revoked(const World& world, std::uint64_t epoch) const {
    return std::any_of(world.processes.begin(), world.processes.end(), [&](const Process& process) {
      return process.membership && process.membership->report().revoked == epoch;
    });
  }

  // Logs `records` of them, or all. What is logged is what is true.
  void persist(World& world, const CoordinatorOutput& output, std::size_t records = 100) {
    for (std::size_t i = 0; i < std::min(records, output.records.size()); ++i) {
      const LedgerRecord& record = output.records[i];
      apply_record(world.disk, record);
      if (const auto* proposed = std::get_if<EpochProposed>(&record)) check_list(world, proposed->epoch);
      if (const auto* step = std::get_if<StepCommitted>(&record)) {
        const std::pair key{step->epoch, step->step};
        world.history.committed.insert(key);
        check_fate(world, key);
        for (const std::string& member : world.history.lists.at(step->epoch)) {
          const auto place = std::find(names.begin(), names.end(), member.substr(0, 1)) - names.begin();
          const auto sent = world.history.sent.find(key);
          if (sent == world.history.sent.end() || (sent->second >> place & 1) == 0)
            fail(world, fmt::format("step {} is committed without {}", step->step, member));
        }
      }
    }
  }

  void tell(World& world, std::size_t rank) {
    Process& process = world.processes[rank];
    if (!process.membership || world.coordinator->state(names[rank]) == MemberState::gone) return;
    CoordinatorDirective directive = world.coordinator->directive(names[rank]);
    directive.reason.clear();
    if (directive == process.told) return;
    process.told = directive;
    if (process.alive) process.directives.push_back(directive);
    if (getenv("CAP") && process.directives.size() > (size_t)atoi(getenv("CAP"))) process.directives.erase(process.directives.begin());
  }

  void coordinate(World& world, const CoordinatorOutput& output, std::size_t from) {
    persist(world, output);
    if (output.answer && world.processes[from].alive) {
      world.processes[from].directives.push_back(*output.answer);
      world.processes[from].told = *output.answer;
    }
    for (std::size_t rank = 0; rank < rank_count; ++rank) tell(world, rank);
  }

  void deliver_report(World& world, std::size_t rank, std::size_t index) {
    auto& reports = world.processes[rank].reports;
    const MemberReport report = reports[index];
    reports.erase(reports.begin(), reports.begin() + static_cast<std::ptrdiff_t>(index) + 1);
    coordinate(world, world.coordinator->report(report, world.now_s), rank);
  }

  void deliver_directive(World& world, std::size_t rank, std::size_t index) {
    auto& directives = world.processes[rank].directives;
    const CoordinatorDirective directive = directives[index];
    directives.erase(directives.begin(), directives.begin() + static_cast<std::ptrdiff_t>(index) + 1);
    act(world, rank, world.processes[rank].membership->directive(directive));
  }

  void lose_connection(World& world, std::size_t rank) {
    Process& process = world.processes[rank];
    if (!process.alive) process.reports.clear();
    coordinate(world, world.coordinator->connection_lost(names[rank], process.membership->report().process, 0), rank);
  }

  // The coordinator is killed after some of the records of one event, and starts again from its log.
  void die_while_logging(const World& world, std::size_t rank, std::size_t index,
                         const std::function<void(const World&)>& visit) {
    World next = world;
    --next.deaths_left;
    auto& reports = next.processes[rank].reports;
    const CoordinatorOutput output = next.coordinator->report(reports[index], 0);
    reports.erase(reports.begin(), reports.begin() + static_cast<std::ptrdiff_t>(index) + 1);
    for (std::size_t records = 1; records <= output.records.size(); ++records) {
      World cut = next;
      persist(cut, output, records);
      restart_coordinator(cut);
      visit(cut);
    }
  }

  void restart_coordinator(World& world) {
    world.coordinator.emplace(policy(), world.disk, 0);
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      Process& process = world.processes[rank];
      process.told = {};
      if (process.alive) process.reports.assign(1, process.membership->report());
    }
  }

  // One round of heartbeats without loss; whoever can finish does.
  void exchange(World& world) {
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      Process& process = world.processes[rank];
      if (!process.alive || !process.membership) continue;
      if (can_finish(world, rank))
        vote(world, rank, StepVoteKind::commit);
      else if (can_fail(world, rank))
        vote(world, rank, StepVoteKind::abort);
      process.reports.assign(1, process.membership->report());
      deliver_report(world, rank, 0);
      for (std::size_t other = 0; other < rank_count; ++other)
        while (!world.processes[other].directives.empty()) deliver_directive(world, other, 0);
    }
  }
};

TEST(MembershipExploration, NoTwoListsNoTwoVerdicts) {
  Model model;
  std::unordered_set<std::size_t> seen;
  std::vector<World> open;
  std::size_t transitions = 0;
  const auto visit = [&](const World& world) {
    ++transitions;
    if (seen.insert(std::hash<std::string>{}(fingerprint(world))).second)
      open.push_back(world);
  };
  World world0 = model.beginning();
  if (getenv("CH")) world0.changes_left = atoi(getenv("CH"));
  if (getenv("DE")) world0.deaths_left = atoi(getenv("DE"));
  visit(world0);
  while (!open.empty() && model.failure.empty()) {
    const World world = std::move(open.back());
    open.pop_back();
    model.for_each_successor(world, visit);
    if (seen.size() % 128 == 0) model.check_heals(world);
    if (seen.size() > 3000000) break;
  }
  EXPECT_EQ(model.failure, "");
  fmt::print("{} states, {} transitions\n", seen.size(), transitions);
}

}  // namespace
}  // namespace motley
