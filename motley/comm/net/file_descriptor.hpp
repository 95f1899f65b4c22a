// A descriptor with one owner, which closes it; and waiting for one.
#pragma once

#include <unistd.h>

#include <utility>

#include "motley/base/clock.hpp"

namespace motley {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }
  int release() { return std::exchange(number_, -1); }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_ = -1;
};

// Waits until poll() reports one of `events` (POLLIN, POLLOUT), an error or a hang-up. False: the deadline passed.
bool wait_for(int descriptor, short events, Instant until);

}  // namespace motley
