// The answers of the HTTP transport, on their way from any thread to the connection's.
#pragma once

#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "motley/server/http.hpp"

namespace motley {

inline constexpr auto no_throw = boost::asio::as_tuple(boost::asio::use_awaitable);

enum class After { keep_alive, close };

// `more`: header lines, each with its end.
std::string whole_answer(const HttpResponse& response, After after, const std::string& more);

// Work that other threads give to the transport's: it is woken once for all that comes before it looks.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  // `context` is shared since an answer may be given when the server is gone.
  explicit Mailbox(std::shared_ptr<boost::asio::io_context> context) : context_(std::move(context)) {}

  boost::asio::io_context& context() { return *context_; }
  void put(std::function<void()> work);

 private:
  void run();

  std::shared_ptr<boost::asio::io_context> context_;
  std::mutex mutex_;
  std::vector<std::function<void()>> work_;
};

// How an answer is written: the same for all of one request.
struct AnswerForm {
  After after = After::close;
  bool chunked = false;
  std::string headers;  // lines for every answer to this client
  std::size_t max_unread_bytes = 0;
};

// What one request is answered with: filled by any thread, drained by its session on the transport's thread.
class SendQueue final : public Exchange, public std::enable_shared_from_this<SendQueue> {
 public:
  SendQueue(std::shared_ptr<Mailbox> mailbox, AnswerForm form);

  void reply(HttpResponse response) override;
  void start_stream() override;
  void send(std::string events) override;
  void end() override;
  bool gone() const override { return gone_; }
  void on_gone(std::function<void()> callback) override;

  // ---- for the session, on the transport's thread ----

  std::string take();
  bool finished() const { return finished_; }
  boost::asio::awaitable<void> wait();
  void leave();
  // Reports the end of the connection by the other side. Bytes that come in early are the next request's: from then on
  // only writing tells.
  void watch(boost::asio::ip::tcp::socket& socket);
  void stop_watching(boost::asio::ip::tcp::socket& socket);
  // Ends the connection from outside the session, also when that is stuck in writing.
  std::function<void()> abort;

 private:
  enum class Last { no, yes };
  void put(std::string text, Last last);
  void take_in(const std::string& text, Last last, bool too_much);

  std::shared_ptr<Mailbox> mailbox_;
  boost::asio::steady_timer wake_;  // never expires; cancelled when there is news
  const AnswerForm form_;
  std::atomic<std::size_t> unread_bytes_{0};
  std::string text_;
  bool finished_ = false, watching_ = false;

  std::mutex mutex_;  // of changes to the two below
  std::atomic<bool> gone_{false};
  std::function<void()> callback_;
};

}  // namespace motley
