#include "motley/server/send_queue.hpp"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/beast/http/status.hpp>
#include <new>
#include <utility>

namespace motley {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;

namespace {

std::string head_of(int status, std::string_view content_type, After after, const std::string& more) {
  const auto reason = boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  return fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nConnection: {}\r\n{}", status,
                     std::string_view(reason.data(), reason.size()), content_type,
                     after == After::close ? "close" : "keep-alive", more);
}

}  // namespace

std::string whole_answer(const HttpResponse& response, After after, const std::string& more) {
  std::string text = head_of(response.status, response.content_type, after, more);
  for (const auto& [name, value] : response.headers) text += fmt::format("{}: {}\r\n", name, value);
  return text + fmt::format("Content-Length: {}\r\n\r\n{}", response.body.size(), response.body);
}

void Mailbox::put(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_.push_back(std::move(work));
  if (work_.size() == 1) asio::post(*context_, [self = shared_from_this()] { self->run(); });
}

void Mailbox::run() {
  std::vector<std::function<void()>> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(work_);
  }
  for (const auto& work : all) work();
}

SendQueue::SendQueue(std::shared_ptr<Mailbox> mailbox, AnswerForm form)
    : mailbox_(std::move(mailbox)), wake_(mailbox_->context()), form_(std::move(form)) {
  wake_.expires_at(asio::steady_timer::time_point::max());
}

void SendQueue::reply(HttpResponse response) { put(whole_answer(response, form_.after, form_.headers), Last::yes); }

void SendQueue::start_stream() {
  std::string head = head_of(200, "text/event-stream", form_.after, form_.headers) + "Cache-Control: no-cache\r\n";
  put(head + (form_.chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"), Last::no);
}

void SendQueue::send(std::string events) {
  put(form_.chunked ? fmt::format("{:x}\r\n{}\r\n", events.size(), events) : std::move(events), Last::no);
}

void SendQueue::end() { put(form_.chunked ? "0\r\n\r\n" : "", Last::yes); }

void SendQueue::on_gone(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) {
      callback_ = std::move(callback);
      return;
    }
  }
  callback();
}

std::string SendQueue::take() {
  std::string text = std::exchange(text_, {});
  unread_bytes_ -= text.size();
  return text;
}

asio::awaitable<void> SendQueue::wait() { co_await wake_.async_wait(no_throw); }

void SendQueue::leave() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    callback = std::exchange(callback_, nullptr);
  }
  wake_.cancel();
  if (callback) callback();
}

void SendQueue::watch(tcp::socket& socket) {
  watching_ = true;
  socket.async_wait(tcp::socket::wait_read, [self = shared_from_this(), &socket](boost::system::error_code status) {
    if (!self->watching_ || status == asio::error::operation_aborted) return;
    char byte = 0;
    boost::system::error_code peek;
    const std::size_t count = socket.receive(asio::buffer(&byte, 1), tcp::socket::message_peek, peek);
    if (peek || count == 0) self->leave();
  });
}

void SendQueue::stop_watching(tcp::socket& socket) {
  watching_ = false;
  boost::system::error_code ignored;
  socket.cancel(ignored);
}

void SendQueue::put(std::string text, Last last) {
  // Under the lock: once leave() has returned, nothing more is given to the context, which may never run again.
  const std::lock_guard lock(mutex_);
  if (gone_) return;
  const bool too_much = unread_bytes_.fetch_add(text.size()) > form_.max_unread_bytes;
  mailbox_->put(
      [self = shared_from_this(), text = std::move(text), last, too_much] { self->take_in(text, last, too_much); });
}

// An answer with a hole is none: where memory is short, its connection ends.
void SendQueue::take_in(const std::string& text, Last last, bool too_much) {
  if (gone_) return;
  bool lost = false;
  try {
    text_ += text;
  } catch (const std::bad_alloc&) {
    lost = true;
  }
  finished_ = finished_ || last == Last::yes;
  wake_.cancel();
  if ((too_much || lost) && abort) abort();
}

}  // namespace motley
