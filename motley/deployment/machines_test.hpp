// For tests of this module: machines that a test makes come and go, and plans over them.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "motley/comm/net/wakeup.hpp"
#include "motley/deployment/machines.hpp"
#include "motley/deployment/told_lines_test.hpp"
#include "motley/planner/serve/grouping/write_plan.hpp"
#include "motley/planner/serve/plan_serve.hpp"
#include "motley/workers/toy_plan_test.hpp"

namespace motley {

// Each with this many toy devices.
inline Cluster toy_machines(const std::map<std::string, int>& devices) {
  std::string text = "format = \"motley.cluster/1\"\nname = \"toys\"\n";
  for (const auto& [name, count] : devices)
    text += "[[machine]]\nname = \"" + name + "\"\ndevices = [\"toy*" + std::to_string(count) + "\"]\n";
  text +=
      "[[device_type]]\nname = \"toy\"\nvendor = \"cpu\"\nmemory = \"64 MiB\"\nmemory_bandwidth = \"8 GB/s\"\n"
      "flops = { fp32 = \"40 GFLOP/s\" }\nreserve = \"0 B\"\n"
      "[network]\nwithin_machine = { latency = \"20 us\", bandwidth = \"2 GB/s\" }\n"
      "within_site = { latency = \"200 us\", bandwidth = \"125 MB/s\" }\n";
  return resolve(read<ClusterDescription>(parse_toml(text, "toys.toml"), "toys.toml"), "toys.toml");
}

// One pipeline over these devices, the others unused.
inline ServePlan toy_pipeline(const Cluster& cluster, const std::vector<std::string>& devices) {
  ServePlan plan = toy_plan({std::vector<int>(devices.size(), 1)});
  plan.cluster = cluster;
  for (std::size_t i = 0; i < devices.size(); ++i) plan.stages[i].devices = {devices[i]};
  for (const Device& device : cluster.devices)
    if (std::ranges::find(devices, device.name) == devices.end()) plan.unused.push_back({device.name, "left out"});
  predict(plan, {});
  return plan;
}

class ToyMachines final : public Machines {
 public:
  explicit ToyMachines(std::map<std::string, int> devices) : devices_(std::move(devices)) {}

  void join(const std::string& name) {
    const std::lock_guard lock(mutex_);
    devices_[name] = 1;
    changed_.notify();
  }
  void lose(const std::string& name) {
    const std::lock_guard lock(mutex_);
    devices_.erase(name);
    changed_.notify();
  }
  void ask_to_leave(const std::string& name) {
    const std::lock_guard lock(mutex_);
    devices_.erase(name);
    leaving_.insert(name);
    changed_.notify();
  }
  // `cause` empty: it is in service again.
  void set_out_of_service(const std::string& device, const std::string& cause) {
    const std::lock_guard lock(mutex_);
    if (cause.empty())
      out_of_service_.erase(device);
    else
      out_of_service_[device] = cause;
    changed_.notify();
  }
  std::vector<std::set<std::string>> measurements() const {
    const std::lock_guard lock(mutex_);
    return measurements_;
  }

  Cluster offered(const std::set<std::string>& without) const override {
    const std::lock_guard lock(mutex_);
    std::map<std::string, int> there = devices_;
    for (const std::string& name : without) there.erase(name);
    return there.empty() ? Cluster() : toy_machines(there);
  }
  std::set<std::string> leaving() const override {
    const std::lock_guard lock(mutex_);
    return leaving_;
  }
  std::map<std::string, std::string> out_of_service() const override {
    const std::lock_guard lock(mutex_);
    return out_of_service_;
  }
  int changed() const override { return changed_.descriptor(); }
  void clear_changed() override { changed_.clear(); }
  std::vector<MachineLink> links() const override {
    const std::lock_guard lock(mutex_);
    return links_;
  }
  std::vector<MachineLink> measure_links(double, int, const std::set<std::string>& among) override {
    {
      const std::lock_guard lock(mutex_);
      measurements_.push_back(among);
      for (const std::string& from : among)
        for (const std::string& to : among)
          if (from != to) links_.push_back({from, to, 1e-4, 1e8});
    }
    return links();
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int> devices_;
  std::set<std::string> leaving_;
  std::map<std::string, std::string> out_of_service_;
  std::vector<MachineLink> links_;
  std::vector<std::set<std::string>> measurements_;
  Wakeup changed_;
};

// A search that puts a pipeline over all devices that are not excluded, and remembers what it was asked.
class ToySearch {
 public:
  ServeOutcome operator()(const Cluster& cluster, const std::vector<std::string>& excluded, bool) {
    std::unique_lock lock(mutex_);
    const std::size_t number = ++searches_;
    cluster_ = cluster;
    excluded_ = excluded;
    const auto told = on_search_;
    lock.unlock();
    if (told) told(number);
    lock.lock();
    if (fails_) return {.plan = {}, .reason = "too little memory", .hint = {}, .front = {}};
    std::vector<std::string> devices;
    for (const Device& device : cluster.devices)
      if (std::ranges::find(excluded, device.name) == excluded.end()) devices.push_back(device.name);
    ServePlan plan = toy_pipeline(cluster, devices);
    if (tokens_per_s_) plan.predicted.tokens_per_s = *tokens_per_s_;
    return {.plan = std::move(plan), .reason = {}, .hint = {}, .front = {}};
  }

  void promise(double tokens_per_s) {  // in place of what is predicted
    const std::lock_guard lock(mutex_);
    tokens_per_s_ = tokens_per_s;
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    fails_ = true;
  }
  void on_search(std::function<void(std::size_t number)> told) {
    const std::lock_guard lock(mutex_);
    on_search_ = std::move(told);
  }
  std::size_t searches() const {
    const std::lock_guard lock(mutex_);
    return searches_;
  }
  Cluster last_cluster() const {
    const std::lock_guard lock(mutex_);
    return cluster_;
  }
  std::vector<std::string> last_excluded() const {
    const std::lock_guard lock(mutex_);
    return excluded_;
  }

 private:
  mutable std::mutex mutex_;
  std::function<void(std::size_t number)> on_search_;
  std::optional<double> tokens_per_s_;
  bool fails_ = false;
  std::size_t searches_ = 0;
  Cluster cluster_;
  std::vector<std::string> excluded_;
};

}  // namespace motley
