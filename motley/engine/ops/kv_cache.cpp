#include "motley/engine/ops/kv_cache.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "motley/base/error.hpp"
#include "motley/base/units.hpp"
#include "motley/engine/device/scalar_type.hpp"

namespace motley {

struct HostPages {
  void* start = nullptr;
  std::size_t bytes = 0;

  explicit HostPages(std::size_t size) : bytes(size) {
    start = checked(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), size);
  }
  HostPages(const HostPages&) = delete;
  HostPages& operator=(const HostPages&) = delete;
  ~HostPages() { ::munmap(start, bytes); }

  // Wherever there is room: the kernel moves pages, not what is in them.
  void resize(std::size_t size) {
    start = checked(::mremap(start, bytes, size, MREMAP_MAYMOVE), size);
    bytes = size;
  }

 private:
  static void* checked(void* pages, std::size_t size) {
    if (pages == MAP_FAILED)
      throw Error(
          ErrorCode::environment,
          fmt::format("the machine does not give {} for keys and values", human_bytes(static_cast<double>(size))),
          "end what uses the memory, or offer less of it (`--memory`)");
    return pages;
  }
};

namespace {

using at::Tensor;

struct Elements {
  Tensor elements, scales;
  std::shared_ptr<HostPages> pages = {};
};

std::size_t tensor_bytes(at::IntArrayRef sizes, at::ScalarType type) {
  return static_cast<std::size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
}

Tensor tensor_in(const std::shared_ptr<HostPages>& pages, at::IntArrayRef sizes, at::ScalarType type) {
  return at::from_blob(
      pages->start, sizes, [pages](void*) {}, at::TensorOptions(type));
}

// In main memory pages that the kernel makes once they are written: to write hundreds of megabytes of zeros would be
// most of what it takes to go over to another plan.
Elements zeros(at::IntArrayRef sizes, at::ScalarType type, const ComputeDevice& device) {
  const std::size_t bytes = tensor_bytes(sizes, type);
  if (device.has_own_memory() || bytes == 0) return {at::zeros(sizes, device.options(type)), {}};
  const auto pages = std::make_shared<HostPages>(bytes);
  return {tensor_in(pages, sizes, type), {}, pages};
}

struct CacheSizes {
  std::array<std::int64_t, 4> keys, values;
  explicit CacheSizes(const CacheShape& shape)
      : keys{shape.blocks, shape.kv_heads, shape.head_dim, shape.block_tokens},
        values{shape.blocks, shape.kv_heads, shape.block_tokens, shape.head_dim} {}
};

// The int8 elements of one allocation come first, then their scales.
Elements quantised_elements(at::IntArrayRef sizes, const CacheShape& shape, const ComputeDevice& device) {
  MOTLEY_CHECK(shape.head_dim % kv_scale_values == 0);
  const std::int64_t count = shape.blocks * shape.kv_heads * shape.head_dim * shape.block_tokens;
  const Tensor bytes = zeros({bytes_of(DType::q8_0, count)}, at::kByte, device).elements;
  return {bytes.narrow(0, 0, count).view(at::kChar).view(sizes),
          bytes.narrow(0, count, bytes.size(0) - count)
              .view(at::kHalf)
              .view({shape.blocks, shape.kv_heads, shape.head_dim / kv_scale_values, shape.block_tokens})};
}

}  // namespace

LayerCache empty_cache(DType type, const CacheShape& shape, const ComputeDevice& device) {
  const CacheSizes sizes(shape);
  if (type == DType::q8_0) {
    const Elements keys = quantised_elements(sizes.keys, shape, device),
                   values = quantised_elements(sizes.values, shape, device);
    return {keys.elements, values.elements, keys.scales, values.scales};
  }
  const Elements keys = zeros(sizes.keys, scalar_type(type), device),
                 values = zeros(sizes.values, scalar_type(type), device);
  return {.keys = keys.elements, .values = values.elements, .key_pages = keys.pages, .value_pages = values.pages};
}

LayerCache empty_states(const DeltaNet& delta, std::int64_t key_heads, std::int64_t slots,
                        const ComputeDevice& device) {
  const std::int64_t value_heads = key_heads * delta.values_of_key();
  const std::int64_t channels = 2 * key_heads * delta.key_dim + value_heads * delta.value_dim;
  const at::TensorOptions options = device.options(at::kFloat);
  LayerCache cache;
  cache.state = at::zeros({slots, value_heads, delta.key_dim, delta.value_dim}, options);
  cache.convolved = at::zeros({slots, channels, delta.width - 1}, options);
  return cache;
}

LayerCache resized(LayerCache cache, DType type, const CacheShape& shape, const ComputeDevice& device) {
  if (cache.keys.size(0) == shape.blocks) return cache;
  if (cache.key_pages && cache.value_pages && shape.blocks > 0) {
    const auto resize = [type](Tensor& tensor, const std::shared_ptr<HostPages>& pages, at::IntArrayRef sizes) {
      MOTLEY_CHECK(tensor.use_count() == 1);
      tensor.reset();
      pages->resize(tensor_bytes(sizes, scalar_type(type)));
      tensor = tensor_in(pages, sizes, scalar_type(type));
    };
    const CacheSizes sizes(shape);
    resize(cache.keys, cache.key_pages, sizes.keys);
    resize(cache.values, cache.value_pages, sizes.values);
    return cache;
  }
  LayerCache copy = empty_cache(type, shape, device);
  const std::int64_t both = std::min(cache.keys.size(0), shape.blocks);
  const auto take = [both](Tensor& to, const Tensor& from) {
    if (from.defined()) to.narrow(0, 0, both).copy_(from.narrow(0, 0, both));
  };
  take(copy.keys, cache.keys);
  take(copy.values, cache.values);
  take(copy.key_scales, cache.key_scales);
  take(copy.value_scales, cache.value_scales);
  return copy;
}

void copy_blocks(const LayerCache& cache, const Tensor& from, const Tensor& to) {
  for (Tensor elements : {cache.keys, cache.values, cache.key_scales, cache.value_scales})
    if (elements.defined()) elements.index_copy_(0, to, elements.index_select(0, from));
}

}  // namespace motley
