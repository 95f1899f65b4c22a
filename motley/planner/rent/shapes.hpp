// Configurations from the cost model: replica shapes of the offered types, each with the rate at which it serves each
// class of the workload.
//
// A shape is one part or two: a number of stages of one type at one tensor-parallel degree, and another of another. A
// stage stands inside a machine, a machine holds eight devices of one type. Layers are split over the stages by the
// exact dynamic programme of solve/. The rate for a class is the one at the largest batch (of 1, 2, 4, ...) that fits
// and keeps the class's deadlines; 0 where none does.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "motley/cost/form/form.hpp"
#include "motley/planner/rent/plan_rent.hpp"
#include "motley/solve/chain_dp.hpp"

namespace motley {

struct ShapePart {
  std::string type;
  int degree = 1;
  int stages = 1;
  bool operator==(const ShapePart&) const = default;
};
using ShapeSpec = std::vector<ShapePart>;

std::string shape_name(const ShapeSpec& spec);
std::map<std::string, std::int64_t> shape_devices(const ShapeSpec& spec);

class ShapeMaker {
 public:
  // The market's types are names of the catalogue; its classes come from the workload.
  ShapeMaker(const Offers& market, const Model& model, const Workload& workload, const ModelRentOptions& options);
  ~ShapeMaker();

  // Types, network and classes, without configurations.
  const Offers& market() const { return market_; }

  // All shapes of one type, and of two, by what fits roughly, is available and is of use.
  std::vector<ShapeSpec> alike() const;
  std::vector<ShapeSpec> mixed() const;

  // Rates that no layout of the shape exceeds, from the cost of a layer alone: quick.
  std::vector<double> rate_bounds(const ShapeSpec& spec);

  // The shape with its rates and, for the class with the greatest rate, its layers.
  Configuration make(const ShapeSpec& spec);

  // Why nothing that was made serves the class, and what would.
  struct Lack {
    std::string reason, hint;
  };
  Lack why_unserved(std::size_t class_index) const;

 private:
  struct Pair;  // a small cluster of one or two types, and what was priced on it
  struct Priced;
  Pair& pair_of(const ShapeSpec& spec);
  ChainProblem chain_problem(const Pair& pair, const ShapeSpec& spec, const ServeForm& form,
                             const CacheRoom& caches) const;
  Priced price(Pair& pair, const ShapeSpec& spec, std::size_t class_index, std::int64_t batch);
  bool plausible(const ShapeSpec& spec) const;

  Offers market_;
  const Model& model_;
  Workload workload_;
  const ModelRentOptions& options_;
  DType weight_type_, kv_type_;
  double weight_bytes_ = 0;
  std::map<std::string, DeviceType> types_;
  std::map<std::string, Pair> pairs_;
  std::map<std::string, double> layer_load_s_;  // by type, degree and class

  struct Nearest {
    double excess = 0;  // over the deadlines, relative
    std::string shape, text;
  };
  std::map<std::size_t, Nearest> nearest_;  // by class
};

}  // namespace motley
