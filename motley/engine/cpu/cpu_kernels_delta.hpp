// Delta nets of one instruction set. Included once per set (cpu_kernels_body.hpp).

constexpr float least_square = 1e-6F;  // added to the squared length of a query or key

// As many channels at a time as a vector has lanes.
template <class T>
void convolve(const ConvolutionTask<T>& task, std::int64_t first, std::int64_t last) {
  const std::int64_t width = task.width, before = width - 1;
  std::vector<float> inputs(static_cast<std::size_t>((before + task.rows) * lanes)),
      taps(static_cast<std::size_t>(width * lanes));
  for (std::int64_t channel = first; channel < last; channel += lanes) {
    const std::int64_t count = std::min(lanes, last - channel);
    T* const values = task.values + channel;
    float *const kept = task.kept + channel * before, *const input = inputs.data();
    for (std::int64_t c = 0; c < count; ++c) {
      for (std::int64_t w = 0; w < width; ++w)
        taps[static_cast<std::size_t>(w * lanes + c)] = task.weight[(channel + c) * width + w];
      for (std::int64_t w = 0; w < before; ++w) input[w * lanes + c] = kept[c * before + w];
    }
    for (std::int64_t t = 0; t < task.rows; ++t)
      store(input + (before + t) * lanes, load_at(values + t * task.stride, count));
    for (std::int64_t c = 0; c < count; ++c)
      for (std::int64_t w = 0; w < before; ++w) kept[c * before + w] = input[(task.rows + w) * lanes + c];
    for (std::int64_t t = 0; t < task.rows; ++t) {
      Vec total{};
      for (std::int64_t w = 0; w < width; ++w) total += load(taps.data() + w * lanes) * load(input + (t + w) * lanes);
      store_at(values + t * task.stride, total / (1.0F + exponential(-total)), count);
    }
  }
}

// A head as fp32, with this length.
template <class T>
void with_length(const T* head, std::int64_t size, float length, float* out) {
  Vec squares{};
  for (std::int64_t i = 0; i < size; i += lanes) {
    const Vec x = load_at(head + i, size - i);
    squares += x * x;
  }
  const float scale = length / std::sqrt(sum(squares) + least_square);
  for (std::int64_t i = 0; i < size; i += lanes) store_at(out + i, load_at(head + i, size - i) * scale, size - i);
}

// `vectors` of columns at a time, which stay in registers while the rows of the state pass by twice.
template <int vectors, class T>
[[gnu::always_inline]] inline void delta_columns(const DeltaTask<T>& task, std::int64_t row, const float* query,
                                                 const float* key, std::int64_t column) {
  const float decay = task.decay[row * task.rate_stride], beta = task.beta[row * task.rate_stride];
  const std::int64_t left = task.value_dim - column;
  float* const state = task.state + column;
  const auto each = [](const auto& step) {
    for (int v = 0; v < vectors; ++v) step(v);
  };
  Vec given[vectors] = {}, learnt[vectors];
  for (std::int64_t i = 0; i < task.key_dim; ++i)
    each([&](int v) { given[v] += key[i] * load_at(state + i * task.value_dim + v * lanes, left - v * lanes); });
  const T* const value = task.value + row * task.value_stride + column;
  each([&](int v) {
    learnt[v] = beta * (load_at(value + v * lanes, left - v * lanes) - decay * given[v]);
    given[v] = Vec{};
  });
  for (std::int64_t i = 0; i < task.key_dim; ++i)
    each([&](int v) {
      float* const place = state + i * task.value_dim + v * lanes;
      const Vec now = decay * load_at(place, left - v * lanes) + key[i] * learnt[v];
      given[v] += query[i] * now;
      store_at(place, now, left - v * lanes);
    });
  T* const output = task.output + row * task.output_stride + column;
  each([&](int v) { store_at(output + v * lanes, given[v], left - v * lanes); });
}

template <class T>
void gated_delta(const DeltaTask<T>& task) {
  constexpr int together = 4;
  std::vector<float> heads(static_cast<std::size_t>(2 * task.key_dim));
  float *const query = heads.data(), *const key = query + task.key_dim;
  for (std::int64_t row = 0; row < task.rows; ++row) {
    with_length(task.query + row * task.key_stride, task.key_dim, 1.0F / std::sqrt(static_cast<float>(task.key_dim)),
                query);
    with_length(task.key + row * task.key_stride, task.key_dim, 1.0F, key);
    std::int64_t column = 0;
    for (; column + together * lanes <= task.value_dim; column += together * lanes)
      delta_columns<together>(task, row, query, key, column);
    for (; column < task.value_dim; column += lanes) delta_columns<1>(task, row, query, key, column);
  }
}
