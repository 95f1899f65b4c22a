#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/base/error.hpp"
#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/device/collectives.hpp"
#include "motley/engine/device/device_errors.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/memory_meter.hpp"
#include "motley/engine/device/stream_order.hpp"

namespace motley {
namespace {

// Work enough that a stream is late for a caller that does not wait.
at::Tensor late_sum(const at::Tensor& term) {
  at::Tensor sum = at::zeros_like(term);
  for (int i = 0; i < 30; ++i) sum.add_(term);
  return sum;
}

TEST(ApartDeviceDeathTest, FaultsWhereTheHostTouchesItsMemory) {
  const at::Tensor tensor = apart_device().empty({4}, at::kFloat);
  apart_device().wait_for_thread();
  EXPECT_DEATH(*static_cast<volatile float*>(tensor.mutable_data_ptr()) = 1, "the host touched memory");
  EXPECT_DEATH((void)*static_cast<const volatile float*>(tensor.const_data_ptr()), "the host touched memory");
}

TEST(ApartDevice, ComputesWhatProcessorsCompute) {
  const c10::InferenceMode guard;
  const ComputeDevice& device = apart_device();
  const at::Tensor a = at::rand({5, 7}), b = at::rand({7, 3});
  at::Tensor product = device.empty({5, 3}, at::kFloat);
  EXPECT_TRUE(product.cpu().isnan().all().item<bool>()) << "memory is new";
  at::mm_out(product, a.to(device.place()), b.to(device.place()));
  EXPECT_TRUE(product.cpu().equal(at::mm(a, b)));
  EXPECT_TRUE(product.t().narrow(0, 1, 2).cpu().equal(at::mm(a, b).t().narrow(0, 1, 2)));
  product.narrow(0, 1, 2).fill_(3);
  EXPECT_EQ(product.sum().item<float>(), product.cpu().sum().item<float>());
}

// By meta tensors, by zeros where an operator does not know those, and by waiting where it depends on values.
TEST(ApartDevice, KnowsTheShapesOfResults) {
  const c10::InferenceMode guard;
  const ComputeDevice& device = apart_device();
  const at::Tensor values = at::rand({6, 4}), index = at::tensor({4, 0, 5}, at::kLong);
  const at::Tensor apart = values.to(device.place()), chosen = apart.index_select(0, index.to(device.place()));
  EXPECT_EQ(chosen.sizes(), (std::vector<std::int64_t>{3, 4}));
  EXPECT_TRUE(chosen.cpu().equal(values.index_select(0, index)));
  EXPECT_TRUE(apart.nonzero().cpu().equal(values.nonzero()));
  EXPECT_TRUE(apart.masked_select(apart > 0.5).cpu().equal(values.masked_select(values > 0.5)));
  EXPECT_TRUE(apart.index({apart > 0.5}).cpu().equal(values.index({values > 0.5})));
  const auto [sorted, order] = apart.sort(-1);
  EXPECT_TRUE(sorted.cpu().equal(std::get<0>(values.sort(-1))));
  EXPECT_EQ(order.scalar_type(), at::kLong);
  at::Tensor empty = device.empty({0}, at::kFloat);
  at::add_out(empty, apart, apart);
  EXPECT_TRUE(empty.cpu().equal(values + values));
  EXPECT_TRUE(at::equal(apart, values.to(device.place())));
  EXPECT_THROW(apart.add_(values), c10::Error) << "with a tensor of the host";
}

TEST(ApartDevice, CrossesByTheHostsMemory) {
  const ComputeDevice& device = apart_device();
  const at::Tensor values = at::rand({3, 4}), apart = values.to(device.place());
  at::Tensor buffer;
  const at::Tensor host = device.to_host(apart, buffer);
  EXPECT_TRUE(host.is_cpu() && host.equal(values));
  EXPECT_EQ(bytes_of(host).size(), values.nbytes());
  EXPECT_TRUE(buffer.is_pinned() && host.is_pinned() && !values.is_pinned());
  const void* before = buffer.const_data_ptr();
  EXPECT_TRUE(device.to_host(apart[1], buffer).equal(values[1]));
  EXPECT_EQ(buffer.const_data_ptr(), before) << "the buffer serves what is smaller";
  EXPECT_TRUE(device.lives());
}

TEST(ApartDevice, GivesGarbageToWhoReadsTooEarly) {
  const c10::InferenceMode guard;
  const ComputeDevice& device = apart_device();
  const at::Tensor ones = at::ones({8}, device.options(at::kFloat)),
                   host = at::zeros({8}, at::TensorOptions(at::kFloat).pinned_memory(true));
  bool early = false;
  for (int i = 0; i < 20 && !early; ++i) {
    host.copy_(late_sum(ones), /*non_blocking=*/true);
    early = host.isnan().all().item<bool>();
    device.wait_for_thread();
    EXPECT_TRUE(host.eq(30).all().item<bool>());
  }
  EXPECT_TRUE(early);
}

TEST(ApartDevice, SendsWhatTheHostOverwritesTooEarly) {
  const c10::InferenceMode guard;
  const ComputeDevice& device = apart_device();
  const at::Tensor ones = at::ones({8}, device.options(at::kFloat)),
                   host = at::zeros({8}, at::TensorOptions(at::kFloat).pinned_memory(true));
  bool overtaken = false;
  for (int i = 0; i < 20 && !overtaken; ++i) {
    host.fill_(1);
    at::Tensor apart = late_sum(ones);
    apart.copy_(host, /*non_blocking=*/true);
    host.fill_(2);
    overtaken = apart.cpu().eq(2).all().item<bool>();
  }
  EXPECT_TRUE(overtaken);
}

// Frees values that another thread has made while this one's stream still computes with them; whether that was right.
bool free_early(bool recorded) {
  const c10::InferenceMode guard;
  const ComputeDevice& device = apart_device();
  at::Tensor term;
  std::thread([&] {
    const c10::InferenceMode of_thread;
    term = at::ones({8}, at::TensorOptions(at::kFloat)).to(device.place());
  }).join();
  const c10::impl::VirtualGuardImpl streams(at::kPrivateUse1);
  if (recorded) streams.recordDataPtrOnStream(term.storage().data_ptr(), streams.getStream(device.place()));
  const at::Tensor sum = late_sum(term);
  term.reset();
  return sum.cpu().eq(30).all().item<bool>();
}

TEST(ApartDevice, KeepsMemoryForTheStreamsThatWereRecorded) {
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(free_early(true));
}

TEST(ApartDevice, TellsOfMemoryThatAnotherStreamHasGivenBack) {
  try {
    for (int i = 0; i < 20; ++i) free_early(false);
    FAIL() << "every sum was done before its term was freed";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what_without_backtrace()).find("another stream has given back"), std::string::npos);
  }
  EXPECT_TRUE(apart_device().lives());
}

