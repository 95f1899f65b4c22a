#include "motley/trainer/step/train_worker.hpp"

#include <thread>
#include <utility>
#include <variant>

#include "motley/base/clock.hpp"
#include "motley/engine/device/host_memory.hpp"
#include "motley/engine/stage/stage_executor.hpp"
#include "motley/trainer/layout/state_writer.hpp"
#include "motley/trainer/step/train_executor.hpp"

namespace motley {
namespace {

// Alive gets through in between, also on a slow link.
constexpr std::size_t sent_at_once_bytes = std::size_t{256} << 10;

Error not_now() {
  return {ErrorCode::peer, "the driver sent a message that is not for a worker that trains, or not now"};
}

// To a driver that writes them, in blocks of rows.
void send_parts(ControlConnection& control, const std::vector<SavedSlice>& parts) {
  for (const SavedSlice& part : parts)
    for_each_block(part.slice, bytes_of(part.values), sent_at_once_bytes, [&](const Slice& slice, auto bytes) {
      control.send(
          encode_train(TrainSlice{.name = part.name,
                                  .first_row = slice.rows.first,
                                  .end_row = slice.rows.end,
                                  .first_column = slice.columns.first,
                                  .end_column = slice.columns.end,
                                  .bytes = std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())}));
    });
}

}  // namespace

void train_steps(ControlConnection& control, const std::function<Message()>& next, const CallDriver& self,
                 const ComputeDevice& device, Fabric& fabric, ActivityLog& activity) {
  const TrainMessage first = decode_train(next());
  const auto* launch = std::get_if<TrainLaunch>(&first);
  if (launch == nullptr) throw not_now();
  device.meter();  // counts from here on
  device.keep_freed_memory();
  const Instant start = Clock::now();
  TrainExecutor executor(read_plan<TrainPlan>(parse_json(launch->plan_json, "plan"), "plan"), *launch, self, device,
                         fabric, weights_progress(control), activity);
  const TrainBytes bytes = executor.bytes();
  control.send(encode_train(TrainReady{bytes.weights, bytes.gradients, bytes.optimizer, seconds_since(start)}));
  const StateFiles files = executor.state_files();
  std::jthread writer;
  for (;;) {
    const TrainMessage message = decode_train(next());
    if (const auto* step = std::get_if<TrainStep>(&message)) {
      control.send(encode_train(executor.execute(*step)));
    } else if (const auto* save = std::get_if<TrainSave>(&message)) {
      activity.set(Doing::computing);
      const Instant begun = Clock::now();
      const bool meanwhile = save->when == TrainSave::When::beside_steps;
      using Copies = TrainExecutor::Copies;
      auto write = [&control, &files, begun, meanwhile, folder = save->folder,
                    parts = executor.saved_parts(meanwhile ? Copies::all : Copies::none)] {
        try {
          if (folder.empty())
            send_parts(control, parts);
          else
            write_parts(folder, files, parts, meanwhile ? WritingPace::half_a_processor : WritingPace::full);
          control.send(encode_train(TrainSaved{seconds_since(begun)}));
        } catch (const Error& error) {
          control.send(Failure{static_cast<std::int32_t>(error.code()), error.what(), error.hint()});
        }
      };
      if (meanwhile)
        writer = std::jthread(std::move(write));  // after the one before
      else
        write();
      activity.set(Doing::waiting_for_steps);
    } else {
      throw not_now();
    }
  }
}

}  // namespace motley
