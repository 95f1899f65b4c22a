// The C functions of groups whose members come and go.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/authority/group_folder.hpp"
#include "motley/comm/c_support.hpp"
#include "motley/comm/membership/coordinator_server.hpp"
#include "motley/comm/session/session.hpp"
#include "motley/comm/session/state_slices.hpp"
#include "motley/comm/session/state_sync.hpp"

static_assert(MOTLEY_STEP_INVALID == static_cast<int>(motley::SessionStatus::invalid));
static_assert(MOTLEY_UNDECIDED == static_cast<int>(motley::SessionStatus::undecided));

struct motley_coordinator {
  std::unique_ptr<motley::CoordinatorServer> server;
  std::jthread thread;  // ends before the server
};

struct motley_session {
  std::unique_ptr<motley::StateSync> sync;  // one of these at most: steps may need no state
  std::unique_ptr<motley::SlicedStateSync> slices;
  std::unique_ptr<motley::Session> session;
};

namespace {

using motley::guarded;
using motley::put_text;
using motley::text_of;

// The one run of bytes that a C caller's state is.
constexpr const char* state_name = "state";

motley::StateAccess access_of(const motley_state& state) {
  return {.save =
              [state] {
                std::int64_t bytes = 0;
                const void* data = state.save(state.user, &bytes);
                if (data == nullptr || bytes < 0)
                  throw motley::input_error("this process could not save its state",
                                            "return the address of the state from motley_state.save, and set `bytes`");
                return std::vector<motley::StateBuffer<const std::byte>>{
                    {state_name, {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes)}}};
              },
          .place =
              [state](const motley::StateManifest& manifest) {
                if (manifest.items.size() != 1)
                  throw motley::input_error(
                      "the members' state is not one run of bytes",
                      "all members must give it in the same way: all by `state`, or all by `items`");
                const std::int64_t bytes = manifest.items[0].bytes;
                void* room = state.place(state.user, bytes);
                if (room == nullptr)
                  throw motley::input_error(
                      fmt::format("this process has no room for the {} bytes of the members' state", bytes),
                      "motley_state.place must return as much memory");
                return std::vector<motley::StateBuffer<std::byte>>{
                    {state_name, {static_cast<std::byte*>(room), static_cast<std::size_t>(bytes)}}};
              },
          .load =
              [state] {
                if (state.load(state.user) != 0)
                  throw motley::input_error(
                      "this process could not load the members' state",
                      "motley_state.load failed: check that all members run the same program and model");
              }};
}

motley::StateItems items_of(const motley_items& items) {
  return {.count = static_cast<std::size_t>(std::max(items.count, 0)),
          .save =
              [items](std::size_t item) {
                std::int64_t bytes = 0;
                const void* data = items.save(items.user, static_cast<std::int32_t>(item), &bytes);
                if (data == nullptr || bytes < 0)
                  throw motley::input_error(fmt::format("this process could not save item {} of its state", item),
                                            "return the address of the item from motley_items.save, and set `bytes`");
                return std::span(static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes));
              },
          .place =
              [items](std::size_t item, std::size_t bytes) {
                void* room = items.place(items.user, static_cast<std::int32_t>(item), static_cast<std::int64_t>(bytes));
                if (room == nullptr)
                  throw motley::input_error(
                      fmt::format("this process has no room for item {} of the state, {} bytes", item, bytes),
                      "motley_items.place must return as much memory");
                return std::span(static_cast<std::byte*>(room), bytes);
              },
          .load =
              [items](std::size_t item) {
                if (items.load(items.user, static_cast<std::int32_t>(item)) != 0)
                  throw motley::input_error(
                      fmt::format("this process could not load item {} of the state", item),
                      "motley_items.load failed: check that all members run the same program and model");
              }};
}

motley::SessionOptions session_options(const motley_session_options& asked) {
  motley::SessionOptions options;
  options.member.coordinators = motley::addresses_of(asked.coordinators);
  if (options.member.coordinators.empty())
    throw motley::input_error(
        "the address of a coordinator is missing",
        "give one or more HOST:PORT in `coordinators`, comma-separated, as `motley group serve` prints them");
  options.member.group = text_of(asked.group);
  options.member.token = text_of(asked.token);
  options.member.member.id = text_of(asked.id);
  if (asked.listen != nullptr) options.fabric.listen = asked.listen;
  options.member.identity = motley::identity_of(asked);
  if (!options.member.identity && asked.authority != nullptr) {
    options.member.authority = asked.authority;
    options.member.identity.emplace();  // to come; shared by all that need it
  }
  return options;
}

void put_outcome(const motley::SessionOutcome& from, motley_session_outcome& into) {
  into = {};
  into.status = static_cast<std::int32_t>(from.status);
  into.members = from.members;
  into.attempts = from.attempts;
  into.step = from.step;
  into.epoch = from.epoch;
  put_text(from.cause, into.cause, sizeof into.cause);
}

