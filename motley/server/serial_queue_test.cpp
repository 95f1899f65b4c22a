#include "motley/server/serial_queue.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <new>

namespace motley {
namespace {

TEST(SerialQueue, GoesOnBehindAJobThatFails) {
  SerialQueue queue;
  const auto held = std::make_shared<int>(1);
  queue.post([held] { throw std::bad_alloc(); });
  EXPECT_EQ(queue.run([] { return 7; }), 7);
  EXPECT_EQ(held.use_count(), 1) << "what it holds is released";
}

}  // namespace
}  // namespace motley
