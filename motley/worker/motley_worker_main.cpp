// motley-worker --control-fd N: one device's part of a plan. Started by the driver, which holds the other end of
// descriptor N.
#include <sys/socket.h>

#include <charconv>
#include <cstdio>
#include <string_view>

#include "motley/base/error.hpp"
#include "motley/worker/worker.hpp"

namespace {

// The number of an open socket, or -1.
int control_descriptor(int argc, char** argv) {
  if (argc != 3 || std::string_view(argv[1]) != "--control-fd") return -1;
  const std::string_view text = argv[2];
  int number = -1;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  int type = 0;
  socklen_t size = sizeof type;
  const bool usable = failure == std::errc() && rest == text.data() + text.size() &&
                      ::getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
  return usable ? number : -1;
}

}  // namespace

int main(int argc, char** argv) {
  const int descriptor = control_descriptor(argc, argv);
  if (descriptor < 0) {
    std::fputs("motley-worker is started by `motley serve`, `chat` and `train`, with a connection to them\n", stderr);
    return static_cast<int>(motley::ErrorCode::input);
  }
  motley::ControlConnection control(descriptor);
  return motley::run_worker(control);
}
