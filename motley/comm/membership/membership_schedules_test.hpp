// Random schedules of a whole group under a virtual clock: members that crash, stop, leave, join and are cut off, a
// coordinator that dies between two records, control messages that are lost, doubled and reordered, data frames that
// come late; with the real protocol on both sides and the real execution of collectives between them. A schedule is a
// function of its seed.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "motley/base/random.hpp"
#include "motley/comm/collective/collective_defaults.hpp"
#include "motley/comm/collective/execution.hpp"
#include "motley/comm/membership/coordinator.hpp"
#include "motley/comm/membership/membership.hpp"

namespace motley::schedules {

struct ScheduleResult {
  std::string failure;  // empty: none
  std::uint64_t committed_steps = 0;
  std::uint64_t epochs = 0;
  std::uint64_t late_frames = 0;  // of other epochs, dropped
  int faults = 0;
  bool state_lost = false;  // the last who held it died: the group waits, as it should
};

constexpr double operation_timeout_s = 1, lateness_s = 0.1;
constexpr int elements = 40;

// One process; a place in the group (its id) may see several.
struct Actor {
  explicit Actor(Membership value) : membership(std::move(value)) {}

  struct Parcel {
    int from = -1;  // rank
    CollectiveFrame frame;
    std::vector<std::byte> payload;
  };
  Membership membership;
  MemberReport reported;
  bool alive = true;
  double stopped_until_s = 0;
  std::vector<std::vector<float>> history;  // results of steps 1, 2, ...: the state
  std::uint64_t fetched_epoch = 0;
  int lessons = 0;        // steps that a learner takes part in before it has the state
  bool learning = false;  // in the step begun

  bool running = false;  // an operation
  std::uint64_t operation = 0;
  double deadline_s = 0;
  std::vector<float> data;
  std::unique_ptr<CollectiveSchedule> schedule;
  Execution execution;
  std::vector<Parcel> early;  // frames that wait for their epoch or operation
};

class Schedule {
 public:
  explicit Schedule(std::uint64_t seed) : random_(seed, 1) {
    ranks_ = 2 + random_.below(7);
    policy_.minimum_size = 1 + random_.below(2U);
    loss_ = random_.chance(0.5) ? 0 : 0.3 * random_.uniform();
    learns_ = random_.chance(0.5);
    disk_.group = "g";
    coordinator_.emplace(policy_, disk_, 0);
  }

  ScheduleResult run() {
    for (int i = 0; i < ranks_; ++i) start_actor(fmt::format("m{}", i));
    every(0.05, [this] {
      if (coordinator_) handle([&](Coordinator& c) { return c.tick(now_s_); });
    });
    const double trouble_s = 2 + 3 * random_.uniform();
    const double pause_s = 0.05 + 0.5 * random_.uniform();
    for (double at_s = 0.3; at_s < trouble_s; at_s += 2 * pause_s * random_.uniform()) at(at_s, [this] { fault(); });
    at(trouble_s, [this] { heal(); });
    while (result_.failure.empty() && now_s_ < trouble_s + 60) {
      step_clock();
      if (now_s_ < trouble_s || !is_settled()) goal_ = disk_.committed_step + 3;
      // All in one epoch, and three more steps: the group has come to rest.
      if (now_s_ > trouble_s && disk_.committed_step >= goal_) break;
      if (is_state_lost() && now_s_ > trouble_s + 5) {
        result_.state_lost = true;
        break;
      }
    }
    if (result_.failure.empty() && !result_.state_lost && (disk_.committed_step < goal_ || !is_settled()))
      fail(fmt::format("the group has not come to rest {} s after the last fault; it waits: {}", now_s_ - trouble_s,
                       coordinator_ ? coordinator_->waiting_for() : "no coordinator"));
    result_.committed_steps = disk_.committed_step;
    result_.epochs = disk_.current.epoch.number;
    return result_;
  }

 private:
  // ---- the clock ----

