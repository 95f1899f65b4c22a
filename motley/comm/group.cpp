#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "motley/base/error.hpp"
#include "motley/comm/channel.hpp"
#include "motley/comm/frame.hpp"

namespace motley {
namespace {

// Up to here one exchange of everything is cheaper than two rounds of parts.
constexpr std::size_t direct_bytes = 64 << 10;
constexpr std::int64_t max_piece_bytes = 4 << 20;

float widen(std::uint16_t bf16) { return std::bit_cast<float>(std::uint32_t{bf16} << 16); }

// To nearest, ties to even; NaN stays NaN.
std::uint16_t narrow(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class Element>
std::span<Element> view(std::span<std::byte> bytes) {
  return {reinterpret_cast<Element*>(bytes.data()), bytes.size() / sizeof(Element)};
}

void set(std::vector<float>& sum, ElementType type, std::span<std::byte> term) {
  if (type == ElementType::bf16)
    std::ranges::transform(view<std::uint16_t>(term), sum.begin(), widen);
  else
    std::memcpy(sum.data(), term.data(), term.size());
}

void add(std::vector<float>& sum, ElementType type, std::span<std::byte> term) {
  if (type == ElementType::bf16) {
    const auto values = view<std::uint16_t>(term);
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += widen(values[i]);
  } else {
    const auto values = view<float>(term);
    for (std::size_t i = 0; i < values.size(); ++i) sum[i] += values[i];
  }
}

void store(const std::vector<float>& sum, ElementType type, std::span<std::byte> out) {
  if (type == ElementType::bf16)
    std::transform(sum.begin(), sum.begin() + static_cast<std::ptrdiff_t>(out.size() / 2),
                   view<std::uint16_t>(out).begin(), narrow);
  else
    std::memcpy(out.data(), sum.data(), out.size());
}

std::size_t element_bytes(ElementType type) {
  return static_cast<std::size_t>(FrameTag{.type = type, .rows = 1, .columns = 1}.bytes());
}

// Rows [first, last) of a tensor whose rows have `row_bytes`.
template <class Byte>
std::span<Byte> rows_of(std::span<Byte> data, std::int64_t first, std::int64_t last, std::int64_t row_bytes) {
  return data.subspan(static_cast<std::size_t>(first * row_bytes),
                      static_cast<std::size_t>((last - first) * row_bytes));
}

}  // namespace

Group::Group(int rank, std::vector<std::unique_ptr<Channel>> peers, std::uint64_t epoch)
    : rank_(rank), epoch_(epoch), piece_bytes_(max_piece_bytes) {
  MOTLEY_CHECK(rank >= 0 && static_cast<std::size_t>(rank) < peers.size());
  for (std::size_t r = 0; r < peers.size(); ++r) {
    MOTLEY_CHECK((peers[r] == nullptr) == (static_cast<int>(r) == rank));
    // Both sides send a piece before they receive one, and one of them may be a whole operation ahead: two must have
    // room.
    if (peers[r])
      piece_bytes_ =
          std::min(piece_bytes_, peers[r]->window_bytes() / 2 - static_cast<std::int64_t>(frame_header_bytes));
    peers_.push_back({std::move(peers[r])});
  }
}

void Group::begin_step(std::uint64_t step) {
  step_ = step;
  for (Peer& peer : peers_) peer.sent = peer.received = 0;
}

double Group::waited_s() const {
  double sum = 0;
  for (const Peer& peer : peers_)
    if (peer.channel) sum += peer.channel->waited_s();
  return sum;
}

std::int64_t Group::sent_bytes() const {
  std::int64_t sum = 0;
  for (const Peer& peer : peers_)
    if (peer.channel) sum += peer.channel->sent_bytes();
  return sum;
}

// Nothing travels for an empty payload, nor to oneself.
void Group::send(Peer& peer, FrameTag tag, std::span<const std::byte> payload) {
  if (!peer.channel || payload.empty()) return;
  tag.epoch = epoch_;
  tag.step = step_;
  tag.sequence_number = peer.sent++;
  peer.channel->send(tag, payload);
}

void Group::receive(Peer& peer, FrameTag tag, std::span<std::byte> payload) {
  if (!peer.channel || payload.empty()) return;
  tag.epoch = epoch_;
  tag.step = step_;
  tag.sequence_number = peer.received++;
  peer.channel->receive(tag, payload);
}

void Group::all_reduce(ElementType type, std::span<std::byte> data) {
  MOTLEY_CHECK(type != ElementType::bytes && data.size() % element_bytes(type) == 0);
  if (size() == 1) return;
  const auto piece_bytes = static_cast<std::size_t>(piece_bytes_) / sizeof(float) * sizeof(float);
  while (!data.empty()) {
    const auto piece = data.first(std::min(data.size(), piece_bytes));
    if (piece.size() <= direct_bytes)
      reduce_directly(type, piece);
    else
      reduce_scattered(type, piece);
    data = data.subspan(piece.size());
  }
}

// One round: everybody sends everything to everybody.
void Group::reduce_directly(ElementType type, std::span<std::byte> data) {
  const auto elements = static_cast<std::int64_t>(data.size() / element_bytes(type));
  for (Peer& peer : peers_) send(peer, {.type = type, .layout = Layout::partial, .rows = elements, .columns = 1}, data);
  sum_terms(type, data, 0);
}

// Two rounds of 1/n each: rank r sums the r-th part, then all gather the parts.
void Group::reduce_scattered(ElementType type, std::span<std::byte> data) {
  const auto bytes = static_cast<std::int64_t>(element_bytes(type));
  const auto bounds = crossing_bounds(static_cast<std::int64_t>(data.size()) / bytes, size());
  for (std::size_t r = 0; r < peers_.size(); ++r)
    send(peers_[r],
         {.type = type,
          .layout = Layout::partial,
          .row_first = bounds[r],
          .rows = bounds[r + 1] - bounds[r],
          .columns = 1},
         rows_of(data, bounds[r], bounds[r + 1], bytes));
  const auto mine = static_cast<std::size_t>(rank_);
  sum_terms(type, rows_of(data, bounds[mine], bounds[mine + 1], bytes), bounds[mine]);
  all_gather_rows(type, data, 1, bounds);
}

// Receives everybody's term of `data`, which holds this rank's own, and leaves the sum there.
void Group::sum_terms(ElementType type, std::span<std::byte> data, std::int64_t row_first) {
  const std::size_t elements = data.size() / element_bytes(type);
  sum_.resize(std::max(sum_.size(), elements));
  term_.resize(std::max(term_.size(), data.size()));
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    std::span<std::byte> term = data;
    if (peers_[r].channel) {
      term = std::span(term_).first(data.size());
      receive(peers_[r],
              {.type = type,
               .layout = Layout::partial,
               .row_first = row_first,
               .rows = static_cast<std::int64_t>(elements),
               .columns = 1},
              term);
    }
    if (r == 0)
      set(sum_, type, term);
    else
      add(sum_, type, term);
  }
  store(sum_, type, data);
}

void Group::all_gather_rows(ElementType type, std::span<std::byte> data, std::int64_t columns,
                            const std::vector<std::int64_t>& bounds) {
  const std::int64_t row_bytes = columns * static_cast<std::int64_t>(element_bytes(type));
  MOTLEY_CHECK(bounds.size() == peers_.size() + 1 && bounds.front() == 0 && std::ranges::is_sorted(bounds));
  MOTLEY_CHECK(bounds.back() * row_bytes == static_cast<std::int64_t>(data.size()));
  if (size() == 1 || data.empty()) return;

  std::int64_t most_rows = 0;
  for (std::size_t r = 0; r < peers_.size(); ++r) most_rows = std::max(most_rows, bounds[r + 1] - bounds[r]);
  const std::int64_t piece_rows = std::max<std::int64_t>(1, piece_bytes_ / row_bytes);
  for (std::int64_t done = 0; done < most_rows; done += piece_rows) {
    const auto piece_of = [&](std::size_t r) {
      const std::int64_t first = std::min(bounds[r] + done, bounds[r + 1]);
      const std::int64_t last = std::min(first + piece_rows, bounds[r + 1]);
      const FrameTag tag{
          .type = type, .layout = Layout::token_slice, .row_first = first, .rows = last - first, .columns = columns};
      return std::pair(tag, rows_of(data, first, last, row_bytes));
    };
    const auto [tag, mine] = piece_of(static_cast<std::size_t>(rank_));
    for (Peer& peer : peers_) send(peer, tag, mine);
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      const auto [expected, piece] = piece_of(r);
      receive(peers_[r], expected, piece);
    }
  }
}

