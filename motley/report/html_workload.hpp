// What is asked, on a page.
#pragma once

#include "motley/report/html.hpp"
#include "motley/workload/workload.hpp"

namespace motley {

// The classes of requests with rates, lengths and deadlines.
Html workload_content(const Workload& workload);

}  // namespace motley
