#include "motley/server/http_server.hpp"

#include <gtest/gtest.h>
#include <netinet/tcp.h>

#include <atomic>
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
  std::shared_ptr<Exchange> held() { return held_.get_future().get(); }

 private:
  static ServerOptions with_port(ServerOptions options) {
    options.port = 0;
    return options;
  }
  void answer(HttpRequest request, std::shared_ptr<Exchange> exchange) {
    if (request.path == "/hold") return held_.set_value(std::move(exchange));
    HttpResponse response;
    response.body = request.method + " " + request.path + " " + std::to_string(request.body.size());
    exchange->reply(std::move(response));
  }
  std::promise<std::shared_ptr<Exchange>> held_;
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
                      "POST /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                      "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"),
                  "POST /c 5"));
  RawClient client(echo.port());
  client.send("POST /e HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
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
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 104857600\r\n\r\n");
  client.send(std::string(1 << 20, 'x'));
  EXPECT_TRUE(client.receive_until("}}").starts_with("HTTP/1.1 413 "));
  // And where no size is announced, when they become too many.
  RawClient chunked(echo.port());
  chunked.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
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
  body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(body.receive_all(), "");
}

TEST(HttpServer, LimitsConnections) {
  Echo echo({.max_connections = 2});
  RawClient first(echo.port()), second(echo.port());
  first.send(http_get_request("/1", ""));
  second.send(http_get_request("/2", ""));
  first.receive_until("GET /1 0");
  second.receive_until("GET /2 0");
  EXPECT_TRUE(ask(echo.port(), http_get_request("/3")).starts_with("HTTP/1.1 503 "));
  first.close();
  for (int i = 0; i < 100 && !has(ask(echo.port(), http_get_request("/4")), "GET /4 0"); ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(has(ask(echo.port(), http_get_request("/4")), "GET /4 0"));
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
    exchange->send("data: nobody reads this\n\n");
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
