// One run of the simulator: the state of routes, stages and links, and the loop over the events.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "motley/sim/network.hpp"
#include "motley/sim/simulate.hpp"

namespace motley::sim {

enum class EventKind : std::uint8_t {
  at_stage,     // a step reaches a stage
  computed,     // a stage is done with it
  answered,     // its tokens are back where requests are scheduled
  transferred,  // keys and values have reached the stages that decode
};

struct Event {
  double time_s = 0;
  std::uint64_t order = 0;
  std::uint32_t subject = 0;     // a slot of a step; of `transferred` a request
  std::uint32_t generation = 0;  // the subject's when the event was made: another one means that it is void
  std::uint32_t hop = 0;
  EventKind kind = EventKind::at_stage;
};

// Events in the order of their times; of equal times, in the order in which they were put in.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  const Event& first() const { return heap_.front(); }

  void push(double time_s, EventKind kind, std::uint32_t subject, std::uint32_t generation, std::uint32_t hop = 0) {
    heap_.push_back({time_s, ++last_order_, subject, generation, hop, kind});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  static bool later(const Event& a, const Event& b) {
    return a.time_s != b.time_s ? a.time_s > b.time_s : a.order > b.order;
  }
  std::vector<Event> heap_;
  std::uint64_t last_order_ = 0;
};

class Simulation {
 public:
  Simulation(const ServePlan& plan, const std::vector<TraceRequest>& requests, const SimOptions& options);
  SimResult run();

 private:
  // A request's way through the router; its record says what came out.
  struct Open {
    enum class Place { nowhere, in_router, in_transfer };
    Place place = Place::nowhere;
    bool accepted = false;  // once: it is not refused any more
    std::uint32_t route = 0;
    std::uint32_t generation = 0;  // of its transfer
    std::uint64_t sequence = 0;    // in the router
  };
  struct StepSlot {
    RoutedStep step;
    StepLoad load;
    std::uint32_t generation = 0;
    bool used = false;
  };
  struct Server {  // a stage or a link: one thing at a time
    double free_s = 0;
    double busy_s = 0;  // in the measured time
    double amount = 0;  // tokens through a stage, bytes over a link
    std::int64_t uses = 0;
  };
  struct FaultEdge {
    double time_s = 0;
    std::uint32_t stage = 0;
    bool down = false;
    std::string device = {};
  };
  struct QueueState {
    double since_s = 0;
    SchedulerCounts counts;
    double waiting_s = 0, blocks_s = 0;  // integrals
    std::int64_t waiting_peak = 0, blocks_peak = 0;
  };

  void read_requests(const std::vector<TraceRequest>& requests);
  void read_faults();

  // ---- events ----
  double next_arrival_s() const;
  double next_time_s() const;
  void advance();
  void handle(const Event& event);
  void apply(const FaultEdge& edge);

  // ---- requests ----
  void arrive(std::uint32_t request);
  bool place(std::uint32_t request);
  bool begin_decoding(std::uint32_t request);
  Admission enter(std::uint32_t request, std::size_t chain, std::int64_t cached, std::int64_t most,
                  std::vector<BlockKey> keys = {});
  std::vector<BlockKey> shared_keys(const RequestRecord& record) const;
  void place_homeless();
  bool take_token(std::uint32_t request, std::size_t chain);
  void hand_over(std::uint32_t request, std::size_t chain);
  void refuse(std::uint32_t request);
  void vacate(std::size_t route);

  // ---- steps ----
  void start_steps(std::size_t group);
  void launch(RoutedStep step);
  void reach_stage(std::uint32_t slot, std::uint32_t hop);
  void leave_stage(std::uint32_t slot, std::uint32_t hop, double time_s);
  void take_answer(std::uint32_t slot);
  StepSlot& release(std::uint32_t slot);
  double crowding(std::uint32_t stage) const;
  double occupy(Server& server, double from_s, double seconds, double amount, Timeline::Span span);
  double in_order(std::size_t chain, std::size_t hop, double arrival_s);
  double send(const Way& way, double from_s, double tokens, double bytes, Timeline::Span span);

  void note_queue(std::size_t group);
  double measured_part_s(double from_s, double until_s) const;
  double measured_time_s() const;
  SimResult result();

  const ServePlan& plan_;
  const SimOptions& options_;
  Router router_;
  Network network_;
  EventQueue events_;
  double now_s_ = 0;
  std::int64_t handled_ = 0;

  std::vector<RequestRecord> records_;
  std::vector<Open> open_;
  std::vector<std::uint32_t> request_of_sequence_{0};  // by sequence id, from 1
  std::size_t next_request_ = 0;
  std::int64_t settled_ = 0;             // requests that are finished or refused
  std::vector<std::uint32_t> homeless_;  // requests that wait for a route, in order

  std::vector<StepSlot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<Server> stages_, links_;
  std::vector<std::vector<double>> last_arrival_s_;  // of chains, by hop; behind the last the driver
  std::vector<int> faults_of_stage_;
  std::vector<FaultEdge> edges_;  // in order
  std::size_t next_edge_ = 0;
  std::vector<QueueState> queues_;
  std::vector<std::int64_t> tokens_of_class_;  // in the measured time
  std::int64_t restarts_ = 0;
  std::optional<Timeline> timeline_;
};

}  // namespace motley::sim
