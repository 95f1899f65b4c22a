#include "motley/engine/cpu_kernels.hpp"

#include "motley/engine/cpu_kernels_sets.hpp"

namespace motley {
namespace {

struct InstructionSet {
  bool runs;
  const CpuKernels<float>& (*fp32)();
  const CpuKernels<Bf16>& (*bf16)();
};

// From the most general to the best.
std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets = {{true, portable_kernels::fp32, portable_kernels::bf16}};
#ifdef __x86_64__
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  sets.push_back(
      {__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), avx2_kernels::fp32, avx2_kernels::bf16});
  sets.push_back({avx512, avx512_kernels::fp32, avx512_kernels::bf16});
  sets.push_back({avx512 && __builtin_cpu_supports("avx512bf16"), avx512bf16_kernels::fp32, avx512bf16_kernels::bf16});
#endif
  std::erase_if(sets, [](const InstructionSet& set) { return !set.runs; });
  return sets;
}

}  // namespace

template <>
std::vector<const CpuKernels<float>*> all_cpu_kernels() {
  std::vector<const CpuKernels<float>*> all;
  for (const InstructionSet& set : instruction_sets()) all.push_back(&set.fp32());
  return all;
}

template <>
std::vector<const CpuKernels<Bf16>*> all_cpu_kernels() {
  std::vector<const CpuKernels<Bf16>*> all;
  for (const InstructionSet& set : instruction_sets()) all.push_back(&set.bf16());
  return all;
}

template <>
const CpuKernels<float>& cpu_kernels() {
  static const CpuKernels<float>& best = *all_cpu_kernels<float>().back();
  return best;
}

template <>
const CpuKernels<Bf16>& cpu_kernels() {
  static const CpuKernels<Bf16>& best = *all_cpu_kernels<Bf16>().back();
  return best;
}

}  // namespace motley
