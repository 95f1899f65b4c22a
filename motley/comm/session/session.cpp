#include "motley/comm/session/session.hpp"

#include <unistd.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "member";
  return std::string(name.data()).substr(0, 40);  // with a number behind it, a certificate can name it
}

// An epoch that has been connected.
struct ConnectedEpoch {
  std::uint64_t number = 0;
  std::shared_ptr<Communicator> communicator;  // shared by the caller's thread and the one that revokes
};

}  // namespace

// Three threads meet here: the caller's, the client's, which hands in what the coordinator wants, and one that connects
// proposed epochs while the caller works in the present one.
struct Session::State {
  SessionOptions options;
  Fabric fabric;

  // Guards what follows; taken after the client's own lock, never before it.
  std::mutex mutex;
  std::condition_variable_any changed;
  std::uint64_t changes = 0;
  std::optional<Epoch> wanted;  // to be connected
  std::stop_source connecting;  // ends the attempt before
  ConnectedEpoch prepared, current;
  std::optional<StepVerdict> verdict;
  bool fenced = false;

  // The caller's thread alone.
  std::uint64_t fetched_epoch = 0;  // whose state hook has ended well
  std::uint64_t followed = 0;       // the latest step that run() has returned as committed
  std::unique_ptr<MemberClient> client;
  std::jthread connector;

  explicit State(SessionOptions given) : options(with_identity(std::move(given))), fabric(with_key(options)) {
    if (options.fetch_state && options.share_state)
      throw input_error("a session's state is fetched at once or shared in steps, not both", "set one of them");
    Member& member = options.member.member;
    if (member.address.empty()) member.address = fabric.address();
    if (member.host.empty()) member.host = own_host();
    if (member.id.empty()) member.id = fmt::format("{}-{}", host_name(), draw_process_number());
    connector = std::jthread([this](const std::stop_token& stop) { connect_epochs(stop); });
    client = std::make_unique<MemberClient>(options.member, [this](const MembershipAction& action) {
      std::visit([this](const auto& what) { act(what); }, action);
    });
    access([](Membership& membership) { membership.ready(); });
  }

  ~State() {
    connector.request_stop();
    {
      const std::lock_guard lock(mutex);
      connecting.request_stop();
    }
    changed.notify_all();
    connector.join();  // it uses the client
    client.reset();
  }

  // One that is still to come is shared already: by the client, which asks for it, and the fabric.
  static SessionOptions with_identity(SessionOptions options) {
    if (!options.member.authority.empty() && !options.member.identity) options.member.identity.emplace();
    return options;
  }

  static FabricOptions with_key(const SessionOptions& options) {
    FabricOptions fabric = options.fabric;
    if (fabric.key.empty()) fabric.key = options.member.token;
    if (!fabric.identity) fabric.identity = options.member.identity;
    return fabric;
  }

  // A change that has no consequences here.
  template <class Change>
  void access(const Change& change) {
    client->access([&](Membership& membership) {
      change(membership);
      return MembershipActions{};
    });
  }
  template <class Read>
  auto read(const Read& read) {
    std::optional<decltype(read(std::declval<const Membership&>()))> value;
    access([&](const Membership& membership) { value.emplace(read(membership)); });
    return *std::move(value);
  }

  // ---- what the membership wants; on the client's thread or the caller's ----

  void act(const PrepareEpoch& prepare) {
    const std::lock_guard lock(mutex);
    wanted = prepare.epoch;
    connecting.request_stop();
    connecting = std::stop_source();
    notify();
  }
  void act(const EnterEpoch& enter) {
    const std::lock_guard lock(mutex);
    if (current.communicator) current.communicator->revoke(fmt::format("epoch {} follows", enter.start.epoch.number));
    current = prepared.number == enter.start.epoch.number ? std::exchange(prepared, {}) : ConnectedEpoch{};
    notify();
  }
  void act(const RevokeEpoch& revoke) {
    const std::lock_guard lock(mutex);
    if (current.communicator && current.number == revoke.epoch) current.communicator->revoke("the epoch was given up");
    notify();
  }
  void act(const StepVerdict& heard) {
    const std::lock_guard lock(mutex);
    verdict = heard;
    notify();
  }
  void act(const FencedOut&) {
    const std::lock_guard lock(mutex);
    if (current.communicator) current.communicator->revoke("this process was left out");
    fenced = true;
    notify();
  }
  void notify() {
    ++changes;
    changed.notify_all();
  }

