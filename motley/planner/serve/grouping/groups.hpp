// Pipelines by the devices they may use: each group of devices is searched once, and so is every group that looks
// alike.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "motley/planner/serve/pipeline/search.hpp"

namespace motley {

// The best pipeline on a group of devices. The answer may have been found on other devices, its images: the i-th of
// `devices` takes the part of the i-th of `answer->devices`.
struct GroupAnswer {
  std::vector<int> devices;
  PartAnswer part;
};
struct Pipeline {
  std::vector<int> devices;
  std::shared_ptr<const GroupAnswer> answer;

  bool found() const { return answer && answer->part.best.has_value(); }
  const Candidate& best() const { return *answer->part.best; }
  // Devices of every stage, and of all of them together; the rest of the group stays idle.
  std::vector<std::vector<int>> stage_devices() const;
  std::vector<int> used_devices() const;
};

class Groups {
 public:
  explicit Groups(const ServeProblem& problem);

  // The same answer whatever was asked before, by whichever thread.
  Pipeline best(std::vector<int> devices);

  // No pipeline over these devices serves more requests per second: each device would have to compute all the time, at
  // the largest step, with nothing to wait for. A group of n ranks with shares s_i takes at least max_i s_i t_i for a
  // layer that device i alone computes in t_i, and sum s_i = 1, so its rate is at most sum 1 / (L t_i).
  double most_requests_per_s(const std::vector<int>& devices) const;
  // Whether the model and one request could fit at all.
  bool may_fit(const std::vector<int>& devices) const;
  // How often the model with one request each would fit the devices' own memory.
  double copies(const std::vector<int>& devices) const;

  const ServeProblem& problem() const { return problem_; }

 private:
  std::vector<int> in_order(std::vector<int> devices) const;
  std::vector<double> signature(const std::vector<int>& ordered) const;
  void add_tiers(int device, std::vector<double>& text) const;

  const ServeProblem& problem_;
  std::vector<double> most_of_type_;  // requests per second of one device
  std::vector<double> usable_;        // bytes, of every device
  std::vector<double> with_tiers_;    // the same with host memory and disk
  double need_ = 0;
  std::mutex mutex_;
  std::map<std::vector<double>, std::shared_ptr<const GroupAnswer>> answers_;
};

}  // namespace motley
