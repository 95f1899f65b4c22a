// Training: all of it is the trainer's.
#include "motley/engine/devices.hpp"
#include "motley/trainer/step/train_worker.hpp"
#include "motley/worker/job.hpp"

namespace motley {
namespace {

void train(const WorkerSide& worker) {
  const ComputeDevice& device = open_device(worker.self.backend);
  if (device.has_own_memory())
    throw input_error("the trainer runs on processors", "give --backend cpu, or join with --devices none");
  train_steps(
      worker.driver, [&] { return worker.queue.pop().message; }, worker.self, device, worker.fabric, worker.activity);
}

}  // namespace

const Job train_job{[](const Message& first) { return std::holds_alternative<JobMessage>(first); }, train};

}  // namespace motley
