// The cost form `galvatron`, as the later releases compute it (PKU-DAIR/Hetu-Galvatron at cea12ff; the method is that
// of arXiv 2211.13878 and 2307.02031): time and memory of one layer under a strategy, of embedding and head, of a
// pipeline. Quirks are kept; docs/figures/galvatron.md lists them and where motley's own costs differ. MB are 2^20
// bytes, and a bandwidth of x GB/s counts as x MB per millisecond, as there.
//
//   t, u, d   tensor, Ulysses sequence and data parallel degrees; D = d u ranks hold the same parameters
//   b         samples per micro-batch and replica: batch / micro_batches / d, rounded down
//   forward   F = fit(b / max(t, u));  backward K = 2 F, and F more where the layer is recomputed
//   gradients g = 2 (D - 1) / D parameters / t, halved in mixed precision; G = g / bandwidth
//   layer     F + overlap(K, G) + tensor or sequence collectives + pipeline share (+ G / 2 for ZeRO-3)
//   overlap   max(K, G) + (slowdown - 1) min(K, G)
//
// docs/figures/galvatron.md has the rest. The form of the VLDB artefact is galvatron_vldb.hpp.
#pragma once

#include <bit>
#include <filesystem>
#include <string>
#include <vector>

#include "motley/base/binding.hpp"

namespace motley {

enum class GalvatronStates { replicated, zero2, zero3 };

struct GalvatronStrategy {
  int stages = 1;
  int tensor = 1;
  int sequence = 1;  // Ulysses; above 1 only where tensor is 1
  int data = 1;
  GalvatronStates states = GalvatronStates::replicated;
  bool recompute = false;
  int split() const { return tensor > sequence ? tensor : sequence; }
  int replicas() const { return data * sequence; }  // ranks that hold the same parameters
  bool operator==(const GalvatronStrategy&) const = default;
};

constexpr double galvatron_mib = 1024 * 1024;   // what it calls a MB
constexpr double galvatron_context_mib = 1024;  // of the framework, on every device

// Figures that depend on a degree stand in lists: for degree 1, 2, 4, ...
inline int log2_of(int degree) { return std::countr_zero(static_cast<unsigned>(degree)); }

struct GalvatronEnds {
  std::vector<double> states_mib;
  std::vector<double> activation_mib;  // per sample
  bool operator==(const GalvatronEnds&) const = default;
};

struct GalvatronProfile {
  std::string name, source, caution;
  std::int64_t devices = 0;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t sequence_length = 0;
  bool mixed_precision = true;
  double parameter_mib = 0;                               // of a layer, in fp32
  std::vector<double> activation_mib;                     // of a layer, per sample, by tensor or sequence degree
  double recomputed_mib = 0;                              // of a layer that is recomputed
  std::vector<double> layer_forward_ms, ends_forward_ms;  // per sample, at micro-batches of 1, 2, 3, ... samples
  GalvatronEnds whole, first, last;                       // embedding and head: on one stage; on the first, on the last
  std::vector<double> consecutive_gb_per_s, strided_gb_per_s;  // bus bandwidth of all-reduce, groups of 2, 4, ...
  std::vector<double> hop_gb_per_s;                            // between stages: 2, 4, ... stages
  std::vector<double> message_mib;
  std::vector<std::vector<double>> all_reduce_ms, all_to_all_ms;  // groups of 2, 4, ...: time of each message size
  double slowdown = 1;                                            // of computing and communicating at once
  bool operator==(const GalvatronProfile&) const = default;
};
Schema<GalvatronProfile> schema_of(Bound<GalvatronProfile>);

GalvatronProfile read_galvatron_profile(const std::filesystem::path& path);

enum class GalvatronSchedule { gpipe, one_f_one_b };
enum class GradientReduction { once, every_micro_batch };

struct GalvatronRun {
  int batch = 1;  // samples per step, all replicas
  int micro_batches = 1;
  GalvatronSchedule schedule = GalvatronSchedule::one_f_one_b;
  GradientReduction reduction = GradientReduction::once;
};

// Time of backward compute and gradient exchange side by side.
double galvatron_overlap(double compute, double communication, double slowdown);

// Share of the model states (16 bytes per parameter, or 4 times fp32) that a rank holds.
double galvatron_states_ratio(GalvatronStates states, int ranks, const GalvatronRun& run, bool mixed_precision);

struct GalvatronSeconds {
  double with_sync_s = 0;
  double without_sync_s = 0;
};

// The form, with the fits that it makes of a profile.
class GalvatronForm {
 public:
  explicit GalvatronForm(GalvatronProfile profile);  // throws an input error where lists are too short to fit

  const GalvatronProfile& profile() const { return profile_; }

  // Of one layer. `stage` counts from 0.
  GalvatronSeconds layer_seconds(const GalvatronStrategy& strategy, const GalvatronRun& run) const;
  double layer_mib(const GalvatronStrategy& strategy, const GalvatronRun& run, int stage) const;

  // Of embedding and head, by stage; memory with 1024 MiB of the framework's on every stage.
  std::vector<GalvatronSeconds> ends_seconds(const GalvatronStrategy& strategy, const GalvatronRun& run) const;
  std::vector<double> ends_mib(const GalvatronStrategy& strategy, const GalvatronRun& run) const;

  // From a layer to the next. Besides the cost, seconds so small that they only order equal choices.
  double change_seconds(const GalvatronStrategy& from, const GalvatronStrategy& to, const GalvatronRun& run) const;

  // The buffer of tensor-parallel collectives that every stage keeps.
  double buffer_mib(int stages, int largest_tensor, const GalvatronRun& run) const;

 private:
  struct Line {
    double slope = 0, offset = 0;
    double at(double x) const { return slope * x + offset; }
  };
  struct Collective {  // of one group size
    std::vector<double> ms;
    Line fit;
  };
  static Line fit(const std::vector<double>& x, const std::vector<double>& y);
  double ms_per_mib(int ranks, bool consecutive) const;
  double collective_ms(const std::vector<Collective>& kind, int ranks, double bytes) const;
  double element_bytes() const { return profile_.mixed_precision ? 2 : 4; }
  double activation_bytes(int samples) const;

  GalvatronProfile profile_;
  Line layer_ms_, ends_ms_;
  std::vector<Collective> all_gather_, all_to_all_;  // groups of 2, 4, ...
};

// A step of a pipeline, as published: c and s are seconds per micro-batch of the stages, with ends and without
// gradient exchange, and of their layers with it. It underrates a slowest stage in the middle.
double galvatron_pipeline_seconds(const std::vector<double>& without_sync_s, const std::vector<double>& with_sync_s,
                                  int micro_batches);

// What the published expression approximates: the sum, and every further micro-batch at the slowest stage.
double pipeline_first_order_seconds(const std::vector<double>& stage_s, int micro_batches);

// The schedule itself, without hops: a stage starts a pass when its neighbour has finished its part and it is free.
// Seconds per micro-batch, by stage.
double pipeline_schedule_seconds(GalvatronSchedule schedule, const std::vector<double>& forward_s,
                                 const std::vector<double>& backward_s, int micro_batches);

}  // namespace motley
