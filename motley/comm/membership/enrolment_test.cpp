// Certificates for the token: who gets one, who does not, and that the group goes on meanwhile.
#include "motley/comm/membership/enrolment.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/membership/coordinator_thread_test.hpp"
#include "motley/comm/net/deadline_test.hpp"
#include "motley/comm/net/handshake.hpp"
#include "motley/comm/net/sockets.hpp"
#include "motley/comm/session/session.hpp"

namespace motley {
namespace {

struct IssuingCoordinator {
  Authority authority = Authority::create("test");
  std::string pin = authority_fingerprint(authority.certificate());
  CoordinatorThread thread;

  explicit IssuingCoordinator(GroupPolicy policy = {}, double certificate_s = 3600)
      : thread(policy, {.identity = authority.issue(std::string(coordinator_name)),
                        .authority = authority,
                        .certificate_s = certificate_s,
                        .strangers = {.handshake_s = 1}}) {}
  const std::string& address() const { return thread.address(); }
  EnrolmentOptions enrolment(const std::string& member) const { return {"test", "token", pin, member}; }
};

std::string refusal_of(const std::string& address, const EnrolmentOptions& options) {
  try {
    enrol(address, options, 10);
    return "none";
  } catch (const Error& error) {
    return error.what();
  }
}

testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
}

// A member that has only the token and the authority's fingerprint.
SessionOptions joiner_of(const IssuingCoordinator& coordinator, const std::string& id) {
  SessionOptions options = options_of(coordinator.address(), id);
  options.member.authority = coordinator.pin;
  options.fabric.encryption = Encryption::always;
  return options;
}

SessionOutcome step_of(Session& session, double timeout_s = 20) {
  return session.run([](SessionStep& step) { return step.communicator.barrier({.timeout_s = 10}); },
                     {.timeout_s = timeout_s});
}

// The coordinator's answer to messages over a connection that is already secured; or why there is none.
std::string answer_over(ByteStream stream, const std::vector<ControlMessage>& messages) {
  ControlCaller caller(std::move(stream));
  try {
    for (const ControlMessage& message : messages) caller.send(message);
    const ControlMessage answer = caller.answer();
    const auto* refusal = std::get_if<ControlRefusal>(&answer);
    return refusal == nullptr ? "accepted" : refusal->reason;
  } catch (const Error& error) {
    return error.what();
  }
}

ByteStream secured(const std::string& address, const TlsContext& tls) {
  ConnectFailure failure;
  ByteStream stream(connect_tcp(address, soon(), failure));
  stream.secure_as_client(tls, soon());
  return stream;
}

MemberReport report_of(const std::string& id) {
  MemberReport report;
  report.group = "test";
  report.member = {id, 0, "here", "127.0.0.1:1"};
  report.process = 1;
  return report;
}

TEST(Enrolment, TheTokenAndTheFingerprintAreEnough) {
  IssuingCoordinator coordinator;
  const Enrolment enrolment = enrol(coordinator.address(), coordinator.enrolment("a"), 10);
  EXPECT_EQ(enrolment.valid_s, 3600);
  EXPECT_EQ(certificate_facts(enrolment.identity.certificate).name, "a");
  EXPECT_TRUE(is_issued_by(enrolment.identity.certificate, coordinator.authority.certificate()));
  EXPECT_TRUE(contains(coordinator.thread.log(), "certified member=\"a\""));
}

// What a coordinator grants is held against what was asked for.
TEST(Enrolment, OnlyWhatWasAskedForIsAccepted) {
  const Authority ours = Authority::create("test"), theirs = Authority::create("test");
  const std::string pin = authority_fingerprint(ours.certificate());
  const EnrolmentRequest request({"test", "token", pin, "a"}), another({"test", "token", pin, "a"});
  const std::string asked = request.message().request;
  const auto refusal = [&](const CertificateGrant& grant) -> std::string {
    try {
      request.accept(grant);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer);
      const std::string what = error.what();
      EXPECT_TRUE(what.starts_with("the coordinator's certificate for this member: ")) << what;
      return what.substr(what.find(": ") + 2);
    }
    return "none";
  };
  EXPECT_EQ(refusal({ours.certify(asked, "a", 60), ours.certificate(), 60}), "none");
  EXPECT_EQ(refusal({theirs.certify(asked, "a", 60), theirs.certificate(), 60}),
            "it comes from another authority than the one given here");
  EXPECT_EQ(refusal({ours.certify(asked, "b", 60), ours.certificate(), 60}), "it names \"b\", not \"a\"");
  EXPECT_EQ(refusal({ours.certify(asked, "a", 60), ours.certificate(), 0}), "its lifetime is zero");
  EXPECT_EQ(refusal({ours.certify(asked, "a", 60), ours.certificate(), 7260}),
            "the clock of this machine is 2.0 h ahead of the coordinator's");
  EXPECT_EQ(refusal({ours.certify(asked, "a", 7260), ours.certificate(), 60}),
            "the clock of this machine is 2.0 h behind the coordinator's");
  EXPECT_EQ(refusal({"", ours.certificate(), 60}).substr(0, 36), "the text is not a certificate in PEM");
  EXPECT_NE(refusal({ours.certify(another.message().request, "a", 60), ours.certificate(), 60}), "none")
      << "for another's key";
}

