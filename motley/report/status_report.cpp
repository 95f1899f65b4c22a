#include "motley/report/status_report.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "motley/base/error.hpp"
#include "motley/base/printable.hpp"
#include "motley/base/units.hpp"
#include "motley/report/table.hpp"

namespace motley {

const Value& answer_field(const Value& value, const char* name) {
  const Value* found = value.is_object() ? value.find(name) : nullptr;
  if (found == nullptr)
    throw Error(ErrorCode::peer, fmt::format("the server's answer has no \"{}\"", name),
                "give the address of a server that `motley serve` has started");
  return *found;
}
std::string answer_text(const Value& value, const char* name) {
  const Value& found = answer_field(value, name);
  if (!found.is_string()) throw Error(ErrorCode::peer, fmt::format("server answer: \"{}\" must be a string", name));
  return printable(found.as_string());  // it is shown
}
double answer_number(const Value& value, const char* name) {
  const Value& found = answer_field(value, name);
  if (!found.is_number()) throw Error(ErrorCode::peer, fmt::format("server answer: \"{}\" must be a number", name));
  return found.as_number();
}
const Value::Array& answer_list(const Value& value, const char* name) {
  const Value& found = answer_field(value, name);
  if (!found.is_array()) throw Error(ErrorCode::peer, fmt::format("server answer: \"{}\" must be a list", name));
  return found.as_array();
}

std::string status_report(const Value& status) {
  const Value& plan = answer_field(status, "plan");
  std::string text = fmt::format("model     {}\nstate     {}, plan number {:.0f}, up for {}\n",
                                 answer_text(answer_field(plan, "model"), "name"), answer_text(status, "state"),
                                 answer_number(status, "epoch"), human_seconds(answer_number(status, "uptime_s")));
  if (const Value& failure = answer_field(status, "failure"); failure.is_string())
    text += fmt::format("failure   {}\n", failure.as_string());
  double waiting = 0, running = 0;
  for (const Value& route : answer_list(status, "routes")) {
    waiting += answer_number(route, "waiting");
    running += answer_number(route, "running");
  }
  text += fmt::format("requests  {:.0f} running, {:.0f} waiting, {:.0f} held until a plan takes effect\n", running,
                      waiting, answer_number(status, "held"));
  text += fmt::format("tokens    {:.0f} generated, {:.0f} of prompts\n\n", answer_number(status, "generated_tokens"),
                      answer_number(status, "prompt_tokens"));
  if (status.find("members") != nullptr) {
    const Value::Array& members = answer_list(status, "members");
    text += fmt::format("machines  {}\n", counted(members.size(), "machine"));
    for (const Value& machine : members) {
      double memory_bytes = 0;
      for (const Value& device : answer_list(machine, "devices")) memory_bytes += answer_number(device, "memory_bytes");
      text += fmt::format("  {} at {}, {}\n", answer_text(machine, "name"), answer_text(machine, "address"),
                          human_bytes(memory_bytes));
      for (const Value& device : answer_list(machine, "devices")) {
        if (device.find("uuid") != nullptr)
          text += fmt::format("    {}, {}, {} of {}\n", answer_text(device, "device"), answer_text(device, "type"),
                              human_bytes(answer_number(device, "memory_bytes")),
                              human_bytes(answer_number(device, "total_bytes")));
        if (const Value* cause = device.find("out_of_service"); cause != nullptr && cause->is_string())
          text += fmt::format("    {} is out of service: {}\n", answer_text(device, "device"),
                              answer_text(device, "out_of_service"));
      }
    }
    text +=
        "\n" +
        losses_report(answer_field(status, "if_lost"), answer_number(answer_field(plan, "predicted"), "tokens_per_s")) +
        "\n";
  }
  const Value::Array& workers = answer_list(status, "workers");
  std::size_t device = 6, stage = 5;
  for (const Value& worker : workers) {
    device = std::max(device, answer_text(worker, "device").size());
    stage = std::max(stage, answer_text(worker, "stage").size());
  }
  text += fmt::format("{:{}}  {:{}}  rank  process  busy  weights\n", "device", device, "stage", stage);
  for (const Value& worker : workers)
    text += fmt::format("{:{}}  {:{}}  {:4.0f}  {:7.0f}  {:3.0f}%  {}\n", answer_text(worker, "device"), device,
                        answer_text(worker, "stage"), stage, answer_number(worker, "rank"),
                        answer_number(worker, "process"), 100 * answer_number(worker, "busy_share"),
                        human_bytes(answer_number(worker, "weight_bytes")));
  return text;
}

std::string losses_report(const Value& losses, double tokens_per_s) {
  if (!losses.is_array()) throw Error(ErrorCode::peer, "server answer: \"if_lost\" must be a list");
  if (losses.as_array().empty()) return {};
  Table table({"if lost", ">tokens/s", ">of now", ">to load"});
  for (const Value& loss : losses.as_array()) {
    const std::string name = answer_text(loss, loss.find("device") != nullptr ? "device" : "machine");
    if (loss.find("tokens_per_s") == nullptr) {
      table.add({name, "does not fit"});
      continue;
    }
    const double left = answer_number(loss, "tokens_per_s");
    table.add({name, fmt::format("{:.4g}", left), percent(left / tokens_per_s),
               human_bytes(answer_number(loss, "loaded_bytes"))});
  }
  return table.render("");
}

}  // namespace motley
