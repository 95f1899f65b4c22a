#include "motley/workload/arrivals.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "motley/base/error.hpp"

namespace motley {
namespace {

Workload workload_of(ArrivalProcess process, double rate_per_s, Length prompt, Length output, double cv = 1) {
  Workload workload;
  workload.arrival = {.process = process, .cv = cv, .file = ""};
  workload.classes.push_back({"chat", rate_per_s, std::move(prompt), std::move(output), {}});
  return workload;
}
Length mean(double tokens) { return {.mean = tokens, .p50 = 0, .p99 = 0, .trace = ""}; }

struct Moments {
  double mean = 0, cv = 0;
};
Moments moments_of(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / static_cast<double>(values.size())) / mean};
}
std::vector<double> gaps_of(const std::vector<TraceRequest>& requests) {
  std::vector<double> gaps;
  for (std::size_t i = 1; i < requests.size(); ++i) gaps.push_back(requests[i].arrival_s - requests[i - 1].arrival_s);
  return gaps;
}

TEST(Arrivals, ConstantOnesComeEveryPeriod) {
  const auto requests = draw_requests(workload_of(ArrivalProcess::constant, 4, mean(10), mean(3)), {.duration_s = 2});
  ASSERT_EQ(requests.size(), 8u);
  for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(requests[i], (TraceRequest{static_cast<double>(i) / 4, 10, 3, "chat"}));
  EXPECT_EQ(draw_requests(workload_of(ArrivalProcess::constant, 4, mean(10), mean(3)), {.requests = 3, .rate_scale = 2})
                .back()
                .arrival_s,
            0.25);
}

TEST(Arrivals, GapsHaveTheMeanAndVariationOfTheirProcess) {
  constexpr std::int64_t count = 100'000;
  const auto moments = [&](ArrivalProcess process, double cv) {
    return moments_of(
        gaps_of(draw_requests(workload_of(process, 5, mean(1), mean(1), cv), {.requests = count, .seed = 3})));
  };
  const Moments poisson = moments(ArrivalProcess::poisson, 1);
  EXPECT_NEAR(poisson.mean, 0.2, 0.002);
  EXPECT_NEAR(poisson.cv, 1, 0.02);
  for (const double cv : {0.25, 1.0, 3.0}) {
    const Moments gamma = moments(ArrivalProcess::gamma, cv);
    EXPECT_NEAR(gamma.mean, 0.2, 0.2 * 0.01 * (1 + cv * cv)) << cv;
    EXPECT_NEAR(gamma.cv, cv, 0.03 * cv) << cv;
  }
}

