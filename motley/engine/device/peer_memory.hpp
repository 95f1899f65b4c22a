// Memory of a device that another process of the machine opens on its own device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace motley {

// What a process sends to another one, so that it can open a buffer of it.
using PeerBufferHandle = std::array<std::byte, 64>;

class PeerMemory {
 public:
  struct Buffer {
    void* memory = nullptr;
    PeerBufferHandle handle = {};
  };

  virtual ~PeerMemory() = default;
  // Of the device; nothing where it cannot be shared. Gone with free().
  virtual std::optional<Buffer> allocate(std::int64_t bytes) const = 0;
  virtual void free(void* memory) const = 0;
  // Another process's buffer, until close(); null where this device does not reach it.
  virtual void* open(const PeerBufferHandle& handle) const = 0;
  virtual void close(void* memory) const = 0;
  // Between any two devices; returns when all is copied.
  virtual void copy(void* to, const void* from, std::int64_t bytes) const = 0;
};

}  // namespace motley
