// The key by which the operator of a server changes it: `motley deployment` finds it by itself, in a file of the same
// user on the same machine.
#pragma once

#include <string>

namespace motley {

// Of a server, as long as it lives: the one that was given, or a new one, which is kept.
class OperatorKey {
 public:
  explicit OperatorKey(const std::string& given);
  ~OperatorKey();
  OperatorKey(const OperatorKey&) = delete;
  OperatorKey& operator=(const OperatorKey&) = delete;

  const std::string& text() const { return key_; }
  // Throws an environment error where it cannot be kept.
  void keep(const std::string& host, int port);

 private:
  std::string key_;
  bool given_;
  std::string name_;  // of the file; empty: there is none
};

// Of a server on this machine; empty where none is kept.
std::string kept_operator_key(const std::string& host, const std::string& port);

}  // namespace motley