motley::OperationOutcome outcome_of(const motley_outcome& from) {
  motley::OperationOutcome outcome;
  const bool known = from.status >= MOTLEY_OK && from.status <= MOTLEY_INVALID;
  outcome.status = known ? static_cast<motley::OperationStatus>(from.status) : motley::OperationStatus::invalid;
  outcome.cause.assign(from.cause, std::find(std::begin(from.cause), std::end(from.cause), '\0'));
  const int suspects = std::clamp(from.suspect_count, 0, static_cast<int>(std::size(from.suspects)));
  outcome.suspects.assign(from.suspects, from.suspects + suspects);
  return outcome;
}

}  // namespace

motley_coordinator* motley_coordinate(const motley_coordinator_options* asked, char* error, size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    if (asked == nullptr || asked->log_file == nullptr)
      throw motley::input_error("the log file of the coordinator is missing",
                                "give its path in `log_file`; a missing file is created");
    motley::CoordinatorServerOptions options;
    options.group = text_of(asked->group);
    options.token = text_of(asked->token);
    if (asked->listen != nullptr) options.listen = asked->listen;
    options.policy.minimum_size = std::max(asked->minimum_size, 1U);
    if (asked->folder != nullptr) {
      motley::GroupFolder folder = motley::read_group_folder(asked->folder);
      options.group = folder.group;
      options.token = folder.token;
      options.identity = std::move(folder.identity);
      options.authority = std::move(folder.authority);
    }
    auto coordinator = std::make_unique<motley_coordinator>();
    coordinator->server =
        std::make_unique<motley::CoordinatorServer>(std::move(options), motley::open_sqlite_store(asked->log_file));
    coordinator->thread = std::jthread([server = coordinator->server.get()](const std::stop_token& stop) {
      try {
        server->run(stop);
      } catch (const std::exception&) {
        // Another coordinator has the log: members find that one.
      }
    });
    return coordinator.release();
  });
}

const char* motley_coordinator_address(const motley_coordinator* coordinator) {
  return coordinator->server->address().c_str();
}

void motley_stop_coordinator(motley_coordinator* coordinator) { delete coordinator; }

motley_session* motley_open_session(const motley_session_options* asked, char* error, size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    if (asked == nullptr)
      throw motley::input_error("the options of the session are missing", "set at least `coordinators` in `options`");
    auto options = session_options(*asked);
    auto session = std::make_unique<motley_session>();
    if (asked->items != nullptr) {
      if (asked->state != nullptr)
        throw motley::input_error("a state is one run of bytes or items, not both", "leave one of them null");
      motley::SlicedStateOptions sliced;
      if (asked->items->share != 0) sliced.share = asked->items->share;
      session->slices = std::make_unique<motley::SlicedStateSync>(sliced, items_of(*asked->items));
      options.share_state = std::ref(*session->slices);
    }
    if (asked->state != nullptr) {
      session->sync = std::make_unique<motley::StateSync>(
          motley::StateSyncOptions{.group = options.member.group,
                                   .listen = motley::sibling_of(options.fabric.listen),
                                   .identity = options.member.identity,
                                   .key = options.member.token,
                                   .give_bytes_per_s = asked->give_bytes_per_s,
                                   .take_bytes_per_s = asked->take_bytes_per_s},
          access_of(*asked->state));
      options.fetch_state = std::ref(*session->sync);
    }
    session->session = std::make_unique<motley::Session>(std::move(options));
    return session.release();
  });
}

void motley_close_session(motley_session* session) { delete session; }

void motley_run_step(motley_session* session, motley_step_body body, void* user, double timeout_s,
                     motley_session_outcome* outcome) {
  if (outcome == nullptr) return;
  try {
    if (session == nullptr || body == nullptr)
      throw motley::input_error("the session or the `body` is missing",
                                "give a `body` that runs the step's operations");
    const auto run = [&](motley::SessionStep& step) {
      motley_group group{nullptr, step.communicator};
      const motley_step told{&group,
                             step.step,
                             step.start.epoch.number,
                             step.communicator.rank(),
                             step.communicator.size(),
                             step.contributors,
                             step.place,
                             session->slices ? static_cast<std::int32_t>(session->slices->held()) : 0};
      motley_outcome ended{};
      body(user, &told, &ended);
      return outcome_of(ended);
    };
    put_outcome(session->session->run(run, {.timeout_s = timeout_s}), *outcome);
  } catch (const std::exception& error) {
    *outcome = {};
    outcome->status = MOTLEY_STEP_INVALID;
    put_text(motley::with_hint(error), outcome->cause, sizeof outcome->cause);
  }
}

int32_t motley_leave(motley_session* session, double timeout_s) {
  try {
    return session != nullptr && session->session->leave(timeout_s) ? 1 : 0;
  } catch (const std::exception&) {
    return 0;
  }
}