  struct Event {
    double at_s;
    std::uint64_t order;
    std::function<void()> action;
    bool operator<(const Event& other) const { return std::tie(other.at_s, other.order) < std::tie(at_s, order); }
  };
  void at(double time_s, std::function<void()> action) { events_.push({time_s, order_++, std::move(action)}); }
  void after(double seconds, std::function<void()> action) { at(now_s_ + seconds, std::move(action)); }
  void every(double seconds, const std::function<void()>& action) {
    after(seconds, [this, seconds, action] {
      action();
      every(seconds, action);
    });
  }
  void step_clock() {
    const Event event = events_.top();
    events_.pop();
    now_s_ = event.at_s;
    event.action();
  }
  // A stopped process does everything later; a dead one nothing.
  void on(std::size_t actor, double seconds, const std::function<void()>& action) {
    after(seconds, [this, actor, action] {
      Actor& who = *actors_[actor];
      if (!who.alive) return;
      if (who.stopped_until_s > now_s_) return on(actor, who.stopped_until_s - now_s_, action);
      action();
    });
  }
  double delay_s() { return 0.0002 + 0.004 * std::pow(random_.uniform(), 4); }

  void fail(const std::string& what) {
    if (result_.failure.empty()) result_.failure = fmt::format("at {:.3f} s: {}", now_s_, what);
  }

  // ---- the network ----

  bool is_cut(int from, int to) const { return cuts_.contains({from, to}); }  // -1: the coordinator

  void report(std::size_t actor) {
    Actor& who = *actors_[actor];
    who.reported = who.membership.report();
    const int copies = random_.chance(0.05) ? 2 : 1;
    for (int copy = 0; copy < copies; ++copy) {
      if (random_.chance(loss_) || is_cut(static_cast<int>(actor), -1)) continue;
      const double late_s = random_.chance(0.02) ? random_.uniform() : 0;
      after(delay_s() + late_s, [this, report = who.reported] {
        if (coordinator_) handle([&](Coordinator& c) { return c.report(report, now_s_); });
      });
    }
  }

  void direct(const CoordinatorDirective& directive) {
    for (std::size_t actor = 0; actor < actors_.size(); ++actor) {
      if (actors_[actor]->membership.report().process != directive.process) continue;
      const int copies = random_.chance(0.05) ? 2 : 1;
      for (int copy = 0; copy < copies; ++copy) {
        if (random_.chance(loss_) || is_cut(-1, static_cast<int>(actor))) continue;
        const double late_s = random_.chance(0.02) ? random_.uniform() : 0;
        on(actor, delay_s() + late_s,
           [this, actor, directive] { act(actor, actors_[actor]->membership.directive(directive)); });
      }
    }
  }

  // ---- the coordinator ----

  void handle(const std::function<CoordinatorOutput(Coordinator&)>& event) {
    const CoordinatorOutput output = event(*coordinator_);
    std::size_t logged = output.records.size();
    const bool dies = logged > 0 && troubled_ && random_.chance(0.01);
    if (dies) logged = random_.below(logged + 1);
    for (std::size_t i = 0; i < logged; ++i) persist(output.records[i]);
    if (dies) return kill_coordinator();
    if (output.answer) direct(*output.answer);
    for (const std::string& id : output.tell)
      if (coordinator_->state(id) != MemberState::gone) direct(coordinator_->directive(id));
  }

  void persist(const LedgerRecord& record) {
    apply_record(disk_, record);
    if (const auto* proposed = std::get_if<EpochProposed>(&record)) check_list(proposed->epoch);
    if (std::holds_alternative<StepCommitted>(record)) {
      const std::pair key{disk_.committed_epoch, disk_.committed_step};
      if (aborted_.contains(key)) fail(fmt::format("step {} is committed after a member saw it aborted", key.second));
      std::vector<float> sum(elements, 0);
      for (const Member& member : disk_.current.epoch.members)
        for (int i = 0; i < elements && !silent_.contains({key.first, key.second, member.incarnation}); ++i)
          sum[static_cast<std::size_t>(i)] += contribution(member, key.second, i);
      log_.push_back({key.first, std::move(sum)});
      if (log_.size() != key.second) fail("steps are not committed one after the other");
    }
  }

