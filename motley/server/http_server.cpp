#include "motley/server/http_server.hpp"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/server/openai_api.hpp"

namespace motley {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using beast::error_code;

namespace {

constexpr auto no_throw = asio::as_tuple(asio::use_awaitable);

// How long a client may go on sending what was refused, so that it reads the answer before the connection is reset.
constexpr std::chrono::seconds linger_time(2);

enum class After { keep_alive, close };

std::string head_of(int status, std::string_view content_type, After after) {
  const auto reason = http::obsolete_reason(static_cast<http::status>(status));
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nConnection: {}\r\n", status,
                     std::string_view(reason.data(), reason.size()), content_type,
                     after == After::close ? "close" : "keep-alive");
}

std::string whole_answer(const HttpResponse& response, After after) {
  std::string text = head_of(response.status, response.content_type, after);
  for (const auto& [name, value] : response.headers) text += fmt::format("{}: {}\r\n", name, value);
  return text + fmt::format("Content-Length: {}\r\n\r\n{}", response.body.size(), response.body);
}

// Work that other threads give to the transport's: it is woken once for all that comes before it looks.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  // `context` is shared since an answer may be given when the server is gone.
  explicit Mailbox(std::shared_ptr<asio::io_context> context) : context_(std::move(context)) {}

  asio::io_context& context() { return *context_; }

  void put(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    if (work_.size() == 1) asio::post(*context_, [self = shared_from_this()] { self->run(); });
  }

 private:
  void run() {
    std::vector<std::function<void()>> all;
    {
      const std::lock_guard lock(mutex_);
      all.swap(work_);
    }
    for (const auto& work : all) work();
  }

  std::shared_ptr<asio::io_context> context_;
  std::mutex mutex_;
  std::vector<std::function<void()>> work_;
};

// What one request is answered with: filled by any thread, drained by its session on the transport's thread.
class Outbox final : public Exchange, public std::enable_shared_from_this<Outbox> {
 public:
  Outbox(std::shared_ptr<Mailbox> mailbox, After after, bool chunked, std::size_t max_unread_bytes)
      : mailbox_(std::move(mailbox)),
        wake_(mailbox_->context()),
        after_(after),
        chunked_(chunked),
        max_unread_bytes_(max_unread_bytes) {
    wake_.expires_at(asio::steady_timer::time_point::max());
  }

  void reply(HttpResponse response) override { put(whole_answer(response, after_), Last::yes); }

  void start_stream() override {
    std::string head = head_of(200, "text/event-stream", after_) + "Cache-Control: no-cache\r\n";
    put(head + (chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"), Last::no);
  }

  void send(std::string events) override {
    put(chunked_ ? fmt::format("{:x}\r\n{}\r\n", events.size(), events) : std::move(events), Last::no);
  }

  void end() override { put(chunked_ ? "0\r\n\r\n" : "", Last::yes); }

  bool gone() const override { return gone_; }

  void on_gone(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      if (!gone_) {
        callback_ = std::move(callback);
        return;
      }
    }
    callback();
  }

  // ---- for the session, on the transport's thread ----

  std::string take() {
    std::string text = std::exchange(text_, {});
    unread_bytes_ -= text.size();
    return text;
  }
  bool finished() const { return finished_; }
  asio::awaitable<void> wait() { co_await wake_.async_wait(no_throw); }

  void leave() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      callback = std::exchange(callback_, nullptr);
    }
    wake_.cancel();
    if (callback) callback();
  }

  // Reports the end of the connection by the other side. Bytes that come in early are the next request's: from then on
  // only writing tells.
  void watch(tcp::socket& socket) {
    watching_ = true;
    socket.async_wait(tcp::socket::wait_read, [self = shared_from_this(), &socket](error_code status) {
      if (!self->watching_ || status == asio::error::operation_aborted) return;
      char byte = 0;
      error_code peek;
      const std::size_t count = socket.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, peek);
      if (peek || count == 0) self->leave();
    });
  }
  void stop_watching(tcp::socket& socket) {
    watching_ = false;
    error_code ignored;
    socket.cancel(ignored);
  }
  // Ends the connection from outside the session, also when that is stuck in writing.
  std::function<void()> abort;

 private:
  enum class Last { no, yes };

  void put(std::string text, Last last) {
    // Under the lock: once leave() has returned, nothing more is given to the context, which may never run again.
    const std::lock_guard lock(mutex_);
    if (gone_) return;
    const bool too_much = unread_bytes_.fetch_add(text.size()) > max_unread_bytes_;
    mailbox_->put([self = shared_from_this(), text = std::move(text), last, too_much] {
      if (self->gone_) return;
      self->text_ += text;
      self->finished_ = self->finished_ || last == Last::yes;
      self->wake_.cancel();
      if (too_much && self->abort) self->abort();
    });
  }

  std::shared_ptr<Mailbox> mailbox_;
  asio::steady_timer wake_;  // never expires; cancelled when there is news
  const After after_;
  const bool chunked_;
  const std::size_t max_unread_bytes_;
  std::atomic<std::size_t> unread_bytes_{0};
  std::string text_;
  bool finished_ = false, watching_ = false;

  std::mutex mutex_;  // of changes to the two below
  std::atomic<bool> gone_{false};
  std::function<void()> callback_;
};

