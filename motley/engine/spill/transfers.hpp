// Copies between tiers of memory, made by threads other than the one that computes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace motley {

// Direct reads wait for the disk: this many are queued, each of this many bytes. A virtual disk gave 3.4 and 4.0 GB/s
// so, and 1.2 and 1.0 in pieces of 1 MiB.
constexpr int copying_threads = 4;
constexpr std::int64_t copied_piece_bytes = std::int64_t{4} << 20;

class Transfers {
 public:
  // `patience_s`: how long a transfer may go without any of its pieces ending.
  explicit Transfers(int threads, double patience_s = 60);
  // Pieces that no thread has taken are dropped; waits for the others, but for those that wait() has given up.
  ~Transfers();
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;

  struct Transfer;
  using Handle = std::shared_ptr<Transfer>;
  // Pieces are taken in their order, those of earlier transfers first, and own what they use: they may outlive this.
  Handle start(std::string what, std::vector<std::function<void()>> pieces);
  // Until all of its pieces are done. Throws on what one of them threw, and an environment error where they hang.
  void wait(const Handle& transfer);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::vector<std::thread> threads_;
};

}  // namespace motley
