// Rows from one process to another by the library of kernels that runs on the processor, whose "devices" share memory.
#include "motley/engine/stage/peer_rows.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "motley/base/error.hpp"
#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/cuda/cuda_device.hpp"
#include "motley/engine/cuda/cuda_library.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

constexpr int sending_rank = 0, receiving_rank = 1;
constexpr std::int64_t peer_rows = 40, peer_columns = 24, peer_bytes = peer_rows * peer_columns * 4;

cuda::Kernels peer_kernels() { return open_cuda_kernels(MOTLEY_HOST_KERNELS); }

at::Tensor peer_rows_of(int step) {
  const std::int64_t rows = step % 3 == 0 ? peer_rows : 1 + step;
  return at::arange(rows * peer_columns, at::kFloat).view({rows, peer_columns}) + 1000 * step;
}

// A child process sends, this one receives.
template <class Send, class Receive>
void between_processes(const char* kind, const Send& send, const Receive& receive) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[1]);
    try {
      LinkedProcess here(kind, sending_rank, ends[0]);
      const bool sent = send(here.group);
      char none = 0;
      // Until the receiver is done, too: a TCP connection that ends with bytes unread takes along what it carried.
      while (::read(ends[0], &none, 1) > 0) {
      }
      ::_exit(sent ? 0 : 1);
    } catch (const std::exception&) {
      ::_exit(2);
    }
  }
  ::close(ends[0]);
  {
    LinkedProcess here(kind, receiving_rank, ends[1]);
    receive(here.group);
  }
  ::close(ends[1]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(PeerRows, ArriveAsTheyWere) {
  constexpr int steps = 9;
  const cuda::Kernels kernels = peer_kernels();
  const CudaPeerMemory memory(kernels, cpu_device());
  for (const char* kind : {"shm", "tcp"})
    between_processes(
        kind,
        [&](WorkerGroup& workers) {
          PeerSender peer(workers, receiving_rank, memory, peer_bytes);
          if (!peer.agrees(workers)) return false;
          for (int step = 0; step < steps; ++step) peer.send(workers, peer_rows_of(step));
          return true;
        },
        [&](WorkerGroup& workers) {
          PeerReceiver peer(workers, sending_rank, memory, peer_bytes);
          ASSERT_TRUE(peer.agrees());
          for (int step = 0; step < steps; ++step) {
            const at::Tensor sent = peer_rows_of(step), rows = at::empty_like(sent);
            peer.receive(workers, rows);
            EXPECT_TRUE(at::equal(rows, sent)) << step;
          }
        });
}

TEST(PeerRows, BothKnowWhereOneCannot) {
  cuda::Kernels none = peer_kernels(), closed = peer_kernels();
  none.peer_allocate = [](std::int64_t, void**, cuda::PeerHandle*) { return 2; };
  closed.peer_open = [](const cuda::PeerHandle&, void**) { return 217; };
  for (const cuda::Kernels& kernels : {none, closed}) {
    const CudaPeerMemory memory(kernels, cpu_device());
    between_processes(
        "shm",
        [&](WorkerGroup& workers) {
          PeerSender peer(workers, receiving_rank, memory, peer_bytes);
          return !peer.agrees(workers);
        },
        [&](WorkerGroup& workers) { EXPECT_FALSE(PeerReceiver(workers, sending_rank, memory, peer_bytes).agrees()); });
  }
}

// A worker without a GPU, or without the library, makes no offer and opens none: the other one must not wait for it.
TEST(PeerRows, NoWorkerWaitsForOneThatCannot) {
  const std::set<std::pair<int, int>> pairs = {{sending_rank, receiving_rank}};
  for (const char* kind : {"shm", "tcp"})
    for (const bool sender : {false, true})
      for (const bool receiver : {false, true}) {
        const std::size_t common = sender && receiver ? 1 : 0;
        between_processes(
            kind, [&](WorkerGroup& workers) { return pairs_that_can(workers, pairs, sender).size() == common; },
            [&](WorkerGroup& workers) { EXPECT_EQ(pairs_that_can(workers, pairs, receiver).size(), common); });
      }
}

TEST(PeerRows, OfAnotherSizeAreRefused) {
  const cuda::Kernels kernels = peer_kernels();
  const CudaPeerMemory memory(kernels, cpu_device());
  between_processes(
      "shm",
      [&](WorkerGroup& workers) {
        PeerSender peer(workers, receiving_rank, memory, peer_bytes);
        if (!peer.agrees(workers)) return false;
        peer.send(workers, peer_rows_of(1));
        return true;
      },
      [&](WorkerGroup& workers) {
        PeerReceiver peer(workers, sending_rank, memory, peer_bytes);
        try {
          peer.receive(workers, peer_rows_of(2));
          FAIL();
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::peer);
          EXPECT_STREQ(error.what(), "192 bytes of rows came from a GPU, 288 were to come");
        }
      });
}

}  // namespace
}  // namespace motley
