// The cost form `galvatron` of the VLDB artefact (anonymous-cs-system/Galvatron, arXiv 2211.13878): eight devices of
// one node, fp32, GPipe. Its constants and special cases are kept; docs/figures/galvatron.md lists them. MB are 2^20
// bytes.
//
//   memory  4 parameters / t (x (1 / d + 0.025) where sharded) + activation[t] x batch / d, whatever the micro-batches
//   forward F = f x batch / d / t;  backward K = 2 F;  gradients g = 2 (d - 1) / d x parameters / t
//   layer   1.1 x ( (F + K + tensor) (P + m - 1) / (P m) + the exchange that is not hidden )   with P > 1 stages
//
// A part of the backward pass, set by hand per strategy, hides the exchange of gradients.
#pragma once

#include <string>
#include <vector>

namespace motley {

struct VldbStrategy {
  int stages = 1;
  int tensor = 1;
  int data = 1;
  bool sharded = false;
  bool tensor_adjacent = true;  // tensor-parallel ranks are neighbours, data-parallel ones far apart; or the reverse
  bool operator==(const VldbStrategy&) const = default;
};

// Strategies by decision trees: stages first; what a stage's devices are split by, in an order, each once and by a
// power of two: replicas, shards, tensor slices. `mixed`: replicas and shards may stand in one tree, which no plan
// needs.
enum class VldbTrees { pure, mixed };
// How many there are for every number of stages 1, 2, 4, ..., devices.
std::vector<int> vldb_tree_counts(int devices, VldbTrees trees);
// The artefact's own list for eight devices: pure trees, 22 of them.
std::vector<VldbStrategy> vldb_strategies();

enum class VldbLayerKind { encoder, decoder };

struct VldbLayer {
  std::string name;
  int count = 0;
  double parameter_mib = 0;            // fp32
  double forward_ms = 0;               // per sample
  std::vector<double> activation_mib;  // per sample, by tensor degree 1, 2, 4, 8
  double sequence = 0, hidden = 0;
  VldbLayerKind kind = VldbLayerKind::encoder;
};

struct VldbModel {
  std::string name;
  VldbLayer layer;
  double ends_states_mib = 0;      // embedding and head
  double ends_activation_mib = 0;  // per sample
  double extra_ms = 0;             // of 24 layers
};
// The artefact's BERT-Huge with 32 layers.
VldbModel vldb_bert_huge();

// Micro-batches of GPipe, by the artefact's rule for BERT; may be fractional.
double vldb_micro_batches(const VldbStrategy& strategy, double local_batch);

double vldb_layer_mib(const VldbModel& model, const VldbStrategy& strategy, int batch);
double vldb_ends_mib(const VldbModel& model, const VldbStrategy& strategy, int batch);
double vldb_layer_seconds(const VldbModel& model, const VldbStrategy& strategy, int batch);
double vldb_change_seconds(const VldbStrategy& from, const VldbStrategy& to, int batch);

}  // namespace motley
