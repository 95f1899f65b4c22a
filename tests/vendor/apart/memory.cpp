#include "tests/vendor/apart/memory.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "tests/vendor/apart/streams.hpp"

namespace motley::apart {
namespace {

constexpr std::size_t range_bytes = std::size_t{1} << 34;  // of addresses, not of memory
constexpr std::int64_t unlimited = std::int64_t{1} << 40;

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

void permit(std::byte* begin, std::size_t bytes, int access) {
  TORCH_CHECK(::mprotect(begin, bytes, access) == 0, "mprotect of the stand-in's memory: ", std::strerror(errno));
}

std::array<Memory*, device_count>& memories() {
  static auto* all = new std::array<Memory*, device_count>{};  // tensors may outlive everything
  return *all;
}

struct sigaction fault_before {};

// Says whose memory it was, then leaves the fault to what would have had it.
void say_fault(int, siginfo_t* info, void*) {
  constexpr char text[] = "the host touched memory of the stand-in device\n";
  if (Memory::around(info->si_addr) != nullptr) (void)!::write(STDERR_FILENO, text, sizeof text - 1);
  ::sigaction(SIGSEGV, &fault_before, nullptr);
}

}  // namespace

Memory::Memory(c10::DeviceIndex index) : index_(index) {
  void* range = ::mmap(nullptr, range_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(range != MAP_FAILED, "no addresses for the stand-in device: ", std::strerror(errno));
  begin_ = next_ = static_cast<std::byte*>(range);
  end_ = begin_ + range_bytes;
}

Memory& Memory::of(c10::DeviceIndex index) {
  static const bool opened = [] {
    for (c10::DeviceIndex i = 0; i < device_count; ++i) memories()[static_cast<std::size_t>(i)] = new Memory(i);
    struct sigaction action {};
    action.sa_sigaction = &say_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    ::sigaction(SIGSEGV, &action, &fault_before);
    return true;
  }();
  (void)opened;
  return *memories().at(static_cast<std::size_t>(index));
}

Memory* Memory::around(const void* address) {
  for (Memory* memory : memories())
    if (memory != nullptr && address >= memory->begin_ && address < memory->end_) return memory;
  return nullptr;
}

std::int64_t Memory::limit() {
  const char* given = std::getenv("MOTLEY_APART_BYTES");
  return given != nullptr && *given != '\0' ? std::strtoll(given, nullptr, 10) : unlimited;
}

// The next place behind the one before, so that addresses come again only once all have been used.
std::byte* Memory::place_for(std::size_t bytes) {
  std::byte* place = next_;
  for (bool again = false;;) {
    if (bytes > static_cast<std::size_t>(end_ - place)) {
      TORCH_CHECK(!again, "the stand-in device has no range of ", bytes, " addresses left");
      again = true;
      place = begin_;
      continue;
    }
    const auto after = blocks_.lower_bound(place + bytes);
    if (after == blocks_.begin()) return place;
    const auto& [begin, block] = *std::prev(after);
    if (begin + block.bytes <= place) return place;
    place = begin + block.bytes;
  }
}

void* Memory::allocate(std::size_t bytes, const c10::Stream& stream) {
  const std::size_t size = (bytes + page_bytes() - 1) / page_bytes() * page_bytes();
  std::byte* place = nullptr;
  {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK_WITH(OutOfMemoryError, held_ + static_cast<std::int64_t>(size) <= limit(),
                     "apart:", static_cast<int>(index_), " out of memory: ", bytes, " bytes were asked for, and ",
                     held_, " of ", limit(), " are in use");
    place = place_for(size + page_bytes());  // and a page behind it that nothing may touch
    next_ = place + size + page_bytes();
    blocks_.emplace(place, Block{.bytes = size, .streams = {stream}});
    held_ += static_cast<std::int64_t>(size);
    peak_ = std::max(peak_, held_);
  }
  stream_of(stream).put([this, place] { spoil(place); }, Start::at_once);
  return place;
}

void Memory::free(void* begin) {
  auto* place = static_cast<std::byte*>(begin);
  std::vector<c10::Stream> streams;
  {
    const std::lock_guard lock(mutex_);
    const Block& block = blocks_.at(place);
    held_ -= static_cast<std::int64_t>(block.bytes);
    streams = block.streams;
  }
  // No stream waits for another: the last of them gives it back.
  const auto left = std::make_shared<std::atomic<std::size_t>>(streams.size());
  for (const c10::Stream& stream : streams)
    stream_of(stream).put(
        [this, place, left] {
          if (--*left == 0) give_back(place);
        },
        Start::at_once);
}

void Memory::record(const void* inside, const c10::Stream& stream) {
  const std::lock_guard lock(mutex_);
  const auto block = around_locked(inside);
  TORCH_CHECK(block != blocks_.end(), "recorded for ", stream, ": memory that is given back");
  std::vector<c10::Stream>& streams = block->second.streams;
  if (std::ranges::find(streams, stream) == streams.end()) streams.push_back(stream);
}

Memory::Blocks::iterator Memory::around_locked(const void* address) {
  auto* place = static_cast<std::byte*>(const_cast<void*>(address));
  auto block = blocks_.upper_bound(place);
  if (block == blocks_.begin()) return blocks_.end();
  --block;
  return place < block->first + block->second.bytes ? block : blocks_.end();
}

bool Memory::open(const void* inside) {
  const std::lock_guard lock(mutex_);
  const auto block = around_locked(inside);
  if (block == blocks_.end() || block->second.given_back) return false;
  if (block->second.opened++ == 0) permit(block->first, block->second.bytes, PROT_READ | PROT_WRITE);
  return true;
}

void Memory::close(const void* inside) {
  const std::lock_guard lock(mutex_);
  const auto block = around_locked(inside);
  if (--block->second.opened > 0) return;
  if (!is_measured()) permit(block->first, block->second.bytes, PROT_NONE);
  if (block->second.given_back) let_go(block);
}

// Writes over what another stream may be using, as the next one to have the memory would.
void Memory::spoil(std::byte* begin) {
  if (!open(begin)) return;
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(mutex_);
    bytes = blocks_.at(begin).bytes;
  }
  std::memset(begin, poison, bytes);
  close(begin);
}

void Memory::give_back(std::byte* begin) {
  spoil(begin);
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(begin);
  block->second.given_back = true;
  if (block->second.opened == 0) let_go(block);
}

void Memory::let_go(Blocks::iterator block) {
  if (is_measured()) permit(block->first, block->second.bytes, PROT_NONE);
  ::madvise(block->first, block->second.bytes, MADV_DONTNEED);
  blocks_.erase(block);
}

std::int64_t Memory::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

std::int64_t Memory::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

void Memory::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = held_;
}

