// One thread that runs what is posted to it, in order. State that only its jobs touch needs no lock.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include "motley/base/survive.hpp"

namespace motley {

class SerialQueue {
 public:
  SerialQueue() : thread_([this] { work(); }) {}
  // Runs what was posted before, then ends the thread. Not to be called by a job.
  ~SerialQueue() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  SerialQueue(const SerialQueue&) = delete;
  SerialQueue& operator=(const SerialQueue&) = delete;

  // What a job throws is lost, as where there is no memory: the jobs behind it run.
  void post(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

  // Runs `work` on the thread and waits for its result; what it throws comes out here.
  template <class Work>
  std::invoke_result_t<Work&> run(Work&& work) {
    if (std::this_thread::get_id() == thread_.get_id()) return work();
    std::packaged_task<std::invoke_result_t<Work&>()> task(std::ref(work));
    auto result = task.get_future();
    post([&task] { task(); });
    return result.get();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      survive(job, [](const std::exception&) {});
      job = nullptr;  // what it holds is released here, without the lock
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;  // last: it starts when all else is in place
};

}  // namespace motley
