// Random numbers that cannot be guessed: nonces, tickets, names of processes.
#pragma once

#include <openssl/rand.h>

#include <cstddef>
#include <span>

#include "motley/base/error.hpp"

namespace motley {

// Throws an environment error where the system has none.
inline void fill_random(std::span<std::byte> bytes) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size())) != 1)
    throw Error(ErrorCode::environment, "the system returned no random numbers");
}

}  // namespace motley
