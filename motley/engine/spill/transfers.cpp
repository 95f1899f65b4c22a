#include "motley/engine/spill/transfers.hpp"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include "motley/base/error.hpp"

namespace motley {

struct Transfers::Transfer {
  std::string what;
  std::size_t left = 0;
  std::exception_ptr failure;
};

struct Transfers::State {
  struct Piece {
    Handle transfer;
    std::function<void()> work;
  };
  std::mutex mutex;
  std::condition_variable arrived, ended;
  std::deque<Piece> pieces;
  std::chrono::duration<double> patience{};
  bool stopping = false, given_up = false;

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      arrived.wait(lock, [&] { return stopping || !pieces.empty(); });
      if (stopping) return;
      Piece piece = std::move(pieces.front());
      pieces.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        piece.work();
      } catch (...) {
        failure = std::current_exception();
      }
      piece.work = {};
      lock.lock();
      if (failure && !piece.transfer->failure) piece.transfer->failure = failure;
      --piece.transfer->left;
      ended.notify_all();
    }
  }
};

Transfers::Transfers(int threads, double patience_s) : state_(std::make_shared<State>()) {
  state_->patience = std::chrono::duration<double>(patience_s);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([state = state_] { state->run(); });
}

Transfers::~Transfers() {
  bool given_up = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
    state_->pieces.clear();
    given_up = state_->given_up;
  }
  state_->arrived.notify_all();
  for (std::thread& thread : threads_) given_up ? thread.detach() : thread.join();
}

Transfers::Handle Transfers::start(std::string what, std::vector<std::function<void()>> pieces) {
  auto transfer = std::make_shared<Transfer>(Transfer{std::move(what), pieces.size(), {}});
  {
    const std::lock_guard lock(state_->mutex);
    for (auto& piece : pieces) state_->pieces.push_back({transfer, std::move(piece)});
  }
  state_->arrived.notify_all();
  return transfer;
}

void Transfers::wait(const Handle& transfer) {
  std::unique_lock lock(state_->mutex);
  while (transfer->left > 0) {
    const std::size_t before = transfer->left;
    if (state_->ended.wait_for(lock, state_->patience, [&] { return transfer->left < before; })) continue;
    state_->given_up = true;
    throw Error(ErrorCode::environment,
                fmt::format("{}: no answer for {:.0f} s, with {} pieces to come", transfer->what,
                            state_->patience.count(), before),
                "check the disk");
  }
  if (transfer->failure) std::rethrow_exception(transfer->failure);
}

}  // namespace motley
