#include "motley/comm/authority/authority.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>

#include <fmt/format.h>

#include "motley/base/error.hpp"
#include "motley/base/value.hpp"
#include "motley/comm/authority/group_folder.hpp"

namespace motley {
namespace {

template <class Run>
std::string refusal_of(Run run) {
  try {
    run();
    return "none";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(Authority, CertifiesARequestUnderTheNameThatItIsTold) {
  const Authority authority = Authority::create("test");
  const CertificateApplication application = apply_for_certificate("mallory");
  EXPECT_LE(application.request.size(), max_request_bytes);
  const std::string certificate = authority.certify(application.request, "anna", 3600);
  const CertificateFacts facts = certificate_facts(certificate);
  EXPECT_EQ(facts.name, "anna");
  EXPECT_NEAR(static_cast<double>(facts.expires_s), static_cast<double>(std::time(nullptr)) + 3600, 60);
  EXPECT_TRUE(is_issued_by(certificate, authority.certificate()));
  EXPECT_FALSE(is_issued_by(certificate, Authority::create("test").certificate()));
  EXPECT_EQ(refusal_of([&] { TlsContext({certificate, application.key, authority.certificate()}); }), "none");
  const std::string another = apply_for_certificate("anna").key;
  EXPECT_NE(refusal_of([&] { TlsContext({certificate, another, authority.certificate()}); }), "none");
}

TEST(Authority, MalformedRequestsAreRefused) {
  const Authority authority = Authority::create("test");
  const std::string request = apply_for_certificate("a").request;
  const auto refusal = [&](const std::string& bytes) {
    return refusal_of([&] { authority.certify(bytes, "a", 3600); });
  };
  for (std::size_t size = 0; size < request.size(); ++size) EXPECT_NE(refusal(request.substr(0, size)), "none") << size;
  EXPECT_NE(refusal(request + '\0').find("it is not PKCS #10"), std::string::npos);
  EXPECT_NE(refusal(std::string(max_request_bytes + 1, 'x')).find("more than 512"), std::string::npos);
  std::string forged = request;
  forged[forged.size() - 1] = static_cast<char>(forged.back() ^ 1);  // in the signature
  EXPECT_NE(refusal(forged).find("malformed request"), std::string::npos);
  // Whatever bit is turned over: what is certified is never another key than the one that has signed.
  for (std::size_t i = 0; i < request.size(); ++i) {
    forged = request;
    forged[i] = static_cast<char>(forged[i] ^ 4);
    EXPECT_NE(refusal(forged), "none") << i;
  }
}

TEST(Authority, NamesFitIntoCertificates) {
  for (const std::string& name : {std::string("a"), std::string(64, 'n'), std::string("b\xc3\xbcro 3")})
    EXPECT_EQ(refusal_of([&] { check_certificate_name(name); }), "none");
  for (const std::string& name : {std::string(), std::string(65, 'n'), std::string("a\nb"), std::string("a\0b", 3),
                                  std::string("\xff\xfe"), std::string("a\x7f")})
    EXPECT_NE(refusal_of([&] { check_certificate_name(name); }), "none");
}

TEST(Authority, IsKnownByItsCertificateOrItsFingerprint) {
  const Authority authority = Authority::create("test");
  const std::string fingerprint = certificate_facts(authority.certificate()).fingerprint;
  EXPECT_EQ(fingerprint.size(), 71U);
  EXPECT_EQ(authority_fingerprint(authority.certificate()), fingerprint);
  EXPECT_EQ(authority_fingerprint(fingerprint), fingerprint);
  for (const std::string& text : {std::string(), std::string("sha256:"), fingerprint + "0", std::string("sha1:00")})
    EXPECT_NE(refusal_of([&] { authority_fingerprint(text); }), "none") << text;
}

class GroupFolderTest : public ::testing::Test {
 protected:
  GroupFolderTest()
      : folder_((std::filesystem::temp_directory_path() / fmt::format("motley-group-{}", ::getpid())).string()) {
    std::filesystem::remove_all(folder_);
  }
  ~GroupFolderTest() override { std::filesystem::remove_all(folder_); }
  std::string place(const std::string& name) const { return folder_ + "/" + name; }

  std::string folder_;
};

mode_t mode_of(const std::string& path) {
  struct stat facts {};
  EXPECT_EQ(::stat(path.c_str(), &facts), 0) << path;
  return facts.st_mode & 0777;
}

TEST_F(GroupFolderTest, IsReadBackAndKeepsItsSecrets) {
  const GroupFolder made = create_group_folder(place("lab"), "lab");
  for (const char* secret : {"lab/token", "lab/key.pem", "lab/authority-key.pem"})
    EXPECT_EQ(mode_of(place(secret)), 0600U) << secret;
  const GroupFolder read = read_group_folder(place("lab"));
  EXPECT_EQ(read.group, "lab");
  EXPECT_EQ(read.token, made.token);
  ASSERT_TRUE(read.authority);
  EXPECT_EQ(certificate_facts(read.identity.certificate).name, "coordinator");

  issue_member_folder(read, "anna", 7, place("anna"));
  const GroupFolder anna = read_group_folder(place("anna"));
  EXPECT_FALSE(anna.authority);
  EXPECT_EQ(anna.token, made.token);
  EXPECT_EQ(certificate_facts(anna.identity.certificate).name, "anna");
  EXPECT_NE(refusal_of([&] { issue_member_folder(anna, "ben", 7, place("ben")); }), "none");
  EXPECT_FALSE(std::filesystem::exists(place("ben")));
}

TEST_F(GroupFolderTest, ACoordinatorsCertificateNamesItAndHasNotExpired) {
  const GroupFolder made = create_group_folder(place("lab"), "lab");
  check_coordinators_certificate(made.identity.certificate, "lab");
  const std::string other = made.authority->issue("anna", 7).certificate;
  EXPECT_EQ(refusal_of([&] { check_coordinators_certificate(other, "lab"); }),
            "lab/certificate.pem names \"anna\", not \"coordinator\"");
  const std::string old = made.authority->issue("coordinator", -1).certificate;
  EXPECT_EQ(refusal_of([&] { check_coordinators_certificate(old, "lab"); }), "lab/certificate.pem has expired");
}

TEST_F(GroupFolderTest, NothingIsOverwritten) {
  const GroupFolder made = create_group_folder(place("lab"), "lab");
  EXPECT_NE(refusal_of([&] { create_group_folder(place("lab"), "lab"); }).find("already exists"), std::string::npos);
  EXPECT_NE(refusal_of([&] { issue_member_folder(made, "anna", 7, place("lab")); }), "none");
  EXPECT_EQ(read_group_folder(place("lab")).token, made.token);
  // A coordinator's certificate that has run out is removed and issued again; the rest stays.
  std::filesystem::remove(place("lab/certificate.pem"));
  std::filesystem::remove(place("lab/key.pem"));
  EXPECT_EQ(refusal_of([&] { issue_member_folder(made, "coordinator", 7, place("lab")); }), "none");
  EXPECT_EQ(refusal_of([&] { read_group_folder(place("lab")); }), "none");
}

// The third of its files cannot be written: the two before it go again, and the same call succeeds once it can.
TEST_F(GroupFolderTest, WhatFailsHalfWayLeavesNothing) {
  const std::string lab = place("lab"), in_the_way = fmt::format("{}/certificate.pem.{}.tmp", lab, ::getpid());
  std::filesystem::create_directories(in_the_way);
  EXPECT_NE(refusal_of([&] { create_group_folder(lab, "lab"); }).find("certificate.pem"), std::string::npos);
  std::filesystem::remove(in_the_way);
  EXPECT_TRUE(std::filesystem::is_empty(lab));
  EXPECT_EQ(refusal_of([&] { create_group_folder(lab, "lab"); }), "none");
  EXPECT_EQ(read_group_folder(lab).group, "lab");
}

TEST_F(GroupFolderTest, WhatDoesNotFitIsNamed) {
  create_group_folder(place("lab"), "lab");
  create_group_folder(place("other"), "other");
  const auto swapped = [&](const char* name) {
    write_file(place("lab/") + name, read_file(place("other/") + name));
    return refusal_of([&] { read_group_folder(place("lab")); });
  };
  EXPECT_NE(swapped("authority-key.pem").find("authority-key.pem"), std::string::npos);
  EXPECT_NE(swapped("key.pem").find("key.pem"), std::string::npos);
  EXPECT_NE(swapped("certificate.pem").find("certificate.pem is not signed by the authority in the same folder"),
            std::string::npos);
  EXPECT_NE(refusal_of([&] { read_group_folder(place("absent")); }).find("is not a group's folder"), std::string::npos);
}

}  // namespace
}  // namespace motley
