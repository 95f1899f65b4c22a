// Counters, gauges and histograms for /metrics, in Prometheus' text format.
#pragma once

#include <memory>
#include <string>

#include "motley/serving/driver.hpp"

namespace motley {

class Metrics {
 public:
  Metrics();
  ~Metrics();

  void count_request(const std::string& path, int status);
  void observe_first_token(double seconds);     // from the request's arrival
  void observe_token_interval(double seconds);  // mean of one choice, after its first token
  void observe_duration(double seconds);        // of a whole completion request

  // Brings the driver's figures up to date and writes all. Gauges of routes and workers that are no more go.
  std::string text(const DriverStatus& status);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace motley
