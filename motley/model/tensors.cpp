#include "motley/model/tensors.hpp"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "motley/model/families/families.hpp"

namespace motley {
namespace {

std::int64_t embedding_dim(const Architecture& arch) {
  return arch.embedding_dim > 0 ? arch.embedding_dim : arch.hidden;
}

// Collects tensors of one layer, or of those around the layers.
class List {
 public:
  explicit List(const Architecture& arch, std::optional<std::int64_t> layer = {})
      : family_(family_of(arch)),
        layer_(layer ? std::to_string(*layer) : std::string()),
        kind_(layer ? arch.kind_index(*layer) : 0) {}

  void add(std::string_view role, std::string_view ending, std::vector<std::int64_t> shape, TensorCut cut) {
    tensors_.push_back({std::string(role).append(ending),
                        with_layer(names_of_role(family_, role).hugging_face, layer_).append(ending), std::move(shape),
                        cut, kind_, !layer_.empty(), experts_});
  }
  // What is added from here on is there once for each of them.
  void of_each(std::int64_t experts) { experts_ = experts; }
  // A bias has a row-cut matrix's cut, and is whole where the columns are cut: the sum over the ranks needs it once.
  void add_linear(std::string_view role, std::int64_t out, std::int64_t in, TensorCut cut, bool bias) {
    add(role, ".weight", {out, in}, cut);
    if (bias) add(role, ".bias", {out}, cuts_columns(cut) ? TensorCut::replicated : cut);
  }
  void add_norm(std::string_view role, std::int64_t size, bool bias) {
    add(role, ".weight", {size}, TensorCut::replicated);
    if (bias) add(role, ".bias", {size}, TensorCut::replicated);
  }

  std::vector<TensorSpec> take() { return std::move(tensors_); }

