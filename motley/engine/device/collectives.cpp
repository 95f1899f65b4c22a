#include "motley/engine/device/collectives.hpp"

namespace motley {

void Collectives::sum(at::Tensor& terms) {
  if (size() == 1) return;
  MOTLEY_CHECK(terms.is_contiguous());
  if (on_device(static_cast<std::int64_t>(terms.nbytes()))) return sums_->sum(terms);
  const auto element = terms.scalar_type() == at::kFloat ? CollectiveElement::fp32 : CollectiveElement::bf16;
  through_host(device_, terms, mine_, [&](std::span<std::byte> bytes) { group_->all_reduce(bytes, element); });
}

void Collectives::take_from_first(at::Tensor& values) {
  if (size() == 1) return;
  if (group_->rank() != 0) values.zero_();
  sum(values);
}

// Each rank's rows come in one piece. In place they lie apart, but for a single one.
void Collectives::gather_columns(const at::Tensor& mine, at::Tensor all, const std::vector<std::int64_t>& bounds) {
  if (size() == 1 || mine.size(0) == 0) return;
  const at::Tensor from = device_.to_host(mine, mine_);
  if (group_->rank() != 0) return group_->send(bytes_of(from), 0);
  const at::Tensor to = device_.host_space(all, all_);
  for (int rank = 0; rank < size(); ++rank) {
    const auto first = bounds[static_cast<std::size_t>(rank)], last = bounds[static_cast<std::size_t>(rank) + 1];
    const at::Tensor part = to.narrow(1, first, last - first);
    if (rank == 0) {
      part.copy_(from);
    } else if (part.is_contiguous()) {
      group_->receive(bytes_of(part), rank);
    } else {
      if (!theirs_.defined() || theirs_.numel() < part.numel()) theirs_ = at::empty({part.numel()}, at::kFloat);
      const at::Tensor rows = theirs_.narrow(0, 0, part.numel()).view(part.sizes());
      group_->receive(bytes_of(rows), rank);
      part.copy_(rows);
    }
  }
  if (!to.is_same(all)) all.copy_(to);
}

}  // namespace motley
