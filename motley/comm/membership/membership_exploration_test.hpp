// The membership protocol, explored exhaustively: a few ranks, changes of membership at any moment, any loss and delay
// of messages, and the death of a process, be it a rank or the coordinator, even between two records of one event.
//
// Statements replace each other (membership_messages.hpp): of each sender the newest is under way, and arrives at any
// later moment or is overtaken by a newer one, which is its loss. Evictions come at any moment, rightly or wrongly.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "motley/comm/membership/coordinator.hpp"
#include "motley/comm/membership/membership.hpp"

namespace motley::exploration {

constexpr std::size_t rank_count = 3;
inline const std::array<std::string, rank_count> names{"a", "b", "c"};

struct Budget {
  int changes = 2;  // joins, leaves, evictions
  int deaths = 1;   // of a rank or of the coordinator
  std::uint64_t steps = 2;
  bool learners = false;  // joiners get the state at any moment of any step, not before the first one
};

struct Result {
  std::size_t states = 0;
  std::size_t transitions = 0;
  std::string failure;  // empty: none
};

struct Process {
  bool alive = false;
  std::optional<Membership> membership;
  std::optional<MemberReport> outgoing;          // under way
  std::optional<CoordinatorDirective> incoming;  // under way
  MemberReport reported;
  CoordinatorDirective told;
  bool learning = false;
  std::uint64_t state_step = 0;  // whose state it really has
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
  int changes_left = 0;
  int deaths_left = 0;
  std::uint64_t next_process = 1;
};

inline std::string fingerprint(const World& world) {
  std::string bytes = world.coordinator->fingerprint();
  for (const Process& process : world.processes) {
    bytes += process.alive ? 'L' : 'D';
    if (!process.membership) continue;
    bytes += process.membership->fingerprint();
    bytes += {process.learning ? 'l' : 'h', static_cast<char>(process.state_step)};
    if (process.outgoing) bytes += encode_control(*process.outgoing);
    bytes += '|';
    if (process.incoming) bytes += encode_control(*process.incoming);
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

inline GroupPolicy policy() {
  GroupPolicy policy;
  policy.reconnect_grace_s = -1;  // a lost connection is an eviction: at any moment, rightly or wrongly
  return policy;
}

class Model {
 public:
  explicit Model(Budget budget) : budget_(budget) {}

  // Empty: nothing has contradicted itself so far.
  const std::string& failure() const { return failure_; }

  // Two ranks in an epoch, their first step begun.
  World beginning() {
    World world;
    world.changes_left = budget_.changes;
    world.deaths_left = budget_.deaths;
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
  void for_each_successor(const World& world, const std::function<void(World&&)>& visit) {
    const auto branch = [&](const auto& change) {
      World next = world;
      change(next);
      visit(std::move(next));
    };
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      const Process& process = world.processes[rank];
      if (process.outgoing) {
        branch([&](World& next) { deliver_report(next, rank); });
        if (world.deaths_left > 0) die_while_logging(world, rank, visit);
      }
      if (!process.alive) {
        if (process.membership && world.coordinator->state(names[rank]) != MemberState::gone)
          branch([&](World& next) { lose_connection(next, rank); });
        continue;
      }
      if (process.incoming) branch([&](World& next) { deliver_directive(next, rank); });
      const Membership& member = *process.membership;
      if (can_finish(world, rank)) branch([&](World& next) { vote(next, rank, StepVoteKind::commit); });
      if (is_computing(member) && process.learning && !member.revoked())
        branch([&](World& next) {
          learned(next, rank);
          settle(next, rank);
        });
      if (can_fail(world, rank)) branch([&](World& next) { vote(next, rank, StepVoteKind::abort); });
      if (member.start() && !member.revoked() && another_revoked(world, member.start()->epoch.number))
        branch([&](World& next) {
          act(next, rank, next.processes[rank].membership->peer_revoked(member.start()->epoch.number));
        });
      if (world.deaths_left > 0)
        branch([&](World& next) {
          --next.deaths_left;
          next.processes[rank].alive = false;
          next.processes[rank].incoming.reset();
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
      if (member.state() != MemberState::active || member.report().state_step != budget_.steps)
        return fail(world, fmt::format("{} ends {} with the state of step {}, epoch {}: {}", names[rank],
                                       describe(member.state()), member.report().state_step, member.report().epoch,
                                       member.waiting_for()));
      if (epoch != 0 && member.start()->epoch.number != epoch) fail(world, "two epochs in force at the end");
      epoch = member.start()->epoch.number;
    }
  }

 private:
  void fail(const World& world, const std::string& what) {
    if (!failure_.empty()) return;
    failure_ = what + "\n" + describe(LedgerSnapshot{world.disk}) + "; " + describe(EpochProposed{world.disk.proposal});
    for (const Process& process : world.processes) {
      if (!process.membership) continue;
      const MemberReport& report = process.membership->report();
      failure_ += fmt::format(
          "\n{}.{} {} presence {} epoch {} prepared {} refused {} revoked {} active {} state {} vote {}, {} known {}",
          report.member.id, report.member.incarnation,
          process.alive ? describe(world.coordinator->state(report.member.id)) : "dead",
          static_cast<int>(report.presence), report.epoch, report.prepared, report.refused, report.revoked,
          report.active_step, report.state_step, describe(report.vote), describe(process.membership->state()),
          process.membership->known().epoch.members.size());
    }
  }

  // The only ones who had it died or were left out too early: then the group waits for a checkpoint, by policy.
  bool is_state_lost(const World& world) const {
    return std::none_of(world.processes.begin(), world.processes.end(), [&](const Process& process) {
      return process.alive && process.membership->report().presence != MemberPresence::leaving &&
             process.membership->report().state_step >= world.disk.committed_step;
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
        if (enter->start.holders.empty()) fail(world, "an epoch in which no member holds the state");
        const auto& holders = enter->start.holders;
        process.learning = std::find(holders.begin(), holders.end(), enter->rank) == holders.end();
        if (!process.learning && process.state_step < enter->start.boundary)
          fail(world, fmt::format("{} is named a holder of a state that it has not", names[rank]));
        // Its members fetch the state of the boundary; whether that works is not this model's subject.
        if (process.learning && !budget_.learners) learned(world, rank);
      } else if (const auto* verdict = std::get_if<StepVerdict>(&action)) {
        const std::pair key{verdict->vote.epoch, verdict->vote.step};
        if (verdict->fate == StepFate::committed) world.history.seen_committed.insert(key);
        if (verdict->fate == StepFate::committed && verdict->vote.kind == StepVoteKind::commit)
          process.state_step = std::max(process.state_step, key.second);
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
        member.next_step() <= budget_.steps && member.report().presence != MemberPresence::leaving) {
      member.begin_step();
      world.history.sent[{member.start()->epoch.number, member.next_step()}] |= static_cast<std::uint8_t>(1U << rank);
    }
    if (member.revoked() && member.report().active_step > 0 && !member.in_doubt())
      act(world, rank, member.vote(StepVoteKind::abort, {}));
    if (member.report() == process.reported) return;
    process.reported = member.report();
    process.outgoing = process.reported;
  }

  // Everything up to the last committed step has come.
  static void learned(World& world, std::size_t rank) {
    Process& process = world.processes[rank];
    process.learning = false;
    process.state_step = process.membership->committed_step();
    process.membership->holds(process.state_step);
  }

  void vote(World& world, std::size_t rank, StepVoteKind kind) {
    if (kind == StepVoteKind::commit && world.processes[rank].learning) kind = StepVoteKind::learn;
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
  // A member that it waits for is not there.
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
    if (process.alive) process.incoming = directive;
  }

  void coordinate(World& world, const CoordinatorOutput& output, std::size_t from) {
    persist(world, output);
    if (output.answer && world.processes[from].alive) {
      world.processes[from].incoming = *output.answer;
      world.processes[from].told = *output.answer;
    }
    for (std::size_t rank = 0; rank < rank_count; ++rank) tell(world, rank);
  }

  void deliver_report(World& world, std::size_t rank) {
    const MemberReport report = *std::exchange(world.processes[rank].outgoing, std::nullopt);
    coordinate(world, world.coordinator->report(report, world.now_s), rank);
  }

  void deliver_directive(World& world, std::size_t rank) {
    Process& process = world.processes[rank];
    const CoordinatorDirective directive = *std::exchange(process.incoming, std::nullopt);
    act(world, rank, process.membership->directive(directive));
  }

  void lose_connection(World& world, std::size_t rank) {
    Process& process = world.processes[rank];
    if (!process.alive) process.outgoing.reset();
    coordinate(world, world.coordinator->connection_lost(names[rank], process.membership->report().process, 0), rank);
  }

  // The coordinator is killed after some of the records of one event, and starts again from its log.
  void die_while_logging(const World& world, std::size_t rank, const std::function<void(World&&)>& visit) {
    World next = world;
    --next.deaths_left;
    const MemberReport report = *std::exchange(next.processes[rank].outgoing, std::nullopt);
    const CoordinatorOutput output = next.coordinator->report(report, 0);
    for (std::size_t records = 1; records <= output.records.size(); ++records) {
      World cut = next;
      persist(cut, output, records);
      restart_coordinator(cut);
      visit(std::move(cut));
    }
  }

  void restart_coordinator(World& world) {
    world.coordinator.emplace(policy(), world.disk, 0);
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      Process& process = world.processes[rank];
      process.told = {};
      if (process.alive) process.outgoing = process.membership->report();
    }
  }

  // One round of heartbeats without loss; those that can finish do.
  void exchange(World& world) {
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      Process& process = world.processes[rank];
      if (!process.alive || !process.membership) continue;
      const Membership& member = *process.membership;
      // Also after the last step of the budget: there would be more.
      if (process.learning && member.start() && !member.revoked() && !member.in_doubt()) learned(world, rank);
      if (can_finish(world, rank))
        vote(world, rank, StepVoteKind::commit);
      else if (can_fail(world, rank))
        vote(world, rank, StepVoteKind::abort);
      process.outgoing = process.membership->report();
      deliver_report(world, rank);
      for (std::size_t other = 0; other < rank_count; ++other)
        while (world.processes[other].incoming) deliver_directive(world, other);
    }
  }

  Budget budget_;
  std::string failure_;
};

// Visits every state once, and lets the group heal from each of every `healed` states.
inline Result explore(Budget budget, std::size_t healed) {
  Model model(budget);
  Result result;
  std::unordered_set<std::size_t> seen;
  std::vector<World> open;
  const auto visit = [&](World&& world) {
    ++result.transitions;
    if (seen.insert(std::hash<std::string>{}(fingerprint(world))).second) open.push_back(std::move(world));
  };
  visit(model.beginning());
  while (!open.empty() && model.failure().empty()) {
    const World world = std::move(open.back());
    open.pop_back();
    model.for_each_successor(world, visit);
    if (seen.size() % healed == 0) model.check_heals(world);
  }
  result.states = seen.size();
  result.failure = model.failure();
  return result;
}

}  // namespace motley::exploration
