// Tensors as bytes of the host's memory.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace motley {

// Of a contiguous tensor in the host's memory.
std::span<std::byte> bytes_of(const at::Tensor& host);

// Bytes that an allocation of this tensor takes: the allocator rounds to cache lines.
std::int64_t allocated_bytes(const at::Tensor& tensor);

// Large pages for a tensor of the host that is filled next: they spare the processor a fault per 4 KiB then, and a page
// walk later. Only advice: where the system does not follow it, all is as before.
void advise_large_pages(const at::Tensor& host);

}  // namespace motley
