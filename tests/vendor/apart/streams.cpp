#include "tests/vendor/apart/streams.hpp"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace motley::apart {
namespace {

constexpr c10::StreamId pool_streams = 8, all_streams = 1 + pool_streams;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* given = std::getenv(variable);
  return given != nullptr && *given != '\0' ? std::strtoull(given, nullptr, 10) : otherwise;
}

// Read when the library is opened, before there are threads.
const std::uint64_t seed = number_from("MOTLEY_APART_SEED", 1), latest_us = number_from("MOTLEY_APART_LATE_US", 50);

struct Streams {
  std::mutex mutex;
  std::array<std::array<Stream*, all_streams>, device_count> all{};
  std::array<c10::StreamId, device_count> handed_out{};
};

Streams& streams() {
  static auto* all = new Streams;  // their threads outlive everything
  return *all;
}

thread_local c10::DeviceIndex this_device = 0;
thread_local std::array<c10::StreamId, device_count> this_streams{};

std::size_t checked(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < device_count, "apart:", static_cast<int>(index), ": there are ",
              static_cast<int>(device_count), " of them");
  return static_cast<std::size_t>(index);
}

// What was begun is ended while its libraries are still there.
[[maybe_unused]] const int drained_at_exit = std::atexit([] {
  for (c10::DeviceIndex index = 0; index < device_count; ++index) {
    try {
      wait_for_device(index);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "apart:%d, after the last wait: %s\n", static_cast<int>(index), error.what());
    }
  }
});

}  // namespace

Stream::Stream(std::uint64_t stream_seed) : random_(stream_seed) {
  std::thread([this] { run(); }).detach();
}

void Stream::put(std::function<void()> task, Start start) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back({std::move(task), start});
    ++put_;
  }
  changed_.notify_all();
}

void Stream::wait() {
  std::unique_lock lock(mutex_);
  const std::uint64_t end = put_;
  changed_.wait(lock, [&] { return done_ >= end; });
  if (!failure_) return;
  try {
    std::rethrow_exception(std::exchange(failure_, nullptr));
  } catch (const c10::AcceleratorError&) {
    failure_ = std::current_exception();
    throw;
  }
}

bool Stream::idle() const {
  const std::lock_guard lock(mutex_);
  return done_ == put_;
}

void Stream::run() {
  (void)at::get_num_threads();  // sets them, once in each thread
  ::omp_set_num_threads(1);     // several streams are enough for the machine
  const c10::InferenceMode guard;
  std::uniform_int_distribution<std::uint64_t> lateness_us(0, latest_us);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !tasks_.empty(); });
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    if (task.start == Start::late && latest_us > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(lateness_us(random_)));
    std::exception_ptr failure;
    try {
      task.work();
    } catch (...) {
      failure = std::current_exception();
    }
    task.work = {};
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    ++done_;
    changed_.notify_all();
  }
}

c10::Device device_of(c10::DeviceIndex index) { return {c10::kPrivateUse1, index}; }

Stream& stream_of(const c10::Stream& stream) {
  const std::size_t index = checked(stream.device_index());
  TORCH_CHECK(stream.id() >= 0 && stream.id() < all_streams, stream, " is none of this device's");
  const std::lock_guard lock(streams().mutex);
  Stream*& found = streams().all[index][static_cast<std::size_t>(stream.id())];
  if (found == nullptr) found = new Stream(seed * 1000 + index * 100 + static_cast<std::uint64_t>(stream.id()));
  return *found;
}

void wait_for_device(c10::DeviceIndex index) {
  std::array<Stream*, all_streams> all{};
  {
    const std::lock_guard lock(streams().mutex);
    all = streams().all[checked(index)];
  }
  for (Stream* stream : all)
    if (stream != nullptr) stream->wait();
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  (void)checked(index);
  return std::exchange(this_device, index);
}

c10::DeviceIndex current_device() { return this_device; }

c10::Stream current_stream(c10::DeviceIndex index) {
  const c10::DeviceIndex of = index < 0 ? this_device : index;
  return c10::Stream(c10::Stream::UNSAFE, device_of(of), this_streams[checked(of)]);
}

c10::Stream exchange_stream(const c10::Stream& stream) {
  const c10::Stream before = current_stream(stream.device_index());
  this_streams[checked(stream.device_index())] = stream.id();
  return before;
}

c10::Stream stream_from_pool(c10::DeviceIndex index) {
  const c10::DeviceIndex of = index < 0 ? this_device : index;
  const std::lock_guard lock(streams().mutex);
  c10::StreamId& last = streams().handed_out[checked(of)];
  last = last % pool_streams + 1;
  return c10::Stream(c10::Stream::UNSAFE, device_of(of), last);
}

double copy_rate(CopyWay way) {
  const char* given = std::getenv("MOTLEY_APART_RATES");
  double rate = 0;
  for (std::string_view left = given != nullptr ? given : ""; !left.empty();) {
    const std::string entry(left.substr(0, left.find(',')));
    left.remove_prefix(std::min(left.size(), entry.size() + 1));
    char* end = nullptr;
    const bool is_down = entry.starts_with("d2h="), is_up = entry.starts_with("h2d=");
    const double value = is_down || is_up ? std::strtod(entry.c_str() + 4, &end) : 0;
    TORCH_CHECK(end != nullptr && *end == '\0' && value > 0 && value < 1e15, "MOTLEY_APART_RATES has \"", entry,
                "\"; it is like \"d2h=1e9,h2d=1e9\", in bytes per second");
    if (is_down == (way == CopyWay::down)) rate = value;
  }
  return rate;
}

bool is_measured() {
  static const bool has_rates = std::getenv("MOTLEY_APART_RATES") != nullptr;
  return has_rates;
}

void copy_in_turn(CopyWay way, c10::DeviceIndex index, std::size_t bytes, double rate,
                  const std::function<void()>& copy) {
  if (rate <= 0) return copy();
  static auto* engines = new std::array<std::array<std::mutex, 2>, device_count>;
  const std::lock_guard engine((*engines)[checked(index)][way == CopyWay::up ? 1 : 0]);
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(static_cast<double>(bytes) / rate);
  if (is_measured()) copy();
  std::this_thread::sleep_until(until);
  if (!is_measured()) copy();  // late, for who does not wait
}

void Mark::reach() {
  reached_ = true;
  reached_.notify_all();
}

std::shared_ptr<const Mark> mark_end(Stream& stream) {
  auto mark = std::make_shared<Mark>();
  stream.put([mark] { mark->reach(); }, Start::at_once);
  return mark;
}

}  // namespace motley::apart
