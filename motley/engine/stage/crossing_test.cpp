// Rows of steps that go from one stage to the next while both compute.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <thread>

#include "motley/base/clock.hpp"
#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/device/apart_device_test.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/stage/crossing.hpp"
#include "motley/engine/stage/packed_rows.hpp"
#include "motley/engine/stage/packing_apart_test.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

constexpr std::int64_t width = 64;

at::Tensor buffers_on(const ComputeDevice& device, std::int64_t rows) {
  return at::zeros({2 * rows, width}, device.options(at::kFloat));
}

// Small whole numbers, which int8 keeps nearly and the other types exactly.
at::Tensor rows_of_step(std::uint64_t step, std::int64_t count) {
  const at::Tensor first = at::arange(count, at::kFloat).remainder(50) + static_cast<double>(step % 7 + 1);
  return first.view({count, 1}).expand({count, width}).contiguous();
}

std::int64_t rows_in(std::uint64_t step, std::int64_t most) {
  return 1 + static_cast<std::int64_t>(step * step * 7) % most;
}

// Every rank of a stage of `a` sends steps of at most that many rows to one of `b`, whose ranks compute with them.
struct Sent {
  int a = 1, b = 1;
  DType type = DType::fp32;
  std::uint64_t steps = 0;
  std::int64_t most_rows = 0;
  int work = 0;
};
void expect_all_rows(const std::string& kind, const ComputeDevice& device, const Sent& sent) {
  const int a = sent.a, b = sent.b, work = sent.work;
  const DType type = sent.type;
  const std::uint64_t steps = sent.steps;
  const std::int64_t most_rows = sent.most_rows;
  std::vector<std::unique_ptr<LinkedGroups>> pairs;
  for (int j = 0; j < b; ++j) pairs.push_back(std::make_unique<LinkedGroups>(kind, 2));
  const LinkedGroups stage(kind, b);
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < a; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const c10::InferenceMode guard;
      use_own_stream(device);
      std::vector<WorkerGroup*> receivers;
      for (int j = 0; j < b; ++j)
        receivers.push_back(crossing_sender(j, a, b) == rank ? (*pairs[static_cast<std::size_t>(j)])[0].get()
                                                             : nullptr);
      CrossingSender sender(device);
      at::Tensor hidden = device.empty({most_rows, width}, at::kFloat);
      for (std::uint64_t step = 0; step < steps; ++step) {
        const std::int64_t count = rows_in(step, most_rows);
        at::Tensor rows = hidden.narrow(0, 0, count);
        rows.copy_(rows_of_step(step, count));
        for (int i = 0; i < work; ++i) rows.add_(1);
        rows.sub_(work);
        sender.post(rows, type, receivers);
        hidden.fill_(-1);  // as the next step does
      }
    }));
  for (int rank = 0; rank < b; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const c10::InferenceMode guard;
      use_own_stream(device);
      const auto r = static_cast<std::size_t>(rank);
      CrossingReceiver receiver(device, buffers_on(device, most_rows), b > 1 ? stage[r].get() : nullptr);
      for (std::uint64_t step = 0; step < steps; ++step)
        receiver.expect({step, rows_in(step, most_rows), type, (*pairs[r])[1].get()});
      std::vector<at::Tensor> sums;
      for (std::uint64_t step = 0; step < steps; ++step) {
        const at::Tensor rows = receiver.take(step);
        at::Tensor sum = at::zeros_like(rows);
        for (int i = 0; i <= work; ++i) sum.add_(rows);
        receiver.release();
        sums.push_back(sum);
      }
      for (std::uint64_t step = 0; step < steps; ++step) {
        const at::Tensor sum = sums[step].cpu() / (work + 1), expected = rows_of_step(step, rows_in(step, most_rows));
        ASSERT_TRUE(type == DType::int8 ? at::allclose(sum, expected, 1e-2) : sum.equal(expected))
            << a << " to " << b << " ranks in " << name_of(type) << ", step " << step << ": " << sum[0][0].item<float>()
            << " for " << expected[0][0].item<float>();
      }
    }));
  for (auto& rank : ranks) rank.get();
}

