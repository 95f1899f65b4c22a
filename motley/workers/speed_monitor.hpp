// Whether a worker computes as fast as it used to: a value, without a clock.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace motley {

// Of one device. Usual is what nine of ten steps do not exceed; it is learned apart for steps of each size, since a
// cost model may be wrong in other ways about a long prompt than about a token.
class SpeedMonitor {
 public:
  // A step of this many tokens took `seconds` of computing, where the cost model believes `believed_s`.
  void add(std::int64_t tokens, double believed_s, double seconds);
  // It has nothing to do: what is usual stays known.
  void rest();
  // Times as long as usual, over the latest three steps or two seconds of computing, whichever is more; 1 where too
  // little is known.
  double factor() const;
  // These were at least four times as long as usual, and three steps or more in them twice, each of them 4 ms or more;
  // or one alone took four seconds. Lasts until the factor is below 1.5.
  bool slow() const { return slow_; }

 private:
  struct Step {
    int size = 0;
    double seconds = 0, believed_s = 0, usual_s = 0;
    bool while_slow = false;
  };
  void learn(int size, double ratio);
  void judge();

  std::map<int, std::deque<double>> ratios_;  // of measured to believed time, by size
  std::deque<Step> latest_;                   // of sizes that are known
  double seconds_ = 0, usual_s_ = 0;          // their sums
  bool slow_ = false;
};

// How many times slower than usual, of those that are slow by themselves: where the others became slower too, as when
// another program takes processors that all of them share, a device must be twice as slow as their median.
std::map<std::string, double> slow_devices(const std::map<std::string, SpeedMonitor>& speeds);

}  // namespace motley
