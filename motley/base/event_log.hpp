// What happens, for people: told as it happens with the time since the start, and the newest of it kept.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

#include "motley/base/clock.hpp"

namespace motley {

// ("joined", "box, 1 device"), or how far something has come: ("digests", "50 %").
using Report = std::function<void(const std::string& what, const std::string& detail)>;

struct Event {
  double elapsed_s = 0;
  std::string what, detail;
  // How far something has come ("50 %"): for who looks on, and of no interest later.
  bool is_progress() const { return detail.ends_with('%'); }
};

// From several threads, one at a time.
class EventLog {
 public:
  explicit EventLog(std::function<void(const Event&)> show = {}) : show_(std::move(show)) {}
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  void operator()(const std::string& what, const std::string& detail) {
    const std::lock_guard lock(mutex_);
    Event event{seconds_since(start_), what, detail};
    if (show_) show_(event);
    if (event.is_progress()) return;
    newest_.push_back(std::move(event));
    if (newest_.size() > most_kept) newest_.pop_front();
  }

  std::deque<Event> newest() const {
    const std::lock_guard lock(mutex_);
    return newest_;
  }

  static constexpr std::size_t most_kept = 100;

 private:
  const std::function<void(const Event&)> show_;
  const Instant start_ = Clock::now();
  mutable std::mutex mutex_;
  std::deque<Event> newest_;
};

}  // namespace motley
