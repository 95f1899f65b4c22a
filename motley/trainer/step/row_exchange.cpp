#include "motley/trainer/step/row_exchange.hpp"

#include <algorithm>

#include "motley/engine/device/collectives.hpp"
#include "motley/engine/stage/row_outbox.hpp"

namespace motley {

RowExchange::RowExchange(const TrainConnections& connections, int worker, const ComputeDevice& device)
    : connections_(connections), worker_(worker), device_(device) {}
RowExchange::~RowExchange() = default;

void RowExchange::send(const std::vector<RowRegion>& regions, const at::Tensor& rows, std::int64_t first) {
  for (const RowRegion& region : regions)
    for (const RowTransfer& part : region.parts) {
      if (part.from != worker_ || part.rows.size() == 0) continue;
      const at::Tensor sent = rows.narrow(0, part.rows.first - first, part.rows.size());
      if (part.to == worker_) {
        own_.emplace_back(part, sent);
        continue;
      }
      auto& outbox = outboxes_[part.to];
      if (!outbox) outbox = std::make_unique<RowOutbox>(connections_.rows(worker_, part.to), 1, device_);
      outbox->push(sent);
    }
}

void RowExchange::receive(const std::vector<RowRegion>& regions, std::int64_t dp, WorkerGroup* ranks, int rank,
                          at::Tensor into, std::int64_t first) {
  const std::int64_t row_bytes = into.size(1) * into.element_size();
  for (const RowRegion& region : regions) {
    if (region.dp != dp) continue;
    const RowTransfer& mine = region.parts.at(static_cast<std::size_t>(rank));
    at::Tensor place = into.narrow(0, mine.rows.first - first, mine.rows.size());
    if (mine.rows.size() > 0 && mine.from == worker_) {
      const auto kept = std::ranges::find_if(own_, [&](const auto& entry) { return entry.first == mine; });
      MOTLEY_CHECK(kept != own_.end());
      place.copy_(kept->second);
      own_.erase(kept);
    } else if (mine.rows.size() > 0) {
      const at::Tensor host = device_.host_space(place, buffer_);
      connections_.rows(mine.from, worker_).receive(bytes_of(host), 0);
      if (!host.is_same(place)) place.copy_(host);
    }
    if (ranks == nullptr) continue;
    std::vector<std::int64_t> bounds = {0};
    for (const RowTransfer& part : region.parts) bounds.push_back(bounds.back() + part.rows.size() * row_bytes);
    through_host(device_, into.narrow(0, region.rows.first - first, region.rows.size()), buffer_,
                 [&](auto bytes) { ranks->all_gather(bytes, bounds); });
  }
}

}  // namespace motley
