#include "motley/engine/stage/crossing.hpp"

#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/device/scalar_type.hpp"
#include "motley/engine/ops/int8_rows.hpp"
#include "motley/model/crossing_types.hpp"

namespace motley {
namespace {

std::size_t row_bytes(const at::Tensor& rows) {
  return static_cast<std::size_t>(crossing_bytes(DType::int8, rows.size(1)));
}

}  // namespace

void pack_int8(const at::Tensor& rows, std::vector<std::byte>& packed) {
  const at::Tensor values = rows.to(at::kCPU, at::kFloat).contiguous();
  const auto hidden = static_cast<std::size_t>(values.size(1)), bytes = row_bytes(values);
  packed.resize(static_cast<std::size_t>(values.size(0)) * bytes);
  const float* from = values.const_data_ptr<float>();
  for (std::size_t row = 0; row < static_cast<std::size_t>(values.size(0)); ++row)
    encode_int8_row({from + row * hidden, hidden}, std::span(packed).subspan(row * bytes, bytes));
}

void unpack_int8(std::span<const std::byte> packed, const at::Tensor& rows) {
  const auto hidden = static_cast<std::size_t>(rows.size(1)), bytes = row_bytes(rows);
  const at::Tensor values = rows.scalar_type() == at::kFloat ? rows : at::empty(rows.sizes(), at::kFloat);
  auto* to = values.mutable_data_ptr<float>();
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows.size(0)); ++row)
    decode_int8_row(packed.subspan(row * bytes, bytes), {to + row * hidden, hidden});
  if (!values.is_same(rows)) rows.copy_(values);
}

void CrossingSender::send(WorkerGroup& workers, const at::Tensor& hidden, DType type, int rank, int senders,
                          std::span<const int> receivers) {
  if (type == DType::int8) {
    pack_int8(hidden, packed_);
    send_crossing(workers, packed_, hidden.size(0), rank, senders, receivers);
    return;
  }
  const at::Tensor rows = hidden.to(scalar_type(type)).contiguous();  // usually `hidden` itself
  const at::Tensor host = device_.to_host(rows, host_);
  send_crossing(workers, bytes_of(host), host.size(0), rank, senders, receivers);
}

void CrossingReceiver::receive(WorkerGroup& workers, const at::Tensor& rows, DType type, int sender, WorkerGroup* stage,
                               const std::function<void()>& received) {
  if (type == DType::int8) {
    packed_.resize(static_cast<std::size_t>(rows.size(0)) * row_bytes(rows));
    receive_crossing(workers, packed_, rows.size(0), sender, stage, received);
    unpack_int8(packed_, rows);
  } else if (scalar_type(type) != rows.scalar_type()) {
    const at::Tensor sent = at::empty(rows.sizes(), scalar_type(type));
    receive_crossing(workers, bytes_of(sent), rows.size(0), sender, stage, received);
    rows.copy_(sent);
  } else {
    receive_crossing(workers, bytes_of(rows), rows.size(0), sender, stage, received);
  }
}

}  // namespace motley
