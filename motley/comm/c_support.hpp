// What the sources of the C functions share.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string>

#include "motley/comm/c_api.h"
#include "motley/comm/communicator.hpp"

struct motley_group {
  std::unique_ptr<motley::Communicator> own;  // empty: a session's
  motley::Communicator& communicator;
};

namespace motley {

inline void put_text(const std::string& text, char* into, std::size_t size) {
  if (into == nullptr || size == 0) return;
  into[text.copy(into, size - 1)] = '\0';
}

inline std::string text_of(const char* text) { return text == nullptr ? std::string() : text; }

// What `make` returns, or null and the reason.
template <class Make>
auto guarded(char* error, std::size_t error_bytes, Make make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::exception& thrown) {
    put_text(thrown.what(), error, error_bytes);
  } catch (...) {
    put_text("unknown error", error, error_bytes);
  }
  return nullptr;
}

}  // namespace motley