tcp::endpoint endpoint_of(const ServerOptions& options) {
  if (options.port < 0 || options.port > 65535)
    throw input_error(fmt::format("a port must be from 0 to 65535, found {}", options.port), "give another --port");
  error_code status;
  const auto address = asio::ip::make_address(options.host == "localhost" ? "127.0.0.1" : options.host, status);
  if (status)
    throw input_error(fmt::format("\"{}\" is not an address to listen on", options.host),
                      "give a numeric address such as 127.0.0.1");
  if (!address.is_loopback() && !options.insecure)
    throw input_error(
        fmt::format("{} is reachable from other machines, but the connection is not encrypted", options.host),
        "listen on 127.0.0.1 behind a proxy that speaks TLS, or pass --insecure and set an API key");
  return {address, static_cast<std::uint16_t>(options.port)};
}

}  // namespace

struct Server::Impl : std::enable_shared_from_this<Server::Impl> {
  Impl(HttpHandler the_handler, ServerOptions the_options)
      : handler(std::move(the_handler)), options(std::move(the_options)), acceptor(*context) {}

  HttpHandler handler;
  const ServerOptions options;
  std::shared_ptr<asio::io_context> context = std::make_shared<asio::io_context>(1);
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>(context);  // shared with the answers
  tcp::acceptor acceptor;
  int port = 0;
  std::thread thread;

  // On the transport's thread alone:
  struct Session {
    explicit Session(tcp::socket socket) : stream(std::move(socket)) {}
    beast::tcp_stream stream;
    beast::flat_buffer buffer;
    std::shared_ptr<Outbox> answering;  // none: between requests
  };
  std::set<Session*> sessions;
  bool stopping = false;

  std::mutex mutex;
  std::condition_variable sessions_ended;
  std::size_t session_count = 0;  // for stop(), under the mutex

  void listen() {
    const tcp::endpoint endpoint = endpoint_of(options);
    try {
      acceptor.open(endpoint.protocol());
      acceptor.set_option(tcp::acceptor::reuse_address(true));
      acceptor.bind(endpoint);
      acceptor.listen();
      port = acceptor.local_endpoint().port();
    } catch (const boost::system::system_error& error) {
      throw Error(ErrorCode::environment,
                  fmt::format("cannot listen on {}:{}: {}", options.host, options.port, error.code().message()),
                  "choose another port with --port, or 0 for any free one");
    }
  }

  void start() {
    listen();
    asio::co_spawn(*context, accept(shared_from_this()), asio::detached);
    thread = std::thread([this] { context->run(); });
  }

  static asio::awaitable<void> accept(std::shared_ptr<Impl> self) {
    while (self->acceptor.is_open()) {
      auto [status, socket] = co_await self->acceptor.async_accept(no_throw);
      if (!status) {
        asio::co_spawn(*self->context, serve(self, std::move(socket)), asio::detached);
      } else if (self->acceptor.is_open()) {  // too many open files: they may become fewer
        asio::steady_timer pause(*self->context, std::chrono::milliseconds(100));
        co_await pause.async_wait(no_throw);
      }
    }
  }

