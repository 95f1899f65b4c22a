// What a deployment tells those who run it, as lines that a test reads.
#pragma once

#include <mutex>
#include <string>
#include <vector>

namespace motley {

class ToldLines {
 public:
  void operator()(const std::string& what, const std::string& detail) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(what + ": " + detail);
  }
  std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace motley
