#include "motley/engine/device/collectives.hpp"

namespace motley {

void Collectives::sum(at::Tensor& terms) {
  if (size() == 1) return;
  MOTLEY_CHECK(terms.is_contiguous());
  const auto element = terms.scalar_type() == at::kFloat ? CollectiveElement::fp32 : CollectiveElement::bf16;
  through_host(device_, terms, mine_, [&](std::span<std::byte> bytes) { group_->all_reduce(bytes, element); });
}

void Collectives::take_from_first(at::Tensor& values) {
  if (size() == 1) return;
  if (group_->rank() != 0) values.zero_();
  sum(values);
}

void Collectives::gather_columns(const at::Tensor& mine, at::Tensor all, const std::vector<std::int64_t>& bounds) {
  if (size() == 1) return;
  const bool receives = group_->rank() == 0;
  const at::Tensor from = device_.to_host(mine, mine_);
  const at::Tensor to = receives ? device_.host_space(all, all_) : all;
  for (std::int64_t row = 0; row < mine.size(0); ++row) {  // a row's columns lie together, those of several do not
    if (!receives) group_->send(bytes_of(from[row]), 0);
    for (int rank = 0; receives && rank < size(); ++rank) {
      const auto first = bounds[static_cast<std::size_t>(rank)], last = bounds[static_cast<std::size_t>(rank) + 1];
      const at::Tensor part = to[row].narrow(0, first, last - first);
      if (rank == 0)
        part.copy_(from[row]);
      else
        group_->receive(bytes_of(part), rank);
    }
  }
  if (receives && !to.is_same(all)) all.copy_(to);
}

}  // namespace motley