void Group::gather(ElementType type, std::span<const std::byte> mine, const std::vector<std::span<std::byte>>& out) {
  // Row r of a table whose rows differ in length.
  const auto tag_of = [&](int r, std::size_t bytes) {
    return FrameTag{.type = type,
                    .layout = Layout::token_slice,
                    .row_first = r,
                    .rows = 1,
                    .columns = static_cast<std::int64_t>(bytes / element_bytes(type))};
  };
  if (rank_ != 0) return send(peers_[0], tag_of(rank_, mine.size()), mine);
  MOTLEY_CHECK(out.size() == peers_.size() && out[0].size() == mine.size());
  if (out[0].data() != mine.data()) std::ranges::copy(mine, out[0].begin());
  for (int r = 1; r < size(); ++r) {
    const auto block = out[static_cast<std::size_t>(r)];
    receive(peers_[static_cast<std::size_t>(r)], tag_of(r, block.size()), block);
  }
}

std::vector<std::int64_t> crossing_bounds(std::int64_t rows, int receivers) {
  std::vector<std::int64_t> bounds;
  for (std::int64_t j = 0; j <= receivers; ++j) bounds.push_back(j * rows / receivers);
  return bounds;
}

int crossing_sender(int receiver, int senders, int receivers) { return receiver * senders / receivers; }