  void kill_coordinator() {
    coordinator_.reset();
    after(0.02 + random_.uniform(), [this] {
      if (!coordinator_) coordinator_.emplace(policy_, disk_, now_s_);
    });
  }

  void check_list(const Epoch& epoch) {
    const auto [known, is_new] = lists_.emplace(epoch.number, epoch.members);
    if (!is_new && known->second != epoch.members) fail(fmt::format("epoch {} has two lists", epoch.number));
  }

  // ---- members ----

  static float contribution(const Member& member, std::uint64_t step, int element) {
    return static_cast<float>((member.incarnation * 31 + step * 7 + static_cast<std::uint64_t>(element)) % 1000);
  }

  void start_actor(const std::string& id) {
    const std::size_t actor = actors_.size();
    actors_.push_back(
        std::make_unique<Actor>(Membership("g", Member{id, 0, "h", fmt::format("at{}", actor)}, ++processes_, 0, 0)));
    on(actor, 0.05 * random_.uniform(), [this, actor] {
      actors_[actor]->membership.ready();
      beat(actor);
    });
  }

  void beat(std::size_t actor) {
    report(actor);
    on(actor, 0.2, [this, actor] { beat(actor); });
  }

  void crash(std::size_t actor) {
    Actor& who = *actors_[actor];
    who.alive = false;
    const std::string id = who.membership.report().member.id;
    const std::uint64_t process = who.membership.report().process;
    // A dead process's sockets close, unless its machine is gone too.
    if (!random_.chance(0.8)) return;
    after(delay_s(), [this, id, process] {
      if (coordinator_) handle([&](Coordinator& c) { return c.connection_lost(id, process, now_s_); });
    });
    for (std::size_t other = 0; other < actors_.size(); ++other)
      on(other, delay_s(), [this, other, id] {
        if (actors_[other]->running && rank_of(other, id) >= 0) end_operation(other, StepVoteKind::abort, {id});
      });
  }

  int rank_of(std::size_t actor, const std::string& id) const {
    const auto& members = actors_[actor]->membership.known().epoch.members;
    for (std::size_t i = 0; i < members.size(); ++i)
      if (members[i].id == id) return static_cast<int>(i);
    return -1;
  }

  std::optional<std::size_t> actor_of(const Member& member) const {
    for (std::size_t actor = 0; actor < actors_.size(); ++actor) {
      const Member& sitting = actors_[actor]->membership.report().member;
      if (sitting.id == member.id && sitting.incarnation == member.incarnation) return actor;
    }
    return std::nullopt;
  }

  void act(std::size_t actor, const MembershipActions& actions) {
    for (const MembershipAction& action : actions) std::visit([&](const auto& what) { follow(actor, what); }, action);
    go_on(actor);
  }

  void follow(std::size_t actor, const PrepareEpoch& prepare) {
    check_list(prepare.epoch);
    // Connecting takes a while, and fails where a member cannot be reached.
    on(actor, 0.001 + 0.02 * random_.uniform(), [this, actor, epoch = prepare.epoch] {
      std::vector<std::string> unreachable;
      for (const Member& member : epoch.members) {
        const auto other = actor_of(member);
        const bool reached = other && actors_[*other]->alive && actors_[*other]->stopped_until_s <= now_s_ &&
                             !is_cut(static_cast<int>(actor), static_cast<int>(*other)) &&
                             !is_cut(static_cast<int>(*other), static_cast<int>(actor));
        if (!reached) unreachable.push_back(member.id);
      }
      Membership& membership = actors_[actor]->membership;
      if (unreachable.empty())
        membership.prepared(epoch.number);
      else
        membership.refuse(epoch.number, unreachable);
      go_on(actor);
    });
  }

  void follow(std::size_t actor, const EnterEpoch& enter) {
    Actor& who = *actors_[actor];
    check_list(enter.start.epoch);
    who.running = false;
    who.operation = 0;
    std::erase_if(who.early, [&](const Actor::Parcel& parcel) {
      const bool late = parcel.frame.epoch < enter.start.epoch.number;
      result_.late_frames += late ? 1 : 0;
      return late;
    });
    fetch_state(actor, enter.start);
  }

