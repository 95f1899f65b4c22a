// What a run amounts to.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "motley/sim/simulate.hpp"

namespace motley::sim {

// Linear between the sorted values; 0 where there is none.
Percentiles percentiles_of(std::vector<double> values);

// Inside all deadlines; a request that is not finished is not.
bool in_time(const RequestRecord& record, const Deadline& deadline);

// Fills in `all` and `classes`. `tokens`: output tokens of every class in the measured time.
void summarize(const Workload& workload, const std::vector<RequestRecord>& records, const SimOptions& options,
               double measured_s, const std::vector<std::int64_t>& tokens, SimResult& result);

// "r0", "r0 prefill", "r0 decode".
std::string chain_name(const ServePlan& plan, const Router& router, std::size_t chain);

}  // namespace motley::sim