TEST(Enrolment, MembersOfASessionAskForTheirOwn) {
  IssuingCoordinator coordinator({.minimum_size = 3});
  std::vector<std::jthread> members;
  for (const std::string id : {"a", "b", "c"})
    members.emplace_back([&, id] {
      Session session(joiner_of(coordinator, id));
      for (int step = 0; step < 3; ++step) {
        const SessionOutcome outcome = step_of(session);
        ASSERT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
      }
    });
}

// Certificates of two seconds: who joins after that is still let in, and shows the others a new one.
TEST(Enrolment, CertificatesAreRenewedBeforeTheyExpire) {
  IssuingCoordinator coordinator({}, 2);
  std::atomic<bool> done = false;
  Session first(joiner_of(coordinator, "a"));
  std::jthread stepping([&] {
    while (!done) EXPECT_EQ(step_of(first).status, SessionStatus::committed);
  });
  const auto certified = [&](const std::string& id) {
    const std::string log = coordinator.thread.log(), line = "certified member=\"" + id + "\"";
    int count = 0;
    for (auto at = log.find(line); at != std::string::npos; at = log.find(line, at + 1)) ++count;
    return count;
  };
  while (certified("a") < 4) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Session second(joiner_of(coordinator, "b"));
  const SessionOutcome outcome = step_of(second);
  EXPECT_EQ(outcome.status, SessionStatus::committed) << outcome.cause;
  EXPECT_EQ(outcome.members, 2);
  second.leave(10);
  done = true;
}

TEST(Enrolment, StrangersAreRefusedByNameOfCauseAndTheGroupGoesOn) {
  IssuingCoordinator coordinator;
  Session member(joiner_of(coordinator, "a"));
  ASSERT_EQ(step_of(member).status, SessionStatus::committed);

  const auto changed = [&](auto change) {
    EnrolmentOptions options = coordinator.enrolment("b");
    change(options);
    return refusal_of(coordinator.address(), options);
  };
  EXPECT_TRUE(contains(changed([](auto& o) { o.token = "wrong"; }), "the token is not this group's"));
  EXPECT_TRUE(contains(changed([](auto& o) { o.token.clear(); }), "the token is not this group's"));
  EXPECT_TRUE(contains(changed([](auto& o) { o.group = "other"; }), "serves group \"test\", not \"other\""));
  EXPECT_TRUE(contains(changed([](auto& o) { o.member = "a"; }), "a live member already uses the name \"a\""));
  EXPECT_TRUE(contains(changed([](auto& o) { o.member = "coordinator"; }),
                       "\"coordinator\" is the coordinator's name: no member may use it"));
  // Another group's authority is pinned: the token is not even shown.
  const std::string pinned = changed([](auto& o) { o.authority = Authority::create("test").certificate(); });
  EXPECT_TRUE(contains(pinned, "not from this group's authority"));

  const std::string log = coordinator.thread.log();
  EXPECT_TRUE(contains(log, "refused peer=\"127.0.0.1:"));
  EXPECT_EQ(step_of(member).status, SessionStatus::committed);
  EXPECT_EQ(step_of(member).epoch, 1U);  // nothing has disturbed it
}

TEST(Enrolment, RequestsThatLieAreRefused) {
  IssuingCoordinator coordinator;
  const TlsContext stranger = TlsContext::pinned_to(coordinator.pin);
  const auto answer = [&](const std::vector<ControlMessage>& messages) {
    return answer_over(secured(coordinator.address(), stranger), messages);
  };
  const CertificateRequest honest{"test", "token", "b", apply_for_certificate("b").request};
  EXPECT_EQ(answer({honest}), "accepted");
  CertificateRequest lie = honest;
  lie.request = std::string(100, 'x');
  EXPECT_TRUE(contains(answer({lie}), "malformed request for a certificate"));
  lie = honest;
  lie.member = "b\nserving";
  EXPECT_TRUE(contains(answer({lie}), "a certificate cannot name"));
  lie = honest;
  lie.token = std::string(256, 'x');
  lie.group = std::string(256, 'x');
  lie.member = std::string(256, 'x');
  lie.request = std::string(max_request_bytes, 'x');
  EXPECT_TRUE(
      contains(answer({lie}), "lost"));  // larger than any message before the handshake: the connection is closed
  EXPECT_TRUE(contains(coordinator.thread.log(), "malformed message: a length of"));
  // Without a certificate, no process is a member, whatever it knows.
  EXPECT_EQ(answer({ControlHello{"test", "token"}, report_of("b")}), "this connection shows no certificate");
  EXPECT_EQ(answer({report_of("b")}), "the first message must be the handshake");
  EXPECT_EQ(answer({honest}), "accepted");
}