  void fetch_state(std::size_t actor, const EpochStart& start) {
    Actor& who = *actors_[actor];
    const auto own = static_cast<std::uint32_t>(who.membership.rank());
    if (who.history.size() < start.boundary && std::ranges::find(start.holders, own) != start.holders.end())
      fail(fmt::format("epoch {} names a holder of step {} that has it not", start.epoch.number, start.boundary));
    if (who.history.size() >= start.boundary || learns_) {
      who.fetched_epoch = start.epoch.number;
      who.lessons = static_cast<int>(random_.below(4U));
      return;
    }
    on(actor, 0.002 + 0.05 * random_.uniform(), [this, actor, start] {
      Actor& fetching = *actors_[actor];
      if (fetching.membership.start() == nullptr || fetching.membership.known().epoch.number != start.epoch.number)
        return;
      std::vector<std::string> suspects;
      for (const std::uint32_t rank : start.holders) {
        const auto holder = actor_of(start.epoch.members[rank]);
        suspects.push_back(start.epoch.members[rank].id);
        if (!holder || !actors_[*holder]->alive || is_cut(static_cast<int>(actor), static_cast<int>(*holder))) continue;
        const auto& history = actors_[*holder]->history;
        if (history.size() < start.boundary) continue;
        fetching.history.assign(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(start.boundary));
        fetching.membership.holds(start.boundary);
        fetching.fetched_epoch = start.epoch.number;
        return go_on(actor);
      }
      act(actor, fetching.membership.suspect(suspects));
    });
  }

  void follow(std::size_t actor, const RevokeEpoch& revoke) {
    Actor& who = *actors_[actor];
    for (const std::uint32_t rank : revoke.flood) {
      const auto other = actor_of(who.membership.known().epoch.members[rank]);
      if (!other || is_cut(static_cast<int>(actor), static_cast<int>(*other))) continue;
      on(*other, delay_s(),
         [this, other = *other, epoch = revoke.epoch] { act(other, actors_[other]->membership.peer_revoked(epoch)); });
    }
  }

  void follow(std::size_t actor, const StepVerdict& verdict) {
    Actor& who = *actors_[actor];
    const std::pair key{verdict.vote.epoch, verdict.vote.step};
    const bool is_logged = key.second <= log_.size() && log_[key.second - 1].first == key.first;
    if (verdict.fate == StepFate::aborted) {
      aborted_.insert(key);
      if (is_logged) fail(fmt::format("step {} of epoch {} is committed, and seen as aborted", key.second, key.first));
    }
    if (verdict.fate != StepFate::committed) return;
    if (!is_logged) return fail(fmt::format("step {} is seen as committed, but is not", key.second));
    if (std::memcmp(who.data.data(), log_[key.second - 1].second.data(), elements * sizeof(float)) != 0)
      return fail(fmt::format("step {} of epoch {} has a wrong sum", key.second, key.first));
    // Who was left out in between may hear late of a step that it has meanwhile fetched.
    if (verdict.vote.kind == StepVoteKind::learn) return;
    if (who.history.size() + 1 == key.second) who.history.push_back(who.data);
    if (who.history.size() < key.second) fail(fmt::format("step {} is committed on top of a gap", key.second));
  }

  void follow(std::size_t actor, const FencedOut&) {
    Actor& who = *actors_[actor];
    who.running = false;
    if (who.membership.report().presence == MemberPresence::leaving || (troubled_ && random_.chance(0.2))) {
      who.alive = false;
      return;
    }
    on(actor, 0.05 * random_.uniform(), [this, actor] {
      Membership& membership = actors_[actor]->membership;
      if (membership.state() != MemberState::gone) return;
      membership.rejoin(++processes_);
      membership.ready();
      go_on(actor);
    });
  }

