#include "motley/engine/device/apart_device_test.hpp"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "motley/engine/device/collectives.hpp"
#include "motley/engine/device/host_memory.hpp"

namespace motley {
namespace {

TEST(ApartDeviceDeathTest, FaultsWhereTheHostTouchesItsMemory) {
  const at::Tensor tensor = apart_device().empty({4}, at::kFloat);
  EXPECT_DEATH(*static_cast<volatile float*>(tensor.mutable_data_ptr()) = 1, "");
  EXPECT_DEATH((void)*static_cast<const volatile float*>(tensor.const_data_ptr()), "");
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

TEST(ApartDevice, CrossesByTheHostsMemory) {
  const ComputeDevice& device = apart_device();
  const at::Tensor values = at::rand({3, 4}), apart = values.to(device.place());
  at::Tensor buffer;
  const at::Tensor host = device.to_host(apart, buffer);
  EXPECT_TRUE(host.is_cpu() && host.equal(values));
  EXPECT_EQ(bytes_of(host).size(), values.nbytes());
  const void* before = buffer.const_data_ptr();
  EXPECT_TRUE(device.to_host(apart[1], buffer).equal(values[1]));
  EXPECT_EQ(buffer.const_data_ptr(), before) << "the buffer serves what is smaller";
  EXPECT_TRUE(device.lives());
}

TEST(ApartDevice, GivesBackWhatIsNoLongerHeld) {
  MemoryMeter& meter = apart_device().meter();
  const std::int64_t before = meter.bytes();
  meter.reset_peak();
  { const at::Tensor passing = apart_device().empty({1 << 20}, at::kFloat); }
  EXPECT_EQ(meter.bytes(), before);
  EXPECT_EQ(meter.peak_bytes(), before + (4 << 20));
}

}  // namespace
}  // namespace motley
