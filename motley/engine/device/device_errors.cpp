#include "motley/engine/device/device_errors.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <thread>

namespace motley {
namespace {

constexpr int most_looks = 100;  // at what is free
constexpr int still_looks = 20;  // without a change, after which nothing more is expected

}  // namespace

bool is_of_memory(const c10::Error& error, const std::function<bool()>& lives) {
  const std::string_view text = error.what_without_backtrace();
  const auto says = [&](const char* sign) { return text.find(sign) != std::string_view::npos; };
  const bool looks_so =
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
      std::ranges::any_of(std::array{"out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"},
                          says);
  return looks_so && lives();
}

std::int64_t settled_free_bytes(std::int64_t needed, const std::function<std::int64_t()>& free,
                                std::chrono::milliseconds pause) {
  std::int64_t bytes = free();
  for (int looks = 0, still = 0; bytes < needed && looks < most_looks && still < still_looks; ++looks) {
    std::this_thread::sleep_for(pause);
    const std::int64_t now = free();
    still = now == bytes ? still + 1 : 0;
    bytes = now;
  }
  return bytes;
}

}  // namespace motley
