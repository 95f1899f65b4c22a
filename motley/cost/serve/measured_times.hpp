// The times of steps, corrected by what was measured while serving. No clock: the caller measures.
//
// A price of a step has three kinds of parts: what every step costs, the reading of weights, and what every token
// costs. Each stage's are fitted to what its steps took, and so are those of everything between the stages and back to
// the driver, where a step was alone in the pipeline. The cost model's price is the prior; it fades with every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "motley/cost/serve/step_time.hpp"

namespace motley {

// The steps of one stage. Of steps with about as many tokens the latest count, the slowest and fastest of them left
// out; sizes that the stage has not seen for long are forgotten.
class MeasuredStage {
 public:
  explicit MeasuredStage(StageTime believed);

  void add(const StepLoad& load, double seconds);
  const StageTime& believed() const { return believed_; }
  const StageTime& corrected() const { return corrected_; }  // the believed one until something was measured
  std::int64_t steps() const { return steps_; }
  // What the parts are now: seconds of every step, and factors on what the cost model says of weights and tokens.
  struct Parts {
    double step_s = 0, weights = 1, tokens = 1;
  };
  const Parts& parts() const { return parts_; }

 private:
  struct Sample {
    StepLoad load;
    double seconds = 0;
  };
  struct Size {
    std::vector<Sample> latest = {};  // in a ring
    std::int64_t added = 0, last_step = 0;
  };
  struct Point {
    StepLoad load;
    double seconds = 0, weight = 0;
  };

  std::vector<Point> points() const;
  void fit();

  StageTime believed_, corrected_;
  Parts parts_;
  std::map<int, Size> sizes_;  // by twice the binary logarithm of the tokens
  std::int64_t steps_ = 0;
};

// A step on one stage is `believed`, but with these parts.
StageTime with_parts(const StageTime& believed, const MeasuredStage::Parts& parts);
MeasuredStage::Parts parts_of(const StageTime& believed);  // as it is believed

// The stages that the steps of a chain pass, its links and the way back.
class MeasuredPipeline {
 public:
  explicit MeasuredPipeline(PipelineTime believed);

  // What holds the times of the pipeline; corrections change them.
  const std::shared_ptr<const PipelineTime>& times() const { return times_; }
  const PipelineTime& believed() const { return believed_; }

  // A step took this long on a stage of the plan, which the chain may pass or not.
  void add_stage(std::size_t stage, const StepLoad& load, double seconds);
  // A step that was alone in the pipeline took so much longer than on its stages.
  void add_way(const StepLoad& load, double seconds);

  std::int64_t steps(std::size_t stage) const { return stages_.at(stage).steps(); }  // measured so far
  std::int64_t alone() const { return way_.steps(); }

 private:
  PipelineTime believed_;
  std::shared_ptr<PipelineTime> corrected_;
  std::shared_ptr<const PipelineTime> times_ = corrected_;
  std::map<std::size_t, MeasuredStage> stages_;
  MeasuredStage way_;
};

}  // namespace motley
