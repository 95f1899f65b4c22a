#include "motley/engine/cuda/nccl.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/comm/collective/world_test.hpp"

namespace motley {
namespace {

constexpr int islands = 2, devices = 3;  // per island

std::string stub_record() {
  void* handle = ::dlopen(MOTLEY_NCCL_STUB, RTLD_NOW);
  const auto record = reinterpret_cast<const char* (*)()>(::dlsym(handle, "motley_stub_record"));
  std::string text = record();
  ::dlclose(handle);
  return text;
}

// The "devices" are threads, their memory is the host's.
IslandMemory host_memory() {
  return {.stream = nullptr,
          .to_host = [](void* host, const void* device, std::size_t bytes) { std::memcpy(host, device, bytes); },
          .to_device = [](void* device, const void* host, std::size_t bytes) { std::memcpy(device, host, bytes); }};
}

TEST(Vendor, SumsAcrossIslands) {
  const auto library = VendorLibrary::open(MOTLEY_NCCL_STUB);
  EXPECT_EQ(library->version(), 22105);
  const std::vector<IslandId> ids{library->new_island(), library->new_island()};
  // One fabric per share: the devices of the same rank in their islands.
  std::vector<std::unique_ptr<InProcessFabric>> fabrics;
  for (int d = 0; d < devices; ++d) fabrics.push_back(std::make_unique<InProcessFabric>(islands));
  std::vector<std::thread> threads;
  for (int i = 0; i < islands; ++i)
    for (int d = 0; d < devices; ++d)
      threads.emplace_back([&, i, d] {
        VendorIsland island(library, ids[static_cast<std::size_t>(i)], d, devices, 10);
        Communicator across(epoch_of(islands), fabrics[static_cast<std::size_t>(d)]->transport(i));
        for (const std::size_t count : {2U, 3U, 10'001U})
          for (const auto reduction : {CollectiveReduction::sum, CollectiveReduction::mean}) {
            std::vector<float> data(count);
            for (std::size_t k = 0; k < count; ++k)
              data[k] = static_cast<float>(k % 100) + 6.0f * static_cast<float>(i * devices + d);
            const auto outcome = all_reduce_across_islands(island, across, data.data(), count, CollectiveElement::fp32,
                                                           {.reduction = reduction}, host_memory());
            ASSERT_EQ(outcome.status, OperationStatus::ok) << outcome.cause;
            for (std::size_t k = 0; k < count; ++k) {
              const float sum = 6.0f * static_cast<float>(k % 100) + 6.0f * 15.0f;
              ASSERT_EQ(data[k], reduction == CollectiveReduction::mean ? sum / 6.0f : sum) << k;
            }
          }
      });
  for (std::thread& thread : threads) thread.join();
  const std::string record = stub_record();
  EXPECT_NE(record.find("reduce_scatter 3333 of type 7\n"), std::string::npos);
  EXPECT_NE(record.find("all_gather 3333 of type 7\n"), std::string::npos);
  EXPECT_NE(record.find("all_reduce 2 of type 7\n"), std::string::npos);
}

TEST(Vendor, AnAbortFreesWhoWaits) {
  const auto library = VendorLibrary::open(MOTLEY_NCCL_STUB);
  const IslandId id = library->new_island();
  std::vector<std::unique_ptr<VendorIsland>> both(2);
  std::thread other([&] { both[1] = std::make_unique<VendorIsland>(library, id, 1, 2, 10); });
  both[0] = std::make_unique<VendorIsland>(library, id, 0, 2, 10);
  other.join();
  std::string failure;
  std::thread waiting([&] {
    std::vector<float> data(4);
    try {
      both[0]->all_reduce(data.data(), data.data(), 4, CollectiveElement::fp32, CollectiveReduction::sum, nullptr);
    } catch (const Error& error) {
      failure = error.what();
    }
  });
  EXPECT_TRUE(abort_islands({both[1].get()}));
  waiting.join();
  EXPECT_EQ(failure, "all_reduce in the island: remote process exited");
  EXPECT_TRUE(both[1]->aborted());
  std::vector<float> data(4);
  EXPECT_THROW(both[1]->all_gather(data.data(), data.data(), 2, CollectiveElement::fp32, nullptr), Error);
}

TEST(Vendor, WhatIsMissingIsNamed) {
  const auto message = [](auto work) {
    try {
      work();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(message([] { VendorLibrary::open("libnothing.so"); }).substr(0, 29), "cannot open \"libnothing.so\": ");
  EXPECT_EQ(message([] { VendorLibrary::open("libm.so.6"); }), "\"libm.so.6\" has no ncclGetVersion");
  const auto library = VendorLibrary::open(MOTLEY_NCCL_STUB);
  const IslandId id = library->new_island();
  EXPECT_EQ(message([&] { VendorIsland(library, id, 0, 2, 0.02); }),
            "connecting the island: not complete within 0.02 s");
  VendorIsland alone(library, library->new_island(), 0, 1, 1);
  EXPECT_EQ(message([&] {
              alone.all_reduce(nullptr, nullptr, 0, CollectiveElement::int16, CollectiveReduction::sum, nullptr);
            }),
            "vendors' libraries do not support int16");
}

}  // namespace
}  // namespace motley
