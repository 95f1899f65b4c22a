// Many streamed chats at once against one server on this machine: when each piece of text arrived, from one thread that
// only waits, reads and looks for the next event.
//
//   streams_client PORT STREAMS TOKENS LONG_CHATS MESSAGES
//
// STREAMS short chats of TOKENS tokens each; LONG_CHATS chats of MESSAGES messages join when half of the text is there.
// Prints one JSON object, times in seconds.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double now_s() {
  static const Clock::time_point start = Clock::now();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Chat {
  int socket = -1;
  double sent_s = 0;
  std::vector<double> pieces_s;  // when each piece of text came
  std::string unread;            // the start of an event
  bool finished = false;
};

std::string chat_body(int number, int messages, int tokens) {
  std::string list;
  for (int i = 0; i < messages; ++i)
    list += fmt::format(R"({}{{"role": "{}", "content": "Tell {} of owl {} and the lantern by the mill."}})",
                        i == 0 ? "" : ", ", i % 2 == 0 ? "user" : "assistant", number, i);
  return fmt::format(R"({{"messages": [{}], "stream": true, "temperature": 0.8, "seed": {}, )"
                     R"("min_tokens": {}, "max_tokens": {}}})",
                     list, number, tokens, tokens);
}

void send_chat(Chat& chat, int port, const std::string& body, int poll_descriptor, std::size_t index) {
  chat.socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(chat.socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("cannot connect");
  const std::string request = fmt::format(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
      "Content-Length: {}\r\n\r\n{}",
      body.size(), body);
  chat.sent_s = now_s();
  if (::send(chat.socket, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
    throw std::runtime_error("cannot send");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = index;
  if (::epoll_ctl(poll_descriptor, EPOLL_CTL_ADD, chat.socket, &event) != 0) throw std::runtime_error("cannot wait");
}

// Reads what is there; returns the pieces of text in it.
int read_chat(Chat& chat) {
  constexpr std::string_view mark = "\"content\":\"";
  char bytes[65536];
  const ssize_t count = ::recv(chat.socket, bytes, sizeof bytes, 0);
  if (count <= 0) {
    ::close(chat.socket);
    if (!chat.finished) throw std::runtime_error("an answer broke off: " + chat.unread);
    return 0;
  }
  const double read_s = now_s();
  chat.unread.append(bytes, static_cast<std::size_t>(count));
  int pieces = 0;
  for (std::size_t end; (end = chat.unread.find("\n\n")) != std::string::npos; chat.unread.erase(0, end + 2)) {
    const std::string_view event = std::string_view(chat.unread).substr(0, end);
    const std::size_t content = event.find(mark);
    if (content != std::string_view::npos && event[content + mark.size()] != '"') {
      chat.pieces_s.push_back(read_s);
      ++pieces;
    }
    if (event.find("data: [DONE]") != std::string_view::npos) chat.finished = true;
    if (event.find("\"error\":") != std::string_view::npos) throw std::runtime_error(std::string(event));
  }
  return pieces;
}

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

int run(int port, int streams, int tokens, int long_chats, int messages) {
  const int poll_descriptor = ::epoll_create1(EPOLL_CLOEXEC);
  std::vector<Chat> chats(static_cast<std::size_t>(streams + long_chats));
  const auto send = [&](int i, int length, int answer) {
    const auto index = static_cast<std::size_t>(i);
    send_chat(chats[index], port, chat_body(i, length, answer), poll_descriptor, index);
  };
  for (int i = 0; i < streams; ++i) send(i, 1, tokens);

  int open = streams, to_send = long_chats;
  std::int64_t pieces = 0;
  double joined_s = 0;
  while (open > 0) {
    if (to_send > 0 && pieces * 2 > std::int64_t{streams} * tokens) {
      joined_s = now_s();
      open += to_send;
      for (; to_send > 0; --to_send) send(streams + long_chats - to_send, messages, 1);
    }
    epoll_event ready[512];
    const int count = ::epoll_wait(poll_descriptor, ready, 512, 60000);
    if (count <= 0) throw std::runtime_error("no byte in a minute");
    for (int i = 0; i < count; ++i) {
      Chat& chat = chats[ready[i].data.u64];
      const bool finished = chat.finished;
      pieces += read_chat(chat);
      if (chat.finished && !finished) --open;
    }
  }

  // The short chats' intervals once all of them have begun; where long ones joined, those that end after that and begin
  // before the last of them has its first piece.
  std::vector<double> intervals, first_pieces;
  double first_s = 1e9, begun_s = 0, last_s = 0, settled_s = 1e9;
  if (long_chats > 0) {
    settled_s = 0;
    for (auto chat = chats.begin() + streams; chat != chats.end(); ++chat) {
      if (chat->pieces_s.empty()) continue;
      first_pieces.push_back(chat->pieces_s.front() - chat->sent_s);
      settled_s = std::max(settled_s, chat->pieces_s.front());
    }
  }
  for (auto chat = chats.begin(); chat != chats.begin() + streams; ++chat)
    begun_s = std::max(begun_s, chat->pieces_s.empty() ? 0 : chat->pieces_s.front());
  for (auto chat = chats.begin(); chat != chats.begin() + streams; ++chat) {
    first_s = std::min(first_s, chat->sent_s);
    last_s = std::max(last_s, chat->pieces_s.empty() ? 0 : chat->pieces_s.back());
    for (std::size_t i = 1; i < chat->pieces_s.size(); ++i)
      if (chat->pieces_s[i] > joined_s && chat->pieces_s[i - 1] < settled_s && chat->pieces_s[i - 1] > begun_s)
        intervals.push_back(chat->pieces_s[i] - chat->pieces_s[i - 1]);
  }
  fmt::print(
      "{{\"tokens\": {}, \"seconds\": {:.6f}, \"tokens_per_s\": {:.2f}, \"between_p50_s\": {:.6f}, "
      "\"between_p99_s\": {:.6f}, \"first_p50_s\": {:.6f}, \"first_p99_s\": {:.6f}}}\n",
      streams * tokens, last_s - first_s, streams * tokens / (last_s - first_s), quantile(intervals, 0.5),
      quantile(intervals, 0.99), quantile(first_pieces, 0.5), quantile(first_pieces, 0.99));
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 2;
  try {
    return run(std::atoi(arguments[1]), std::atoi(arguments[2]), std::atoi(arguments[3]), std::atoi(arguments[4]),
               std::atoi(arguments[5]));
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
