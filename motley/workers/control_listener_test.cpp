// Where a driver takes control connections; more of it, with workers, in remote_workers_test.cpp.
#include "motley/workers/control_listener.hpp"

#include <gmock/gmock.h>
#include <poll.h>

#include <atomic>
#include <future>
#include <mutex>
#include <new>
#include <thread>

#include "motley/comm/authority/authority.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/hostile_test.hpp"
#include "motley/comm/net/wakeup.hpp"

namespace motley {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const RelayAccess secret_access{.key = "secret", .identity = {}};

LinkHello hello_to(const std::string& service, const std::string& name) {
  LinkHello hello;
  hello.group = service;
  hello.from_id = name;
  hello.word = "word of " + name;
  return hello;
}

std::string input_error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return (error.code() == ErrorCode::input ? "input: " : "other: ") + std::string(error.what());
  }
  return "none";
}

// A service that notes who came, and says one byte to each.
class Service {
 public:
  ControlService service(const std::string& refused = "") {
    return {.admit =
                [this, refused](const LinkHello& hello, const std::string& certified) {
                  note("admit " + hello.from_id + " as " + certified);
                  return hello.from_id == refused ? "not today" : "";
                },
            .take =
                [this](const LinkHello& hello, ByteStream stream) {
                  note("take " + hello.from_id + " with " + hello.word);
                  const std::byte one{1};
                  stream.write_all({&one, 1}, soon());
                },
            .forget = [this](const LinkHello& hello) { note("forget " + hello.from_id); }};
  }
  std::vector<std::string> notes() const {
    const std::lock_guard lock(mutex_);
    return notes_;
  }

 private:
  void note(const std::string& text) {
    const std::lock_guard lock(mutex_);
    notes_.push_back(text);
  }
  mutable std::mutex mutex_;
  std::vector<std::string> notes_;
};

void hear_one_byte(ByteStream stream) {
  std::byte one{0};
  stream.read_all({&one, 1}, soon());
  EXPECT_EQ(one, std::byte{1});
}

TEST(ControlListeners, EachCallerComesToTheServiceThatItNames) {
  Service workers, agents;
  {
    const ControlListener listener("127.0.0.1:0", secret_access,
                                   {{"workers", workers.service()}, {"agents", agents.service("eve")}});
    EXPECT_EQ(listener.last_refusal(), "");
    const auto call = [&](const std::string& service, const std::string& name) {
      hear_one_byte(call_service(listener.address(), hello_to(service, name), secret_access, soon()));
    };
    call("workers", "box/0");
    call("agents", "box");
    EXPECT_EQ(input_error_of([&] { call("agents", "eve"); }),
              "input: the driver at " + listener.address() + " refuses: not today");
    EXPECT_THAT(input_error_of([&] { call("others", "box"); }),
                HasSubstr("refuses: nothing but control connections is taken here"));
    EXPECT_THAT(listener.last_refusal(), HasSubstr("\"box\": nothing but"));
  }  // waits for the services
  EXPECT_THAT(workers.notes(), ElementsAre("admit box/0 as box/0", "take box/0 with word of box/0"));
  EXPECT_THAT(agents.notes(), ElementsAre("admit box as box", "take box with word of box", "admit eve as eve"));
}

TEST(ControlListeners, AConnectionOfAnotherPurposeIsRefused) {
  Service agents;
  const ControlListener listener("127.0.0.1:0", secret_access, {{"agents", agents.service()}});
  ConnectFailure failure;
  ByteStream stream(connect_to(listener.address(), secret_access, soon(), failure));
  LinkHello hello = hello_to("agents", "box");
  hello.purpose = LinkPurpose::stream;
  const LinkWelcome welcome = client_handshake(stream, hello, "secret", soon());
  EXPECT_EQ(welcome.answer, LinkAnswer::refused);
  EXPECT_TRUE(agents.notes().empty());
}

