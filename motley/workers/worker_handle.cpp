#include "motley/workers/worker_handle.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/clock.hpp"

namespace motley {
namespace {

void wait_for_exit(WorkerHandle& handle, Instant until) {
  while (!handle.exit() && seconds_until(until) > 0) {
    std::vector<pollfd> events = handle.events();
    ::poll(events.data(), events.size(), poll_timeout_ms(until));
  }
}

}  // namespace

std::string WorkerExit::text() const {
  switch (how) {
    case How::code: return fmt::format("exited with code {}", number);
    case How::signal: return fmt::format("was killed by signal {}", number);
    case How::machine: return "is on a machine that is gone";
    case How::unknown: break;
  }
  return "closed its control connection";
}

std::string Worker::name() const {
  return stage.empty() ? device : fmt::format("{} (rank {} of stage {})", device, rank, stage);
}

std::vector<std::size_t> wait_for_workers(const Workers& workers, int wake, double most_s) {
  std::vector<pollfd> waiting{{wake, POLLIN, 0}};
  std::vector<std::size_t> owner{0};
  bool pending = false;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    pending = pending || workers[i].handle->pending();
    for (const pollfd& event : workers[i].handle->events()) {
      waiting.push_back(event);
      owner.push_back(i);
    }
  }
  ::poll(waiting.data(), waiting.size(), pending ? 0 : static_cast<int>(std::max(most_s, 0.0) * 1e3) + 1);
  std::vector<bool> to_read(workers.size());
  for (std::size_t event = 1; event < waiting.size(); ++event)
    if (waiting[event].revents != 0) to_read[owner[event]] = true;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!to_read[i] && !workers[i].handle->pending()) continue;
    workers[i].handle->flush();
    places.push_back(i);
  }
  return places;
}

void end_workers(Workers& workers, double grace_s) {
  for (const Worker& worker : workers) worker.handle->close();
  const Instant deadline = deadline_in(grace_s);
  for (const Worker& worker : workers) wait_for_exit(*worker.handle, deadline);
  for (const Worker& worker : workers)
    if (!worker.handle->exit()) worker.handle->kill();
  const Instant given_up = deadline_in(killed_s);
  for (const Worker& worker : workers) wait_for_exit(*worker.handle, given_up);
}

}  // namespace motley
