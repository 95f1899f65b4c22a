// An event (eventfd) that wakes a thread out of poll(), from another thread or from another process that holds it.
#pragma once

#include "motley/comm/net/file_descriptor.hpp"

namespace motley {

class Wakeup {
 public:
  // Throws an environment error where the process can have no more descriptors.
  Wakeup();
  // An event that another process made, or shares.
  explicit Wakeup(FileDescriptor event) : event_(std::move(event)) {}

  int descriptor() const { return event_.get(); }  // readable from notify() until clear()
  // Both throw an environment error where the descriptor is not an event, and never wait.
  void notify() const;
  void clear() const;

 private:
  FileDescriptor event_;
};

}  // namespace motley
