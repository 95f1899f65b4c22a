#include "motley/server/http_server.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/server/http_client_test.hpp"

namespace motley {
namespace {

using namespace std::chrono_literals;

// Answers every request with its own method, path and body's size, or hands the exchange to the test (/hold).
class Echo {
 public:
  explicit Echo(ServerOptions options = {})
      : server_([this](HttpRequest r, std::shared_ptr<Exchange> e) { answer(std::move(r), std::move(e)); },
                with_port(options)) {}
  int port() const { return server_.port(); }
  Server& server() { return server_; }
  std::shared_ptr<Exchange> held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !held_.empty(); });
    auto first = std::move(held_.front());
    held_.pop_front();
    return first;
  }

 private:
  static ServerOptions with_port(ServerOptions options) {
    options.port = 0;
    return options;
  }
  void answer(HttpRequest request, std::shared_ptr<Exchange> exchange) {
    if (request.path == "/hold") {
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(exchange));
      return changed_.notify_all();
    }
    HttpResponse response;
    response.body = request.method + " " + request.path + " " + std::to_string(request.body.size());
    exchange->reply(std::move(response));
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Exchange>> held_;
  Server server_;
};

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  Echo echo;
  RawClient client(echo.port());
  for (int i = 0; i < 3; ++i) {
    client.send(http_post("/path?query=1", "12345", ""));
    const std::string answer = client.receive_until("POST /path 5");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_TRUE(has(answer, "Connection: keep-alive")) << answer;
  }
  // Two at once, on the same connection.
  client.send(http_get_request("/a", "") + http_get_request("/b"));
  const std::string answers = client.receive_all();
  EXPECT_TRUE(has(answers, "GET /a 0") && has(answers, "GET /b 0") && has(answers, "Connection: close")) << answers;
}

