// What this machine offers a deployment.
#pragma once

#include <cstdint>
#include <string>

#include "motley/agent/agent_messages.hpp"

namespace motley {

// Threads that may run at once: processors that this process may use, and less where a control group grants less.
int usable_threads();

// Memory that is free now, less a tenth for everything else; never more than a control group grants.
std::int64_t usable_memory_bytes();

std::string processor_kind();  // "AMD EPYC 7B13"
// With the threads that it may run: alike for processors whose speed is.
std::string processor_name(int threads);

// The processor as one device of so much memory, measured for about two seconds.
OfferedDevice measure_processor(std::int64_t memory_bytes, int threads);

}  // namespace motley
