// How many files and connections this process may have open.
#pragma once

namespace motley {

// Raises the soft limit to the hard one, or to a number that is enough for any deployment.
void raise_open_files();

}  // namespace motley
