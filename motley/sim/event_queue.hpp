// Events in the order of their times; of equal times, in the order in which they were put in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

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

}  // namespace motley::sim
