// Draws by the kernel, which runs on the processor here, against the sampler: from logits as rank 0 of a stage has
// them, gathered from the ranks' parts of the vocabulary.
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/base/random.hpp"
#include "motley/engine/cpu/cpu_device.hpp"
#include "motley/engine/cuda/cuda_library.hpp"
#include "motley/engine/cuda/cuda_ops.hpp"
#include "motley/engine/device/collectives.hpp"
#include "motley/engine/stage/sampler.hpp"
#include "motley/workers/linked_groups_test.hpp"

namespace motley {
namespace {

constexpr std::int64_t drawn_position = 9, most_drawn_rows = 20;
// The kernel's weights are of fp32, the sampler's of fp64: a number this close to a border may fall on either side.
constexpr double of_weights_rounding = 1e-6;

class DrawsTest : public ::testing::Test {
 protected:
  DrawsTest() { at::manual_seed(5); }
  // Within [first, last].
  std::int64_t pick(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(uniform_at(3, turn_++) * static_cast<double>(last - first + 1));
  }
  bool one_in(std::int64_t many) { return pick(1, many) == 1; }

  // Many equal ones in some rows, values that are none in others, and rows without any that is possible.
  at::Tensor random_logits(std::int64_t rows, std::int64_t columns) {
    at::Tensor logits = at::randn({rows, columns}) * static_cast<double>(pick(1, 5));
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (std::int64_t row = 0; row < rows; ++row) {
      at::Tensor mine = logits[row];
      if (one_in(2)) mine.copy_((mine * 2).round() / 2);
      for (std::int64_t i = one_in(4) ? pick(1, 3) : 0; i > 0; --i)
        mine[pick(0, columns - 1)].fill_(
            std::array{std::nanf(""), infinity, -infinity}[static_cast<std::size_t>(pick(0, 2))]);
      if (one_in(50)) mine.fill_(one_in(2) ? std::nanf("") : -infinity);
    }
    return logits;
  }

  // What rank 0 has of the ranks' parts, of which some have a column alone.
  at::Tensor gathered(const at::Tensor& logits) {
    const std::int64_t ranks = pick(1, 4), columns = logits.size(1);
    if (ranks == 1) return logits;
    std::unique_ptr<LinkedGroups>& groups = groups_[ranks];
    if (!groups) groups = std::make_unique<LinkedGroups>("shm", static_cast<int>(ranks));
    std::vector<std::int64_t> bounds{0};
    for (std::int64_t rank = 1; rank < ranks; ++rank)
      bounds.push_back(pick(bounds.back() + 1, one_in(3) ? bounds.back() + 1 : columns - ranks + rank));
    bounds.push_back(columns);
    at::Tensor all = at::full_like(logits, -1);
    std::vector<std::jthread> threads;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        const c10::InferenceMode guard;
        const auto r = static_cast<std::size_t>(rank);
        Collectives collectives((*groups)[r].get(), cpu_device());
        const at::Tensor mine = logits.narrow(1, bounds[r], bounds[r + 1] - bounds[r]).contiguous();
        collectives.gather_columns(mine, rank == 0 ? all : at::Tensor(), bounds);
      });
    threads.clear();
    return all;
  }

  std::int32_t drawn(const at::Tensor& row, const PlainDraw& draw, double further) const {
    const double most = std::nextafter(1.0, 0.0), uniform = std::clamp(draw.uniform + further, 0.0, most);
    return ops_.draw(row.unsqueeze(0), std::array{PlainDraw{draw.temperature, draw.min_p, uniform}})->front();
  }

  CudaOps ops_{open_cuda_kernels(MOTLEY_HOST_KERNELS), cpu_device()};
  std::uint64_t turn_ = 0;

 private:
  const c10::InferenceMode guard_;
  std::map<std::int64_t, std::unique_ptr<LinkedGroups>> groups_;
};

std::int32_t chosen(const at::Tensor& row, const Sampling& sampling) {
  try {
    return sample({row.const_data_ptr<float>(), static_cast<std::size_t>(row.numel())}, sampling, 0, drawn_position)
        .token;
  } catch (const Error&) {
    return -1;  // none is possible
  }
}

TEST_F(DrawsTest, AreWhatTheSamplerChooses) {
  const char* selection = std::getenv("MOTLEY_STANDINS");
  const int asked = selection != nullptr && std::string_view(selection) == "all" ? 10'000 : 600;
  int rows_done = 0, by_rounding = 0;
  while (rows_done < asked) {
    SCOPED_TRACE(rows_done);
    const std::int64_t rows = pick(1, most_drawn_rows), columns = pick(4, one_in(20) ? 3000 : 300);
    const at::Tensor logits = random_logits(rows, columns), all = gathered(logits);
    std::vector<Sampling> samplings;
    std::vector<PlainDraw> draws;
    for (std::int64_t row = 0; row < rows; ++row) {
      const Sampling sampling{.temperature = one_in(4) ? 0 : static_cast<float>(pick(1, 200)) / 100,
                              .min_p = one_in(3) ? 0.05F : 0,
                              .seed = static_cast<std::uint64_t>(pick(0, 100'000))};
      samplings.push_back(sampling);
      draws.push_back({sampling.temperature, sampling.min_p, uniform_at(sampling.seed, drawn_position)});
    }
    const std::vector<std::int32_t> tokens = ops_.draw(all, draws).value();
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto r = static_cast<std::size_t>(row);
      const std::int32_t expected = chosen(logits[row], samplings[r]);
      if (tokens[r] == expected) continue;
      ++by_rounding;
      ASSERT_LE(drawn(all[row], draws[r], -of_weights_rounding), expected) << row;
      ASSERT_GE(drawn(all[row], draws[r], of_weights_rounding), expected) << row;
    }
    rows_done += static_cast<int>(rows);
  }
  EXPECT_LE(by_rounding, asked / 1000);
}

}  // namespace
}  // namespace motley
