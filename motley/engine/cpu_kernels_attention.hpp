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

// scores[q][at + j] = query[q] . keys[.][j] for the tokens j of one block, M queries at a time.
template <int M, class C>
inline void score_block(const Tile& tile, std::int64_t q, const C* keys, std::int64_t block_tokens, std::int64_t at) {
  const float* query = tile.query + q * tile.head_dim;
  float* scores = tile.scores + q * tile.width + at;
  for (std::int64_t j = 0; j < block_tokens; j += lanes) {
    const std::int64_t count = block_tokens - j;
    Vec total[M] = {};
    for (std::int64_t i = 0; i < tile.head_dim; ++i) {
      const Vec key = load_at(keys + i * block_tokens + j, count);
      for (int m = 0; m < M; ++m) total[m] += query[m * tile.head_dim + i] * key;
    }
    for (int m = 0; m < M; ++m) store_at(scores + m * tile.width + j, total[m], count);
  }
}

// total[q] += sum over the tokens j in [from, to) of one block of scores[q][at + j] * values[j].
template <int M, class C>
inline void weigh_block(Tile& tile, std::int64_t q, const C* values, std::int64_t from, std::int64_t to,
                        std::int64_t at) {
  const std::int64_t dim = tile.head_dim, padded = tile.padded_dim();
  const float* scores = tile.scores + q * tile.width + at;
  for (std::int64_t i = 0; i < dim; i += lanes) {
    Vec total[M];
    for (int m = 0; m < M; ++m) total[m] = load(tile.total + (q + m) * padded + i);
    for (std::int64_t j = from; j < to; ++j) {
      const Vec value = load_at(values + j * dim + i, dim - i);
      for (int m = 0; m < M; ++m) total[m] += scores[m * tile.width + j] * value;
    }
    for (int m = 0; m < M; ++m) store(tile.total + (q + m) * padded + i, total[m]);
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
  const std::int64_t block_elements = task.block_tokens * task.head_dim;
  const auto block_at = [&](std::int64_t token) {
    return (task.blocks[token / task.block_tokens] * task.kv_heads + kv_head) * block_elements;
  };
  for (std::int64_t start = low / tile.width * tile.width; start < high; start += tile.width) {
    const std::int64_t end = std::min(start + tile.width, high);
    for (std::int64_t token = start; token < end; token += task.block_tokens)
      for_queries(tile.count, [&]<int M>(std::int64_t q) {
        score_block<M>(tile, q, task.keys + block_at(token), task.block_tokens, token - start);
      });
    for (std::int64_t q = 0; q < tile.count; ++q) soften(tile, q, start);
    for (std::int64_t token = start; token < end; token += task.block_tokens) {
      const std::int64_t from = std::max(low - token, std::int64_t{0});
      const std::int64_t to = std::min(task.block_tokens, high - token);
      for_queries(tile.count, [&]<int M>(std::int64_t q) {
        weigh_block<M>(tile, q, task.values + block_at(token), from, to, token - start);
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
      tile.maximum[q] = -std::numeric_limits<float>::infinity();
      tile.denominator[q] = 0;
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
