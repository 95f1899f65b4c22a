// motley-worker --control-fd N: one device's part of a plan. Started by the driver, which holds the other end of
// descriptor N.
// motley-worker --devices: lists the GPUs of this machine, and ends (workers/gpu_list.hpp).
// motley-worker --copies DEVICE...: measures copies to and from devices, and ends (workers/copy_list.hpp).
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "motley/base/error.hpp"
#include "motley/engine/copy_probe.hpp"
#include "motley/engine/cuda/cuda_list.hpp"
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

// Ends the process at once: CUDA's contexts take a while to be taken down in order.
[[noreturn]] void answer(const std::string& text, int code) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  ::_exit(code);
}

[[noreturn]] void list_devices() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    answer(motley::gpu_lines(motley::list_cuda_devices()), 0);
  } catch (const std::exception& error) {
    answer(motley::no_gpu_line(motley::with_hint(error)), static_cast<int>(motley::ErrorCode::environment));
  }
}

[[noreturn]] void measure_copies(const std::vector<std::string>& devices) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    answer(motley::to_json(motley::write(motley::probe_copies(devices))) + "\n", 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", motley::with_hint(error).c_str());
    answer("", static_cast<int>(motley::ErrorCode::environment));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--devices") list_devices();
  if (argc > 2 && std::string_view(argv[1]) == "--copies") measure_copies({argv + 2, argv + argc});
  const int descriptor = control_descriptor(argc, argv);
  if (descriptor < 0) {
    std::fputs("motley-worker is started by `motley serve`, `chat` and `train`, with a connection to them\n", stderr);
    return static_cast<int>(motley::ErrorCode::input);
  }
  motley::ControlConnection control(descriptor);
  return motley::run_worker(control);
}