  // ---- connecting ----

  void connect_epochs(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      Epoch epoch;
      std::stop_token given_up;
      {
        std::unique_lock lock(mutex);
        if (!changed.wait(lock, stop, [&] { return wanted.has_value(); }) || stop.stop_requested()) return;
        epoch = *std::exchange(wanted, std::nullopt);
        given_up = connecting.get_token();
        prepared = {};  // of an earlier proposal
      }
      connect_epoch(epoch, given_up);
    }
  }

  void connect_epoch(const Epoch& epoch, const std::stop_token& given_up) {
    std::vector<std::string> unreachable;
    try {
      int rank = -1;
      for (std::size_t i = 0; i < epoch.members.size(); ++i)
        if (epoch.members[i].id == options.member.member.id) rank = static_cast<int>(i);
      auto transport = fabric.connect(epoch, rank, options.connect_timeout_s, given_up);
      auto communicator = std::make_shared<Communicator>(epoch, std::move(transport));
      {
        const std::lock_guard lock(mutex);
        prepared = {epoch.number, std::move(communicator)};
      }
      return access([&](Membership& membership) { membership.prepared(epoch.number); });
    } catch (const ConnectError& error) {
      for (const int rank : error.ranks) unreachable.push_back(epoch.members[static_cast<std::size_t>(rank)].id);
    } catch (const std::exception&) {
      // No other's fault, as far as one can see from here.
    }
    if (!given_up.stop_requested())
      access([&](Membership& membership) { membership.refuse(epoch.number, unreachable); });
  }

  // ---- the caller's thread ----

  struct Turn {
    enum class Kind { work, committed, fenced, timed_out, stopped } kind = Kind::timed_out;
    std::shared_ptr<Communicator> communicator = nullptr;
    EpochStart start = {};
    std::uint64_t step = 0, held = 0;
    StepVerdict verdict = {};
  };

  enum class Purpose { step, departure };  // who leaves works only where an epoch begins, for the others' sake

  // Waits until there is something to do in an epoch, or the fate of the last step is known.
  Turn await(Purpose purpose, Instant until, const std::stop_token& stop) {
    for (;;) {
      std::unique_lock lock(mutex, std::defer_lock);
      Turn turn;
      bool in_doubt = false, usable = false;
      access([&](const Membership& membership) {
        lock.lock();
        in_doubt = membership.in_doubt();
        if (membership.start() != nullptr && !membership.revoked()) turn.start = *membership.start();
        turn.step = membership.next_step();
        turn.held = membership.report().state_step;
      });
      usable = turn.start.epoch.number > 0 && current.number == turn.start.epoch.number;
      if (verdict) {
        turn.verdict = *std::exchange(verdict, std::nullopt);
        if (turn.verdict.fate == StepFate::committed) {
          turn.kind = Turn::Kind::committed;
          return turn;
        }
      }
      if (fenced) {
        fenced = false;
        turn.kind = Turn::Kind::fenced;
        return turn;
      }
      if (turn.start.epoch.number > 0 && !usable) {
        // Its connections are gone: another epoch will have new ones.
        lock.unlock();
        in_epoch(turn.start.epoch.number, [](Membership& membership) { return membership.suspect({}); });
        continue;
      }
      if (usable && !in_doubt && (purpose == Purpose::step || fetched_epoch != current.number)) {
        turn.kind = Turn::Kind::work;
        turn.communicator = current.communicator;
        return turn;
      }
      if (stop.stop_requested() || Clock::now() >= until) {
        turn.kind = stop.stop_requested() ? Turn::Kind::stopped : Turn::Kind::timed_out;
        return turn;
      }
      changed.wait_until(lock, stop, until, [&, seen = changes] { return changes != seen; });
    }
  }

  // ---- the caller's thread, in an epoch ----

  std::vector<std::string> names_of(const std::vector<int>& ranks, const Epoch& epoch) const {
    std::vector<std::string> names;
    for (const int rank : ranks)
      if (rank >= 0 && static_cast<std::size_t>(rank) < epoch.members.size())
        names.push_back(epoch.members[static_cast<std::size_t>(rank)].id);
    return names;
  }

  // Changes the membership if `epoch` is still in force and not revoked; false where it is not.
  template <class Change>
  bool in_epoch(std::uint64_t epoch, const Change& change) {
    bool valid = false;
    client->access([&](Membership& membership) {
      valid = membership.start() != nullptr && membership.start()->epoch.number == epoch && !membership.revoked();
      return valid ? change(membership) : MembershipActions{};
    });
    return valid;
  }

  SessionStep step_of(const Turn& turn) const {
    SessionStep step{*turn.communicator, turn.start, turn.step, turn.held, options.member.member.id};
    step.contributors = turn.communicator->size();
    step.place = turn.communicator->rank();
    step.followed = followed;
    return step;
  }

  void give_up(const Turn& turn, const OperationOutcome& outcome) {
    in_epoch(turn.start.epoch.number,
             [&](Membership& membership) { return membership.suspect(names_of(outcome.suspects, turn.start.epoch)); });
  }

  // Brings the state to the epoch's boundary, once per epoch. False: it failed, and another epoch will follow.
  bool fetch_state(const Turn& turn) {
    const std::uint64_t epoch = turn.start.epoch.number;
    if (options.share_state || fetched_epoch == epoch) return true;
    if (options.fetch_state) {
      SessionStep step = step_of(turn);
      step.step = turn.start.boundary;
      const OperationOutcome outcome = options.fetch_state(step);
      if (outcome.status != OperationStatus::ok) {
        give_up(turn, outcome);
        return false;
      }
    }
    fetched_epoch = epoch;
    return in_epoch(epoch, [&](Membership& membership) {
      membership.holds(turn.start.boundary);
      return MembershipActions{};
    });
  }

  // At the beginning of a step.
  OperationOutcome share_state(const Turn& turn, SessionStep& step) {
    if (!options.share_state) return {};
    OperationOutcome outcome = options.share_state(step);
    if (outcome.status == OperationStatus::ok && step.held != turn.held)
      access([&](Membership& membership) { membership.holds(step.held); });
    return outcome;
  }

  // The others, who go on with their steps, may need the state of a process that leaves: once per epoch.
  void share_and_part(const Turn& turn) {
    fetched_epoch = turn.start.epoch.number;
    SessionStep step = step_of(turn);
    step.leaving = true;
    const OperationOutcome outcome = share_state(turn, step);
    if (outcome.status != OperationStatus::ok) give_up(turn, outcome);
  }

  // Tries the step once. Empty where the epoch was over before it could begin.
  std::optional<OperationOutcome> attempt(const Turn& turn, const StepBody& body) {
    const std::uint64_t epoch = turn.start.epoch.number;
    const auto begin = [](Membership& membership) {
      membership.begin_step();
      return MembershipActions{};
    };
    if (!in_epoch(epoch, begin)) return std::nullopt;
    SessionStep step = step_of(turn);
    OperationOutcome outcome;
    try {
      outcome = share_state(turn, step);
      if (outcome.status == OperationStatus::ok) outcome = body(step);
    } catch (...) {
      vote(turn, StepVoteKind::abort, {});
      throw;
    }
    const bool learning = options.share_state && step.held + 1 != step.step;
    vote(turn,
         outcome.status != OperationStatus::ok ? StepVoteKind::abort
         : learning                            ? StepVoteKind::learn
                                               : StepVoteKind::commit,
         names_of(outcome.suspects, turn.start.epoch));
    return outcome;
  }

  void vote(const Turn& turn, StepVoteKind kind, const std::vector<std::string>& suspects) {
    client->access([&](Membership& membership) {
      const bool voting = membership.start() != nullptr &&
                          membership.start()->epoch.number == turn.start.epoch.number &&
                          membership.report().active_step == turn.step && !membership.in_doubt();
      return voting ? membership.vote(kind, suspects) : MembershipActions{};
    });
  }

  void rejoin() {
    access([](Membership& membership) {
      if (membership.state() != MemberState::gone) return;
      membership.rejoin(draw_process_number());
      membership.ready();
    });
  }
};

