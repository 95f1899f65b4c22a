// Attention over paged keys and values. Included once per instruction set, after cpu_kernels_vectors.hpp.

constexpr std::int64_t max_queries = 8;  // of one tile: rows x heads that share a KV head

// What a tile of queries carries while it walks over the keys (softmax with a running maximum). A partition of the keys
// begins at a fixed position, so that the order of all sums depends on positions alone.
struct Tile {
  std::int64_t count = 0;
  std::int64_t head_dim = 0;
  std::int64_t width = 0;           // tokens of a partition
  std::int64_t first[max_queries];  // keys that a query sees
  std::int64_t last[max_queries];
  float maximum[max_queries];
  float denominator[max_queries];
  float* query;   // [count][head_dim], scaled
  float* total;   // [count][head_dim padded to lanes]
  float* scores;  // [count][width]
  std::int64_t padded_dim() const { return (head_dim + lanes - 1) / lanes * lanes; }
};

template <class C>
constexpr bool has_scales = std::is_same_v<C, std::int8_t>;

// Keys or values of one block and KV head.
template <class C>
struct BlockOf {
  const C* elements;
  const Fp16* scales;  // null where C has none
};

// Of the tokens [j, j + lanes) of a block, of which `count` exist: all of them where `whole`, which keeps the sums in
// registers.
template <int M, bool whole, class C>
inline void score_lanes(const Tile& tile, const float* query, const BlockOf<C>& keys, std::int64_t block_tokens,
                        std::int64_t j, std::int64_t count, float* scores) {
  const auto load_here = [count](const auto* p) { return whole ? load(p) : load_part(p, count); };
  const std::int64_t stretch = has_scales<C> ? kv_scale_values : tile.head_dim;
  Vec total[M] = {};
  for (std::int64_t first = 0; first < tile.head_dim; first += stretch) {
    // Elements at even and at odd places: one sum would wait for itself.
    Vec sums[2][M] = {};
    const auto add = [&](int part, std::int64_t i) {
      const Vec key = load_here(keys.elements + i * block_tokens + j);
      for (int m = 0; m < M; ++m) sums[part][m] += query[m * tile.head_dim + i] * key;
    };
    const std::int64_t end = first + stretch;
    std::int64_t i = first;
    for (; i + 2 <= end; i += 2) add(0, i), add(1, i + 1);
    if (i < end) add(0, i);
    if constexpr (has_scales<C>) {
      const Vec scale = load_here(keys.scales + first / kv_scale_values * block_tokens + j);
      for (int m = 0; m < M; ++m) total[m] += (sums[0][m] + sums[1][m]) * scale;
    } else {
      for (int m = 0; m < M; ++m) total[m] = sums[0][m] + sums[1][m];
    }
  }
  for (int m = 0; m < M; ++m) store_at(scores + m * tile.width + j, total[m], count);
}

// scores[q][at + j] = query[q] . keys[.][j] for the tokens j of one block, M queries at a time.
template <int M, class C>
inline void score_block(const Tile& tile, std::int64_t q, const BlockOf<C>& keys, std::int64_t block_tokens,
                        std::int64_t at) {
  const float* query = tile.query + q * tile.head_dim;
  float* scores = tile.scores + q * tile.width + at;
  for (std::int64_t j = 0; j < block_tokens; j += lanes) {
    const std::int64_t count = block_tokens - j;
    if (count >= lanes)
      score_lanes<M, true>(tile, query, keys, block_tokens, j, count, scores);
    else
      score_lanes<M, false>(tile, query, keys, block_tokens, j, count, scores);
  }
}