TEST(Crossing, EveryReceiverEndsWithAllRows) {
  for (const std::string kind : {"shm", "tcp"})
    for (int a = 1; a <= 3; ++a)
      for (int b = 1; b <= 3; ++b)
        for (const DType type : {DType::fp32, DType::bf16, DType::int8})
          expect_all_rows(kind, cpu_device(), {.a = a, .b = b, .type = type, .steps = 4, .most_rows = 40});
}

// Without any one of these waits one of the tests here fails within a few seeds: an outbox's for its piece, post()'s
// for its slot, take()'s for what the thread has brought up, and receive()'s for the copies from its place in the
// host's memory and for the step that reads its buffer.
TEST(Crossing, CopiesWaitForWhatTheyTakeAndWhatTheyOverwrite) {
  for (const DType type : {DType::fp32, DType::bf16, DType::int8})
    for (const std::int64_t most_rows : {40, 400})  // that this thread sends, and more than that
      expect_all_rows("shm", apart_device(), {.type = type, .steps = 12, .most_rows = most_rows, .work = 10});
  expect_all_rows("shm", apart_device(), {.a = 2, .b = 2, .steps = 6, .most_rows = 400, .work = 5});
}

TEST(Crossing, ADeviceThatPacksRowsSendsThem) {
  const PackingApart device;
  for (const std::int64_t most_rows : {40, 400})
    expect_all_rows("shm", device, {.type = DType::int8, .steps = 8, .most_rows = most_rows, .work = 10});
  expect_all_rows("shm", device, {.a = 2, .b = 2, .type = DType::int8, .steps = 3, .most_rows = 40, .work = 5});
}

// As the host does where it packs them: in several pieces, which the device packs in one place.
TEST(Crossing, RowsThatADevicePacksHaveTheBitsOfTheHosts) {
  const c10::InferenceMode guard;
  const PackingApart device;
  use_own_stream(device);
  constexpr std::int64_t hidden = 2048, most_rows = 1100;
  at::manual_seed(8);
  const at::Tensor outliers = (at::rand({most_rows, hidden}) < 0.01) * 200 + 1;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const LinkedGroups groups("tcp", 2);
    const std::vector<std::int64_t> counts{most_rows, 1, 900};
    std::vector<at::Tensor> steps;
    for (const std::int64_t count : counts) {
      steps.push_back((at::randn({count, hidden}) * outliers.narrow(0, 0, count)).to(type));
      steps.back()[count - 1][5] = std::numeric_limits<double>::infinity();
      steps.back()[0].narrow(0, 100, 20).fill_(std::nan(""));
    }
    auto sending = std::async(std::launch::async, [&] {
      const c10::InferenceMode sending_guard;
      use_own_stream(device);
      CrossingSender sender(device);
      const std::vector<WorkerGroup*> to{groups[0].get()};
      const at::Tensor space = device.empty({most_rows, hidden}, type);
      for (const at::Tensor& step : steps) {
        const at::Tensor rows = space.narrow(0, 0, step.size(0));
        rows.copy_(step);
        sender.post(rows, DType::int8, to);
        space.fill_(-1);
      }
    });
    CrossingReceiver receiver(cpu_device(), at::zeros({2 * most_rows, hidden}), nullptr);
    for (std::size_t step = 0; step < steps.size(); ++step) {
      receiver.expect({step, counts[step], DType::int8, groups[1].get()});
      at::Tensor expected = at::empty({counts[step], hidden});
      std::vector<std::byte> packed;
      pack_int8(steps[step].to(at::kFloat), packed);
      unpack_rows(packed, DType::int8, expected);
      EXPECT_TRUE(receiver.take(step).view(at::kInt).equal(expected.view(at::kInt))) << type << ", step " << step;
      receiver.release();
    }
    sending.get();
  }
}

constexpr std::int64_t many_rows = 16384;  // 4 MiB: more than shared memory holds

