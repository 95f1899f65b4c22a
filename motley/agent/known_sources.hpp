// Where an agent can fetch weights: the driver, which has all of them, and the members that hold some.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "motley/agent/agent_messages.hpp"
#include "motley/base/clock.hpp"

namespace motley {

struct ChunkSource {
  std::string name;  // of a member; empty: the driver
  std::string address;
  std::vector<std::vector<char>> held = {};  // by file and chunk; of the driver: not looked at
  bool is_driver() const { return name.empty(); }
  bool has(const ChunkId& id) const { return is_driver() || held.at(id.file).at(id.chunk) != 0; }
};

// May be used by several threads.
class KnownSources {
 public:
  static constexpr double for_good = std::numeric_limits<double>::infinity();

  explicit KnownSources(std::string driver) : driver_(std::move(driver)) {}

  // Forgets what was known about the members' chunks of another model.
  void set_manifest(const ModelManifest& manifest);
  // What the driver says about the members. Throws a peer error where it names chunks that the model does not have.
  void set(const std::vector<WeightsSource>& told);
  // The driver first.
  std::shared_ptr<const std::vector<ChunkSource>> all() const;
  // The driver has named this member.
  bool names(const std::string& member) const;

  // Nothing is asked of this member for so long. `cause`, where it is not empty, is news.
  void avoid(const std::string& member, double seconds, const std::string& cause);
  bool usable(const std::string& member) const;
  // Since the last call.
  std::vector<BadSource> take_news();

 private:
  bool is_usable(const std::string& member) const;

  const std::string driver_;
  mutable std::mutex mutex_;
  ModelManifest manifest_;
  std::set<std::string> named_;
  std::shared_ptr<const std::vector<ChunkSource>> all_;
  std::map<std::string, Instant> avoided_until_;
  std::vector<BadSource> news_;
};

}  // namespace motley
