// A wide-area network between network namespaces: real TCP sees the delay, rate and loss that are asked for.
//
// Each endpoint is a TUN device in a namespace. This process reads the packets that leave one, holds them by the
// settings of the directed link (token bucket, then delay; loss and a full queue drop), and writes them into the device
// that has the destination's address. It is told by lines on stdin, also while it runs, and ends when stdin does:
//
//   endpoint NAMESPACE DEVICE ADDRESS      a TUN device that exists; all of them before the first link
//   link FROM TO KEY=VALUE...              endpoints by number, * for all; bytes_per_s, delay_s, loss (a probability),
//                                          loss_burst (mean length in packets), queue_bytes, bucket_bytes
//   statistics                             one JSON line on stdout: packets and bytes per link
//   seed NUMBER                            of the losses
//
// Every line is answered by a line: "ok", the statistics, or "error: ...".
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "motley/base/error.hpp"

namespace motley {
namespace {

constexpr double never_s = std::numeric_limits<double>::infinity();

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct EmulatedSettings {
  double bytes_per_s = never_s;
  double delay_s = 0;
  double loss = 0;
  double loss_burst = 1;
  double queue_bytes = 2e6;
  double bucket_bytes = 20e3;  // what an idle link may send at once
};

struct EmulatedPacket {
  double due_s;
  std::vector<char> bytes;
};

struct EmulatedLink {
  EmulatedSettings settings;
  double free_s = 0;  // when the last byte accepted so far will have left
  bool dropping = false;
  std::deque<EmulatedPacket> travelling;
  std::int64_t packets = 0, bytes = 0, lost = 0, overflowed = 0;
};

// Losses come in runs of `loss_burst` packets on average (two-state chain of Gilbert); 1: each packet by itself.
bool lose(EmulatedLink& link, std::mt19937_64& random) {
  const auto& [rate, delay, loss, burst, queue, bucket] = link.settings;
  if (loss <= 0) return false;
  double probability = loss;
  if (burst > 1 && loss < 1) probability = link.dropping ? 1 - 1 / burst : loss / (1 - loss) / burst;
  link.dropping = std::uniform_real_distribution<double>(0, 1)(random) < probability;
  return link.dropping;
}

void accept_packet(EmulatedLink& link, const char* bytes, std::size_t size, double at_s, std::mt19937_64& random) {
  if (lose(link, random)) {
    ++link.lost;
    return;
  }
  const auto& settings = link.settings;
  const double start_s = std::max(link.free_s, at_s - settings.bucket_bytes / settings.bytes_per_s);
  if ((start_s - at_s) * settings.bytes_per_s > settings.queue_bytes) {
    ++link.overflowed;
    return;
  }
  link.free_s = start_s + static_cast<double>(size) / settings.bytes_per_s;
  // After a change to a shorter delay nothing overtakes what already travels.
  const double earliest_s = link.travelling.empty() ? at_s : link.travelling.back().due_s;
  const double due_s = std::max(earliest_s, std::max(link.free_s, at_s) + settings.delay_s);
  link.travelling.push_back({due_s, std::vector<char>(bytes, bytes + size)});
  ++link.packets;
  link.bytes += static_cast<std::int64_t>(size);
}

int open_tun(const std::string& name_space, const std::string& device) {
  const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  const int there = open(("/run/netns/" + name_space).c_str(), O_RDONLY | O_CLOEXEC);
  if (home < 0 || there < 0 || setns(there, CLONE_NEWNET) != 0)
    throw input_error(fmt::format("cannot enter network namespace \"{}\": {}", name_space, std::strerror(errno)));
  const int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  device.copy(request.ifr_name, IFNAMSIZ - 1);
  const bool attached = tun >= 0 && ioctl(tun, TUNSETIFF, &request) == 0;
  const int cause = errno;
  if (setns(home, CLONE_NEWNET) != 0) throw Error(ErrorCode::internal, "cannot leave the network namespace");
  close(home);
  close(there);
  if (!attached) throw input_error(fmt::format("cannot open TUN device \"{}\": {}", device, std::strerror(cause)));
  return tun;
}

class WanEmulator {
 public:
  // Until stdin ends.
  void run() {
    std::string pending;
    for (;;) {
      std::vector<pollfd> files{{STDIN_FILENO, POLLIN, 0}};
      for (const int tun : tuns_) files.push_back({tun, POLLIN, 0});
      const double wait_s = std::max(0.0, next_due_s() - now_s());
      const timespec timeout{static_cast<time_t>(std::min(wait_s, 1e6)), static_cast<long>(std::fmod(wait_s, 1) * 1e9)};
      if (ppoll(files.data(), files.size(), std::isinf(wait_s) ? nullptr : &timeout, nullptr) < 0 && errno != EINTR)
        throw Error(ErrorCode::internal, std::strerror(errno));
      if (files[0].revents != 0 && !take_lines(pending)) return;
      for (std::size_t i = 1; i < files.size(); ++i)
        if (files[i].revents != 0) read_packets(i - 1);
      deliver();
    }
  }

 private:
  EmulatedLink& link(std::size_t from, std::size_t to) { return links_[from * tuns_.size() + to]; }

