// What `serve` and `generate` have in common: from their settings to a driver's and a text codec.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "motley/base/clock.hpp"
#include "motley/server/serve_settings.hpp"
#include "motley/serving/driver.hpp"
#include "motley/text/text_codec.hpp"

namespace motley {

class Reporter {
 public:
  explicit Reporter(std::function<void(const std::string&, const std::string&, double)> sink)
      : sink_(std::move(sink)) {}
  // With the time since the start.
  void operator()(const std::string& phase, const std::string& detail) {
    const std::lock_guard lock(mutex_);
    if (sink_) sink_(phase, detail, seconds_since(start_));
  }

 private:
  std::mutex mutex_;
  std::function<void(const std::string&, const std::string&, double)> sink_;
  const Instant start_ = Clock::now();
};

// Null where the packages are missing: token ids can be served without.
std::shared_ptr<TextCodec> open_codec(const ServeSettings& settings, std::int64_t vocabulary, Reporter& report);

DriverOptions driver_options(const ServeSettings& settings, Reporter& report);

}  // namespace motley
