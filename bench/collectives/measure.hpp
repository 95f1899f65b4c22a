// The same measurement for every library: sizes, counts, check and output (bench/collectives/run.py).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace motley::bench {

struct CollectiveSample {
  std::int64_t bytes = 0;
  int repeats = 1;  // operations in a row, whose mean counts as one time
};

// "1024x200,1048576x20": sizes in bytes with their repeats.
inline std::vector<CollectiveSample> parse_samples(const std::string& text) {
  std::vector<CollectiveSample> samples;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ',');) {
    CollectiveSample sample;
    if (std::sscanf(word.c_str(), "%ldx%d", &sample.bytes, &sample.repeats) != 2 || sample.bytes % 4 != 0)
      throw std::invalid_argument("\"" + word + "\" is not BYTESxREPEATS");
    samples.push_back(sample);
  }
  return samples;
}

inline double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// `all_reduce(float*, count)` sums in place over all ranks. Every size is checked once, then timed in `rounds` rounds
// of its repeats; rank 0 prints a JSON line per size with the median round and the best.
template <class AllReduce>
void measure_all_reduce(const char* library, int rank, int ranks, const std::vector<CollectiveSample>& samples,
                        int rounds, AllReduce all_reduce) {
  for (const auto& [bytes, repeats] : samples) {
    const auto count = static_cast<std::size_t>(bytes / 4);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(rank + 1) * static_cast<float>(i % 7);
    all_reduce(values.data(), count);
    const auto factor = static_cast<float>(ranks * (ranks + 1) / 2);
    for (std::size_t i = 0; i < count; ++i)
      if (values[i] != factor * static_cast<float>(i % 7))
        throw std::runtime_error(fmt::format("{}: wrong sum", library));
    std::fill(values.begin(), values.end(), 0.0F);  // stays what it is, however often it is added
    std::vector<double> times_s;
    for (int round = 0; round <= rounds; ++round) {
      float token = 0;
      all_reduce(&token, 1);  // all begin together
      const double start_s = now_s();
      for (int i = 0; i < repeats; ++i) all_reduce(values.data(), count);
      if (round > 0) times_s.push_back((now_s() - start_s) / repeats);  // the first warms up
    }
    std::sort(times_s.begin(), times_s.end());
    if (rank == 0) {
      fmt::print("{{\"library\": \"{}\", \"ranks\": {}, \"bytes\": {}, \"time_s\": {:.9f}, \"best_s\": {:.9f}}}\n",
                 library, ranks, bytes, times_s[times_s.size() / 2], times_s.front());
      std::fflush(stdout);
    }
  }
}

}  // namespace motley::bench