  // What a session does between two events.
  void go_on(std::size_t actor) {
    Actor& who = *actors_[actor];
    Membership& membership = who.membership;
    if (who.running && membership.revoked()) end_operation(actor, StepVoteKind::abort, {});
    const bool can_begin = !who.running && membership.start() != nullptr && !membership.revoked() &&
                           !membership.in_doubt() && membership.report().active_step == 0 &&
                           who.fetched_epoch == membership.known().epoch.number &&
                           membership.report().presence != MemberPresence::leaving;
    if (can_begin) {
      membership.begin_step();
      on(actor, 0.3 * random_.uniform(),
         [this, actor, epoch = membership.known().epoch.number] { begin_operation(actor, epoch); });
    }
    if (membership.report() != who.reported) report(actor);
  }

  // ---- operations ----

  // A learner takes part, adds nothing, and has the state after some steps.
  void learn(std::size_t actor) {
    Actor& who = *actors_[actor];
    const EpochStart& start = who.membership.known();
    const auto before = static_cast<std::size_t>(who.membership.next_step() - 1);
    who.learning = who.history.size() < before;
    if (!who.learning) return;
    silent_.insert({start.epoch.number, before + 1, who.membership.report().member.incarnation});
    if (who.lessons-- > 0) return;
    for (const Member& member : start.epoch.members) {
      const auto holder = actor_of(member);
      if (!holder || !actors_[*holder]->alive || is_cut(static_cast<int>(actor), static_cast<int>(*holder))) continue;
      const auto& history = actors_[*holder]->history;
      if (history.size() < before) continue;
      who.history.assign(history.begin(), history.begin() + static_cast<std::ptrdiff_t>(before));
      who.membership.holds(before);
      who.learning = false;
      return;
    }
  }

  void begin_operation(std::size_t actor, std::uint64_t epoch) {
    Actor& who = *actors_[actor];
    Membership& membership = who.membership;
    if (membership.start() == nullptr || membership.known().epoch.number != epoch) return;
    if (membership.report().active_step == 0 || membership.in_doubt() || who.running) return;
    if (membership.revoked()) return act(actor, membership.vote(StepVoteKind::abort, {}));
    const auto& members = membership.known().epoch.members;
    const auto size = static_cast<int>(members.size());
    who.data.assign(elements, 0);
    learn(actor);
    const std::uint64_t incarnation = membership.report().member.incarnation;
    for (int i = 0; i < elements && !silent_.contains({epoch, membership.next_step(), incarnation}); ++i)
      who.data[static_cast<std::size_t>(i)] =
          contribution(members[static_cast<std::size_t>(membership.rank())], membership.next_step(), i);
    who.running = true;
    who.deadline_s = now_s_ + operation_timeout_s;
    ++who.operation;
    on(actor, operation_timeout_s, [this, actor, epoch, operation = who.operation] {
      Actor& waiting = *actors_[actor];
      if (!waiting.running || waiting.operation != operation || waiting.membership.known().epoch.number != epoch)
        return;
      std::vector<std::string> suspects;
      for (const int rank : waiting.execution.awaited())
        suspects.push_back(waiting.membership.known().epoch.members[static_cast<std::size_t>(rank)].id);
      end_operation(actor, StepVoteKind::abort, suspects);
    });
    if (size == 1) return end_operation(actor, StepVoteKind::commit, {});
    const CollectiveProgram program = default_program(CollectiveCall::all_reduce, size, 0, elements * 4);
    who.schedule = std::make_unique<CollectiveSchedule>(
        compile_schedule(program, membership.rank(), 80, 1, static_cast<std::int64_t>(sizeof(float))));
    CollectiveFrame frame;
    frame.group = group_hash("g");
    frame.epoch = epoch;
    frame.operation = who.operation;
    frame.shape = {CollectiveCall::all_reduce, CollectiveElement::fp32, CollectiveReduction::sum, 0, elements * 4,
                   who.schedule->hash};
    who.execution.start(*who.schedule, frame, {std::as_writable_bytes(std::span(who.data))}, 2);
    drive(actor);
  }