// total[q] += sum over the tokens j in [from, to) of one block of scores[q][at + j] * values[j].
template <int M, class C>
inline void weigh_block(Tile& tile, std::int64_t q, const BlockOf<C>& values, std::int64_t block_tokens,
                        std::int64_t from, std::int64_t to, std::int64_t at) {
  const std::int64_t dim = tile.head_dim, padded = tile.padded_dim();
  const float* scores = tile.scores + q * tile.width + at;
  std::int64_t width = tile.width;
  [[maybe_unused]] float scaled[has_scales<C> ? M : 1][max_block_tokens];
  for (std::int64_t i = 0; i < dim;) {
    if constexpr (has_scales<C>)
      if (i % kv_scale_values == 0) {  // the scales go to the scores: there are fewer
        const Fp16* scales = values.scales + i / kv_scale_values * block_tokens;
        for (std::int64_t j = 0; j < block_tokens; j += lanes) {
          const Vec scale = load_at(scales + j, block_tokens - j);
          for (int m = 0; m < M; ++m) {
            const float* score = tile.scores + (q + m) * tile.width + at + j;
            store_at(scaled[m] + j, load_at(score, block_tokens - j) * scale, block_tokens - j);
          }
        }
        scores = scaled[0];
        width = max_block_tokens;
      }
    const auto add = [&]<int V>() {  // V vectors of elements
      Vec total[M][V];
      for (int m = 0; m < M; ++m)
        for (int v = 0; v < V; ++v) total[m][v] = load(tile.total + (q + m) * padded + i + v * lanes);
      for (std::int64_t j = from; j < to; ++j) {
        const C* at_token = values.elements + j * dim + i;
        Vec value[V];  // heads with scales are whole blocks
        for (int v = 0; v < V; ++v)
          value[v] = has_scales<C> || V > 1 ? load(at_token + v * lanes) : load_at(at_token, dim - i);
        for (int m = 0; m < M; ++m)
          for (int v = 0; v < V; ++v) total[m][v] += scores[m * width + j] * value[v];
      }
      for (int m = 0; m < M; ++m)
        for (int v = 0; v < V; ++v) store(tile.total + (q + m) * padded + i + v * lanes, total[m][v]);
    };
    const bool two = i + 2 * lanes <= dim;
    two ? add.template operator()<2>() : add.template operator()<1>();
    i += two ? 2 * lanes : lanes;
  }
}

// Calls step.template operator()<M>(q) for groups of up to four of the tile's queries.
template <class Step>
inline void for_queries(std::int64_t count, const Step& step) {
  std::int64_t q = 0;
  for (; q + 4 <= count; q += 4) step.template operator()<4>(q);
  switch (count - q) {
    case 3: return step.template operator()<3>(q);
    case 2: return step.template operator()<2>(q);
    case 1: return step.template operator()<1>(q);
    default: return;
  }
}

// Turns a query's scores over the partition at [start, start + width) into weights, and rescales what was summed
// before.
inline void soften(Tile& tile, std::int64_t q, std::int64_t start) {
  float* scores = tile.scores + q * tile.width;
  const std::int64_t from = std::clamp(tile.first[q] - start, std::int64_t{0}, tile.width);
  const std::int64_t to = std::clamp(tile.last[q] - start, std::int64_t{0}, tile.width);
  for (std::int64_t j = 0; j < from; ++j) scores[j] = 0;
  for (std::int64_t j = std::max(from, to); j < tile.width; ++j) scores[j] = 0;
  if (from >= to) return;
  float maximum = tile.maximum[q];
  for (std::int64_t j = from; j < to; ++j) maximum = std::max(maximum, scores[j]);
  Vec weights{};
  for (std::int64_t j = from; j < to; j += lanes) {
    store_at(scores + j, exponential(load_at(scores + j, to - j) - maximum), to - j);
    weights += load_at(scores + j, to - j);
  }
  const float rescale = std::exp(tile.maximum[q] - maximum);  // 0 at the first partition
  tile.maximum[q] = maximum;
  tile.denominator[q] = tile.denominator[q] * rescale + sum(weights);
  float* total = tile.total + q * tile.padded_dim();
  for (std::int64_t i = 0; i < tile.padded_dim(); i += lanes) store(total + i, load(total + i) * rescale);
}