Session::Session(SessionOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Session::~Session() = default;

SessionOutcome Session::run(const StepBody& body, const SessionRunOptions& options) {
  State& state = *state_;
  const auto until = deadline_in(options.timeout_s);
  SessionOutcome outcome;
  std::string failure;
  for (;;) {
    const State::Turn turn = state.await(State::Purpose::step, until, options.stop);
    switch (turn.kind) {
      case State::Turn::Kind::committed:
        outcome.status = SessionStatus::committed;
        outcome.step = turn.verdict.vote.step;
        outcome.epoch = turn.verdict.vote.epoch;
        outcome.cause.clear();
        state.followed = outcome.step;
        return outcome;
      case State::Turn::Kind::fenced: state.rejoin(); continue;
      case State::Turn::Kind::timed_out:
      case State::Turn::Kind::stopped: {
        const bool in_doubt = state.read([](const Membership& membership) { return membership.in_doubt(); });
        outcome.status = in_doubt                                  ? SessionStatus::undecided
                         : turn.kind == State::Turn::Kind::stopped ? SessionStatus::stopped
                                                                   : SessionStatus::timed_out;
        outcome.step = turn.step;
        const std::string waiting = waiting_for();
        outcome.cause = waiting.empty() ? failure : waiting;
        return outcome;
      }
      case State::Turn::Kind::work: break;
    }
    if (!state.fetch_state(turn)) continue;
    const auto tried = state.attempt(turn, body);
    if (!tried) continue;
    ++outcome.attempts;
    outcome.members = static_cast<int>(turn.start.epoch.members.size());
    failure = tried->cause;
    if (tried->status == OperationStatus::invalid) {
      outcome.status = SessionStatus::invalid;
      outcome.step = turn.step;
      outcome.epoch = turn.start.epoch.number;
      outcome.cause = tried->cause;
      return outcome;
    }
  }
}

bool Session::leave(double timeout_s) {
  State& state = *state_;
  const auto until = deadline_in(timeout_s);
  state.access([](Membership& membership) { membership.leave(); });
  if (state.read([](const Membership& membership) { return membership.start() == nullptr; })) return true;
  for (;;) {
    const State::Turn turn = state.await(State::Purpose::departure, until, {});
    switch (turn.kind) {
      case State::Turn::Kind::fenced: return true;
      case State::Turn::Kind::timed_out:
      case State::Turn::Kind::stopped: return false;
      case State::Turn::Kind::committed: break;
      case State::Turn::Kind::work:
        if (state.options.share_state)
          state.share_and_part(turn);
        else
          state.fetch_state(turn);
        break;
    }
  }
}

const std::string& Session::id() const { return state_->options.member.member.id; }

std::uint64_t Session::next_step() const {
  return state_->read([](const Membership& membership) { return membership.next_step(); });
}

MemberState Session::state() const {
  return state_->read([](const Membership& membership) { return membership.state(); });
}

std::string Session::waiting_for() const {
  const std::string trouble = state_->client->trouble();
  return trouble.empty() ? state_->read([](const Membership& membership) { return membership.waiting_for(); })
                         : trouble;
}

}  // namespace motley