  void drive(std::size_t actor) {
    Actor& who = *actors_[actor];
    const std::vector<Member> members = who.membership.known().epoch.members;
    bool moved = true;
    while (who.running && moved) {
      moved = false;
      for (std::size_t i = 0; i < who.early.size() && who.running;) {
        const Actor::Parcel& parcel = who.early[i];
        auto answer = Execution::Answer::later;
        if (parcel.frame.epoch == who.membership.known().epoch.number && parcel.frame.operation == who.operation)
          answer = who.execution.on_frame(parcel.from, parcel.frame, parcel.payload, Execution::Holding::yes);
        if (answer == Execution::Answer::refused) return fail("a frame is refused: " + who.execution.refusal()->cause);
        if (answer == Execution::Answer::later) {
          ++i;
          continue;
        }
        who.early.erase(who.early.begin() + static_cast<std::ptrdiff_t>(i));
        moved = true;
      }
      for (int peer = 0; peer < static_cast<int>(members.size()); ++peer) {
        if (peer == who.membership.rank()) continue;
        while (const Execution::Outgoing* outgoing = who.execution.next(peer)) {
          ship(actor, members[static_cast<std::size_t>(peer)],
               {who.membership.rank(), outgoing->frame, {outgoing->payload.begin(), outgoing->payload.end()}});
          who.execution.sent(peer);
          moved = true;
        }
      }
      if (who.execution.done()) return end_operation(actor, StepVoteKind::commit, {});
    }
  }

  // Frames of a pair stay in order; a cut connection holds them until it is repaired, a dead one loses them; and some
  // old ones come a second time, long after.
  void ship(std::size_t actor, const Member& to, Actor::Parcel parcel) {
    const auto other = actor_of(to);
    if (!other) return;
    double& last_s = arrivals_[{actor, *other}];
    last_s = std::max(last_s, now_s_ + delay_s() + (is_cut(static_cast<int>(actor), static_cast<int>(*other)) ? 2 : 0));
    if (random_.chance(0.01))
      on(*other, last_s - now_s_ + 3 * operation_timeout_s, [this, other = *other, parcel] {
        // The transport drops what it has delivered before; an epoch that is over has no transport.
        if (parcel.frame.epoch < actors_[other]->membership.known().epoch.number) deliver(other, parcel);
      });
    on(*other, last_s - now_s_, [this, other = *other, parcel = std::move(parcel)] { deliver(other, parcel); });
  }

  void deliver(std::size_t actor, const Actor::Parcel& parcel) {
    Actor& who = *actors_[actor];
    if (parcel.frame.epoch < who.membership.known().epoch.number || who.membership.state() == MemberState::gone) {
      ++result_.late_frames;
      return;
    }
    who.early.push_back(parcel);
    if (who.running) drive(actor);
  }

  void end_operation(std::size_t actor, StepVoteKind kind, const std::vector<std::string>& suspects) {
    Actor& who = *actors_[actor];
    who.running = false;
    if (now_s_ > std::max(who.deadline_s, who.stopped_until_s) + lateness_s)
      fail(fmt::format("a call outlives its deadline by {:.3f} s", now_s_ - who.deadline_s));
    if (kind == StepVoteKind::commit && who.learning) kind = StepVoteKind::learn;
    act(actor, who.membership.vote(kind, suspects));
  }

  // ---- faults ----

  std::vector<std::size_t> living() const {
    std::vector<std::size_t> alive;
    for (std::size_t actor = 0; actor < actors_.size(); ++actor)
      if (actors_[actor]->alive && actors_[actor]->membership.report().presence != MemberPresence::leaving)
        alive.push_back(actor);
    return alive;
  }

  // Would one less leave no holder of the state?
  bool may_lose(std::size_t actor) const {
    return std::ranges::any_of(living(), [&](std::size_t other) {
      return other != actor && actors_[other]->history.size() >= disk_.committed_step;
    });
  }