namespace {

FrameTag interval_of(FrameTag whole, const std::vector<std::int64_t>& bounds, std::size_t receiver) {
  whole.layout = Layout::token_slice;
  whole.row_first = bounds[receiver];
  whole.rows = bounds[receiver + 1] - bounds[receiver];
  return whole;
}

}  // namespace

void send_crossing(const FrameTag& whole, std::span<const std::byte> data, int rank, int senders,
                   const std::vector<Channel*>& receivers) {
  const int degree = static_cast<int>(receivers.size());
  const std::int64_t row_bytes = FrameTag{.type = whole.type, .rows = 1, .columns = whole.columns}.bytes();
  const auto bounds = crossing_bounds(whole.rows, degree);
  for (int j = 0; j < degree; ++j) {
    if (crossing_sender(j, senders, degree) != rank) continue;
    const auto index = static_cast<std::size_t>(j);
    const FrameTag tag = interval_of(whole, bounds, index);
    if (tag.rows > 0) receivers[index]->send(tag, rows_of(data, bounds[index], bounds[index + 1], row_bytes));
  }
}

void receive_crossing(const FrameTag& whole, std::span<std::byte> data, Channel& sender, Group* group) {
  const std::int64_t row_bytes = FrameTag{.type = whole.type, .rows = 1, .columns = whole.columns}.bytes();
  const auto rank = static_cast<std::size_t>(group != nullptr ? group->rank() : 0);
  const auto bounds = crossing_bounds(whole.rows, group != nullptr ? group->size() : 1);
  const FrameTag tag = interval_of(whole, bounds, rank);
  if (tag.rows > 0) sender.receive(tag, rows_of(data, bounds[rank], bounds[rank + 1], row_bytes));
  if (group != nullptr) group->all_gather_rows(whole.type, data, whole.columns, bounds);
}

}  // namespace motley
