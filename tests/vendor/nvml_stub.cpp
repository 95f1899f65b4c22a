// Stands in for NVIDIA's management library. What it says is in the JSON file that MOTLEY_NVML_STATE names. It reads
// the file at each call, so that a test changes it by writing the file:
//
//     {"has_events": true, "calls_take_s": 0, "devices": [{"name": "Stub 0", "uuid": "GPU-0", "free_bytes": 1,
//       "error": 0, "recovery_action": 0, "processes": [4711], "events": [[8, 79]], "remap_pending": false}]}
//
// `error` is what every question about the device is answered with, `recovery_action` null where the driver does not
// tell it; of `events`, type and data, each comes once. Without the file: two GPUs, of which others use 4 GiB each.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "motley/base/nvml.hpp"
#include "motley/base/value.hpp"

namespace {

using motley::NvmlAnswer;
using motley::Value;

constexpr std::int64_t total_bytes = std::int64_t{24} << 30, free_at_first_bytes = std::int64_t{20} << 30;
constexpr int unknown_device = 2;

Value device_named(const std::string& number) {
  return Value::object({{"name", "Stub " + number}, {"uuid", "GPU-" + number}});
}

Value state() {
  const char* file = std::getenv("MOTLEY_NVML_STATE");
  if (file == nullptr) return Value::object({{"devices", Value::array({device_named("0"), device_named("1")})}});
  return motley::parse_json(motley::read_file(file), file);
}

Value member(const Value& value, const char* name, Value otherwise) {
  const Value* found = value.find(name);
  return found == nullptr ? otherwise : *found;
}

// The devices' handles are their places from 1 on.
std::size_t place_of(void* device) { return reinterpret_cast<std::uintptr_t>(device) - 1; }
void* handle_of(std::size_t place) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(place + 1)); }

// Answers a question about a device by `answer`, where it can be asked at all.
template <class Answer>
int about(void* device, Answer answer) {
  const Value now = state();
  std::this_thread::sleep_for(std::chrono::duration<double>(member(now, "calls_take_s", 0).as_number()));
  const Value::Array& devices = now.find("devices")->as_array();
  if (place_of(device) >= devices.size()) return unknown_device;
  const Value& asked = devices[place_of(device)];
  if (const auto error = member(asked, "error", 0).as_integer(); error != 0) return static_cast<int>(error);
  return answer(asked);
}

std::map<std::size_t, std::size_t> events_told;  // by device; of the one set that there is

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(state().find("devices")->as_array().size());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = handle_of(index);
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  const Value now = state();
  const Value::Array& devices = now.find("devices")->as_array();
  const auto found = std::find_if(devices.begin(), devices.end(),
                                  [&](const Value& one) { return one.find("uuid")->as_string() == uuid; });
  if (found == devices.end()) return static_cast<int>(NvmlAnswer::not_found);
  *device = handle_of(static_cast<std::size_t>(found - devices.begin()));
  return 0;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  return about(device, [&](const Value& asked) {
    std::snprintf(name, length, "%s", asked.find("name")->as_string().c_str());
    return 0;
  });
}
int nvmlDeviceGetMemoryInfo(void* device, motley::NvmlMemory* memory) {
  return about(device, [&](const Value& asked) {
    memory->total = total_bytes;
    memory->free = static_cast<unsigned long long>(member(asked, "free_bytes", free_at_first_bytes).as_integer());
    memory->used = memory->total - memory->free;
    return 0;
  });
}
int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  return about(device, [&](const Value&) {
    *major = 8;
    *minor = 6;
    return 0;
  });
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, motley::NvmlProcess* listed) {
  return about(device, [&](const Value& asked) {
    const Value processes = member(asked, "processes", Value::array());
    const std::size_t there = processes.as_array().size();
    const bool fits = there <= *count;
    *count = static_cast<unsigned>(there);
    if (!fits) return static_cast<int>(NvmlAnswer::too_small);
    for (std::size_t i = 0; i < there; ++i)
      listed[i] = {.process = static_cast<unsigned>(processes.as_array()[i].as_integer())};
    return 0;
  });
}
int nvmlDeviceGetFieldValues(void* device, int count, motley::NvmlField* fields) {
  return about(device, [&](const Value& asked) {
    const Value action = member(asked, "recovery_action", Value());
    for (int i = 0; i < count; ++i)
      if (fields[i].field == 230 && action.is_integer())
        fields[i].value = static_cast<unsigned long long>(action.as_integer());
      else
        fields[i].answer = static_cast<int>(NvmlAnswer::not_supported);
    return 0;
  });
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* correctable, unsigned* uncorrectable, unsigned* pending,
                              unsigned* failed) {
  return about(device, [&](const Value& asked) {
    *correctable = *uncorrectable = *failed = 0;
    *pending = member(asked, "remap_pending", false).as_bool() ? 1 : 0;
    return 0;
  });
}

int nvmlEventSetCreate(void** set) {
  events_told.clear();
  *set = &events_told;
  return 0;
}
int nvmlEventSetFree(void*) { return 0; }
int nvmlDeviceGetSupportedEventTypes(void*, unsigned long long* types) {
  if (!member(state(), "has_events", true).as_bool()) return static_cast<int>(NvmlAnswer::not_supported);
  *types = 0xffff;
  return 0;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long, void*) { return 0; }
int nvmlEventSetWait_v2(void*, motley::NvmlEvent* event, unsigned most_ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(most_ms);
  do {
    const Value now = state();
    const Value::Array& devices = now.find("devices")->as_array();
    for (std::size_t place = 0; place < devices.size(); ++place) {
      const Value events = member(devices[place], "events", Value::array());
      if (events_told[place] >= events.as_array().size()) continue;
      const Value::Array& next = events.as_array()[events_told[place]++].as_array();
      *event = {.device = handle_of(place),
                .type = static_cast<unsigned long long>(next.at(0).as_integer()),
                .data = static_cast<unsigned long long>(next.at(1).as_integer())};
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  } while (std::chrono::steady_clock::now() < until);
  return static_cast<int>(NvmlAnswer::timed_out);
}
}