TEST(ControlListeners, UnderTlsTheCertificateSaysWhoCalls) {
  const Authority authority = Authority::create("tests");
  const auto access = [&](const std::string& name) {
    return RelayAccess{
        .key = "secret", .identity = TlsContext(authority.issue(name)), .encryption = Encryption::always};
  };
  Service agents;
  {
    const ControlListener listener("127.0.0.1:0", access(std::string(coordinator_name)),
                                   {{"agents", agents.service()}});
    hear_one_byte(call_service(listener.address(), hello_to("agents", "box"), access("attic"), soon()));
    EXPECT_THAT(input_error_of([&] {
                  call_service(listener.address(), hello_to("agents", "box"),
                               {.key = "secret", .identity = {}, .encryption = Encryption::always}, soon());
                }),
                HasSubstr("needs TLS, but this process has no certificate"));
  }
  EXPECT_THAT(agents.notes(), ElementsAre("admit box as attic", "take box with word of box"));

  // A process with the token gets a certificate, but none for the coordinator's name.
  const ControlListener impostor("127.0.0.1:0", access("attic"), {{"agents", agents.service()}});
  EXPECT_THAT(
      input_error_of([&] { call_service(impostor.address(), hello_to("agents", "box"), access("box"), soon()); }),
      HasSubstr("names \"attic\", not \"coordinator\""));
}

TEST(ControlListeners, StrangersCostLittleAndKeepNobodyOut) {
  const Authority authority = Authority::create("tests");
  for (const bool secured : {false, true}) {
    const auto access = [&](const std::string& name) {
      return secured ? RelayAccess{.key = "secret",
                                   .identity = TlsContext(authority.issue(name)),
                                   .encryption = Encryption::always}
                     : secret_access;
    };
    Service agents;
    const ControlListener listener("127.0.0.1:0", access(std::string(coordinator_name)),
                                   {{"agents", agents.service()}});
    expect_to_endure_hostile_clients(listener.address(), {secured ? tls_opening() : link_opening()}, [&] {
      hear_one_byte(call_service(listener.address(), hello_to("agents", "box"), access("box"), soon()));
    });
  }
}

// What a service throws, whatever it is, ends the connection alone.
TEST(ControlListeners, AServiceThatIsShortOfMemoryEndsOneCall) {
  Service agents;
  ControlService failing = agents.service();
  failing.take = [](const LinkHello&, ByteStream) { throw std::bad_alloc(); };
  const ControlListener listener("127.0.0.1:0", secret_access, {{"failing", failing}, {"agents", agents.service()}});
  ByteStream failed = call_service(listener.address(), hello_to("failing", "box"), secret_access, soon());
  EXPECT_THROW(hear_one_byte(std::move(failed)), Error);
  hear_one_byte(call_service(listener.address(), hello_to("agents", "box"), secret_access, soon()));
}

TEST(ControlListeners, WhereNobodyListensTheDriverIsUnreachable) {
  std::string address;
  {
    const ControlListener listener("127.0.0.1:0", secret_access, {});
    address = listener.address();
  }
  try {
    call_service(address, hello_to("agents", "box"), secret_access, soon());
    FAIL();
  } catch (const ServiceUnreachable& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer);
    EXPECT_THAT(error.what(), HasSubstr("the driver at " + address + " does not answer"));
  }
}

// More of them than may be in their handshake at once: they delay neither others for long nor the end.
TEST(ControlListeners, SilentCallersHoldUpNoEnd) {
  Service agents;
  std::vector<FileDescriptor> silent;
  {
    const ControlListener listener("127.0.0.1:0", secret_access, {{"agents", agents.service()}});
    ConnectFailure failure;
    for (int i = 0; i < 10; ++i) silent.push_back(connect_tcp(listener.address(), soon(), failure));
    hear_one_byte(call_service(listener.address(), hello_to("agents", "box"), secret_access, soon()));
    for (int i = 0; i < 100; ++i) silent.push_back(connect_tcp(listener.address(), soon(), failure));
  }
  EXPECT_THAT(agents.notes(), ElementsAre("admit box as box", "take box with word of box"));
}

// The end waits for what a service does with a connection that it has taken.
TEST(ControlListeners, TheEndWaitsForServices) {
  Wakeup taken;
  std::promise<void> go;
  std::atomic<bool> done = false;
  auto listener = std::make_unique<ControlListener>(
      "127.0.0.1:0", secret_access,
      std::map<std::string, ControlService>{{"agents",
                                             {.admit = [](const LinkHello&, const std::string&) { return ""; },
                                              .take =
                                                  [&](const LinkHello&, const ByteStream&) {
                                                    taken.notify();
                                                    go.get_future().wait();
                                                    done = true;
                                                  }}}});
  const ByteStream stream = call_service(listener->address(), hello_to("agents", "box"), secret_access, soon());
  pollfd waiting{taken.descriptor(), POLLIN, 0};
  ASSERT_EQ(::poll(&waiting, 1, 20'000), 1);
  std::jthread later([&] { go.set_value(); });
  listener.reset();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace motley
