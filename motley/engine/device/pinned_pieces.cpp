#include "motley/engine/device/pinned_pieces.hpp"

#include <algorithm>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/engine/spill/transfers.hpp"

namespace motley {

std::int64_t rows_of_piece(const at::Tensor& like) {
  const auto bytes = static_cast<std::int64_t>(like.nbytes());
  return bytes == 0 ? std::max<std::int64_t>(1, like.size(0))
                    : std::max<std::int64_t>(1, copied_piece_bytes * like.size(0) / bytes);
}

void PinnedPieces::wait() const {
  for (const Piece& piece : pieces_)
    if (piece.used) piece.used->synchronize();
}

PinnedPieces::Piece& PinnedPieces::next() {
  Piece& piece = pieces_[turn_++ % pieces_.size()];
  if (piece.used) piece.used->synchronize();
  if (!piece.memory.defined())  // begins at a page, as direct reads from a disk want it
    piece.memory = at::empty({copied_piece_bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  return piece;
}

void PinnedPieces::to_device(const at::Tensor& to, const std::function<void(const at::Tensor&)>& fill) {
  if (!device_.has_own_memory()) return fill(to);
  Piece& piece = next();
  const at::Tensor host = device_.host_space(to, piece.memory);
  fill(host);
  to.copy_(host, /*non_blocking=*/true);
  piece.used = moment_on(device_);
}

void PinnedPieces::to_host(std::int64_t count, const std::function<at::Tensor(std::int64_t)>& make,
                           const std::function<void(const at::Tensor&)>& take) {
  struct Copy {
    at::Tensor host;
    StreamMoment done;
  };
  const auto begin = [&](std::int64_t i) -> Copy {
    const at::Tensor values = make(i);
    if (!device_.has_own_memory()) return {values, nullptr};
    Piece& piece = next();
    const at::Tensor host = device_.host_space(values, piece.memory);
    host.copy_(values, /*non_blocking=*/true);
    piece.used = moment_on(device_);
    return {host, piece.used};
  };
  MOTLEY_CHECK(pieces_.size() > 1);
  Copy coming = count > 0 ? begin(0) : Copy{};
  for (std::int64_t i = 0; i < count; ++i) {
    const Copy arrived = std::exchange(coming, i + 1 < count ? begin(i + 1) : Copy{});
    if (arrived.done) arrived.done->synchronize();
    take(arrived.host);
  }
}

}  // namespace motley