TEST(Crossing, TheNextStepArrivesDuringThisOne) {
  for (const std::string kind : {"shm", "tcp"}) {
    const c10::InferenceMode guard;
    const LinkedGroups groups(kind, 2);
    CrossingSender sender(cpu_device());
    CrossingReceiver receiver(cpu_device(), buffers_on(cpu_device(), many_rows), nullptr);
    const std::vector<WorkerGroup*> to{groups[0].get()};
    const auto expect = [&](std::uint64_t step) { receiver.expect({step, many_rows, DType::fp32, groups[1].get()}); };
    expect(1);
    sender.post(rows_of_step(1, many_rows), DType::fp32, to);
    const at::Tensor first = receiver.take(1);
    sender.post(rows_of_step(2, many_rows), DType::fp32, to);
    EXPECT_FALSE(receiver.has_next());
    expect(2);  // the step is announced while the one before is computed
    expect(3);
    while (!receiver.has_next()) std::this_thread::yield();
    EXPECT_TRUE(first.equal(rows_of_step(1, many_rows)));
    receiver.release();
    const double waited_s = receiver.waited_s();
    EXPECT_TRUE(receiver.take(2).equal(rows_of_step(2, many_rows)));
    EXPECT_EQ(receiver.waited_s(), waited_s) << "they were there";
    sender.post(rows_of_step(3, many_rows), DType::fp32, to);
    while (!receiver.has_next()) std::this_thread::yield();
    receiver.release();
    EXPECT_TRUE(receiver.take(3).equal(rows_of_step(3, many_rows)));
  }
}

void expect_two_steps_ahead(const ComputeDevice& device) {
  const LinkedGroups groups("shm", 2);
  std::atomic<std::uint64_t> posted = 0, taken = 0;
  constexpr std::uint64_t steps = 6;
  std::thread sends([&] {
    const c10::InferenceMode guard;
    use_own_stream(device);
    CrossingSender sender(device);
    const std::vector<WorkerGroup*> to{groups[0].get()};
    for (std::uint64_t step = 1; step <= steps; ++step) {
      at::Tensor rows = rows_of_step(step, many_rows).to(device.place());
      sender.post(rows, DType::fp32, to);
      rows.fill_(-1);
      posted = step;
      EXPECT_LE(step, taken + 2);
    }
  });
  while (posted < 2) std::this_thread::yield();  // with none received
  const c10::InferenceMode guard;
  use_own_stream(device);
  CrossingReceiver receiver(device, buffers_on(device, many_rows), nullptr);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    receiver.expect({step, many_rows, DType::fp32, groups[1].get()});
    ++taken;
    EXPECT_TRUE(receiver.take(step).cpu().equal(rows_of_step(step, many_rows)));
    receiver.release();
    while (posted < std::min(steps, step + 2)) std::this_thread::yield();
  }
  sends.join();
}

TEST(Crossing, ASlowReceiverHoldsUpTheThirdStepAlone) {
  expect_two_steps_ahead(cpu_device());
  expect_two_steps_ahead(apart_device());
}

constexpr double patience_s = 20;
constexpr std::int64_t piece_bytes_here = 1 << 20;

// Makes a piece only once those before it have been received.
class OneByOne final : public PackingApart {
 public:
  void pack_int8(const at::Tensor& rows, const at::Tensor& packed) const override {
    const Instant start = Clock::now();
    while (received < made && seconds_since(start) < patience_s) std::this_thread::yield();
    EXPECT_EQ(received, made);
    PackingApart::pack_int8(rows, packed);
    ++made;
  }
  mutable std::atomic<int> made = 0;
  std::atomic<int> received = 0;
};

