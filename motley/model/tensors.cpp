#include "motley/model/tensors.hpp"

#include <fmt/format.h>

namespace motley {
namespace {

// The parts of a checkpoint's names that differ between families.
struct Names {
  std::string root;  // of everything but the head
  std::string attention_norm, ffn_norm, output, gate, up, down, final_norm;
};

const Names& names_of(const Architecture& arch) {
  static const Names llama = {"model.",
                              "input_layernorm",
                              "post_attention_layernorm",
                              "self_attn.o_proj",
                              "mlp.gate_proj",
                              "mlp.up_proj",
                              "mlp.down_proj",
                              "norm"};
  static const Names opt = {
      "model.decoder.",  "self_attn_layer_norm", "final_layer_norm", "self_attn.out_proj", "", "fc1", "fc2",
      "final_layer_norm"};
  return arch.family == "opt" ? opt : llama;
}

std::int64_t embedding_dim(const Architecture& arch) {
  return arch.embedding_dim > 0 ? arch.embedding_dim : arch.hidden;
}

// Collects tensors under one prefix.
class List {
 public:
  List(std::string prefix, bool in_block) : prefix_(std::move(prefix)), in_block_(in_block) {}

  void add(const std::string& role, const std::string& name, std::vector<std::int64_t> shape, Cut cut) {
    tensors_.push_back({role, prefix_ + name, std::move(shape), cut, in_block_});
  }
  // A bias has a row-cut matrix's cut, and is whole where the columns are cut: the sum over the ranks needs it once.
  void add_linear(const std::string& role, const std::string& name, std::int64_t out, std::int64_t in, Cut cut,
                  bool bias) {
    add(role + ".weight", name + ".weight", {out, in}, cut);
    const bool columns = cut == Cut::heads_in || cut == Cut::ffn_in;
    if (bias) add(role + ".bias", name + ".bias", {out}, columns ? Cut::replicated : cut);
  }
  void add_norm(const std::string& role, const std::string& name, std::int64_t size, bool bias) {
    add(role + ".weight", name + ".weight", {size}, Cut::replicated);
    if (bias) add(role + ".bias", name + ".bias", {size}, Cut::replicated);
  }

  std::vector<TensorSpec> take() { return std::move(tensors_); }

 private:
  std::string prefix_;
  bool in_block_;
  std::vector<TensorSpec> tensors_;
};

}  // namespace

std::int64_t TensorSpec::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::vector<TensorSpec> block_tensors(const Architecture& arch, std::int64_t layer) {
  const Names& names = names_of(arch);
  const std::int64_t query = arch.heads * arch.head_dim;
  const std::int64_t key = arch.kv_heads * arch.head_dim;
  List list(fmt::format("{}layers.{}.", names.root, layer), true);
  list.add_norm("attention_norm", names.attention_norm, arch.hidden, arch.norm_bias);
  list.add_linear("q", "self_attn.q_proj", query, arch.hidden, Cut::heads, arch.qkv_bias);
  list.add_linear("k", "self_attn.k_proj", key, arch.hidden, Cut::kv_heads, arch.qkv_bias);
  list.add_linear("v", "self_attn.v_proj", key, arch.hidden, Cut::kv_heads, arch.qkv_bias);
  list.add_linear("o", names.output, arch.hidden, query, Cut::heads_in, arch.output_bias);
  if (arch.qk_norm) {
    list.add_norm("q_norm", "self_attn.q_norm", arch.head_dim, arch.norm_bias);
    list.add_norm("k_norm", "self_attn.k_norm", arch.head_dim, arch.norm_bias);
  }
  list.add_norm("ffn_norm", names.ffn_norm, arch.hidden, arch.norm_bias);
  if (arch.gated) list.add_linear("gate", names.gate, arch.ffn, arch.hidden, Cut::ffn, arch.ffn_bias);
  list.add_linear("up", names.up, arch.ffn, arch.hidden, Cut::ffn, arch.ffn_bias);
  list.add_linear("down", names.down, arch.hidden, arch.ffn, Cut::ffn_in, arch.ffn_bias);
  return list.take();
}

std::vector<TensorSpec> embedding_tensors(const Architecture& arch) {
  List list(names_of(arch).root, false);
  list.add("embedding.weight", "embed_tokens.weight", {arch.vocabulary, embedding_dim(arch)}, Cut::vocabulary);
  if (arch.position == PositionKind::learned)
    list.add("position.weight", "embed_positions.weight", {arch.position_rows, arch.hidden}, Cut::replicated);
  if (arch.embedding_dim > 0)
    list.add("projection_in.weight", "project_in.weight", {arch.hidden, arch.embedding_dim}, Cut::replicated);
  return list.take();
}

std::vector<TensorSpec> head_tensors(const Architecture& arch) {
  const Names& names = names_of(arch);
  List list(names.root, false);
  if (arch.final_norm) list.add_norm("final_norm", names.final_norm, arch.hidden, arch.norm_bias);
  if (arch.embedding_dim > 0)
    list.add("projection_out.weight", "project_out.weight", {arch.embedding_dim, arch.hidden}, Cut::replicated);
  std::vector<TensorSpec> tensors = list.take();
  tensors.push_back({"head.weight",
                     arch.tied_embeddings ? names.root + "embed_tokens.weight" : "lm_head.weight",
                     {arch.vocabulary, embedding_dim(arch)},
                     Cut::vocabulary,
                     false});
  return tensors;
}

}  // namespace motley