TEST(Enrolment, NoProcessIsCertifiedAsAnother) {
  IssuingCoordinator coordinator;
  const TlsContext anna(coordinator.authority.issue("anna"));
  CertificateRequest request{"test", "token", "ben", apply_for_certificate("ben").request};
  EXPECT_EQ(answer_over(secured(coordinator.address(), anna), {request}),
            "the certificate is of \"anna\", not of \"ben\"");
  const auto as_member = [&](const CertificateRequest& asked) {
    return answer_over(secured(coordinator.address(), anna), {ControlHello{"test", "token"}, asked});
  };
  EXPECT_EQ(as_member(request), "the certificate is of \"anna\", not of \"ben\"");
  request.member = "anna";
  EXPECT_EQ(as_member(request), "accepted");
}

TEST(Enrolment, OtherCertificatesDoNotOpenTheDoor) {
  IssuingCoordinator coordinator;
  const auto answer = [&](const TlsIdentity& identity) {
    TlsIdentity trusting = identity;
    trusting.authority = coordinator.authority.certificate();
    try {
      return answer_over(secured(coordinator.address(), TlsContext(trusting)),
                         {ControlHello{"test", "token"}, report_of("a")});
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(answer(coordinator.authority.issue("a")), "accepted");
  EXPECT_TRUE(contains(answer(Authority::create("test").issue("a")), "alert"));
  EXPECT_TRUE(contains(answer(coordinator.authority.issue("a", 0)), "certificate expired"));
  while (coordinator.thread.log().find("it has expired") == std::string::npos) std::this_thread::yield();
  const std::string log = coordinator.thread.log();
  EXPECT_TRUE(contains(log, "it is not from this group's authority"));
  EXPECT_TRUE(contains(log, "refused peer=\"127.0.0.1:"));
}

TEST(Enrolment, ACertificateIsRenewedByItselfWhereTokensExpire) {
  const Authority authority = Authority::create("test");
  const std::string pin = authority_fingerprint(authority.certificate());
  const auto admission = std::make_shared<GroupAdmission>();
  const CoordinatorThread coordinator({}, {.admission = admission,
                                           .key = "what members show",
                                           .identity = authority.issue(std::string(coordinator_name)),
                                           .authority = authority});
  const EnrolmentOptions anna{"test", admission->new_token(60), pin, "anna"};
  const Enrolment first = enrol(coordinator.address(), anna, 10);
  EXPECT_EQ(first.key, "what members show");
  EXPECT_TRUE(contains(refusal_of(coordinator.address(), {"test", "token", pin, "ben"}), "not this group's"))
      << "the other kind of token is none here";

  admission->revoke_tokens();
  EXPECT_TRUE(contains(refusal_of(coordinator.address(), anna), "the token has been revoked"));
  const Enrolment renewed = enrol(coordinator.address(), anna, 10, first.identity);
  EXPECT_NE(renewed.identity.certificate, first.identity.certificate);
  EXPECT_EQ(renewed.key, first.key);
  EnrolmentOptions ben = anna;
  ben.member = "ben";
  EXPECT_THROW(enrol(coordinator.address(), ben, 10, first.identity), Error) << "it is not anna's to give";

  std::vector<std::string> kept;
  const EnrolledIdentity again({coordinator.address()}, anna, 10, renewed,
                               [&](const Enrolment& given) { kept.push_back(given.identity.certificate); });
  EXPECT_EQ(kept, std::vector{again.identity().certificate});
  EXPECT_EQ(again.key(), first.key);

  admission->revoke("anna", {});
  try {
    enrol(coordinator.address(), anna, 10, renewed.identity);
    ADD_FAILURE() << "it has a certificate";
  } catch (const Error& error) {
    EXPECT_TRUE(contains(error.what(), "the member \"anna\" has been revoked"));
  }
}

// Where names are kept: each key has one, the owner hears of it, and what cannot be kept is not certified.
TEST(Enrolment, ANameThatIsCertifiedIsNoOthers) {
  const Authority authority = Authority::create("test");
  const std::string pin = authority_fingerprint(authority.certificate());
  const auto admission = std::make_shared<GroupAdmission>();
  std::mutex mutex;
  std::vector<std::string> certified;
  const CoordinatorThread coordinator({}, {.admission = admission,
                                           .key = "key",
                                           .on_certified =
                                               [&](const std::string& member, const std::string& host) {
                                                 const std::lock_guard lock(mutex);
                                                 certified.push_back(member + " at " + host);
                                               },
                                           .identity = authority.issue(std::string(coordinator_name)),
                                           .authority = authority});
  const std::string token = admission->new_token(60);
  const EnrolmentOptions anna{"test", token, pin, "anna", apply_for_certificate("anna").key};
  const Enrolment first = enrol(coordinator.address(), anna, 10);
  EXPECT_NE(enrol(coordinator.address(), anna, 10).identity.certificate, first.identity.certificate) << "the same key";
  EXPECT_EQ(enrol(coordinator.address(), {"test", token, pin, "anna"}, 10, first.identity).valid_s, first.valid_s);
  for (const std::string name : {"anna", "Anna"})
    EXPECT_TRUE(contains(refusal_of(coordinator.address(), {"test", token, pin, name}),
                         "another machine is called \"anna\": choose another name"));
  for (const std::string name : {"box#1", "default", "a/0"})
    EXPECT_TRUE(contains(refusal_of(coordinator.address(), {"test", token, pin, name}),
                         "a machine cannot be called \"" + name + "\""));
  EXPECT_EQ(certified, std::vector<std::string>{"anna at 127.0.0.1"});

  admission->keep_with([](const AdmissionRecord&) { throw Error(ErrorCode::environment, "/secret/place is full"); });
  EXPECT_TRUE(contains(refusal_of(coordinator.address(), {"test", token, pin, "ben"}),
                       "the coordinator cannot write down which names it certifies"));
  EXPECT_EQ(admission->record().certified.size(), 1u);
}

TEST(Enrolment, AnExpiredCertificateNeedsAToken) {
  IssuingCoordinator coordinator;
  const Enrolment expired{coordinator.authority.issue("anna", 0), 1, "token"};
  EnrolmentOptions anna = coordinator.enrolment("anna");
  EXPECT_EQ(certificate_facts(EnrolledIdentity({coordinator.address()}, anna, 10, expired).identity().certificate).name,
            "anna");
  anna.token = "another";
  EXPECT_THROW(EnrolledIdentity({coordinator.address()}, anna, 10, expired), Error);
}

// A member that pretends to be the coordinator would learn the token of those that believe it.
TEST(Enrolment, AMemberIsNotTakenForTheCoordinator) {
  const Authority authority = Authority::create("test");
  CoordinatorThread impostor({}, {.identity = authority.issue("mallory"), .authority = authority});
  EXPECT_TRUE(contains(refusal_of(impostor.address(), {"test", "token", authority.certificate(), "a"}),
                       "the certificate at " + impostor.address() + " names \"mallory\", not \"coordinator\""));
}

TEST(Enrolment, CoordinatorsThatIssueNothingSaySo) {
  const Authority authority = Authority::create("test");
  const std::string pin = authority_fingerprint(authority.certificate());
  CoordinatorThread strict({}, {.identity = authority.issue("coordinator")});
  EXPECT_TRUE(contains(refusal_of(strict.address(), {"test", "token", pin, "a"}), "certificate required"));
  CoordinatorThread plain;
  EXPECT_TRUE(contains(refusal_of(plain.address(), {"test", "token", pin, "a"}), "no certificate from"));
}

TEST(Enrolment, HalfOpenConnectionsHoldNobodyUp) {
  IssuingCoordinator coordinator;
  ConnectFailure failure;
  std::vector<ByteStream> silent;
  for (int i = 0; i < 20; ++i) silent.emplace_back(connect_tcp(coordinator.address(), soon(), failure));
  // These have shaken hands, and stop in the middle of a request.
  for (int i = 0; i < 5; ++i) {
    silent.push_back(secured(coordinator.address(), TlsContext::pinned_to(coordinator.pin)));
    silent.back().write_all(std::as_bytes(std::span("\x40\0\0\0\1", 5)), soon());
  }
  EXPECT_EQ(refusal_of(coordinator.address(), coordinator.enrolment("a")), "none");
  for (ByteStream& stream : silent) {
    std::array<std::byte, 1> nothing;
    EXPECT_THROW(stream.read_all(nothing, soon()), Error);
  }
  EXPECT_TRUE(contains(coordinator.thread.log(), "cause=\"no handshake in time\""));
}

TEST(Enrolment, FloodsAreBounded) {
  IssuingCoordinator coordinator;
  std::string refusal = "none";
  const auto start = Clock::now();
  for (int i = 0; i < 1000 && refusal == "none"; ++i)
    refusal = refusal_of(coordinator.address(), coordinator.enrolment("m" + std::to_string(i)));
  const std::chrono::duration<double> took = Clock::now() - start;
  if (refusal == "none" && took.count() > 40) GTEST_SKIP() << "this machine makes no flood: under a sanitizer, say";
  EXPECT_TRUE(contains(refusal, "too many certificates are requested"));
}

}  // namespace
}  // namespace motley
