#include "motley/cli/train_members.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <set>
#include <thread>

#include "motley/base/error.hpp"
#include "motley/checkpoint/manifest.hpp"
#include "motley/cli/command.hpp"
#include "motley/cli/serving.hpp"
#include "motley/comm/membership/ledger_store.hpp"
#include "motley/fleet/needed_chunks.hpp"
#include "motley/trainer/layout/layout.hpp"

namespace motley::cli {
namespace {

constexpr double agents_grace_s = 4;              // for agents to end their workers
constexpr std::chrono::seconds address_pause(1);  // between attempts to listen where the driver before this one did

}  // namespace

TrainMembers::~TrainMembers() {
  if (is_fenced()) leave();
  if (!coordination_) return;
  coordination_->members->end(agents_grace_s);
  coordination_->forget();
}

void TrainMembers::check_held() const {
  if (store_) store_->check_held();
}

bool TrainMembers::is_fenced() const {
  try {
    check_held();
  } catch (const StoreFenced&) {
    return true;
  }
  return false;
}

void TrainMembers::leave() {
  if (!coordination_) return;
  coordination_->members->leave();
  if (own_agent_) own_agent_->kill();
  own_agent_.reset();
  coordination_.reset();
}

// Of threads one at a time.
void TrainMembers::report(const std::string& what, const std::string& detail) {
  if (!options_.quiet) print_phase(what, detail, seconds_since(started_));
}

Fleet& TrainMembers::gather(const TrainPlan& plan, const std::filesystem::path& weights, bool with_states) {
  const double lifetime_s = token_lifetime_s(options_.token_lifetime);
  const auto stop_if_asked = [this](double) {
    if (options_.stopped()) throw Error(ErrorCode::interrupted, "stopped");
  };
  const ManifestOf contents = with_states ? ManifestOf::weights_and_states : ManifestOf::weights;
  const ModelManifest manifest =
      make_manifest(weights, user_folder("XDG_CACHE_HOME", ".cache") / "digests", stop_if_asked, contents);
  const std::string name = machine_name(options_.machine);
  const auto say = [this](const std::string& what, const std::string& detail) { report(what, detail); };
  store_ = options_.store.empty() ? store_of_run(options_.run) : open_shared_store(options_.store, false, say);
  const auto stays = [this] {
    std::this_thread::sleep_for(address_pause);
    return !options_.stopped();
  };
  coordination_.emplace(*store_, CoordinationOptions{.host = options_.listen,
                                                     .name = name,
                                                     .relays = options_.relays,
                                                     .most_handshakes = options_.most_handshakes,
                                                     .report = say,
                                                     .waits = store_->is_shared() ? stays : std::function<bool()>()});
  Members& members = *coordination_->members;
  const JoinLink link = coordination_->link(lifetime_s);
  own_agent_.emplace(to_text(coordination_->own_link(link)),
                     agent_arguments(options_.machine, name, std::filesystem::absolute(weights).string()));
  print_link_after(*own_agent_, name, members, link, options_.stopped);
  members.offer_weights(manifest, weights);

  std::set<std::string> machines;
  for (const std::string& device : train_devices(plan)) machines.insert(machine_of(device));
  report("waiting", fmt::format("for {}", fmt::join(machines, ", ")));
  if (!wait_for_members(members, 1, machines, options_.stopped)) throw Error(ErrorCode::interrupted, "stopped");
  check_described(plan.cluster, members.list());
  return members;
}

}  // namespace motley::cli
