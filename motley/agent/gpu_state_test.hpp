// For tests of this module and those above it: what the stand-in for NVIDIA's management library says
// (tests/vendor/nvml_stub.cpp).
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/base/value.hpp"

namespace motley {

// While it lives.
class GpuStateFile {
 public:
  // "GPU-0", "GPU-1", ...
  explicit GpuStateFile(int devices) {
    std::string name = std::filesystem::temp_directory_path() / "motley-gpus-XXXXXX";
    MOTLEY_CHECK(::mkdtemp(name.data()) != nullptr);
    folder_ = name;
    for (int i = 0; i < devices; ++i) {
      const std::string number = std::to_string(i);
      devices_.push_back(Value::object({{"name", "Stub " + number}, {"uuid", "GPU-" + number}}));
    }
    write();
    ::setenv("MOTLEY_NVML_STATE", file().c_str(), 1);
  }
  ~GpuStateFile() {
    ::unsetenv("MOTLEY_NVML_STATE");
    std::filesystem::remove_all(folder_);
  }
  GpuStateFile(const GpuStateFile&) = delete;
  GpuStateFile& operator=(const GpuStateFile&) = delete;

  GpuStateFile& set(std::size_t device, std::string_view key, Value value) {
    devices_[device].set(key, std::move(value));
    write();
    return *this;
  }
  void set_events(bool any) {
    has_events_ = any;
    write();
  }

 private:
  std::filesystem::path file() const { return folder_ / "state.json"; }
  void write() const {
    write_file(file(), to_json(Value::object({{"has_events", has_events_}, {"devices", Value(devices_)}})));
  }

  std::filesystem::path folder_;
  Value::Array devices_;
  bool has_events_ = true;
};

}  // namespace motley