TEST(Crossing, APieceTravelsBeforeTheNextIsMade) {
  const c10::InferenceMode guard;
  const LinkedGroups groups("tcp", 2);
  OneByOne device;
  constexpr std::int64_t hidden = 2048, row_bytes = 8 * 4 + 2 * (hidden / 64) + hidden;
  constexpr std::int64_t rows_of_piece = piece_bytes_here / row_bytes, pieces = 3;
  auto sending = std::async(std::launch::async, [&] {
    const c10::InferenceMode sending_guard;
    use_own_stream(device);
    CrossingSender sender(device);
    const std::vector<WorkerGroup*> to{groups[0].get()};
    sender.post(at::ones({rows_of_piece * pieces, hidden}, device.options(at::kFloat)), DType::int8, to);
  });
  std::vector<std::byte> piece(static_cast<std::size_t>(rows_of_piece * row_bytes));
  for (int i = 0; i < pieces; ++i) {
    groups[1]->receive(piece, 0);
    at::Tensor rows = at::empty({rows_of_piece, hidden});
    unpack_rows(piece, DType::int8, rows);
    EXPECT_TRUE(at::allclose(rows, at::ones_like(rows), 1e-2));
    ++device.received;
  }
  sending.get();
  EXPECT_EQ(device.made, pieces);
}

TEST(Crossing, APieceIsOnTheDeviceBeforeTheNextArrives) {
  const c10::InferenceMode guard;
  const LinkedGroups groups("tcp", 2);
  const ComputeDevice& device = apart_device();
  const at::Tensor sent = rows_of_step(3, many_rows), buffers = buffers_on(device, many_rows);
  device.wait_for_thread();
  auto receiving = std::async(std::launch::async, [&] {
    const c10::InferenceMode receiving_guard;
    use_own_stream(device);
    CrossingReceiver receiver(device, buffers, nullptr);
    receiver.expect({0, many_rows, DType::fp32, groups[1].get()});
    EXPECT_TRUE(receiver.take(0).cpu().equal(sent));
    receiver.release();
  });
  constexpr std::int64_t rows_of_piece = piece_bytes_here / (4 * width);
  for (std::int64_t first = 0; first < many_rows; first += rows_of_piece) {
    const at::Tensor piece = sent.narrow(0, first, rows_of_piece);
    groups[0]->send(bytes_of(piece), 1);
    const at::Tensor there = buffers.narrow(0, first, rows_of_piece);
    const Instant start = Clock::now();
    while (!there.cpu().equal(piece) && seconds_since(start) < patience_s) std::this_thread::yield();
    EXPECT_TRUE(there.cpu().equal(piece)) << "rows " << first << " and on";
  }
  receiving.get();
}

TEST(Crossing, WhatThreadsMeetIsThrownWhereStepsAreComputed) {
  const c10::InferenceMode guard;
  LinkedGroups groups("shm", 2);
  CrossingReceiver receiver(cpu_device(), buffers_on(cpu_device(), many_rows), nullptr);
  {
    CrossingSender sender(cpu_device());
    const std::vector<WorkerGroup*> to{groups[0].get()};
    sender.post(rows_of_step(1, many_rows), DType::fp32, to);
    receiver.expect({1, many_rows, DType::fp32, groups[1].get()});
    receiver.expect({2, many_rows, DType::fp32, groups[1].get()});
    receiver.take(1);
  }
  groups[0].reset();
  receiver.release();
  EXPECT_THROW(receiver.take(2), GroupBroken);
  CrossingSender back(cpu_device());
  const std::vector<WorkerGroup*> to{groups[1].get()};
  const auto post = [&] {
    for (std::uint64_t step = 1; step <= 4; ++step) back.post(rows_of_step(step, many_rows), DType::fp32, to);
  };
  EXPECT_THROW(post(), GroupBroken);
}

TEST(Crossing, MalformedRowsOfANextStepAreRefusedWithIt) {
  const c10::InferenceMode guard;
  const LinkedGroups groups("shm", 2);
  CrossingReceiver receiver(cpu_device(), buffers_on(cpu_device(), 1), nullptr);
  receiver.expect({1, 1, DType::fp32, groups[1].get()});
  const std::vector<std::byte> row(4 * width, std::byte{0xFF}), packed(4 * 8 + 2 + width, std::byte{0xFF});
  groups[0]->send(row, 1);
  receiver.take(1);
  receiver.expect({2, 1, DType::int8, groups[1].get()});
  groups[0]->send(packed, 1);
  receiver.release();
  try {
    receiver.take(2);
    ADD_FAILURE() << "places that do not ascend";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer) << error.what();
  }
}

}  // namespace
}  // namespace motley
