#include "motley/comm/net/stop_signals.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace motley {

std::atomic<StopSignals*> StopSignals::catching_ = nullptr;

void StopSignals::on_signal(int) {
  const int before = errno;
  if (StopSignals* signals = catching_) {
    ++signals->count_;
    const std::uint64_t one = 1;
    for (const Wakeup* wakeup : {&signals->came_, &signals->wake_}) [[maybe_unused]]
      const auto written = ::write(wakeup->descriptor(), &one, sizeof one);
  }
  errno = before;
}

StopSignals::StopSignals(std::function<int()> end)
    : end_(std::move(end)), thread_([this](const std::stop_token& stop) { run(stop); }) {
  catching_ = this;
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, on_signal);
}

StopSignals::~StopSignals() {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_DFL);
  catching_ = nullptr;
  thread_.request_stop();
  wake_.notify();
}

void StopSignals::end_process_by(std::function<int()> end) {
  const std::lock_guard lock(mutex_);
  act();
  end_ = std::move(end);
  act();
}

void StopSignals::arm(std::function<void()> first) {
  const std::lock_guard lock(mutex_);
  act();
  first_ = std::move(first);
}

void StopSignals::end_within(double seconds, std::function<void()> late) {
  const std::lock_guard lock(mutex_);
  until_ = deadline_in(seconds);
  late_ = std::move(late);
  wake_.notify();
}

void StopSignals::disarm() {
  const std::lock_guard lock(mutex_);
  first_ = late_ = nullptr;
  until_ = no_deadline;
}

void StopSignals::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Instant until;
    {
      const std::lock_guard lock(mutex_);
      act();
      until = until_;
    }
    pollfd waiting{wake_.descriptor(), POLLIN, 0};
    ::poll(&waiting, 1, poll_timeout_ms(until));
    wake_.clear();
  }
}

// Under the mutex.
void StopSignals::act() {
  if (!end_) return;
  if (taken_ < count_ && first_) {
    ++taken_;
    std::exchange(first_, nullptr)();
  }
  const bool late = seconds_until(until_) <= 0;
  if (taken_ == count_ && !late) return;
  if (late) late_();
  std::_Exit(end_());
}

}  // namespace motley
