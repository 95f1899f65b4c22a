// Stands in for NVIDIA's management library: two GPUs, of which others use 4 GiB each.
#include <cstdint>
#include <cstdio>

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<std::uintptr_t>(index + 1));
  return 0;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  std::snprintf(name, length, "Stub %u", static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(device) - 1));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 24ULL << 30;
  memory[1] = 20ULL << 30;
  memory[2] = 4ULL << 30;
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 8;
  *minor = 6;
  return 0;
}
}
