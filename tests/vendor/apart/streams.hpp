// Streams of the stand-in device: threads that do what they are given in its order, each task a little late.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

namespace motley::apart {

constexpr c10::DeviceIndex device_count = 2;

// Computing is late, by a random time; what only keeps books of memory and events is not.
enum class Start { late, at_once };

class Stream {
 public:
  explicit Stream(std::uint64_t seed);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void put(std::function<void()> task, Start start = Start::late);
  // Until all that was put is done. Throws what one of the tasks threw since the last call; an error of the device's
  // context at each call from then on.
  void wait();
  bool idle() const;

 private:
  struct Task {
    std::function<void()> work;
    Start start;
  };
  void run();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::uint64_t put_ = 0, done_ = 0;
  std::exception_ptr failure_;
  std::mt19937_64 random_;  // the thread's
};

c10::Device device_of(c10::DeviceIndex index);
Stream& stream_of(const c10::Stream& stream);
void wait_for_device(c10::DeviceIndex index);

// Of the calling thread.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
c10::DeviceIndex current_device();
c10::Stream exchange_stream(const c10::Stream& stream);
c10::Stream current_stream(c10::DeviceIndex index);

// Another one at each call, until all of the few have been handed out.
c10::Stream stream_from_pool(c10::DeviceIndex index);

// Copies between the host and a device: one engine for each way does one after the other.
enum class CopyWay { down, up };
// Of MOTLEY_APART_RATES; 0 where it names none. Throws where it is malformed.
double copy_rate(CopyWay way);
// Whether there were rates when the library was opened. What the stand-in does to show faults is left out then, as it
// would take longer than the copies: memory that was open stays so, the host's is not filled before a copy, and a copy
// writes at the beginning of its time, not at the end.
bool is_measured();
// By a stream's thread: returns no earlier than `bytes` take at that rate, if there is one.
void copy_in_turn(CopyWay way, c10::DeviceIndex index, std::size_t bytes, double rate,
                  const std::function<void()>& copy);

// A place in a stream that others wait for.
class Mark {
 public:
  void reach();
  void wait() const { reached_.wait(false); }
  bool reached() const { return reached_; }

 private:
  std::atomic<bool> reached_ = false;
};
std::shared_ptr<const Mark> mark_end(Stream& stream);

}  // namespace motley::apart