Opened::~Opened() {
  for (const void* place : places_) Memory::around(place)->close(place);
}

void Opened::add(const void* inside, const char* user) {
  constexpr std::int32_t illegal_address = 700;  // as CUDA has it
  Memory* memory = Memory::around(inside);
  if (memory == nullptr)
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, illegal_address,
                                std::string(user) + ": an illegal memory access was encountered");
  TORCH_CHECK(memory->open(inside), user, " uses memory that another stream has given back");
  places_.push_back(inside);
}

namespace {

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex index = current_device();
    void* memory = bytes > 0 ? Memory::of(index).allocate(bytes, current_stream(index)) : nullptr;
    return {memory, memory, &free_block, device_of(index)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "the stand-in device copies tensors, not bytes");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    if (Memory* memory = Memory::around(pointer.get())) memory->record(pointer.get(), stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    auto& bytes = stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    bytes.current = Memory::of(index).held();
    bytes.peak = Memory::of(index).peak();
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex index) override { Memory::of(index).reset_peak(); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex index) override {
    const std::int64_t free = std::max<std::int64_t>(0, Memory::limit() - Memory::of(index).held());
    return {static_cast<std::size_t>(free), static_cast<std::size_t>(Memory::limit())};
  }

 private:
  static void free_block(void* memory) {
    if (memory != nullptr) Memory::around(memory)->free(memory);
  }
};

struct Pinned {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> ranges;
};

Pinned& pinned() {
  static auto* all = new Pinned;
  return *all;
}

// Whole pages, as of a GPU.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = bytes > 0
                       ? std::aligned_alloc(page_bytes(), (bytes + page_bytes() - 1) / page_bytes() * page_bytes())
                       : nullptr;
    TORCH_CHECK(bytes == 0 || memory != nullptr, "no ", bytes, " bytes of the host's memory");
    if (memory != nullptr) {
      const std::lock_guard lock(pinned().mutex);
      pinned().ranges[static_cast<const std::byte*>(memory)] = bytes;
    }
    return {memory, memory, &free_range, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_range; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void free_range(void* memory) {
    if (memory == nullptr) return;
    {
      const std::lock_guard lock(pinned().mutex);
      pinned().ranges.erase(static_cast<const std::byte*>(memory));
    }
    std::free(memory);
  }
};

}  // namespace

c10::DeviceAllocator& allocator() {
  static auto* one = new Allocator;
  return *one;
}

c10::Allocator& pinned_allocator() {
  static auto* one = new PinnedAllocator;
  return *one;
}

bool is_pinned(const void* address) {
  const auto* place = static_cast<const std::byte*>(address);
  const std::lock_guard lock(pinned().mutex);
  const auto after = pinned().ranges.upper_bound(place);
  if (after == pinned().ranges.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return place < begin + bytes;
}

}  // namespace motley::apart
