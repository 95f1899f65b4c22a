#include "motley/comm/c_support.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <numeric>
#include <string>

#include "motley/base/error.hpp"
#include "motley/comm/collective/communicator.hpp"
#include "motley/comm/membership/enrolment.hpp"
#include "motley/comm/transport/fabric.hpp"
#include "motley/plan/collective_plan.hpp"

// The numbers of the C side are those of the C++ side.
static_assert(MOTLEY_INVALID == static_cast<int>(motley::OperationStatus::invalid));
static_assert(MOTLEY_INT64 == static_cast<int>(motley::CollectiveElement::int64));
static_assert(MOTLEY_BF16 == static_cast<int>(motley::CollectiveElement::bf16));
static_assert(MOTLEY_MEAN == static_cast<int>(motley::CollectiveReduction::mean));
static_assert(MOTLEY_RESTORE == static_cast<int>(motley::OnAbort::restore));

struct motley_fabric {
  std::unique_ptr<motley::EnrolledIdentity> enrolled;  // empty: its identity was given, or it has none
  motley::Fabric fabric;
};

namespace {

using motley::guarded;
using motley::OperationOutcome;
using motley::OperationStatus;
using motley::put_text;
using motley::text_of;

void put_outcome(const OperationOutcome& from, motley_outcome& into) {
  into = {};
  into.status = static_cast<std::int32_t>(from.status);
  into.suspect_count = static_cast<std::int32_t>(std::min<std::size_t>(from.suspects.size(), std::size(into.suspects)));
  std::copy_n(from.suspects.begin(), into.suspect_count, into.suspects);
  into.time_s = from.time_s;
  for (const auto& link : from.links) {
    into.sent_bytes += link.sent_bytes;
    into.received_bytes += link.received_bytes;
  }
  put_text(from.cause, into.cause, sizeof into.cause);
}

OperationOutcome refused(std::string cause) { return unsuccessful(OperationStatus::invalid, std::move(cause)); }

// Runs operation(communicator, options); whatever happens becomes an outcome.
template <class Operation>
void run(motley_group* group, const motley_call* call, motley_outcome* outcome, Operation operation) {
  if (outcome == nullptr) return;
  try {
    if (group == nullptr || call == nullptr)
      return put_outcome(refused("the group or the options of the call are missing"), *outcome);
    if (call->reduction < 0 || call->reduction >= motley::collective_reductions || call->on_abort < 0 ||
        call->on_abort > MOTLEY_RESTORE || !(call->timeout_s > 0))
      return put_outcome(refused("the options of the call are out of range"), *outcome);
    motley::OperationOptions options;
    options.reduction = static_cast<motley::CollectiveReduction>(call->reduction);
    options.timeout_s = call->timeout_s;
    options.on_abort = static_cast<motley::OnAbort>(call->on_abort);
    put_outcome(operation(group->communicator, options), *outcome);
  } catch (const std::exception& error) {
    put_outcome(refused(motley::with_hint(error)), *outcome);
  }
}

std::span<std::byte> bytes_of(void* data, std::int64_t bytes) {
  if (bytes < 0 || (data == nullptr && bytes > 0))
    throw motley::input_error("the buffer is missing, or its size is negative",
                              "give `bytes` of at least 0; null needs 0 bytes");
  return {static_cast<std::byte*>(data), static_cast<std::size_t>(bytes)};
}

std::span<const std::byte> bytes_of(const void* data, std::int64_t bytes) {
  return bytes_of(const_cast<void*>(data), bytes);
}

motley::CollectiveElement element_of(std::int32_t element) {
  if (element < 0 || element >= motley::collective_elements)
    throw motley::input_error("unknown element type " + std::to_string(element),
                              fmt::format("use a motley_element from 0 to {}", motley::collective_elements - 1));
  return static_cast<motley::CollectiveElement>(element);
}

}  // namespace

int32_t motley_comm_abi(void) { return MOTLEY_COMM_ABI; }

motley_fabric* motley_open(const motley_open_options* asked, char* error, size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    if (asked == nullptr || asked->listen == nullptr)
      throw motley::input_error("the address to listen on is missing",
                                "`listen` is HOST:PORT, such as 127.0.0.1:0 for any free port of this machine");
    motley::FabricOptions options;
    options.listen = asked->listen;
    options.key = text_of(asked->key);
    if (asked->encryption == MOTLEY_PLAIN) options.encryption = motley::Encryption::never;
    std::unique_ptr<motley::EnrolledIdentity> enrolled;
    options.identity = motley::identity_of(*asked);
    if (!options.identity && asked->coordinators != nullptr) {
      constexpr double patience_s = 10;
      enrolled = std::make_unique<motley::EnrolledIdentity>(
          motley::addresses_of(asked->coordinators),
          motley::EnrolmentOptions{motley::text_of(asked->group), motley::text_of(asked->token),
                                   motley::text_of(asked->authority), motley::text_of(asked->id)},
          patience_s);
      options.identity = enrolled->context();
    }
    return new motley_fabric{std::move(enrolled), motley::Fabric(std::move(options))};
  });
}

const char* motley_address(const motley_fabric* fabric) { return fabric->fabric.address().c_str(); }

void motley_close(motley_fabric* fabric) { delete fabric; }