TEST(Arrivals, ClassesComeAtTheirRatesInOneOrder) {
  Workload workload = workload_of(ArrivalProcess::poisson, 6, mean(10), mean(3));
  workload.classes.push_back({"code", 2, mean(100), mean(5), {}});
  const auto requests = draw_requests(workload, {.duration_s = 5000, .seed = 1});
  EXPECT_TRUE(std::ranges::is_sorted(requests, {}, &TraceRequest::arrival_s));
  EXPECT_LT(requests.back().arrival_s, 5000);
  const auto code = std::ranges::count(requests, "code", &TraceRequest::class_name);
  EXPECT_NEAR(static_cast<double>(code), 10'000, 300);
  EXPECT_NEAR(static_cast<double>(requests.size()), 40'000, 600);
}

TEST(Arrivals, TheSeedSaysEverything) {
  const Workload workload =
      workload_of(ArrivalProcess::gamma, 5, {.mean = 100, .p50 = 50, .p99 = 0, .trace = ""}, mean(3), 2);
  const auto draw = [&](std::uint64_t seed, double scale) {
    return draw_requests(workload, {.requests = 50, .rate_scale = scale, .seed = seed});
  };
  EXPECT_EQ(draw(7, 1), draw(7, 1));
  EXPECT_NE(draw(7, 1), draw(8, 1));
  // The same requests, closer together.
  const auto slow = draw(7, 1), fast = draw(7, 4);
  for (std::size_t i = 0; i < slow.size(); ++i) {
    EXPECT_EQ(slow[i].prompt_tokens, fast[i].prompt_tokens);
    EXPECT_NEAR(slow[i].arrival_s, 4 * fast[i].arrival_s, 1e-9);
  }
}

double share_below(const std::vector<TraceRequest>& requests, double tokens) {
  const auto below = std::ranges::count_if(
      requests, [&](const TraceRequest& r) { return static_cast<double>(r.prompt_tokens) <= tokens; });
  return static_cast<double>(below) / static_cast<double>(requests.size());
}
// Classes draw from streams of their own: one's gaps are not another's, some places on.
TEST(Arrivals, ClassesShareNoRandomNumbers) {
  Workload workload = workload_of(ArrivalProcess::poisson, 1, mean(1), mean(1));
  for (const char* name : {"b", "c"}) {
    workload.classes.push_back(workload.classes[0]);
    workload.classes.back().name = name;
  }
  std::map<std::string, std::vector<double>> arrivals;
  for (const auto& request : draw_requests(workload, {.requests = 300}))
    arrivals[request.class_name].push_back(request.arrival_s);
  std::map<double, int> gaps;
  for (const auto& [name, times] : arrivals)
    for (std::size_t i = 1; i < times.size(); ++i) ++gaps[std::round((times[i] - times[i - 1]) * 1e9)];
  for (const auto& [gap, count] : gaps) EXPECT_EQ(count, 1) << gap;
}

double mean_prompt(const std::vector<TraceRequest>& requests) {
  double sum = 0;
  for (const auto& request : requests) sum += static_cast<double>(request.prompt_tokens);
  return sum / static_cast<double>(requests.size());
}

TEST(Lengths, ALognormalGoesThroughWhatIsKnown) {
  const auto draw = [](Length prompt) {
    return draw_requests(workload_of(ArrivalProcess::constant, 1, std::move(prompt), mean(3)), {.requests = 100'000});
  };
  const auto by_median = draw({.mean = 1000, .p50 = 600, .p99 = 0, .trace = ""});
  EXPECT_NEAR(mean_prompt(by_median), 1000, 20);
  EXPECT_NEAR(share_below(by_median, 600), 0.5, 0.01);
  const auto by_tail = draw({.mean = 1000, .p50 = 0, .p99 = 5000, .trace = ""});
  EXPECT_NEAR(mean_prompt(by_tail), 1000, 20);
  EXPECT_NEAR(share_below(by_tail, 5000), 0.99, 0.002);
  // Both: the shape from them, and the mean stays.
  const LogNormal both = lognormal_of({.mean = 1000, .p50 = 600, .p99 = 6000, .trace = ""});
  EXPECT_NEAR(std::exp(both.mu + both.sigma * both.sigma / 2), 1000, 1e-9);
  EXPECT_NEAR(std::exp(2.3263478740408408 * both.sigma), 10, 1e-9);
  EXPECT_EQ(lognormal_of(mean(1000)).sigma, 0);
  EXPECT_EQ(lognormal_of({.mean = 1000, .p50 = 1200, .p99 = 0, .trace = ""}).sigma, 0);
}

class TraceFile {
 public:
  explicit TraceFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("motley_arrivals_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    write_file(path_, text);
  }
  ~TraceFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Lengths, RowsOfATraceAreDrawnWhole) {
  const TraceFile file("prompt_tokens,output_tokens,class\n10,1,chat\n20,2,chat\n30,3,chat\n500,50,code\n");
  Workload workload = workload_of(ArrivalProcess::poisson, 1, mean(20), mean(2));
  workload.classes[0].prompt_tokens.trace = workload.classes[0].output_tokens.trace = file.path();
  const auto requests = draw_requests(workload, {.requests = 3000});
  for (const auto& request : requests) EXPECT_EQ(request.prompt_tokens, 10 * request.output_tokens);
  for (const double tokens : {10, 20}) EXPECT_NEAR(share_below(requests, tokens), tokens / 30, 0.03);
}

TEST(Arrivals, ATraceIsReplayed) {
  const TraceFile file("arrival_s,prompt_tokens,output_tokens\n0.5,10,1\n1,20,2\n4,30,3\n");
  Workload workload = workload_of(ArrivalProcess::trace, 0, mean(1), mean(1));
  workload.arrival.file = file.path();
  EXPECT_EQ(draw_requests(workload, {}), read_trace(file.path()));
  const auto twice = draw_requests(workload, {.duration_s = 1, .rate_scale = 2});
  ASSERT_EQ(twice.size(), 2u);
  EXPECT_EQ(twice[1].arrival_s, 0.5);
  EXPECT_EQ(draw_requests(workload, {.requests = 1}).size(), 1u);
}

TEST(Arrivals, WhatCannotBeDrawnIsRefused) {
  const auto refuse = [](const Workload& workload, const ArrivalOptions& options, const std::string& word) {
    try {
      draw_requests(workload, options);
      ADD_FAILURE() << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::input);
      EXPECT_NE(error.message().find(word), std::string::npos) << error.message();
      EXPECT_FALSE(error.hint().empty());
    }
  };
  const Workload good = workload_of(ArrivalProcess::poisson, 1, mean(1), mean(1));
  refuse(workload_of(ArrivalProcess::poisson, 0, mean(1), mean(1)), {.requests = 1}, "has no rate");
  refuse(good, {}, "duration and number of requests are missing");
  refuse(good, {.requests = 1, .rate_scale = 0}, "the scale of the rates must be positive");
  refuse(good, {.duration_s = 1e12}, "more than can be simulated");
  refuse(good, {.duration_s = -1}, "must not be negative");
  refuse(good, {.requests = -1}, "must not be negative");
}

TEST(Arrivals, ARateIsSharedAsBeforeOrEqually) {
  Workload workload = default_workload();
  workload.classes.push_back(workload.classes[0]);
  EXPECT_EQ(with_rate(workload, 4).classes[1].rate_per_s, 2);
  workload.classes[0].rate_per_s = 1;
  workload.classes[1].rate_per_s = 3;
  EXPECT_EQ(with_rate(workload, 8).classes[0].rate_per_s, 2);
  EXPECT_EQ(with_rate(workload, 8).classes[1].rate_per_s, 6);
  workload.arrival.process = ArrivalProcess::trace;
  EXPECT_THROW(with_rate(workload, 8), Error);
}

}  // namespace
}  // namespace motley
