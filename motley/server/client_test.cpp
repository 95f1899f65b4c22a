// What a server may answer that is broken, is none of ours, or goes away in the middle.
#include "motley/server/client.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/net/sockets.hpp"

namespace motley {
namespace {

// Answers one request with these bytes, and closes.
class FakeServer {
 public:
  explicit FakeServer(std::string bytes)
      : listener_(listen_tcp("127.0.0.1:0")), thread_([this, bytes = std::move(bytes)](const std::stop_token& stop) {
          pollfd waiting{listener_.socket.get(), POLLIN, 0};
          while (!stop.stop_requested() && ::poll(&waiting, 1, 20) <= 0) {
          }
          const FileDescriptor client(::accept(listener_.socket.get(), nullptr, nullptr));
          if (!client) return;
          std::string request;  // all of it, or closing would reset the connection
          for (char piece[4096]; !request.ends_with("\r\n\r\n") && !request.ends_with("}");) {
            const ssize_t size = ::recv(client.get(), piece, sizeof piece, 0);
            if (size <= 0) return;
            request.append(piece, static_cast<std::size_t>(size));
          }
          EXPECT_EQ(::send(client.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
        }) {}
  ServerAddress address() const { return parse_server_url(listener_.address); }

 private:
  ListeningSocket listener_;
  std::jthread thread_;
};

std::string http(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

struct Refusal {
  ErrorCode code = ErrorCode::internal;
  std::string what = "none";
};

template <class Call>
Refusal refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {};
}

Refusal refusal_of_get(const std::string& answer) {
  const FakeServer server(answer);
  return refusal_of([&] { http_get(server.address(), "/x"); });
}

TEST(Client, AddressesAreRead) {
  EXPECT_EQ(parse_server_url("http://10.0.0.7:81/v1").host, "10.0.0.7");
  EXPECT_EQ(parse_server_url("http://10.0.0.7:81/v1").port, "81");
  EXPECT_EQ(parse_server_url("localhost").port, "8000");
  for (const char* url : {"", "http://", ":80", "host:", "host:http", "http://host:80x/v1"})
    EXPECT_EQ(refusal_of([&] { parse_server_url(url); }).what, std::string("\"") + url + "\" is not a server address");
  EXPECT_EQ(refusal_of([] { parse_server_url("https://host"); }).what, "https:// is not supported");
}

TEST(Client, ErrorsAreToldInTheServersWords) {
  const Refusal key = refusal_of_get(http("401 Unauthorized", R"({"error": {"message": "the key is wrong"}})"));
  EXPECT_EQ(key.code, ErrorCode::input);
  EXPECT_EQ(key.what, "the server answered 401: the key is wrong");
  const Refusal other = refusal_of_get(http("502 Bad Gateway", "<html>"));
  EXPECT_EQ(other.code, ErrorCode::peer);
  EXPECT_EQ(other.what, "the server answered 502: <html>");
  for (const char* body : {R"({"error": "closed"})", R"({"error": {"message": 5}})", "[]", "null"})
    EXPECT_EQ(refusal_of_get(http("500 Error", body)).what, std::string("the server answered 500: ") + body);
}

TEST(Client, WhatIsNoAnswerIsNamed) {
  const Refusal refused = refusal_of([] { http_get(parse_server_url("127.0.0.1:1"), "/x"); });
  EXPECT_EQ(refused.code, ErrorCode::peer);
  EXPECT_EQ(refused.what, "http://127.0.0.1:1/x: Connection refused");
  for (const char* answer : {"", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "HTTP/1.1 200 OK\r\n"}) {
    const Refusal refusal = refusal_of_get(answer);
    EXPECT_EQ(refusal.code, ErrorCode::peer) << answer;
    EXPECT_TRUE(refusal.what.starts_with("http://127.0.0.1:")) << refusal.what;
  }
  const Refusal cut = refusal_of_get("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"data\"");
  EXPECT_EQ(cut.code, ErrorCode::peer);
  EXPECT_TRUE(cut.what.starts_with("the server's answer broke off: ")) << cut.what;
  EXPECT_TRUE(refusal_of_get(http("200 OK", "<html>")).what.starts_with("answer of /x:1: "));
}

StreamedReply stream_of(const std::string& lines, std::string* pieces = nullptr) {
  const FakeServer server("HTTP/1.1 200 OK\r\n\r\n" + lines);
  return stream_completion(server.address(), Value::object(), [&](std::string_view piece) {
    if (pieces != nullptr) *pieces += "<" + std::string(piece) + ">";
  });
}

TEST(Client, AStreamIsReadAndWhatIsStrangeInItPassedOver) {
  std::string pieces;
  const StreamedReply reply = stream_of(
      ": a comment\n\ndata: 5\ndata: []\ndata: {\"choices\": [], \"usage\": 7}\ndata: {\"choices\": [{\"text\": 1}]}\n"
      "data: {\"choices\": [{\"text\": \"a\", \"token_ids\": [4, \"x\", 1.5]}]}\n"
      "data: {\"choices\": [{\"text\": \"b\", \"finish_reason\": \"stop\"}]}\n"
      "data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 3, \"completion_tokens\": \"2\"}}\ndata: [DONE]\n",
      &pieces);
  EXPECT_EQ(reply.text, "ab");
  EXPECT_EQ(pieces, "<a><b>");
  EXPECT_EQ(reply.token_ids, std::vector<std::int32_t>{4});
  EXPECT_EQ(reply.finish_reason, "stop");
  EXPECT_EQ(reply.prompt_tokens, 3);
  EXPECT_EQ(reply.completion_tokens, 0);
}

TEST(Client, AStreamThatBreaksOffIsNoAnswer) {
  const std::string begun = "data: {\"choices\": [{\"text\": \"a\"}]}\n";
  const auto refusal = [](const std::string& lines) { return refusal_of([&] { stream_of(lines); }); };
  EXPECT_EQ(refusal(begun).what, "the server's answer broke off before its end");
  EXPECT_EQ(refusal(begun).code, ErrorCode::peer);
  EXPECT_EQ(refusal(begun + "data: {\"error\": {\"message\": \"a worker has died\"}}\n").what, "a worker has died");
  EXPECT_TRUE(refusal(begun + "data: {\"choices\n").what.starts_with("answer:1: "));
  const FakeServer full(http("429 Too Many Requests", R"({"error": {"message": "the queue is full"}})"));
  EXPECT_EQ(refusal_of([&] { stream_chat(full.address(), Value::object(), {}, {}); }).what,
            "the server answered 429: the queue is full");
}

}  // namespace
}  // namespace motley
