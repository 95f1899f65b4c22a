#include "motley/server/http_server.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <list>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/comm/net/file_descriptor.hpp"
#include "motley/server/openai_api.hpp"
#include "motley/server/send_queue.hpp"
#include "motley/server/web_access.hpp"

namespace motley {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using beast::error_code;

namespace {

// How long a client may go on sending what was refused, so that it reads the answer before the connection is reset; and
// how many may at a time.
constexpr std::chrono::seconds linger_time(2);
constexpr int most_lingering = 16;

constexpr double stalled_s = 1;  // a client that takes no byte for so long makes room for others

constexpr std::size_t body_piece_bytes = 16 << 10;
constexpr std::chrono::milliseconds descriptor_pause(100);  // for others to give some back

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

// Connections take descriptors below this number alone: the rest is for workers and their weights, and for answers to
// those that are refused. The system gives the lowest that is free, so all below a new one's number are in use.
int first_reserved_descriptor() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const auto most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int>::max()));
  return most - most / 4 - most_lingering;
}

// Of an IPv6 address its network: one who has one address has 2^64.
asio::ip::address sender_of(const asio::ip::address& address) {
  if (!address.is_v6()) return address;
  asio::ip::address_v6 network = address.to_v6();
  if (network.is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, network);
  auto bytes = network.to_bytes();
  std::fill(bytes.begin() + 8, bytes.end(), std::uint8_t{0});
  return asio::ip::address_v6(bytes);
}

// A part of the memory for bodies; given back by whichever thread has it last.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<std::atomic<std::size_t>> all) : all_(std::move(all)) {}
  ~BodyShare() { set(0); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;
  void set(std::size_t bytes) {
    *all_ += bytes - bytes_;
    bytes_ = bytes;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<std::atomic<std::size_t>> all_;
  std::size_t bytes_ = 0;
};

using Request = http::request<http::buffer_body>;

std::string_view header(const Request& request, http::field field) {
  const auto value = request[field];
  return {value.data(), value.size()};
}

// The question that a browser asks before a page's request.
bool is_preflight(const Request& request) {
  return request.method() == http::verb::options && request.count(http::field::origin) > 0 &&
         request.count(http::field::access_control_request_method) > 0;
}

}  // namespace

struct Server::Impl : std::enable_shared_from_this<Server::Impl> {
  Impl(HttpHandler the_handler, ServerOptions the_options)
      : handler(std::move(the_handler)),
        options(std::move(the_options)),
        endpoint(endpoint_of(options)),
        access{.host = options.host, .loopback = endpoint.address().is_loopback(), .origins = options.origins},
        acceptor(*context) {}

  HttpHandler handler;
  const ServerOptions options;
  const tcp::endpoint endpoint;
  const WebAccess access;
  std::shared_ptr<asio::io_context> context = std::make_shared<asio::io_context>(1);
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>(context);  // shared with the answers
  std::shared_ptr<std::atomic<std::size_t>> bodies_bytes = std::make_shared<std::atomic<std::size_t>>(0);
  tcp::acceptor acceptor;
  int port = 0;
  std::thread thread;

  // On the transport's thread alone:
  struct Session {
    Session(Impl& the_server, tcp::socket socket, asio::ip::address address)
        : server(the_server), stream(std::move(socket)), from(std::move(address)) {
      server.enter(*this);
    }
    ~Session() {
      if (answering) stop_answering();
      if (lingers) --server.lingering;
      server.leave(*this);
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    void stop_answering() {
      answering->abort = nullptr;
      answering->stop_watching(stream.socket());
      answering->leave();
      answering = nullptr;
      --server.answering;
    }

    Impl& server;
    beast::tcp_stream stream;
    const asio::ip::address from;
    beast::flat_buffer buffer;
    std::string web_headers;  // of its answers
    std::optional<std::list<Session*>::iterator> waiting;
    bool has_asked = false;                // a whole request
    std::shared_ptr<BodyShare> body;       // while it is read
    std::shared_ptr<SendQueue> answering;  // none: between requests
    std::optional<Instant> writing;        // since then
    bool lingers = false;
  };
  std::set<Session*> sessions;
  std::list<Session*> waiting;  // for a complete request, the longest first
  std::size_t answering = 0;
  int lingering = 0;
  bool stopping = false;

  std::mutex mutex;
  std::condition_variable sessions_ended;
  std::size_t session_count = 0;  // for stop(), under the mutex

