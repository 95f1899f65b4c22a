// On the stand-in, whose streams run late: without any one of the waits the values are others.
#include "motley/engine/device/pinned_pieces.hpp"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <future>
#include <stdexcept>
#include <thread>

#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/device/apart_device_test.hpp"

namespace motley {
namespace {

constexpr std::int64_t columns = 1 << 10;

// What is asked of the device next comes late.
void delay() {
  const at::Tensor sum = at::zeros({8}, apart_device().options(at::kFloat));
  for (int i = 0; i < 300; ++i) sum.add_(1);
}

// Row i: i, i + 1, ...
at::Tensor rows_from(std::int64_t first, std::int64_t count) {
  return at::arange(first, first + count, at::kFloat).unsqueeze(1) + at::arange(columns, at::kFloat);
}

void bring(PinnedPieces& pieces, const at::Tensor& to, std::int64_t at_once) {
  for (std::int64_t first = 0; first < to.size(0); first += at_once)
    pieces.to_device(to.narrow(0, first, std::min(at_once, to.size(0) - first)),
                     [&](const at::Tensor& host) { host.copy_(rows_from(first, host.size(0))); });
}

TEST(PinnedPieces, HaveRoomForRows) {
  EXPECT_EQ(rows_of_piece(at::empty({5000, columns}, at::kFloat)), 1024);
  EXPECT_EQ(rows_of_piece(at::empty({3, 5 << 20}, at::kByte)), 1);
  EXPECT_EQ(rows_of_piece(at::empty({0, 7}, at::kByte)), 1);
}

TEST(PinnedPieces, AreFilledAgainWhenTheDeviceHasReadThem) {
  const c10::InferenceMode guard;
  for (const std::size_t count : {1, 2}) {
    PinnedPieces pieces(apart_device(), count);
    const at::Tensor to = apart_device().empty({9, columns}, at::kFloat);
    delay();
    bring(pieces, to, 2);
    EXPECT_TRUE(to.cpu().equal(rows_from(0, 9))) << count;
  }
}

TEST(PinnedPieces, AreTakenWhenTheDeviceHasWrittenThem) {
  const c10::InferenceMode guard;
  const at::Tensor from = rows_from(0, 9).to(apart_device().place());
  PinnedPieces pieces(apart_device());
  std::vector<at::Tensor> taken;
  delay();
  pieces.to_host(
      5, [&](std::int64_t i) { return from.slice(0, 2 * i, 2 * i + 2) * 2; },
      [&](const at::Tensor& host) { taken.push_back(host.clone()); });
  EXPECT_TRUE(at::cat(taken).equal(rows_from(0, 9) * 2));
}

TEST(PinnedPieces, MayGoBeforeTheDeviceHasReadThem) {
  const c10::InferenceMode guard;
  const at::Tensor to = apart_device().empty({2, columns}, at::kFloat);
  delay();
  EXPECT_THROW(
      PinnedPieces(apart_device()).to_device(to, [](const at::Tensor&) { throw std::runtime_error("broken"); }),
      std::runtime_error);
  {
    PinnedPieces pieces(apart_device());
    bring(pieces, to, 2);
  }
  EXPECT_TRUE(to.cpu().equal(rows_from(0, 2)));
}

// Copies of one thread are there for another once it has waited.
TEST(PinnedPieces, AreWaitedFor) {
  const c10::InferenceMode guard;
  const at::Tensor to = apart_device().empty({9, columns}, at::kFloat);
  apart_device().wait_for_thread();
  std::promise<void> done;
  std::thread other([&] {
    const c10::InferenceMode of_thread;
    PinnedPieces pieces(apart_device());
    delay();
    bring(pieces, to, 5);  // none is used twice
    pieces.wait();
    done.set_value();
  });
  done.get_future().wait();
  EXPECT_TRUE(to.cpu().equal(rows_from(0, 9)));
  other.join();
}

TEST(PinnedPieces, AreNotNeededInTheHostsMemory) {
  PinnedPieces pieces(cpu_device());
  const at::Tensor to = at::empty({9, columns}, at::kFloat);
  bring(pieces, to, 2);
  EXPECT_TRUE(to.equal(rows_from(0, 9)));
  std::vector<at::Tensor> taken;
  pieces.to_host(
      3, [&](std::int64_t i) { return to.slice(0, 3 * i, 3 * i + 3); },
      [&](const at::Tensor& host) { taken.push_back(host); });
  EXPECT_EQ(taken[2].const_data_ptr(), to[6].const_data_ptr());
}

}  // namespace
}  // namespace motley
