#include "motley/engine/cpu/cpu_kernels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "motley/base/error.hpp"
#include "motley/engine/cpu/cpu_kernels_sets.hpp"

#ifdef __x86_64__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace motley {
namespace {

#ifdef __x86_64__
// Linux gives a process the tiles' registers where it asks for them, once for all of its threads.
bool tiles_granted() {
  constexpr int request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

struct InstructionSet {
  std::string_view name;
  bool runs;
  const CpuKernels<float>& (*fp32)();
  const CpuKernels<Bf16>& (*bf16)();
};

// From the most general to the best. Every processor with bf16 instructions of 512 bits has VNNI, too.
std::vector<InstructionSet> compiled_sets() {
  std::vector<InstructionSet> sets = {{"portable", true, portable_kernels::fp32, portable_kernels::bf16}};
#ifdef __x86_64__
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  sets.push_back({"avx2", avx2, avx2_kernels::fp32, avx2_kernels::bf16});
  sets.push_back({"avx512", avx512, avx512_kernels::fp32, avx512_kernels::bf16});
  sets.push_back({"avx512vnni", vnni, avx512vnni_kernels::fp32, avx512vnni_kernels::bf16});
  const bool bf16 = vnni && __builtin_cpu_supports("avx512bf16");
  const bool amx = bf16 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
                   __builtin_cpu_supports("amx-int8") && tiles_granted();
  sets.push_back({"avx512bf16", bf16, avx512bf16_kernels::fp32, avx512bf16_kernels::bf16});
  sets.push_back({"avx512amx", amx, avx512amx_kernels::fp32, avx512amx_kernels::bf16});
#endif
  return sets;
}

std::vector<InstructionSet> runnable_sets() {
  std::vector<InstructionSet> sets = compiled_sets();
  std::erase_if(sets, [](const InstructionSet& set) { return !set.runs; });
  return sets;
}

const InstructionSet& chosen_set() {
  static const InstructionSet chosen = [] {
    const std::vector<InstructionSet> sets = runnable_sets();
    const char* named = std::getenv("MOTLEY_KERNELS");
    if (named == nullptr || *named == '\0') return sets.back();
    const auto found = std::find_if(sets.begin(), sets.end(), [&](const auto& set) { return set.name == named; });
    if (found != sets.end()) return *found;
    std::string names;
    for (const InstructionSet& set : sets) names += fmt::format("{}{}", names.empty() ? "" : ", ", set.name);
    throw input_error(
        fmt::format("MOTLEY_KERNELS names {}, which is not a set of kernels that this processor runs", named),
        "unset it, or choose from: " + names);
  }();
  return chosen;
}

}  // namespace

std::string_view cpu_kernels_name() { return chosen_set().name; }

template <>
std::vector<const CpuKernels<float>*> all_cpu_kernels() {
  std::vector<const CpuKernels<float>*> all;
  for (const InstructionSet& set : runnable_sets()) all.push_back(&set.fp32());
  return all;
}

template <>
std::vector<const CpuKernels<Bf16>*> all_cpu_kernels() {
  std::vector<const CpuKernels<Bf16>*> all;
  for (const InstructionSet& set : runnable_sets()) all.push_back(&set.bf16());
  return all;
}

template <>
std::vector<const CpuKernels<float>*> compiled_cpu_kernels() {
  std::vector<const CpuKernels<float>*> all;
  for (const InstructionSet& set : compiled_sets()) all.push_back(&set.fp32());
  return all;
}

template <>
std::vector<const CpuKernels<Bf16>*> compiled_cpu_kernels() {
  std::vector<const CpuKernels<Bf16>*> all;
  for (const InstructionSet& set : compiled_sets()) all.push_back(&set.bf16());
  return all;
}

template <>
const CpuKernels<float>& cpu_kernels() {
  static const CpuKernels<float>& chosen = chosen_set().fp32();
  return chosen;
}

template <>
const CpuKernels<Bf16>& cpu_kernels() {
  static const CpuKernels<Bf16>& chosen = chosen_set().bf16();
  return chosen;
}

}  // namespace motley
