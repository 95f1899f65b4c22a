// Memory of the stand-in device: pages that can be read and written only while a task has them open, and faults for all
// others. Each device has one range of addresses, in which what was given back is not used again before its end.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace motley::apart {

// A NaN in every type of floats, and no place in anything as a whole number.
constexpr int poison = 0xFF;

// As a caching allocator has it: a block belongs to the stream that was current when it was allocated. In that stream's
// order its values become undefined when it is allocated and when it is freed; what other streams do with it is waited
// for where record() was told of them, and nowhere else.
class Memory {
 public:
  static Memory& of(c10::DeviceIndex index);
  // That of the device whose memory an address is in; nullptr: the host's.
  static Memory* around(const void* address);

  // Throws c10::OutOfMemoryError beyond MOTLEY_APART_BYTES.
  void* allocate(std::size_t bytes, const c10::Stream& stream);
  void free(void* begin);
  void record(const void* inside, const c10::Stream& stream);

  // For all threads, until as many close(). False where the memory is given back.
  bool open(const void* inside);
  void close(const void* inside);

  c10::DeviceIndex index() const { return index_; }
  std::int64_t held() const;
  std::int64_t peak() const;
  void reset_peak();
  static std::int64_t limit();  // of each device

 private:
  struct Block {
    std::size_t bytes = 0;
    std::vector<c10::Stream> streams;  // that of its allocation first
    int opened = 0;
    bool given_back = false;  // but still open
  };
  using Blocks = std::map<std::byte*, Block>;

  explicit Memory(c10::DeviceIndex index);
  Blocks::iterator around_locked(const void* address);
  std::byte* place_for(std::size_t bytes);
  void spoil(std::byte* begin);
  void give_back(std::byte* begin);
  void let_go(Blocks::iterator block);

  const c10::DeviceIndex index_;
  std::byte *begin_ = nullptr, *end_ = nullptr, *next_ = nullptr;
  mutable std::mutex mutex_;
  Blocks blocks_;
  std::int64_t held_ = 0, peak_ = 0;
};

// The pages that a task needs, for as long as this lives.
class Opened {
 public:
  Opened() = default;
  ~Opened();
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  // Throws where the memory is given back; `user`: for the message.
  void add(const void* inside, const char* user);

 private:
  std::vector<const void*> places_;
};

c10::DeviceAllocator& allocator();
// Memory of the host that copies need not be waited for.
c10::Allocator& pinned_allocator();
bool is_pinned(const void* address);

}  // namespace motley::apart