  void fault() {
    ++result_.faults;
    const auto alive = living();
    const double kind = random_.uniform();
    if (alive.empty() || (kind < 0.25 && alive.size() < 10)) {
      return join();
    }
    const std::size_t victim = alive[random_.below(alive.size())];
    if (kind < 0.45) {
      if (may_lose(victim)) crash(victim);
    } else if (kind < 0.55) {
      double& until_s = actors_[victim]->stopped_until_s;
      until_s = std::max(until_s, now_s_ + 3 * random_.uniform());
    } else if (kind < 0.62) {
      if (!may_lose(victim)) return;
      actors_[victim]->membership.leave();
      go_on(victim);
    } else if (kind < 0.72) {
      if (coordinator_) kill_coordinator();
    } else if (kind < 0.76) {
      // False alarm: a control connection breaks, its process lives.
      const MemberReport& report = actors_[victim]->membership.report();
      if (coordinator_)
        handle([&](Coordinator& c) { return c.connection_lost(report.member.id, report.process, now_s_); });
    } else {
      cut(alive);
    }
  }

  // A new member, or a new process in the place of a dead one.
  void join() {
    const std::string id = fmt::format("m{}", random_.below(20));
    const bool is_taken = std::ranges::any_of(
        actors_, [&](const auto& actor) { return actor->alive && actor->membership.report().member.id == id; });
    if (!is_taken) start_actor(id);
  }

  // Two sides that do not hear each other, or one of which does not hear the other; the coordinator is on either.
  void cut(const std::vector<std::size_t>& alive) {
    std::set<int> side;
    for (const std::size_t actor : alive)
      if (random_.chance(0.4)) side.insert(static_cast<int>(actor));
    if (random_.chance(0.5)) side.insert(-1);
    const bool both_ways = random_.chance(0.6);
    std::set<std::pair<int, int>> cuts;
    for (int from = -1; from < static_cast<int>(actors_.size()); ++from)
      for (int to = -1; to < static_cast<int>(actors_.size()); ++to)
        if (side.contains(from) && !side.contains(to)) {
          cuts.insert({from, to});
          if (both_ways) cuts.insert({to, from});
        }
    cuts_.insert(cuts.begin(), cuts.end());
    after(2 * random_.uniform(), [this, cuts] {
      for (const auto& pair : cuts) cuts_.erase(pair);
    });
  }

  void heal() {
    cuts_.clear();
    loss_ = 0;
    troubled_ = false;
    while (living().size() < policy_.minimum_size + 1) join();
  }

  bool is_settled() const {
    if (!coordinator_) return false;
    std::size_t members = 0;
    for (const std::size_t actor : living()) {
      const Membership& membership = actors_[actor]->membership;
      if (membership.state() != MemberState::active || membership.known().epoch.number != disk_.current.epoch.number)
        return false;
      ++members;
    }
    return members == disk_.current.epoch.members.size();
  }

  bool is_state_lost() const {
    return std::ranges::none_of(
        living(), [&](std::size_t actor) { return actors_[actor]->history.size() >= disk_.committed_step; });
  }

  RandomStream random_;
  GroupPolicy policy_;
  int ranks_ = 0;
  double loss_ = 0;
  bool troubled_ = true;
  bool learns_ = false;  // joiners get the state while steps go on, not before the first one
  double now_s_ = 0;
  std::uint64_t order_ = 0, processes_ = 0;
  std::priority_queue<Event> events_;
  std::optional<Coordinator> coordinator_;
  GroupLedger disk_;
  std::vector<std::unique_ptr<Actor>> actors_;
  std::set<std::pair<int, int>> cuts_;
  std::map<std::pair<std::size_t, std::size_t>, double> arrivals_;
  std::map<std::uint64_t, std::vector<Member>> lists_;
  std::vector<std::pair<std::uint64_t, std::vector<float>>> log_;  // by step: its epoch and its sum
  std::set<std::pair<std::uint64_t, std::uint64_t>> aborted_;
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> silent_;  // epoch, step, incarnation of a learner
  std::uint64_t goal_ = 0;
  ScheduleResult result_;
};

inline ScheduleResult run_schedule(std::uint64_t seed) { return Schedule(seed).run(); }

}  // namespace motley::schedules
