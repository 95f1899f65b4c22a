// What the sources of the C functions share.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/comm/c_api.h"
#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/net/byte_stream.hpp"

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

// "HOST:PORT,HOST:PORT".
inline std::vector<std::string> addresses_of(const char* text) {
  std::vector<std::string> addresses;
  std::istringstream words(text_of(text));
  for (std::string address; std::getline(words, address, ',');) addresses.push_back(address);
  return addresses;
}

// Of options that name certificate, key and authority; none without certificate and key.
template <class Options>
std::optional<TlsContext> identity_of(const Options& asked) {
  if (asked.certificate == nullptr && asked.private_key == nullptr) return std::nullopt;
  if (asked.certificate == nullptr || asked.private_key == nullptr || asked.authority == nullptr)
    throw input_error("certificate, private key and authority must be given together",
                      "give all three; or the authority alone, with the group's token, to be issued a certificate");
  return TlsContext({asked.certificate, asked.private_key, asked.authority});
}

// What `make` returns, or null and the reason.
template <class Make>
auto guarded(char* error, std::size_t error_bytes, Make make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::exception& thrown) {
    put_text(with_hint(thrown), error, error_bytes);
  } catch (...) {
    put_text("unknown error", error, error_bytes);
  }
  return nullptr;
}

}  // namespace motley
