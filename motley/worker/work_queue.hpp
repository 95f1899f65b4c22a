// What the driver wants done, in the order of its arrival.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <utility>

#include "motley/workers/worker_messages.hpp"

namespace motley {

class WorkQueue {
 public:
  struct Work {
    Message message;
    std::stop_token stop;  // of what a Launch begins: requested when the next one comes
  };

  // A Launch gives up whatever came before, but for what is loaded.
  void push(Message message) {
    {
      const std::lock_guard lock(mutex_);
      if (std::holds_alternative<Launch>(message)) {
        std::erase_if(messages_, [](const Message& earlier) { return !std::holds_alternative<Preload>(earlier); });
        launched_.request_stop();
        launched_ = std::stop_source();
        announce_ = nullptr;
      }
      if (const auto* step = std::get_if<Step>(&message); step != nullptr && announce_) announce_(*step);
      messages_.push_back(std::move(message));
    }
    arrived_.notify_one();
  }
  Work pop() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return !messages_.empty(); });
    Work work{std::move(messages_.front()), launched_.get_token()};
    messages_.pop_front();
    return work;
  }

  // `announce` is told of each step that is not taken yet, at once and as they come, until the next launch. By the
  // thread that takes them.
  void announce_steps(std::function<void(const Step&)> announce) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::any_of(messages_, [](const Message& each) { return std::holds_alternative<Launch>(each); }))
      return;
    announce_ = std::move(announce);
    for (const Message& each : messages_)
      if (const auto* step = std::get_if<Step>(&each)) announce_(*step);
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Message> messages_;
  std::stop_source launched_;
  std::function<void(const Step&)> announce_;
};

}  // namespace motley
