// Log lines that others cause: each kind (a line's first word) has a number at once and a number a second; the rest is
// counted, and the count logged. For one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "motley/base/clock.hpp"

namespace motley {

class LimitedLog {
 public:
  static constexpr double most_at_once = 50, lines_per_s = 5;

  explicit LimitedLog(std::function<void(const std::string& line)> log = {}) : log_(std::move(log)) {}

  void operator()(const std::string& line, Instant now = Clock::now()) {
    if (!log_) return;
    Kind& kind = kinds_.try_emplace(line.substr(0, line.find(' ')), Kind{.refilled = now}).first->second;
    if (!kind.may_log(now)) {
      ++kind.left_out;
      return;
    }
    log_(line);
  }

  // Logs how many lines were left out, where that may be said now.
  void tell_left_out(Instant now = Clock::now()) {
    for (auto& [word, kind] : kinds_)
      if (kind.left_out > 0 && kind.may_log(now))
        log_(fmt::format("{} more={}", word, std::exchange(kind.left_out, 0)));
  }

 private:
  struct Kind {
    double allowed = most_at_once;
    Instant refilled;
    std::uint64_t left_out = 0;

    bool may_log(Instant now) {
      allowed = std::min(most_at_once, allowed + seconds_between(refilled, now) * lines_per_s);
      refilled = now;
      if (allowed < 1) return false;
      --allowed;
      return true;
    }
  };
  std::function<void(const std::string& line)> log_;
  std::map<std::string, Kind> kinds_;
};

}  // namespace motley