int32_t motley_certificate_name(const char* certificate, char* name, size_t name_bytes) {
  try {
    put_text(motley::certificate_facts(motley::text_of(certificate)).name, name, name_bytes);
    return 1;
  } catch (const std::exception&) {
    return 0;
  }
}

motley_group* motley_connect(motley_fabric* fabric, const motley_connect_options* options, char* error,
                             size_t error_bytes) {
  return guarded(error, error_bytes, [&] {
    if (fabric == nullptr || options == nullptr || options->members == nullptr || options->size < 1)
      throw motley::input_error("the fabric or the members are missing",
                                "give all members of the epoch by rank in `members`, and their number in `size`");
    motley::Epoch epoch;
    epoch.group = text_of(options->group);
    epoch.number = options->epoch;
    for (const auto& member : std::span(options->members, static_cast<std::size_t>(options->size)))
      epoch.members.push_back({text_of(member.id), member.incarnation, text_of(member.host), text_of(member.address)});
    auto transport = fabric->fabric.connect(epoch, options->rank, options->timeout_s);
    auto communicator = std::make_unique<motley::Communicator>(std::move(epoch), std::move(transport));
    auto& reference = *communicator;
    return new motley_group{std::move(communicator), reference};
  });
}

int32_t motley_use_plans(motley_group* group, const char* const* files, int32_t count, char* error,
                         size_t error_bytes) {
  const auto* done = guarded(error, error_bytes, [&]() -> motley_group* {
    if (group == nullptr || count < 0 || (files == nullptr && count > 0))
      throw motley::input_error("the group or the files are missing", "give the paths of `count` plans in `files`");
    std::vector<motley::CollectiveProgram> plans;
    for (std::int32_t i = 0; i < count; ++i) plans.push_back(motley::read_collective_program(text_of(files[i])));
    group->communicator.use_plans(std::move(plans));
    return group;
  });
  return done != nullptr ? MOTLEY_OK : MOTLEY_INVALID;
}

void motley_disconnect(motley_group* group) { delete group; }

void motley_revoke(motley_group* group, const char* cause) {
  if (group != nullptr) group->communicator.revoke(text_of(cause));
}

void motley_all_reduce(motley_group* group, void* data, int64_t bytes, int32_t element, const motley_call* call,
                       motley_outcome* outcome) {
  run(group, call, outcome, [&](auto& communicator, const auto& options) {
    return communicator.all_reduce(bytes_of(data, bytes), element_of(element), options);
  });
}

void motley_reduce_scatter(motley_group* group, void* data, int64_t bytes, int32_t element, const motley_call* call,
                           motley_outcome* outcome) {
  run(group, call, outcome, [&](auto& communicator, const auto& options) {
    return communicator.reduce_scatter(bytes_of(data, bytes), element_of(element), options);
  });
}

void motley_all_gather(motley_group* group, void* data, int64_t bytes, const motley_call* call,
                       motley_outcome* outcome) {
  run(group, call, outcome,
      [&](auto& communicator, const auto& options) { return communicator.all_gather(bytes_of(data, bytes), options); });
}

void motley_broadcast(motley_group* group, void* data, int64_t bytes, int32_t root, const motley_call* call,
                      motley_outcome* outcome) {
  run(group, call, outcome, [&](auto& communicator, const auto& options) {
    return communicator.broadcast(bytes_of(data, bytes), root, options);
  });
}

void motley_reduce(motley_group* group, void* data, int64_t bytes, int32_t element, int32_t root,
                   const motley_call* call, motley_outcome* outcome) {
  run(group, call, outcome, [&](auto& communicator, const auto& options) {
    return communicator.reduce(bytes_of(data, bytes), element_of(element), root, options);
  });
}

void motley_all_to_all(motley_group* group, const void* in, const int64_t* in_bytes, void* out,
                       const int64_t* out_bytes, const motley_call* call, motley_outcome* outcome) {
  run(group, call, outcome, [&](auto& communicator, const auto& options) {
    const auto ranks = static_cast<std::size_t>(communicator.size());
    const std::span counts_in(in_bytes, ranks), counts_out(out_bytes, ranks);
    const auto sum = [](auto counts) {
      for (const std::int64_t count : counts)
        if (count < 0)
          throw motley::input_error("a block has a negative size", "give the bytes by rank, with 0 for none");
      return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    };
    return communicator.all_to_all(bytes_of(in, sum(counts_in)), counts_in, bytes_of(out, sum(counts_out)), counts_out,
                                   options);
  });
}

void motley_send(motley_group* group, const void* data, int64_t bytes, int32_t peer, const motley_call* call,
                 motley_outcome* outcome) {
  run(group, call, outcome,
      [&](auto& communicator, const auto& options) { return communicator.send(bytes_of(data, bytes), peer, options); });
}

void motley_recv(motley_group* group, void* data, int64_t bytes, int32_t peer, const motley_call* call,
                 motley_outcome* outcome) {
  run(group, call, outcome,
      [&](auto& communicator, const auto& options) { return communicator.recv(bytes_of(data, bytes), peer, options); });
}

void motley_barrier(motley_group* group, const motley_call* call, motley_outcome* outcome) {
  run(group, call, outcome, [&](auto& communicator, const auto& options) { return communicator.barrier(options); });
}