TEST(ApartDevice, LetsStreamsWaitForOneAnother) {
  const c10::InferenceMode guard;
  const ComputeDevice& device = apart_device();
  const c10::impl::VirtualGuardImpl streams(at::kPrivateUse1);
  const c10::Stream first = streams.getStream(device.place()), second = streams.getStreamFromGlobalPool(device.place());
  ASSERT_NE(first, second);
  const at::Tensor ones = at::ones({8}, device.options(at::kFloat)), sum = late_sum(ones);
  c10::Event done(at::kPrivateUse1);
  done.record(first);
  done.block(second);
  streams.exchangeStream(second);
  const at::Tensor twice = sum * 2;
  EXPECT_TRUE(twice.cpu().eq(60).all().item<bool>());
  EXPECT_TRUE(done.query());
  streams.exchangeStream(first);
}

TEST(ApartDevice, HasALimit) {
  const ComputeDevice& device = apart_device();
  const std::int64_t limit = device.meter().bytes() + (1 << 20);
  ::setenv("MOTLEY_APART_BYTES", std::to_string(limit).c_str(), 1);
  EXPECT_EQ(device.free_bytes(), 1 << 20);
  EXPECT_NO_THROW(device.empty({1 << 17}, at::kFloat));
  try {
    device.empty({1 << 19}, at::kFloat);
    ADD_FAILURE() << "more than there is";
  } catch (const c10::Error& error) {
    EXPECT_EQ(fault_of(error, health_of(device)), DeviceFault::memory) << error.what_without_backtrace();
  }
  ::unsetenv("MOTLEY_APART_BYTES");
}

TEST(ApartDevice, CopiesTakeTheTimeOfTheirRate) {
  const c10::InferenceMode guard;
  const ComputeDevice& device = apart_device();
  const at::Tensor values = at::arange(1 << 18, at::kFloat), apart = values.to(device.place());  // 1 MiB
  at::Tensor buffer;
  ::setenv("MOTLEY_APART_RATES", "h2d=1e8,d2h=2e7", 1);
  const Instant start = Clock::now();
  const at::Tensor there = values.to(device.place());
  EXPECT_GE(seconds_since(start), 0.0104);
  const at::Tensor here = device.host_space(apart, buffer);
  here.copy_(apart, /*non_blocking=*/true);
  const StreamMoment copied = moment_on(device);
  EXPECT_FALSE(copied->query() && seconds_since(start) < 0.05);
  wait_until(copied);
  EXPECT_GE(seconds_since(start), 0.06);
  EXPECT_TRUE(here.equal(values) && there.cpu().equal(values));
  for (const char* wrong : {"d2h=", "h2d=fast", "d2h=1e9;h2d=1e9", "up=3", "d2h=-1"}) {
    ::setenv("MOTLEY_APART_RATES", wrong, 1);
    EXPECT_THROW(values.to(device.place()), c10::Error) << wrong;
  }
  ::unsetenv("MOTLEY_APART_RATES");
}

TEST(ApartDevice, GivesBackWhatIsNoLongerHeld) {
  MemoryMeter& meter = apart_device().meter();
  const std::int64_t before = meter.bytes();
  meter.reset_peak();
  { const at::Tensor passing = apart_device().empty({1 << 20}, at::kFloat); }
  EXPECT_EQ(meter.bytes(), before);
  EXPECT_EQ(meter.peak_bytes(), before + (4 << 20));
}

TEST(ApartDevice, IsOneOfTwo) {
  const c10::InferenceMode guard;
  const at::Tensor here = late_sum(at::ones({8}, apart_device().options(at::kFloat)));
  const ComputeDevice& other = open_device("apart:1");
  const at::Tensor there = here.to(other.place());
  EXPECT_EQ(there.device(), other.place());
  EXPECT_TRUE((there * 2).cpu().eq(60).all().item<bool>());
  EXPECT_THROW(open_device("apart:2"), Error);
}

}  // namespace
}  // namespace motley
