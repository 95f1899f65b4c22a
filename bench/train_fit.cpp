// Shares of the peaks that device types reach in training, and the constants of PyTorch's FSDP, fitted to published
// training steps; the table of predicted and measured ones.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <regex>
#include <sstream>

#include "bench/training/measured_runs.hpp"
#include "bench/training/published_runs.hpp"
#include "motley/base/error.hpp"
#include "motley/cost/train/train_price.hpp"

namespace {

using namespace motley;

constexpr int rounds = 40;
constexpr double robust_scale = 0.03;  // errors beyond it weigh less and less: some runs are not like the others
constexpr double differ = 1.15;        // pairs that are ranked

// The shares of every type, the executor's constants: what is fitted.
struct Constants {
  std::map<std::string, TrainingShares> types;
  double launch_s = 1e-3, exposed = 0.5;
  CostOptions options() const {
    return {.form = "motley", .settings = {{"motley.layer_overhead_s", launch_s}, {"motley.exposed_share", exposed}}};
  }
};

// A step as its parts: three that belong to the device type, two to the executor, and what is not fitted.
struct Parts {
  std::array<double, 5> fitted = {};
  double fixed_s = 0;
  double sum() const { return fitted[0] + fitted[1] + fitted[2] + fitted[3] + fitted[4] + fixed_s; }
};

Parts parts_of(const PublishedRun& run, const Constants& constants) {
  TrainPlan plan = run.plan;
  for (DeviceType& type : plan.cluster.types) type.training = constants.types.at(run.device_type);
  const Training& training = training_of(plan.workload);
  const TrainStepCost cost(constants.options(), plan.cluster, plan.model.arch, training, plan.profile);
  const TrainLayout layout = layout_of(plan);
  StageParts stage;
  pipeline_stage(cost, layout.replicas.front(), 0, &stage);
  const ComputeParts compute = stage.blocks.compute + stage.blocks.recompute + stage.head;
  const auto passes = static_cast<double>(layout.replicas.front().micro_batches);
  Parts parts{.fitted = {compute.products_s * passes, compute.attention_s * passes, compute.elementwise_s * passes,
                         compute.launches_s * passes, (stage.blocks.gather_s + stage.blocks.reduce_s) * passes}};
  const double whole_s = price_step(cost, {plan.cluster, plan.model.arch, training, plan.profile}, layout).iteration_s;
  parts.fixed_s = whole_s - parts.sum();
  return parts;
}

// Solves a x = b by elimination with pivots. The matrix is small, symmetric and regular.
std::vector<double> solve(std::vector<std::vector<double>> a, std::vector<double> b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i + 1; r < n; ++r)
      if (std::abs(a[r][i]) > std::abs(a[pivot][i])) pivot = r;
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (std::size_t r = i + 1; r < n; ++r) {
      const double factor = a[r][i] / a[i][i];
      for (std::size_t c = i; c < n; ++c) a[r][c] -= factor * a[i][c];
      b[r] -= factor * b[i];
    }
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t c = i + 1; c < n; ++c) b[i] -= a[i][c] * b[c];
    b[i] /= a[i][i];
  }
  return b;
}

// Each part of a step is proportional to its constant, so a round is a linear regression of factors on the relative
// errors, weighted by how far off a run is.
Constants fitted(const std::vector<PublishedRun>& runs, const std::map<std::string, std::string>& type_of) {
  Constants constants;
  for (const auto& run : runs)
    constants.types[run.device_type] = {.products = 0.8, .attention = 0.3, .elementwise = 0.4};
  std::map<std::string, std::size_t> first;  // place of a type's three factors
  for (const auto& run : runs) first.try_emplace(type_of.at(run.device_type), 3 * first.size());
  const std::size_t launch = 3 * first.size(), count = launch + 2;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::vector<double>> a(count, std::vector<double>(count));
    std::vector<double> b(count);
    for (const auto& run : runs) {
      const Parts parts = parts_of(run, constants);
      const double error = parts.sum() / run.iteration_s - 1;
      const double weight = 1 / std::sqrt(1 + error * error / (robust_scale * robust_scale));
      const std::size_t own = first.at(type_of.at(run.device_type));
      const std::array<std::size_t, 5> place = {own, own + 1, own + 2, launch, launch + 1};
      for (std::size_t i = 0; i < 5; ++i) {
        const double x = parts.fitted[i] / run.iteration_s;
        b[place[i]] += weight * x * (1 - parts.fixed_s / run.iteration_s);
        for (std::size_t j = 0; j < 5; ++j) a[place[i]][place[j]] += weight * x * parts.fitted[j] / run.iteration_s;
      }
    }
    std::vector<double> factors = solve(std::move(a), std::move(b));
    for (double& factor : factors) factor = std::clamp(factor, 0.5, 2.0);
    for (auto& [name, shares] : constants.types) {
      const std::size_t own = first.at(type_of.at(name));
      shares.products = std::min(1.0, shares.products / factors[own]);
      shares.attention = std::min(1.0, shares.attention / factors[own + 1]);
      shares.elementwise = std::min(1.0, shares.elementwise / factors[own + 2]);
    }
    constants.launch_s *= factors[launch];
    constants.exposed = std::min(1.0, constants.exposed * factors[launch + 1]);
  }
  return constants;
}