template <class T, class C>
inline void attend_tile(const AttentionTask<T, C>& task, std::int64_t kv_head, Tile& tile) {
  const std::int64_t low = *std::min_element(tile.first, tile.first + tile.count);
  const std::int64_t high = *std::max_element(tile.last, tile.last + tile.count);
  const auto block_at = [&](const C* elements, const Fp16* scales, std::int64_t token) {
    const std::int64_t block = task.blocks[token / task.block_tokens] * task.kv_heads + kv_head;
    const std::int64_t first = block * task.block_tokens * task.head_dim;
    return BlockOf<C>{elements + first, has_scales<C> ? scales + first / kv_scale_values : nullptr};
  };
  for (std::int64_t start = low / tile.width * tile.width; start < high; start += tile.width) {
    const std::int64_t end = std::min(start + tile.width, high);
    for (std::int64_t token = start; token < end; token += task.block_tokens)
      for_queries(tile.count, [&]<int M>(std::int64_t q) {
        score_block<M>(tile, q, block_at(task.keys, task.key_scales, token), task.block_tokens, token - start);
      });
    for (std::int64_t q = 0; q < tile.count; ++q) soften(tile, q, start);
    for (std::int64_t token = start; token < end; token += task.block_tokens) {
      const std::int64_t from = std::max(low - token, std::int64_t{0});
      const std::int64_t to = std::min(task.block_tokens, high - token);
      for_queries(tile.count, [&]<int M>(std::int64_t q) {
        weigh_block<M>(tile, q, block_at(task.values, task.value_scales, token), task.block_tokens, from, to,
                       token - start);
      });
    }
  }
}

template <class T, class C>
void attend(const AttentionTask<T, C>& task, std::int64_t kv_head, std::int64_t row_first, std::int64_t row_last) {
  const std::int64_t group = task.heads / task.kv_heads, dim = task.head_dim;
  Tile tile;
  tile.head_dim = dim;
  tile.width = task.block_tokens * std::max<std::int64_t>(1, 64 / task.block_tokens);
  thread_local std::vector<float> scratch;
  scratch.resize(static_cast<std::size_t>(max_queries * (dim + tile.padded_dim() + tile.width)));
  tile.query = scratch.data();
  tile.total = tile.query + max_queries * dim;
  tile.scores = tile.total + max_queries * tile.padded_dim();
  const std::int64_t queries = (row_last - row_first) * group;
  const auto offset_of = [&](std::int64_t query) {
    return ((row_first + query / group) * task.heads + kv_head * group + query % group) * dim;
  };
  for (std::int64_t begin = 0; begin < queries; begin += max_queries) {
    tile.count = std::min(max_queries, queries - begin);
    for (std::int64_t q = 0; q < tile.count; ++q) {
      const T* from = task.query + offset_of(begin + q);
      for (std::int64_t i = 0; i < dim; ++i) tile.query[q * dim + i] = to_float(from[i]) * task.scale;
      tile.last[q] = task.position + row_first + (begin + q) / group + 1;
      tile.first[q] = task.window > 0 ? std::max<std::int64_t>(0, tile.last[q] - task.window) : 0;
      const std::int64_t head = kv_head * group + (begin + q) % group;
      tile.maximum[q] = task.sinks ? to_float(task.sinks[head]) : -std::numeric_limits<float>::infinity();
      tile.denominator[q] = task.sinks ? 1 : 0;
    }
    std::fill_n(tile.total, tile.count * tile.padded_dim(), 0.0f);
    attend_tile(task, kv_head, tile);
    for (std::int64_t q = 0; q < tile.count; ++q) {
      T* to = task.output + offset_of(begin + q);
      const float* total = tile.total + q * tile.padded_dim();
      for (std::int64_t i = 0; i < dim; ++i) put(to + i, total[i] / tile.denominator[q]);
    }
  }
}
