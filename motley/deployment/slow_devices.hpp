// What a deployment plans with while devices compute slower than they used to. A value; seconds are on a clock of the
// caller's.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

namespace motley {

class SlowDevices {
 public:
  // What is seen: how many times slower, by device, and whose workers serve. True: it is time to look for a plan with
  // factors(), which have changed, at most once a minute. A device counts as slow once it was seen so for 2 s. One that
  // the plan left out is believed to be as fast as before after a minute, and after twice as long each time that this
  // was wrong.
  bool note(const std::map<std::string, double>& seen, const std::set<std::string>& serving, double now_s);
  // By device; those that are not there are as fast as they were measured.
  std::map<std::string, double> factors() const;

 private:
  struct Known {
    double factor = 1;  // 1: believed to be as fast as before
    double since_s = 0;
    int times = 0;
    std::optional<double> seen_s = {};  // since when as so slow, while it is believed to be faster
  };
  std::map<std::string, Known> known_;
  bool changed_ = false;
  double next_look_s_ = 0;
};

}  // namespace motley