double flop_of(const PublishedRun& run) {
  const Training& training = training_of(run.plan.workload);
  const TrainStepCost cost({}, run.plan.cluster, run.plan.model.arch, training, run.plan.profile);
  return cost.step_flops() / static_cast<double>(run.plan.cluster.devices.size());
}

struct Errors {
  std::vector<double> ratios;
  double mean = 0, worst = 0;
  void add(double ratio) {
    ratios.push_back(ratio);
    mean += std::abs(ratio - 1);
    worst = std::max(worst, std::abs(ratio - 1));
  }
  double median() {
    std::sort(ratios.begin(), ratios.end());
    const std::size_t n = ratios.size();
    return n == 0 ? 0 : (ratios[(n - 1) / 2] + ratios[n / 2]) / 2;
  }
};

// Share of the pairs of a type that differ enough and are predicted in the measured order.
std::string ranked(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted, const std::string& type,
                   const std::vector<double>& scale) {
  int pairs = 0, kept = 0;
  for (std::size_t i = 0; i < runs.size(); ++i)
    for (std::size_t j = 0; j < runs.size(); ++j) {
      if (runs[i].device_type != type || runs[j].device_type != type ||
          differ * runs[i].iteration_s / scale[i] > runs[j].iteration_s / scale[j])
        continue;
      ++pairs;
      kept += predicted[i] / scale[i] < predicted[j] / scale[j] ? 1 : 0;
    }
  return fmt::format("{:.1f} % of {}", pairs > 0 ? 100.0 * kept / pairs : 100.0, pairs);
}

void print_errors(const std::vector<PublishedRun>& runs, const std::vector<double>& predicted) {
  std::vector<double> flop, once(runs.size(), 1);
  std::map<std::string, Errors> errors;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    flop.push_back(flop_of(runs[i]));
    errors[runs[i].device_type].add(predicted[i] / runs[i].iteration_s);
  }
  fmt::print(
      "\n| type | runs | median predicted / measured | mean error | worst | pairs in order, by time | by FLOP/s |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (auto& [type, of_type] : errors)
    fmt::print("| {} | {} | {:.3f} | {:.1f} % | {:.1f} % | {} | {} |\n", type, of_type.ratios.size(), of_type.median(),
               100 * of_type.mean / static_cast<double>(of_type.ratios.size()), 100 * of_type.worst,
               ranked(runs, predicted, type, once), ranked(runs, predicted, type, flop));
}

TrainingShares rounded(const TrainingShares& shares) {
  const auto two = [](double x) { return std::round(100 * x) / 100; };
  return {two(shares.products), two(shares.attention), two(shares.elementwise)};
}

std::string training_json(const TrainingShares& shares, const std::string& source) {
  return fmt::format("\"training\": {{\"products\": {}, \"attention\": {}, \"elementwise\": {}, \"source\": \"{}\"}}",
                     shares.products, shares.attention, shares.elementwise, source);
}