TEST(HttpServer, ReadsChunkedBodiesAndAnswersContinue) {
  Echo echo;
  EXPECT_TRUE(has(ask(echo.port(),
                      "POST /c HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
                  "POST /c 5"));
  RawClient client(echo.port());
  client.send(
      "POST /e HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_TRUE(client.receive_until("\r\n\r\n").starts_with("HTTP/1.1 100 Continue"));
  client.send("abcd");
  EXPECT_TRUE(has(client.receive_all(), "POST /e 4"));
}

TEST(HttpServer, RefusesWhatIsNoRequest) {
  Echo echo;
  for (const std::string bad :
       {"\r\n\r\n\r\n\r\nx", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "G\x01T / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n", "POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"}) {
    const std::string answer = ask(echo.port(), bad);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 Bad Request\r\n")) << bad << answer;
    EXPECT_TRUE(has(answer, "\"error\":{\"message\":")) << answer;
  }
  EXPECT_TRUE(has(ask(echo.port(), http_get_request("/still")), "GET /still 0"));
}

TEST(HttpServer, LimitsHeaderAndBody) {
  Echo echo;
  EXPECT_TRUE(
      ask(echo.port(), http_get_request("/", "X: " + std::string(20000, 'x') + "\r\n")).starts_with("HTTP/1.1 431 "));
  EXPECT_TRUE(ask(echo.port(), http_get_request("/" + std::string(20000, 'x'))).starts_with("HTTP/1.1 431 "));
  // A hundred megabytes are refused by their announced size, however much of them is sent.
  RawClient client(echo.port());
  client.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n");
  client.send(std::string(1 << 20, 'x'));
  EXPECT_TRUE(client.receive_until("}}").starts_with("HTTP/1.1 413 "));
  // And where no size is announced, when they become too many.
  RawClient chunked(echo.port());
  chunked.send("POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "100000\r\n" + std::string(1 << 20, 'x') + "\r\n";
  for (int i = 0; i < 9 && chunked.send(chunk); ++i) {
  }
  EXPECT_TRUE(chunked.receive_until("}}").starts_with("HTTP/1.1 413 "));
  EXPECT_TRUE(has(ask(echo.port(), http_post("/fits", std::string(8 << 20, 'x'))), "POST /fits 8388608"));
}

TEST(HttpServer, DoesNotWaitForTheSlow) {
  Echo echo({.header_timeout = 200ms, .body_timeout = 200ms});
  RawClient idle(echo.port());
  EXPECT_EQ(idle.receive_all(), "");
  RawClient header(echo.port());
  header.send("GET / HTTP/1.1\r\nHo");
  EXPECT_EQ(header.receive_all(), "");
  RawClient body(echo.port());
  body.send("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(body.receive_all(), "");
}

TEST(HttpServer, LimitsConnections) {
  Echo echo({.max_connections = 2});
  RawClient first(echo.port()), second(echo.port());
  first.send(http_get_request("/hold", ""));
  second.send(http_get_request("/hold", ""));
  const auto one = echo.held(), other = echo.held();
  EXPECT_TRUE(ask(echo.port(), http_get_request("/3")).starts_with("HTTP/1.1 503 "));
  one->reply({});
  other->reply({});
  EXPECT_TRUE(has(first.receive_until("\r\n\r\n") + second.receive_until("\r\n\r\n"), "200 OK"));
  // Both are between requests now: the one that has been so for longer makes room.
  EXPECT_TRUE(has(ask(echo.port(), http_get_request("/4")), "GET /4 0"));
}

TEST(HttpServer, ClosesWhatHasAskedNothingAndThenWhatIsIdle) {
  Echo echo({.max_connections = 3});
  RawClient idle(echo.port());
  idle.send(http_get_request("/warm", ""));
  EXPECT_TRUE(has(idle.receive_until("GET /warm 0"), "200 OK"));
  RawClient silent(echo.port()), begun(echo.port());
  begun.send("GET / HTTP/1.1\r\nHo");
  RawClient fourth(echo.port());
  fourth.send(http_get_request("/4", ""));
  EXPECT_TRUE(has(fourth.receive_until("GET /4 0"), "GET /4 0"));
  EXPECT_EQ(silent.receive_all(), "");
  RawClient fifth(echo.port());
  fifth.send(http_get_request("/5", ""));
  EXPECT_TRUE(has(fifth.receive_until("GET /5 0"), "GET /5 0"));
  EXPECT_EQ(begun.receive_all(), "");
  EXPECT_TRUE(has(ask(echo.port(), http_get_request("/6")), "GET /6 0"));
  EXPECT_EQ(idle.receive_all(), "");
  fifth.send(http_get_request("/still"));
  EXPECT_TRUE(has(fifth.receive_all(), "GET /still 0"));
}

// 70 connections that say nothing, where an address may have 8: another address is not touched, nor is an open request.
TEST(HttpServer, LimitsWhatAsksNothingFromOneAddress) {
  Echo echo({.max_new_per_address = 8});
  RawClient busy(echo.port()), other(echo.port(), "127.0.0.2");
  busy.send(http_get_request("/hold", ""));
  const auto exchange = echo.held();
  other.send(http_get_request("/other", ""));
  EXPECT_TRUE(has(other.receive_until("GET /other 0"), "GET /other 0"));
  std::deque<RawClient> silent;
  for (int i = 0; i < 70; ++i) silent.emplace_back(echo.port());
  EXPECT_TRUE(has(ask(echo.port(), http_get_request("/mine")), "GET /mine 0"));
  for (int i = 0; i < 62; ++i) EXPECT_EQ(silent[static_cast<std::size_t>(i)].receive_all(), "") << i;
  silent.back().send(http_get_request("/last"));
  EXPECT_TRUE(has(silent.back().receive_all(), "GET /last 0"));
  other.send(http_get_request("/again"));
  EXPECT_TRUE(has(other.receive_all(), "GET /again 0"));
  exchange->reply({});
  EXPECT_TRUE(busy.receive_until("\r\n\r\n").starts_with("HTTP/1.1 200 OK"));
}

TEST(HttpServer, ThoseThatDoNotReadMakeRoom) {
  Echo echo({.max_connections = 2, .max_unread_bytes = 1 << 30});
  RawClient first(echo.port()), second(echo.port());
  for (RawClient* client : {&first, &second}) {
    client->send(http_get_request("/hold", ""));
    HttpResponse large;
    large.body = std::string(32 << 20, 'x');  // more than sockets hold
    echo.held()->reply(std::move(large));
  }
  std::string answer;
  for (int i = 0; i < 200 && !has(answer, "GET /third 0"); ++i) {
    answer = ask(echo.port(), http_get_request("/third"));
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_TRUE(has(answer, "GET /third 0")) << answer;
}

TEST(HttpServer, LimitsTheMemoryOfBodies) {
  Echo echo({.max_bodies_bytes = 2 << 20});
  const auto begin = [](RawClient& client, std::size_t length, std::size_t sent) {
    client.send("POST /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n" +
                std::string(sent, 'x'));
  };
  RawClient small(echo.port()), large(echo.port()), larger(echo.port());
  begin(small, 200000, 100000);
  begin(large, 2000000, 1000000);
  begin(larger, 2000000, 1900000);
  EXPECT_FALSE(has(larger.receive_all(), "<silence>"));  // closed, or refused where it was about to become the largest
  EXPECT_TRUE(has(ask(echo.port(), http_post("/fits", std::string(200000, 'x'))), "POST /fits 200000"));
  small.send(std::string(100000, 'x'));
  EXPECT_TRUE(has(small.receive_until("POST /slow 200000"), "200 OK"));
}

// A body counts until what answers lets go of it.
TEST(HttpServer, CountsBodiesAsLongAsRequestsLive) {
  std::mutex mutex;
  std::deque<HttpRequest> kept;
  Server server(
      [&](HttpRequest request, const std::shared_ptr<Exchange>& exchange) {
        const std::lock_guard lock(mutex);
        kept.push_back(std::move(request));
        exchange->reply({});
      },
      {.port = 0, .max_bodies_bytes = 1 << 20});
  const std::string body(700000, 'x');
  EXPECT_TRUE(ask(server.port(), http_post("/", body)).starts_with("HTTP/1.1 200 "));
  EXPECT_TRUE(ask(server.port(), http_post("/", body)).starts_with("HTTP/1.1 503 "));
  {
    const std::lock_guard lock(mutex);
    kept.clear();
  }
  EXPECT_TRUE(ask(server.port(), http_post("/", body)).starts_with("HTTP/1.1 200 "));
}

TEST(HttpServer, LeavesNoDescriptorToChildren) {
  Echo echo;
  RawClient client(echo.port());
  client.send(http_get_request("/hold", ""));
  const auto exchange = echo.held();
  int others = 0, inherited = 0;
  for (int descriptor = 3; descriptor < 256; ++descriptor) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family != AF_INET || ntohs(address.sin_port) != echo.port()) continue;
    ++others;
    inherited += (::fcntl(descriptor, F_GETFD) & FD_CLOEXEC) == 0;
  }
  EXPECT_EQ(others, 2);  // the one that listens, and the client's
  EXPECT_EQ(inherited, 0);
}

TEST(HttpServer, RefusesForeignHostsAndOrigins) {
  Echo echo({.origins = {"https://chat.example.com"}});
  const std::string own = "localhost:" + std::to_string(echo.port());
  const auto status = [&](const std::string& headers) {
    return ask(echo.port(), "GET / HTTP/1.1\r\nConnection: close\r\n" + headers + "\r\n").substr(9, 3);
  };
  EXPECT_EQ(status("Host: " + own + "\r\n"), "200");
  EXPECT_EQ(status("Host: " + own + "\r\nOrigin: http://" + own + "\r\n"), "200");
  EXPECT_EQ(status("Host: " + own + "\r\nOrigin: https://chat.example.com\r\n"), "200");
  EXPECT_EQ(status("Host: evil.example\r\n"), "403");
  EXPECT_EQ(status("Host: evil.example\r\nOrigin: http://evil.example\r\n"), "403");
  EXPECT_EQ(status("Host: " + own + "\r\nOrigin: http://evil.example\r\n"), "403");
  EXPECT_EQ(status("Host: " + own + "\r\nOrigin: null\r\n"), "403");
  EXPECT_EQ(status(""), "400");
  EXPECT_EQ(status("Host: localhost\r\nHost: evil.example\r\n"), "400");
  // Not even the body is read.
  RawClient post(echo.port());
  post.send("POST / HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 100\r\n\r\n");
  EXPECT_TRUE(post.receive_until("}}").starts_with("HTTP/1.1 403 "));
}

TEST(HttpServer, AnswersPagesThatMayAsk) {
  const std::string page = "Origin: https://chat.example.com\r\n";
  const std::string allowed = "\r\nAccess-Control-Allow-Origin: https://chat.example.com\r\n";
  Echo echo({.max_body_bytes = 1000, .origins = {"http://localhost:3000", "https://chat.example.com"}});
  RawClient asks(echo.port());
  asks.send("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + page +
            "Access-Control-Request-Method: POST\r\n"
            "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n\r\n");
  const std::string preflight = asks.receive_until("\r\n\r\n");
  EXPECT_TRUE(preflight.starts_with("HTTP/1.1 200 ") && has(preflight, allowed)) << preflight;
  EXPECT_TRUE(has(preflight, "Access-Control-Allow-Headers: authorization,content-type,x-stainless-os\r\n") &&
              has(preflight, "Access-Control-Allow-Methods: GET, POST\r\n"))
      << preflight;
  asks.send(http_post("/then", "{}", page));
  EXPECT_TRUE(has(asks.receive_until("POST /then 2"), allowed));
  RawClient streams(echo.port());
  streams.send(http_get_request("/hold", page));
  const auto exchange = echo.held();
  exchange->start_stream();
  exchange->end();
  EXPECT_TRUE(has(streams.receive_until("0\r\n\r\n"), allowed));
  const std::string too_large = ask(echo.port(), http_post("/", std::string(2000, 'x'), page));
  EXPECT_TRUE(too_large.starts_with("HTTP/1.1 413 ") && has(too_large, allowed)) << too_large;
  // Caches keep answers to pages and to others apart.
  const std::string plain = ask(echo.port(), http_get_request("/"));
  EXPECT_TRUE(has(plain, "\r\nVary: Origin\r\n") && !has(plain, "Access-Control")) << plain;
  Echo closed;
  EXPECT_FALSE(has(ask(closed.port(), http_get_request("/")), "Vary"));
}

TEST(HttpServer, StreamsInChunks) {
  Echo echo;
  RawClient client(echo.port());
  client.send(http_get_request("/hold", ""));
  const auto exchange = echo.held();
  exchange->start_stream();
  const std::string head = client.receive_until("\r\n\r\n");
  EXPECT_TRUE(has(head, "Content-Type: text/event-stream") && has(head, "Transfer-Encoding: chunked")) << head;
  exchange->send("data: one\n\n");
  EXPECT_EQ(client.receive_until("\n\n\r\n"), "b\r\ndata: one\n\n\r\n");
  exchange->send("data: two\n\n");
  exchange->end();
  EXPECT_EQ(client.receive_until("0\r\n\r\n"), "b\r\ndata: two\n\n\r\n0\r\n\r\n");
  client.send(http_get_request("/next"));
  EXPECT_TRUE(has(client.receive_all(), "GET /next 0"));
}

TEST(HttpServer, StreamsToOldClientsUntilTheEnd) {
  Echo echo;
  RawClient client(echo.port());
  client.send("GET /hold HTTP/1.0\r\n\r\n");
  const auto exchange = echo.held();
  exchange->start_stream();
  exchange->send("data: one\n\n");
  exchange->end();
  const std::string answer = client.receive_all();
  EXPECT_TRUE(answer.ends_with("\r\n\r\ndata: one\n\n") && !has(answer, "chunked")) << answer;
}

TEST(HttpServer, NoticesThatTheClientHasLeft) {
  for (const bool streaming : {false, true}) {
    Echo echo;
    std::promise<void> gone;
    RawClient client(echo.port());
    client.send(http_get_request("/hold", ""));
    const auto exchange = echo.held();
    exchange->on_gone([&] { gone.set_value(); });
    if (streaming) exchange->start_stream();
    auto noticed = gone.get_future();
    EXPECT_EQ(noticed.wait_for(50ms), std::future_status::timeout);
    client.close();
    EXPECT_EQ(noticed.wait_for(20s), std::future_status::ready);
    exchange->send("data: this is not read\n\n");
    exchange->end();
    std::promise<void> at_once;
    exchange->on_gone([&] { at_once.set_value(); });
    EXPECT_EQ(at_once.get_future().wait_for(0s), std::future_status::ready);
  }
}

TEST(HttpServer, DropsAClientThatDoesNotRead) {
  Echo echo({.max_unread_bytes = 100000});
  std::promise<void> gone;
  RawClient client(echo.port());
  client.send(http_get_request("/hold", ""));
  const auto exchange = echo.held();
  exchange->on_gone([&] { gone.set_value(); });
  exchange->start_stream();
  auto noticed = gone.get_future();
  for (int i = 0; i < 2000 && noticed.wait_for(0s) != std::future_status::ready; ++i)
    exchange->send(std::string(20000, 'x'));
  EXPECT_EQ(noticed.wait_for(20s), std::future_status::ready);
  EXPECT_TRUE(has(ask(echo.port(), http_get_request("/others")), "GET /others 0"));
}

TEST(HttpServer, StopsInOrder) {
  Echo echo;
  const int port = echo.port();
  RawClient idle(port), busy(port);
  idle.send(http_get_request("/warm", ""));
  idle.receive_until("GET /warm 0");
  busy.send(http_get_request("/hold", ""));
  const auto exchange = echo.held();
  std::thread stopper([&] { echo.server().stop(5s); });
  EXPECT_EQ(idle.receive_all(), "");
  exchange->reply({});
  EXPECT_TRUE(busy.receive_all().starts_with("HTTP/1.1 200 OK"));
  stopper.join();
  EXPECT_FALSE(RawClient(port).connected());
  exchange->send("after the end");  // harmless
}

TEST(HttpServer, StopsWithoutThoseThatHang) {
  Echo echo;
  RawClient client(echo.port());
  client.send(http_get_request("/hold", ""));
  const auto exchange = echo.held();
  std::promise<void> gone;
  exchange->on_gone([&] { gone.set_value(); });
  echo.server().stop(100ms);
  EXPECT_EQ(gone.get_future().wait_for(0s), std::future_status::ready);
}

TEST(HttpServer, ChecksWhereItListens) {
  const auto error_of = [](ServerOptions options) {
    try {
      const Server server([](HttpRequest, std::shared_ptr<Exchange>) {}, std::move(options));
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::internal, "nothing was thrown");
  };
  Echo echo;
  const Error taken = error_of({.port = echo.port()});
  EXPECT_EQ(taken.code(), ErrorCode::environment);
  EXPECT_TRUE(has(taken.message(), "Address already in use") && has(taken.hint(), "--port")) << taken.message();
  EXPECT_EQ(error_of({.host = "0.0.0.0", .port = 0}).code(), ErrorCode::input);
  EXPECT_EQ(error_of({.host = "example.org", .port = 0}).code(), ErrorCode::input);
  EXPECT_EQ(error_of({.port = 70000}).code(), ErrorCode::input);
  EXPECT_EQ(error_of({.host = "192.0.2.1", .port = 0, .insecure = true}).code(), ErrorCode::environment);
  const Server open([](HttpRequest, std::shared_ptr<Exchange>) {}, {.host = "0.0.0.0", .port = 0, .insecure = true});
  EXPECT_GT(open.port(), 0);
}

}  // namespace
}  // namespace motley
