#pragma once

#include "motley/cluster/cluster.hpp"

namespace motley {

// resolve(), with the document that `description` was read from, so that errors know their lines.
Cluster resolve_document(ClusterDescription description, const Reader& root);

}  // namespace motley