// Types that were measured get their own shares; those of a measured architecture that architecture's, Blackwell
// Hopper's, and all others Ampere's. Products that were measured of a type for serving hold for training, too.
void write_devices(const std::string& path, const Constants& constants,
                   const std::map<std::string, TrainingShares>& of) {
  std::ifstream in(path);
  if (!in) throw input_error(fmt::format("cannot read {}", path), "name the catalogue, data/devices.json");
  const std::regex name_key("\"name\": \"([^\"]*)\""), architecture_key("\"architecture\": \"([^\"]*)\""),
      training_key("\"training\": \\{[^}]*\\}"),
      products_key("\"efficiency\": \\{\"compute\": ([0-9.]+),[^}]*\"source\": \"helix\"");
  std::ostringstream text;
  for (std::string line; std::getline(in, line);) {
    std::smatch name, architecture;
    if (std::regex_search(line, name, name_key) && std::regex_search(line, architecture, architecture_key)) {
      const std::string generation = architecture[1];
      const auto measured = constants.types.find(name[1]);
      const bool hopper = generation == "Hopper" || generation.starts_with("Blackwell");
      const bool own = generation == "Hopper" || generation == "Ampere";
      TrainingShares shares =
          measured != constants.types.end() ? rounded(measured->second) : of.at(hopper ? "Hopper" : "Ampere");
      std::smatch products;
      if (!own && std::regex_search(line, products, products_key)) shares.products = std::stod(products[1]);
      const char* source = measured != constants.types.end() ? "foundry" : own ? "generation" : "nearest";
      const std::string fact = training_json(shares, source);
      line = std::regex_replace(line, training_key, fact);
    }
    text << line << '\n';
  }
  in.close();
  std::ofstream(path) << text.str();
}

int run(const std::vector<std::string>& arguments) {
  const auto runs = read_published_runs(MOTLEY_SOURCE_DIR "/data/training/foundry.csv");
  if (arguments.size() == 2 && arguments[0] == "--plan") {
    for (const auto& run : runs)
      if (run.name == arguments[1]) {
        std::cout << to_json(write(run.plan)) << '\n';
        return 0;
      }
    throw input_error(fmt::format("no run \"{}\"", arguments[1]), "give the name of a line of --runs");
  }
  std::vector<double> predicted;
  for (const auto& run : runs) predicted.push_back(price_step(run.plan, {}).iteration_s);
  if (arguments.size() == 1 && arguments[0] == "--runs") {
    fmt::print("| run | micro-batches | recomputed | measured s | predicted s | error |\n|---|---|---|---|---|---|\n");
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const TrainReplica& replica = runs[i].plan.replicas.front();
      fmt::print("| {} | {} | {} | {:.3f} | {:.3f} | {:+.1f} % |\n", runs[i].name, replica.micro_batches,
                 replica.stages.front().strategies.front().recompute ? "yes" : "no", runs[i].iteration_s, predicted[i],
                 100 * (predicted[i] / runs[i].iteration_s - 1));
    }
    print_errors(runs, predicted);
    return 0;
  }
  const bool write_them = arguments.size() == 2 && arguments[0] == "--write";
  if (!arguments.empty() && !write_them)
    throw input_error("unknown arguments", "use --runs, --plan RUN, --write data/devices.json, or none");

  std::map<std::string, std::string> itself,
      generation = {{"A100-40", "Ampere"}, {"A100-80", "Ampere"}, {"H100", "Hopper"}};
  for (const auto& [type, architecture] : generation) itself[type] = type;
  const Constants constants = fitted(runs, itself), by_generation = fitted(runs, generation);
  std::map<std::string, TrainingShares> of;
  for (const auto& [type, architecture] : generation) of[architecture] = rounded(by_generation.types.at(type));
  fmt::print("| | products | attention | element-wise |\n|---|---|---|---|\n");
  for (const auto& [type, shares] : constants.types)
    fmt::print("| {} | {:.3f} | {:.3f} | {:.3f} |\n", type, shares.products, shares.attention, shares.elementwise);
  for (const auto& [name, shares] : of)
    fmt::print("| all {} | {:.2f} | {:.2f} | {:.2f} |\n", name, shares.products, shares.attention, shares.elementwise);
  fmt::print("\nfsdp: {:.0f} us per layer and forward pass, {:.2f} of gathers and reductions exposed\n",
             1e6 * constants.launch_s, constants.exposed);
  std::vector<double> with_fit;
  for (const auto& run : runs) with_fit.push_back(parts_of(run, constants).sum());
  fmt::print("\nWith these constants:\n");
  print_errors(runs, with_fit);
  // Every run by the constants of the half that it is not in.
  std::vector<PublishedRun> halves[2];
  for (std::size_t i = 0; i < runs.size(); ++i) halves[i % 2].push_back(runs[i]);
  const Constants of_halves[2] = {fitted(halves[0], itself), fitted(halves[1], itself)};
  std::vector<double> from_other_half;
  for (std::size_t i = 0; i < runs.size(); ++i)
    from_other_half.push_back(parts_of(runs[i], of_halves[1 - i % 2]).sum());
  fmt::print("\nEvery other run left out, by the constants of those that are in:\n");
  print_errors(runs, from_other_half);
  fmt::print("\nWith those of the catalogue:\n");
  print_errors(runs, predicted);
  if (write_them) write_devices(arguments[1], constants, of);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