  double next_due_s() const {
    double due_s = never_s;
    for (const auto& each : links_)
      if (!each.travelling.empty()) due_s = std::min(due_s, each.travelling.front().due_s);
    return due_s;
  }

  void read_packets(std::size_t from) {
    for (int i = 0; i < 64; ++i) {  // then what is due elsewhere
      const auto size = read(tuns_[from], buffer_.data(), buffer_.size());
      if (size < 20) return;
      std::uint32_t destination = 0;
      std::memcpy(&destination, buffer_.data() + 16, sizeof destination);
      const auto to = by_address_.find(destination);
      if ((buffer_[0] >> 4) != 4 || to == by_address_.end()) continue;  // IPv4 alone; multicast leads nowhere
      accept_packet(link(from, to->second), buffer_.data(), static_cast<std::size_t>(size), now_s(), random_);
    }
  }

  void deliver() {
    const double at_s = now_s();
    for (std::size_t i = 0; i < links_.size(); ++i) {
      auto& travelling = links_[i].travelling;
      while (!travelling.empty() && travelling.front().due_s <= at_s) {
        const auto& bytes = travelling.front().bytes;
        if (write(tuns_[i % tuns_.size()], bytes.data(), bytes.size()) < 0) ++links_[i].overflowed;
        travelling.pop_front();
      }
    }
  }

  bool take_lines(std::string& pending) {
    std::array<char, 4096> text{};
    const auto size = read(STDIN_FILENO, text.data(), text.size());
    if (size <= 0) return false;
    pending.append(text.data(), static_cast<std::size_t>(size));
    for (std::size_t end = 0; (end = pending.find('\n')) != std::string::npos; pending.erase(0, end + 1)) {
      try {
        fmt::print("{}\n", obey(pending.substr(0, end)));
      } catch (const std::exception& error) {
        fmt::print("error: {}\n", error.what());
      }
      std::fflush(stdout);
    }
    return true;
  }

  std::string obey(const std::string& line) {
    std::istringstream words(line);
    std::string verb, a, b, c;
    words >> verb;
    if (verb == "statistics") return statistics();
    if (verb == "seed" && words >> a) {
      random_.seed(std::stoull(a));
      return "ok";
    }
    if (verb == "endpoint" && words >> a >> b >> c) return add_endpoint(a, b, c), "ok";
    if (verb == "link" && words >> a >> b) {
      links_.resize(tuns_.size() * tuns_.size());
      std::vector<std::string> settings;
      while (words >> c) settings.push_back(c);
      for (const std::size_t from : named(a))
        for (const std::size_t to : named(b))
          for (const auto& setting : settings) change(link(from, to).settings, setting);
      return "ok";
    }
    throw input_error(fmt::format("\"{}\" is not a command", line));
  }

  void add_endpoint(const std::string& name_space, const std::string& device, const std::string& address) {
    if (!links_.empty()) throw input_error("endpoints come before links");
    in_addr parsed{};
    if (inet_pton(AF_INET, address.c_str(), &parsed) != 1)
      throw input_error(fmt::format("\"{}\" is not an IPv4 address", address));
    tuns_.push_back(open_tun(name_space, device));
    by_address_[parsed.s_addr] = tuns_.size() - 1;
  }

  std::vector<std::size_t> named(const std::string& word) const {
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < tuns_.size(); ++i)
      if (word == "*" || word == std::to_string(i)) numbers.push_back(i);
    if (numbers.empty()) throw input_error(fmt::format("there is no endpoint \"{}\"", word));
    return numbers;
  }

  static void change(EmulatedSettings& settings, const std::string& text) {
    const std::map<std::string, double*> fields{{"bytes_per_s", &settings.bytes_per_s},
                                                {"delay_s", &settings.delay_s},
                                                {"loss", &settings.loss},
                                                {"loss_burst", &settings.loss_burst},
                                                {"queue_bytes", &settings.queue_bytes},
                                                {"bucket_bytes", &settings.bucket_bytes}};
    const auto equals = text.find('=');
    const auto field = fields.find(text.substr(0, equals));
    const double value = equals == std::string::npos ? -1 : std::stod(text.substr(equals + 1));
    if (field == fields.end() || !(value >= 0) || (field->first == "loss" && value > 1) ||
        (field->first == "bytes_per_s" && value == 0))
      throw input_error(fmt::format("\"{}\" is not a setting of a link", text));
    *field->second = value;
  }

  std::string statistics() const {
    std::string text;
    for (std::size_t i = 0; i < links_.size(); ++i) {
      const auto& each = links_[i];
      if (each.packets + each.lost + each.overflowed > 0)
        text += fmt::format(
            "{}{{\"from\": {}, \"to\": {}, \"packets\": {}, \"bytes\": {}, \"lost\": {}, \"overflowed\": {}}}",
            text.empty() ? "" : ", ", i / tuns_.size(), i % tuns_.size(), each.packets, each.bytes, each.lost,
            each.overflowed);
    }
    return "[" + text + "]";
  }

  std::vector<int> tuns_;
  std::map<std::uint32_t, std::size_t> by_address_;
  std::vector<EmulatedLink> links_;  // from * endpoints + to
  std::array<char, 65536> buffer_{};
  std::mt19937_64 random_{0};
};

}  // namespace
}  // namespace motley

int main() {
  try {
    motley::WanEmulator().run();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 3;
  }
}
