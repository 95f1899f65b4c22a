#include "motley/engine/cpu/cpu_meter.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <vector>

#include "motley/engine/cpu/cpu_device.hpp"

namespace motley {
namespace {

constexpr std::int64_t megabyte = std::int64_t{1} << 20;

// Page faults while tensors of a pass are written, which end with it.
std::int64_t faults_of_pass() {
  const auto faults = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_minflt;
  };
  const std::int64_t before = faults();
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 6; ++i) tensors.push_back(at::ones({8 * megabyte / 4}, at::kFloat));
  return faults() - before;
}

TEST(MemoryMeter, CountsWhatIsHeldAndTheMostThatWas) {
  MemoryMeter& meter = cpu_device().meter();
  const std::int64_t before = meter.bytes();
  meter.reset_peak();
  at::Tensor kept = at::empty({megabyte}, at::kByte);
  { const at::Tensor passing = at::empty({2 * megabyte}, at::kByte); }
  EXPECT_NEAR(static_cast<double>(meter.bytes() - before), megabyte, 8192);
  EXPECT_NEAR(static_cast<double>(meter.peak_bytes() - before), 3 * megabyte, 16384);
  kept = at::Tensor();
  EXPECT_EQ(meter.bytes(), before);
}

TEST(MemoryMeter, WhatAPassFreesTheNextOneHasWithoutFaults) {
  at::set_num_threads(1);
  cpu_device().keep_freed_memory();
  const std::int64_t first = faults_of_pass();
  for (int i = 0; i < 12; ++i) faults_of_pass();  // until fragments of the heap are used as well
  EXPECT_LT(faults_of_pass(), std::max<std::int64_t>(16, first / 8));
}

}  // namespace
}  // namespace motley
