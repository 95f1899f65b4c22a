// What a model's weights say that its configuration does not.
#pragma once

#include <string>
#include <vector>

#include "motley/checkpoint/checkpoint.hpp"

namespace motley {

// Whether a head that the configuration ties to the embedding is also stored, with other values: then `transformers`
// ties nothing. Both by name. Compares the bytes, up to the first that differs. Throws an input error for a model
// whose embedding is missing, and not tied to a head that is there.
bool has_own_head(bool tied, const std::string& embedding, const std::string& head, const Checkpoint& checkpoint);

// Of the stored tensors those that are not among the ones that a model reads, nor known to say nothing.
std::vector<std::string> unread_tensors(const std::vector<std::string>& stored, const std::vector<std::string>& read);

}  // namespace motley
