#include "motley/comm/membership/coordinator_server.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "motley/base/error.hpp"
#include "motley/comm/membership/coordinator_thread_test.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

ByteStream dial(const std::string& address) {
  ConnectFailure failure;
  FileDescriptor socket = connect_tcp(address, soon(), failure);
  EXPECT_TRUE(socket) << failure.cause;
  return ByteStream(std::move(socket));
}

// The next message, or why there is none.
std::string answer_of(ControlCaller& member, ControlMessage& message) {
  try {
    message = member.answer();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string refusal_of(const std::string& address, const std::vector<ControlMessage>& messages) {
  ControlCaller member(dial(address));
  for (const ControlMessage& message : messages) member.send(message);
  ControlMessage answer;
  const std::string failure = answer_of(member, answer);
  if (!failure.empty()) return failure;
  const auto* refusal = std::get_if<ControlRefusal>(&answer);
  return refusal == nullptr ? "accepted" : refusal->reason;
}

MemberReport ready_report(const std::string& id) {
  MemberReport report;
  report.group = "test";
  report.member = {id, 0, "here", "127.0.0.1:1"};
  report.process = 1;
  report.presence = MemberPresence::ready;
  return report;
}

TEST(CoordinatorServer, TellsStrangersWhyTheyAreTurnedAway) {
  CoordinatorThread coordinator;
  const ControlHello hello{"test", "token"};
  EXPECT_EQ(refusal_of(coordinator.address(), {ControlHello{"test", "wrong"}}), "the token is not this group's");
  EXPECT_EQ(refusal_of(coordinator.address(), {ControlHello{"other", "token"}}),
            "this coordinator serves group \"test\", not \"other\"");
  EXPECT_EQ(refusal_of(coordinator.address(), {ready_report("a")}), "the first message must be the handshake");
  EXPECT_EQ(refusal_of(coordinator.address(), {hello, hello}), "a member must send only reports after the handshake");
  EXPECT_EQ(refusal_of(coordinator.address(), {hello, ready_report("a")}), "accepted");
}

TEST(CoordinatorServer, LiesEndTheConnectionAndNothingElse) {
  CoordinatorThread coordinator;
  ControlCaller honest(dial(coordinator.address()));
  honest.send(ControlHello{"test", "token"});
  honest.send(ready_report("honest"));
  ControlMessage answer;
  ASSERT_EQ(answer_of(honest, answer), "");
  for (const std::string& lie :
       {std::string("\xff\xff\xff\xff", 4), std::string("\x04\0\0\0zzzz", 8), std::string("GET / HTTP/1.1\r\n\r\n")}) {
    ByteStream stream = dial(coordinator.address());
    stream.write_all(std::as_bytes(std::span(lie)), soon());
    std::array<std::byte, 64> rest;
    EXPECT_THROW(stream.read_all(rest, soon()), Error);  // it is hung up on
  }
  EXPECT_NE(coordinator.log().find("malformed message"), std::string::npos);
  honest.send(ready_report("honest"));
  EXPECT_EQ(answer_of(honest, answer), "");
  EXPECT_TRUE(std::holds_alternative<CoordinatorDirective>(answer));
}

TEST(CoordinatorServer, WhoSaysNothingIsNotWaitedForLong) {
  CoordinatorThread coordinator({}, {.strangers = {.handshake_s = 0.1}});
  ByteStream silent = dial(coordinator.address());
  std::array<std::byte, 1> nothing;
  EXPECT_THROW(silent.read_all(nothing, soon()), Error);
  EXPECT_NE(coordinator.log().find("no handshake in time"), std::string::npos);
}

TEST(CoordinatorServer, WithoutACertificateItStaysOnItsMachine) {
  try {
    CoordinatorServer server({.listen = "0.0.0.0:0"}, open_sqlite_store(CoordinatorThread::temporary_file()));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::input);
    EXPECT_NE(std::string(error.what()).find("has no certificate"), std::string::npos);
  }
}

// Nothing is believed or told that is not in the log; members repeat themselves, and once there is room all goes on.
class FullStore : public LedgerStore {
 public:
  std::vector<std::string> read() override { return records_; }
  void append(const std::vector<std::string>& records) override {
    if (full.load()) throw Error(ErrorCode::environment, "the log somewhere cannot be written: disk is full");
    records_.insert(records_.end(), records.begin(), records.end());
  }
  void replace(const std::string& record) override { records_ = {record}; }
  std::string name() const override { return "somewhere"; }
  std::atomic<bool> full = true;

 private:
  std::vector<std::string> records_;
};

TEST(CoordinatorServer, AFullDiskIsReportedAndOvercome) {
  auto owned = std::make_unique<FullStore>();
  FullStore& store = *owned;
  std::mutex mutex;
  std::string log;
  CoordinatorServer server({.group = "test",
                            .log =
                                [&](const std::string& line) {
                                  const std::lock_guard lock(mutex);
                                  log += line + "\n";
                                }},
                           std::move(owned));
  std::jthread serving([&](const std::stop_token& stop) { server.run(stop); });
  ControlCaller member(dial(server.address()));
  member.send(ControlHello{"test", ""});
  member.send(ready_report("a"));
  const auto logged = [&](const char* text) {
    const std::lock_guard lock(mutex);
    return log.find(text) != std::string::npos;
  };
  while (!logged("disk is full")) std::this_thread::yield();
  store.full = false;
  member.send(ready_report("a"));
  ControlMessage answer;
  ASSERT_EQ(answer_of(member, answer), "");
  EXPECT_EQ(std::get<CoordinatorDirective>(answer).incarnation, 1U);
  EXPECT_TRUE(logged("recovered"));
}

// A store that fails in one way or another, as etcd does when it is slow or has another leader.
class MoodyStore : public LedgerStore {
 public:
  enum class Mood { well, written_and_silent, lost_and_silent, fenced };
  struct State {
    std::atomic<Mood> mood{Mood::well};
    std::atomic<bool> readable{true};
    std::atomic<bool> full{false};  // where there is no room to cut the log
    std::atomic<int> kept{0}, cut{0};
    std::mutex mutex;
    std::vector<std::string> records;
  };
  explicit MoodyStore(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::vector<std::string> read() override {
    if (!state_->readable) throw StoreUncertain("the store does not answer");
    const std::lock_guard lock(state_->mutex);
    return state_->records;
  }
  void append(const std::vector<std::string>& records) override {
    settle([&] { state_->records.insert(state_->records.end(), records.begin(), records.end()); });
  }
  void replace(const std::string& record) override {
    ++state_->cut;
    if (state_->full) throw Error(ErrorCode::environment, "the store is full");
    settle([&] { state_->records = {record}; });
  }
  void keep() override {
    ++state_->kept;
    if (state_->mood == Mood::fenced) throw StoreFenced("another coordinator has taken over");
    if (state_->mood != Mood::well) throw StoreUncertain("the lease cannot be kept");
  }
  double hold_s() const override { return 0.03; }
  std::string name() const override { return "moody"; }

 private:
  void settle(const std::function<void()>& write) {
    const std::lock_guard lock(state_->mutex);
    const Mood mood = state_->mood;
    if (mood == Mood::fenced) throw StoreFenced("another coordinator has taken over");
    if (mood != Mood::lost_and_silent) write();
    if (mood != Mood::well) throw StoreUncertain("the store is silent");
  }
  std::shared_ptr<State> state_;
};

// A coordinator with such a store, and how it ended.
struct MoodyCoordinator {
  std::shared_ptr<MoodyStore::State> store = std::make_shared<MoodyStore::State>();
  std::mutex mutex;
  std::string lines, end = "stopped";
  CoordinatorServer server;
  std::jthread serving{[this](const std::stop_token& stop) {
    try {
      server.run(stop);
    } catch (const StoreFenced& error) {
      end = error.what();
    }
  }};

  explicit MoodyCoordinator(std::size_t snapshot_every = 1024)
      : server({.group = "test",
                .snapshot_every = snapshot_every,
                .log =
                    [this](const std::string& line) {
                      const std::lock_guard lock(mutex);
                      lines += line + "\n";
                    }},
               std::make_unique<MoodyStore>(store)) {}
  void wait_for(const std::string& text) {
    const auto until = soon();
    for (;;) {
      {
        const std::lock_guard lock(mutex);
        if (lines.find(text) != std::string::npos) return;
        ASSERT_LT(Clock::now(), until) << "no \"" << text << "\" in:\n" << lines;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

// Whether it was written or not, nothing is told before the log has been read, and no number is given twice.
TEST(CoordinatorServer, AfterAnUncertainWriteTheLogCounts) {
  for (const auto mood : {MoodyStore::Mood::written_and_silent, MoodyStore::Mood::lost_and_silent}) {
    MoodyCoordinator coordinator;
    coordinator.store->mood = mood;
    coordinator.store->readable = false;
    ControlCaller member(dial(coordinator.server.address()));
    member.send(ControlHello{"test", ""});
    member.send(ready_report("a"));
    coordinator.wait_for("the store is silent");
    coordinator.wait_for("the store does not answer");
    coordinator.store->mood = MoodyStore::Mood::well;
    coordinator.store->readable = true;
    member.send(ready_report("a"));
    ControlMessage answer;
    ASSERT_EQ(answer_of(member, answer), "");
    const auto& directive = std::get<CoordinatorDirective>(answer);
    coordinator.serving.request_stop();
    coordinator.serving.join();
    MoodyStore store(coordinator.store);
    EXPECT_EQ(load_ledger(store, "test").last_incarnation, directive.incarnation) << coordinator.lines;
    EXPECT_EQ(directive.incarnation, mood == MoodyStore::Mood::written_and_silent ? 2U : 1U);
  }
}

TEST(CoordinatorServer, ALeaseThatCannotBeKeptIsReportedAndALostOneEndsIt) {
  MoodyCoordinator coordinator;
  coordinator.store->mood = MoodyStore::Mood::lost_and_silent;
  coordinator.wait_for("the lease cannot be kept");
  coordinator.store->mood = MoodyStore::Mood::fenced;
  coordinator.serving.join();
  EXPECT_EQ(coordinator.end, "another coordinator has taken over");
}

TEST(CoordinatorServer, ALogThatCannotBeCutIsReportedAndGoesOn) {
  MoodyCoordinator coordinator(1);
  coordinator.store->full = true;
  ControlCaller member(dial(coordinator.server.address()));
  member.send(ControlHello{"test", ""});
  member.send(ready_report("a"));
  ControlMessage answer;
  ASSERT_EQ(answer_of(member, answer), "");
  EXPECT_EQ(std::get<CoordinatorDirective>(answer).incarnation, 1U);
  coordinator.wait_for("the store is full");
  coordinator.serving.request_stop();
  coordinator.serving.join();
  EXPECT_EQ(coordinator.end, "stopped");
  MoodyStore store(coordinator.store);
  EXPECT_FALSE(store.read().empty());
}

}  // namespace
}  // namespace motley
