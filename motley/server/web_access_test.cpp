#include "motley/server/web_access.hpp"

#include <gtest/gtest.h>

#include "motley/base/error.hpp"

namespace motley {
namespace {

const WebAccess loopback_access{.host = "127.0.0.1"};

bool refused(const WebAccess& access, std::string_view host, std::string_view origin = {}) {
  return !web_refusal(access, host, origin).empty();
}

TEST(WebAccess, OwnNamesAreThoseOfLoopback) {
  for (const char* own : {"localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:8000", "127.9.9.9:1", "[::1]",
                          "[::1]:8000", "localhost:"})
    EXPECT_FALSE(refused(loopback_access, own)) << own;
  for (const char* foreign : {"evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example",
                              "127.0.0.1@evil.example", "evil.example:localhost", "10.0.0.5:8000", "[::2]:8000",
                              "[localhost", "2130706433", "0.0.0.0:8000", " localhost"})
    EXPECT_TRUE(refused(loopback_access, foreign)) << foreign;
  EXPECT_FALSE(refused({.host = "box"}, "box:8000"));
  EXPECT_FALSE(refused(loopback_access, ""));
  // Elsewhere it is not known by which names others call this machine.
  EXPECT_FALSE(refused({.host = "10.0.0.5", .loopback = false}, "box.lan:8000"));
}

TEST(WebAccess, PagesOfOthersAreRefused) {
  EXPECT_FALSE(refused(loopback_access, "localhost:8000", "http://localhost:8000"));
  EXPECT_FALSE(refused(loopback_access, "localhost:8000", "HTTPS://localhost:8000"));
  for (const char* origin : {"http://evil.example", "http://localhost:3000", "http://127.0.0.1:8000", "null", "file://",
                             "http://localhost:8000.evil.example", "localhost:8000"})
    EXPECT_TRUE(refused(loopback_access, "localhost:8000", origin)) << origin;
  // Also where the server listens to other machines.
  EXPECT_TRUE(refused({.host = "10.0.0.5", .loopback = false}, "10.0.0.5:8000", "http://evil.example"));
}

TEST(WebAccess, AllowedOriginsMayAskAndNameTheServer) {
  const WebAccess access{.host = "127.0.0.1", .origins = {"https://chat.example.com", "http://localhost:3000"}};
  EXPECT_FALSE(refused(access, "localhost:8000", "http://localhost:3000"));
  EXPECT_FALSE(refused(access, "localhost:8000", "https://Chat.example.com"));
  EXPECT_TRUE(refused(access, "localhost:8000", "http://chat.example.com"));
  EXPECT_FALSE(refused(access, "chat.example.com"));  // a proxy passes the name on
  EXPECT_TRUE(refused(access, "example.com"));
  const WebAccess all{.host = "127.0.0.1", .origins = {"*"}};
  EXPECT_FALSE(refused(all, "evil.example", "null"));
  EXPECT_EQ(web_headers(access, "http://evil.example"), "Vary: Origin\r\n");
}

TEST(WebAccess, LongOrOddNamesAreNotRepeated) {
  const std::string reason = web_refusal(loopback_access, std::string(10000, 'x') + "\x1b[31m\xff", {});
  EXPECT_LT(reason.size(), 400U);
  const std::string odd = web_refusal(loopback_access, "a\x1b\xff", {});
  EXPECT_NE(odd.find("`a??`"), std::string::npos) << odd;
}

TEST(WebAccess, OriginsAreWhatBrowsersSend) {
  for (const char* origin : {"*", "https://chat.example.com", "http://localhost:3000", "http://[::1]:3000",
                             "chrome-extension://abcdef", "app://localhost"})
    EXPECT_NO_THROW(check_origin(origin)) << origin;
  for (const char* origin : {"", "chat.example.com", "https://chat.example.com/", "https://", "https://*.example.com",
                             "https://a b", "null", "https://a\r\nX: y"})
    EXPECT_THROW(check_origin(origin), Error) << origin;
}

}  // namespace
}  // namespace motley