  static asio::awaitable<void> serve(std::shared_ptr<Impl> self, tcp::socket socket) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    Session session(std::move(socket));
    self->enter(session);
    if (self->sessions.size() > self->options.max_connections)
      co_await self->refuse(session, 503, "too many connections");
    else
      while (co_await self->serve_one(session)) {
      }
    session.stream.socket().close(ignored);
    self->leave(session);
  }

  void enter(Session& session) {
    sessions.insert(&session);
    const std::lock_guard lock(mutex);
    ++session_count;
  }

  void leave(Session& session) {
    sessions.erase(&session);
    const std::lock_guard lock(mutex);
    --session_count;
    sessions_ended.notify_all();
  }

  // Reads one request and writes its answer. False: the connection is to be closed.
  asio::awaitable<bool> serve_one(Session& session) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(options.max_header_bytes));
    parser.body_limit(options.max_body_bytes);

    if (stopping) co_return false;
    session.stream.expires_after(options.header_timeout);
    auto [status, read] = co_await http::async_read_header(session.stream, session.buffer, parser, no_throw);
    if (!status && beast::iequals(parser.get()[http::field::expect], "100-continue") && !parser.is_done()) {
      const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      std::tie(status, read) = co_await asio::async_write(session.stream, asio::buffer(go_on), no_throw);
    }
    if (!status && !parser.is_done()) {
      session.stream.expires_after(options.body_timeout);
      std::tie(status, read) = co_await http::async_read(session.stream, session.buffer, parser, no_throw);
    }
    if (status) {
      co_await refuse_unreadable(session, status);
      co_return false;
    }
    co_return co_await answer(session, parser.release());
  }

  // A client that has left or is too slow is not answered.
  asio::awaitable<void> refuse_unreadable(Session& session, error_code status) {
    if (status == http::error::header_limit || status == http::error::buffer_overflow) {
      co_await refuse(session, 431, fmt::format("the header is larger than {} bytes", options.max_header_bytes));
    } else if (status == http::error::body_limit) {
      co_await refuse(session, 413, fmt::format("the body is larger than {} bytes", options.max_body_bytes));
    } else if (status.category() == make_error_code(http::error::bad_method).category() &&
               status != http::error::end_of_stream && status != http::error::partial_message) {
      co_await refuse(session, 400, fmt::format("invalid HTTP request: {}", status.message()));
    }
  }

  // Answers without having read all, and closes in a way that lets the client see the answer.
  asio::awaitable<void> refuse(Session& session, int status, std::string message) {
    const std::string text = whole_answer(error_response(ApiError(status, std::move(message))), After::close);
    session.stream.expires_after(linger_time);
    auto [failed, written] = co_await asio::async_write(session.stream, asio::buffer(text), no_throw);
    if (failed) co_return;
    error_code ignored;
    session.stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
    std::string dropped(64 << 10, '\0');
    while (!failed)
      std::tie(failed, written) = co_await session.stream.async_read_some(asio::buffer(dropped), no_throw);
  }

  asio::awaitable<bool> answer(Session& session, http::request<http::string_body> message) {
    // After HEAD the answer's body would be taken for the next answer.
    const bool again = message.keep_alive() && !stopping && message.method() != http::verb::head;
    const After after = again ? After::keep_alive : After::close;
    const auto outbox = std::make_shared<Outbox>(mailbox, after, message.version() >= 11, options.max_unread_bytes);
    tcp::socket& socket = session.stream.socket();
    outbox->abort = [&socket, outbox = outbox.get()] {
      outbox->leave();
      error_code ignored;
      socket.close(ignored);
    };
    session.answering = outbox;
    outbox->watch(socket);

    const std::string target(message.target());
    handler(HttpRequest{.method = std::string(message.method_string()),
                        .path = target.substr(0, target.find('?')),
                        .authorization = std::string(message[http::field::authorization]),
                        .content_type = std::string(message[http::field::content_type]),
                        .body = std::move(message.body())},
            outbox);
    co_await write_answer(session, *outbox);

    outbox->abort = nullptr;
    session.answering = nullptr;
    outbox->stop_watching(socket);
    const bool complete = outbox->finished() && !outbox->gone();
    outbox->leave();
    co_return complete&& again;
  }

  asio::awaitable<void> write_answer(Session& session, Outbox& outbox) {
    while (!outbox.gone()) {
      const bool last = outbox.finished();
      const std::string text = outbox.take();
      if (text.empty() && last) co_return;
      if (text.empty()) {
        session.stream.expires_never();
        co_await outbox.wait();
        continue;
      }
      session.stream.expires_after(options.write_timeout);
      auto [status, written] = co_await asio::async_write(session.stream, asio::buffer(text), no_throw);
      if (status) outbox.leave();
    }
  }

  // Sessions that are between requests end at once, the others when they are answered.
  void begin_stopping() {
    stopping = true;
    error_code ignored;
    acceptor.close(ignored);
    for (Session* session : sessions)
      if (!session->answering) session->stream.socket().close(ignored);
  }

  void close_all() {
    error_code ignored;
    for (Session* session : sessions) {
      if (session->answering) session->answering->leave();
      session->stream.socket().close(ignored);
    }
  }
};

Server::Server(HttpHandler handler, ServerOptions options)
    : impl_(std::make_shared<Impl>(std::move(handler), std::move(options))) {
  impl_->start();
}

Server::~Server() { stop(std::chrono::milliseconds(0)); }

int Server::port() const { return impl_->port; }

void Server::stop(std::chrono::milliseconds grace) {
  if (!impl_->thread.joinable()) return;
  asio::post(*impl_->context, [impl = impl_.get()] { impl->begin_stopping(); });
  {
    std::unique_lock lock(impl_->mutex);
    impl_->sessions_ended.wait_for(lock, grace, [this] { return impl_->session_count == 0; });
  }
  asio::post(*impl_->context,
             [impl = impl_.get()] { impl->close_all(); });  // perhaps never run: the thread may be done
  impl_->thread.join();                                     // when all sessions have ended
}

}  // namespace motley