 private:
  const Family& family_;
  std::string layer_;
  std::size_t kind_;
  std::int64_t experts_ = 0;
  std::vector<TensorSpec> tensors_;
};

void add_attention(const Architecture& arch, const LayerKind& kind, List& list) {
  const std::int64_t query = arch.heads * kind.head_dim, key = kind.kv_heads * kind.head_dim;
  list.add_linear("q", arch.output_gate ? 2 * query : query, arch.hidden, TensorCut::heads, arch.qkv_bias);
  list.add_linear("k", key, arch.hidden, TensorCut::kv_heads, arch.qkv_bias);
  if (!kind.keys_are_values) list.add_linear("v", key, arch.hidden, TensorCut::kv_heads, arch.qkv_bias);
  if (arch.sinks) list.add("sinks", "", {arch.heads}, TensorCut::heads);
  list.add_linear("o", arch.hidden, query, TensorCut::heads_in, arch.output_bias);
  if (arch.qk_norm == QkNorm::head) {
    list.add_norm("q_norm", kind.head_dim, arch.norm_bias);
    list.add_norm("k_norm", kind.head_dim, arch.norm_bias);
  } else if (arch.qk_norm == QkNorm::whole) {
    list.add("q_norm", ".weight", {query}, TensorCut::heads);
    list.add("k_norm", ".weight", {key}, TensorCut::kv_heads);
  }
}

void add_delta_net(const Architecture& arch, const DeltaNet& delta, List& list) {
  const std::int64_t keys = delta.key_heads * delta.key_dim, values = delta.value_heads * delta.value_dim;
  const auto add_rows = [&](std::string_view role, std::int64_t rows, TensorCut cut) {
    list.add_linear(role, rows, arch.hidden, cut, false);
  };
  add_rows("delta.q", keys, TensorCut::delta_keys);
  add_rows("delta.k", keys, TensorCut::delta_keys);
  add_rows("delta.v", values, TensorCut::delta_values);
  add_rows("delta.z", values, TensorCut::delta_values);
  add_rows("delta.beta", delta.value_heads, TensorCut::delta_values);
  add_rows("delta.alpha", delta.value_heads, TensorCut::delta_values);
  list.add("delta.convolve_q", ".weight", {keys, delta.width}, TensorCut::delta_keys);
  list.add("delta.convolve_k", ".weight", {keys, delta.width}, TensorCut::delta_keys);
  list.add("delta.convolve_v", ".weight", {values, delta.width}, TensorCut::delta_values);
  list.add(delta_decay_role, "", {delta.value_heads}, TensorCut::delta_values);
  list.add(delta_step_role, "", {delta.value_heads}, TensorCut::delta_values);
  list.add_norm("delta.norm", delta.value_dim, false);
  list.add_linear("delta.out", arch.hidden, values, TensorCut::delta_values_in, false);
}

}  // namespace

bool TensorSpec::is_exact() const {
  return is_convolution() || role == selection_bias_role || role == expert_factors_role || role == delta_decay_role ||
         role == delta_step_role;
}

std::int64_t TensorSpec::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::int64_t parameters_of(const std::vector<TensorSpec>& tensors) {
  std::int64_t sum = 0;
  for (const TensorSpec& tensor : tensors)
    if (tensor.is_parameter()) sum += tensor.copies() * tensor.elements();
  return sum;
}

std::vector<TensorSpec> with_each_expert(std::vector<TensorSpec> tensors) {
  std::vector<TensorSpec> all;
  for (TensorSpec& tensor : tensors) {
    if (tensor.experts == 0) {
      all.push_back(std::move(tensor));
      continue;
    }
    for (std::int64_t expert = 0; expert < tensor.experts; ++expert) {
      TensorSpec& one = all.emplace_back(tensor);
      one.experts = 0;
      one.expert = expert;
      one.role = with_expert(one.role, expert);
      one.stacked_name = std::exchange(one.name, with_expert(one.name, expert));
    }
  }
  return all;
}

std::vector<TensorSpec> block_tensors(const Architecture& arch, std::int64_t layer) {
  const LayerKind& kind = arch.kind(layer);
  List list(arch, layer);
  list.add_norm("attention_norm", arch.hidden, arch.norm_bias);
  kind.delta ? add_delta_net(arch, kind.delta, list) : add_attention(arch, kind, list);
  if (arch.output_norms) list.add_norm("attention_output_norm", arch.hidden, arch.norm_bias);
  list.add_norm("ffn_norm", arch.hidden, arch.norm_bias);
  if (arch.output_norms) list.add_norm("ffn_output_norm", arch.hidden, arch.norm_bias);
  const Experts& experts = kind.experts;
  if (experts.count > 0)
    list.add_linear("router", experts.count, arch.hidden, TensorCut::replicated, experts.router.bias);
  if (experts.router.selection_bias) list.add(selection_bias_role, "", {experts.count}, TensorCut::replicated);
  if (experts.shared_ffn > 0) {
    // One with norms of its own is what stands alone where there are no experts.
    const std::string shared = experts.own_norms ? "" : "shared.";
    list.add_linear(shared + "gate", experts.shared_ffn, arch.hidden, TensorCut::shared_ffn, false);
    list.add_linear(shared + "up", experts.shared_ffn, arch.hidden, TensorCut::shared_ffn, false);
    list.add_linear(shared + "down", arch.hidden, experts.shared_ffn, TensorCut::shared_ffn_in, false);
    if (experts.shared_gate) list.add_linear("shared.share", 1, arch.hidden, TensorCut::replicated, false);
  }
  if (experts.own_norms) {
    list.add("router.norm", "", {arch.hidden}, TensorCut::replicated);
    for (const char* role : {"shared_output_norm", "routed_norm", "routed_output_norm"})
      list.add_norm(role, arch.hidden, arch.norm_bias);
  }
  if (experts.router.expert_factors) list.add(expert_factors_role, "", {experts.count}, TensorCut::replicated);
  if (arch.layer_factors) list.add(layer_factor_role, "", {1}, TensorCut::replicated);
  list.of_each(experts.count);
  const std::string of = experts.count > 0 ? "experts.E." : "";
  if (arch.gated) list.add_linear(of + "gate", kind.ffn, arch.hidden, TensorCut::ffn, arch.ffn_bias);
  list.add_linear(of + "up", kind.ffn, arch.hidden, TensorCut::ffn, arch.ffn_bias);
  list.add_linear(of + "down", arch.hidden, kind.ffn, TensorCut::ffn_in, arch.ffn_bias);
  return list.take();
}

std::vector<TensorSpec> embedding_tensors(const Architecture& arch) {
  List list(arch);
  list.add("embedding", ".weight", {arch.vocabulary, embedding_dim(arch)}, TensorCut::vocabulary);
  if (arch.position == PositionKind::learned)
    list.add("position", ".weight", {arch.position_rows, arch.hidden}, TensorCut::replicated);
  if (arch.embedding_dim > 0)
    list.add("projection_in", ".weight", {arch.hidden, arch.embedding_dim}, TensorCut::replicated);
  return list.take();
}

std::vector<TensorSpec> head_tensors(const Architecture& arch) {
  List list(arch);
  if (arch.final_norm) list.add_norm("final_norm", arch.hidden, arch.norm_bias);
  if (arch.embedding_dim > 0)
    list.add("projection_out", ".weight", {arch.embedding_dim, arch.hidden}, TensorCut::replicated);
  list.add("head", ".weight", {arch.vocabulary, embedding_dim(arch)}, TensorCut::vocabulary);
  std::vector<TensorSpec> tensors = list.take();
  if (arch.tied_embeddings) tensors.back().name = embedding_tensors(arch).front().name;
  return tensors;
}

}  // namespace motley
