// What a test's process tells the disk, in order: a power loss cannot be had in a test, the order of calls that makes
// it harmless can be seen. The C library's functions of these names are replaced in the whole program of tests.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace motley {

class DiskCalls {
 public:
  static DiskCalls& all() {
    static DiskCalls calls;
    return calls;
  }
  void add(const char* call, const std::filesystem::path& path) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(fmt::format("{} {}", call, path.filename().string()));
  }
  void add(const char* call, int descriptor) {
    std::error_code ignored;
    add(call, std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), ignored));
  }
  // "sync plan.json", "rename plan.json", "write .model.chunks": those since the last time.
  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(calls_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> calls_;
};

}  // namespace motley

extern "C" {
[[gnu::used]] inline int fsync(int descriptor) {
  motley::DiskCalls::all().add("sync", descriptor);
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}
[[gnu::used]] inline int fdatasync(int descriptor) {
  motley::DiskCalls::all().add("sync", descriptor);
  return static_cast<int>(::syscall(SYS_fdatasync, descriptor));
}
[[gnu::used]] inline ssize_t pwrite(int descriptor, const void* bytes, size_t count, off_t offset) {
  motley::DiskCalls::all().add("write", descriptor);
  return ::syscall(SYS_pwrite64, descriptor, bytes, count, offset);
}
[[gnu::used]] inline int rename(const char* from, const char* to) noexcept {
  motley::DiskCalls::all().add("rename", to);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
}