  void listen() {
    try {
      acceptor.open(endpoint.protocol());
      ::fcntl(acceptor.native_handle(), F_SETFD, FD_CLOEXEC);  // not for workers
      acceptor.set_option(tcp::acceptor::reuse_address(true));
      acceptor.bind(endpoint);
      acceptor.listen();
      acceptor.non_blocking(true);
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
    thread = std::thread([this] { run(); });
  }

  // Where memory is short, what needs it ends, and the others go on.
  void run() {
    while (true) {
      try {
        context->run();
        return;
      } catch (const std::exception&) {
      }
    }
  }

  static asio::awaitable<void> accept(std::shared_ptr<Impl> self) {
    while (self->acceptor.is_open()) {
      try {
        co_await self->accept_one();
      } catch (const std::exception&) {  // as in run()
      }
    }
  }

  asio::awaitable<void> accept_one() {
    co_await acceptor.async_wait(tcp::acceptor::wait_read, no_throw);
    if (!acceptor.is_open()) co_return;
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    FileDescriptor accepted(::accept4(acceptor.native_handle(), reinterpret_cast<sockaddr*>(&address), &size,
                                      SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (accepted) {
      tcp::endpoint from;
      std::memcpy(from.data(), &address, std::min<std::size_t>(size, from.capacity()));
      admit(std::move(accepted), sender_of(from.address()));
    } else if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR && !drop_waiting()) {
      asio::steady_timer pause(*context, descriptor_pause);
      co_await pause.async_wait(no_throw);
    }
  }

  void admit(FileDescriptor accepted, const asio::ip::address& from) {
    const auto is_like_it = [&](const Session* each) { return !each->has_asked && each->from == from; };
    if (std::ranges::count_if(waiting, is_like_it) >= static_cast<std::ptrdiff_t>(options.max_new_per_address))
      drop(**std::ranges::find_if(waiting, is_like_it));
    const bool room = make_room(accepted);
    tcp::socket socket(*context);
    socket.assign(endpoint.protocol(), accepted.get());
    accepted.release();
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    auto session = std::make_unique<Session>(*this, std::move(socket), from);
    if (room) wait(*session);
    asio::co_spawn(*context, serve(shared_from_this(), std::move(session)), asio::detached);
  }

  bool make_room(FileDescriptor& accepted) {
    const int most = first_reserved_descriptor();
    if (accepted.get() < most && waiting.size() + answering < options.max_connections) return true;
    if (!drop_waiting()) return false;
    // Into the place that has become free.
    if (FileDescriptor lower(::fcntl(accepted.get(), F_DUPFD_CLOEXEC, 0)); lower && lower.get() < accepted.get())
      accepted = std::move(lower);
    return accepted.get() < most;
  }

  // The one that has waited longest, of those that have asked nothing yet if there are any.
  bool drop_waiting() {
    if (waiting.empty()) return drop_stalled();
    const auto found = std::ranges::find(waiting, false, &Session::has_asked);
    drop(found != waiting.end() ? **found : *waiting.front());
    return true;
  }

  bool drop_stalled() {
    const auto is_stalled = [](const Session* each) {
      return each->writing && seconds_since(*each->writing) > stalled_s;
    };
    const auto found = std::ranges::find_if(sessions, is_stalled);
    if (found == sessions.end()) return false;
    (*found)->writing.reset();
    (*found)->answering->abort();
    return true;
  }

  // Its coroutine ends by the error of what it waits for.
  void drop(Session& session) {
    stop_waiting(session);
    if (session.body) session.body->set(0);
    error_code ignored;
    session.stream.socket().close(ignored);
  }

  void wait(Session& session) {
    if (!session.waiting) session.waiting = waiting.insert(waiting.end(), &session);
  }
  void stop_waiting(Session& session) {
    if (session.waiting) waiting.erase(*session.waiting);
    session.waiting.reset();
  }

  void enter(Session& session) {
    sessions.insert(&session);
    const std::lock_guard lock(mutex);
    ++session_count;
  }

  void leave(Session& session) {
    stop_waiting(session);
    sessions.erase(&session);
    const std::lock_guard lock(mutex);
    --session_count;
    sessions_ended.notify_all();
  }

  static asio::awaitable<void> serve(std::shared_ptr<Impl> self, std::unique_ptr<Session> session) {
    if (!session->waiting) co_await self->refuse(*session, 503, "too many connections");
    while (session->waiting) co_await self->serve_one(*session);
  }

  // Reads one request and writes its answer. Afterwards the session waits for the next, or is to be closed.
  asio::awaitable<void> serve_one(Session& session) {
    http::request_parser<http::buffer_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(options.max_header_bytes));
    parser.body_limit(options.max_body_bytes);

    session.stream.expires_after(options.header_timeout);
    auto [status, read] = co_await http::async_read_header(session.stream, session.buffer, parser, no_throw);
    const Request& request = parser.get();
    session.web_headers = web_headers(access, header(request, http::field::origin));
    if (!status) {
      if (const auto [code, reason] = refusal_of(request); code != 0) co_return co_await refuse(session, code, reason);
    }
    if (!status && beast::iequals(parser.get()[http::field::expect], "100-continue") && !parser.is_done()) {
      const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      std::tie(status, read) = co_await asio::async_write(session.stream, asio::buffer(go_on), no_throw);
    }
    std::string body;
    session.body = std::make_shared<BodyShare>(bodies_bytes);
    if (!status) session.stream.expires_after(options.body_timeout);
    while (!status && !parser.is_done()) {
      const std::size_t size = body.size();
      body.resize(size + body_piece_bytes);
      parser.get().body().data = body.data() + size;
      parser.get().body().size = body_piece_bytes;
      std::tie(status, read) = co_await http::async_read(session.stream, session.buffer, parser, no_throw);
      if (status == http::error::need_buffer) status = {};
      body.resize(body.size() - parser.get().body().size);
      if (session.waiting && !holds(session, body.capacity()))
        co_return co_await refuse(session, 503, "the bodies of requests take too much memory");
    }
    if (!session.waiting) co_return;  // dropped
    if (status) co_return co_await refuse_unreadable(session, status);
    co_await answer(session, request, std::move(body));
  }

  // 0: it is not refused.
  std::pair<int, std::string> refusal_of(const Request& request) const {
    const std::size_t hosts = request.count(http::field::host);
    if (hosts > 1 || (hosts == 0 && request.version() >= 11))
      return {400, fmt::format("invalid HTTP request: {} Host headers", hosts)};
    const std::string reason =
        web_refusal(access, header(request, http::field::host), header(request, http::field::origin));
    return {reason.empty() ? 0 : 403, reason};
  }

  // This many bytes of its body. False: there is no memory for them.
  bool holds(Session& session, std::size_t bytes) {
    const auto size_of = [](const Session* each) { return each->body ? each->body->bytes() : 0; };
    session.body->set(bytes);
    while (*bodies_bytes > options.max_bodies_bytes) {
      Session* largest = *std::ranges::max_element(waiting, {}, size_of);
      if (largest == &session) return false;
      drop(*largest);
    }
    return true;
  }

  // A client that has left or is too slow is not answered.
  asio::awaitable<void> refuse_unreadable(Session& session, error_code status) {
    stop_waiting(session);
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
    stop_waiting(session);
    session.body.reset();
    const std::string text =
        whole_answer(error_response(ApiError(status, std::move(message))), After::close, session.web_headers);
    session.stream.expires_after(linger_time);
    auto [failed, written] = co_await asio::async_write(session.stream, asio::buffer(text), no_throw);
    if (failed || lingering == most_lingering) co_return;
    error_code ignored;
    session.stream.socket().shutdown(tcp::socket::shutdown_send, ignored);
    session.lingers = true;
    ++lingering;
    std::array<char, 4096> dropped{};
    while (!failed)
      std::tie(failed, written) = co_await session.stream.async_read_some(asio::buffer(dropped), no_throw);
  }

  asio::awaitable<void> answer(Session& session, const Request& request, std::string body) {
    stop_waiting(session);
    session.has_asked = true;
    // After HEAD the answer's body would be taken for the next answer.
    const bool again = request.keep_alive() && !stopping && request.method() != http::verb::head;
    const auto send_queue =
        std::make_shared<SendQueue>(mailbox, AnswerForm{.after = again ? After::keep_alive : After::close,
                                                        .chunked = request.version() >= 11,
                                                        .headers = session.web_headers,
                                                        .max_unread_bytes = options.max_unread_bytes});
    tcp::socket& socket = session.stream.socket();
    send_queue->abort = [&socket, send_queue = send_queue.get()] {
      send_queue->leave();
      error_code ignored;
      socket.close(ignored);
    };
    session.answering = send_queue;
    ++answering;
    send_queue->watch(socket);

    if (is_preflight(request)) {
      HttpResponse response;
      response.headers = preflight_headers(header(request, http::field::access_control_request_headers));
      send_queue->reply(std::move(response));
    } else {
      const std::string target(request.target());
      handler(HttpRequest{.method = std::string(request.method_string()),
                          .path = target.substr(0, target.find('?')),
                          .authorization = std::string(header(request, http::field::authorization)),
                          .content_type = std::string(header(request, http::field::content_type)),
                          .body = std::move(body),
                          .share = std::exchange(session.body, nullptr)},
              send_queue);
    }
    co_await write_answer(session, *send_queue);

    const bool complete = send_queue->finished() && !send_queue->gone();
    session.stop_answering();
    if (complete && again && !stopping) wait(session);
  }

  asio::awaitable<void> write_answer(Session& session, SendQueue& send_queue) {
    while (!send_queue.gone()) {
      const bool last = send_queue.finished();
      const std::string text = send_queue.take();
      if (text.empty() && last) co_return;
      if (text.empty()) {
        session.stream.expires_never();
        co_await send_queue.wait();
        continue;
      }
      session.stream.expires_after(options.write_timeout);
      session.writing = Clock::now();
      auto [status, written] = co_await asio::async_write(session.stream, asio::buffer(text), no_throw);
      session.writing.reset();
      if (status) send_queue.leave();
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
