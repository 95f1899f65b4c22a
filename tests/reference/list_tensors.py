"""Records names and shapes of the tensors that `transformers` saves for tiny random models of every family.

    .venv-reference/bin/python tests/reference/list_tensors.py > tests/data/checkpoint_tensors.json

Each record holds config.json as it was saved with the tensors, so that its spelling is the library's own.
"""

import json
import tempfile
from pathlib import Path

from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50}
GATED = SMALL | {"num_key_value_heads": 2, "intermediate_size": 44}
DELTA = GATED | {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8,
                 "linear_value_head_dim": 12, "linear_conv_kernel_dim": 3}
ROUTED = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}

MODELS = {
    "llama": ("llama", GATED),
    "llama tied, llama3 scaling": ("llama", GATED | {"tie_word_embeddings": True, "rope_scaling": LLAMA3}),
    "llama with biases": ("llama", GATED | {"attention_bias": True, "mlp_bias": True}),
    "mistral with wide heads": ("mistral", GATED | {"head_dim": 12, "sliding_window": 16}),
    "mixtral": ("mixtral", GATED | {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "qwen3_moe": ("qwen3_moe", GATED | {"head_dim": 16, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20}),
    "qwen3_moe with a dense layer, biases": ("qwen3_moe", GATED | {"num_experts": 3, "num_experts_per_tok": 2,
                                                                   "moe_intermediate_size": 20, "mlp_only_layers": [1],
                                                                   "attention_bias": True}),
    "glm4_moe": ("glm4_moe", GATED | {"n_routed_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20}),
    "glm4_moe with norms, biases, two shared experts": ("glm4_moe", GATED | {
        "n_routed_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_shared_experts": 2, "use_qk_norm": True,
        "attention_bias": True, "first_k_dense_replace": 0}),
    "minimax_m2": ("minimax_m2", GATED | {"head_dim": 16, "rotary_dim": 8, "num_local_experts": 3, "num_experts_per_tok": 2,
                                          "bos_token_id": 1, "eos_token_id": 2}),
    "gpt_oss": ("gpt_oss", GATED | {"head_dim": 16, "num_local_experts": 3, "num_experts_per_tok": 2}),
    "gemma3_text": ("gemma3_text", GATED | {"head_dim": 16}),
    "gemma4_text": ("gemma4_text", GATED | {"head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
                                            "enable_moe_block": True, "num_experts": 3, "top_k_experts": 2, "moe_intermediate_size": 20,
                                            "hidden_size_per_layer_input": 0}),
    "gemma4_text without experts": ("gemma4_text", GATED | {"head_dim": 16, "global_head_dim": 8, "hidden_size_per_layer_input": 0}),
    "qwen3_next": ("qwen3_next", DELTA | ROUTED),
    "qwen3_next with a dense layer": ("qwen3_next", DELTA | ROUTED | {"mlp_only_layers": [1], "full_attention_interval": 2}),
    "qwen3_5_text": ("qwen3_5_text", DELTA | {"full_attention_interval": 2}),
    "qwen3_5_text tied, attention first": ("qwen3_5_text", DELTA | {"tie_word_embeddings": True, "layer_types": [
        "full_attention", "linear_attention"]}),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", DELTA | ROUTED | {"full_attention_interval": 2}),
    "qwen2": ("qwen2", GATED),
    "qwen2 tied, windows": ("qwen2", GATED | {"tie_word_embeddings": True, "use_sliding_window": True,
                                              "sliding_window": 16, "max_window_layers": 1}),
    "qwen3": ("qwen3", GATED | {"head_dim": 16}),
    "qwen3 tied, with biases": ("qwen3", GATED | {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
    "opt": ("opt", SMALL | {"ffn_dim": 44, "max_position_embeddings": 40}),
    "opt projected, norms last": ("opt", SMALL | {"ffn_dim": 44, "max_position_embeddings": 40,
                                                  "word_embed_proj_dim": 24, "do_layer_norm_before": False}),
    "opt untied, without biases": ("opt", SMALL | {"ffn_dim": 44, "max_position_embeddings": 40, "enable_bias": False,
                                                   "tie_word_embeddings": False}),
}


def record(name: str, model_type: str, fields: dict) -> dict:
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", framework="pt") as checkpoint:
            tensors = {key: checkpoint.get_slice(key).get_shape() for key in sorted(checkpoint.keys())}
        config = json.loads((Path(folder) / "config.json").read_text())
    return {"name": name, "config": config, "tensors": tensors}


def main() -> None:
    records = [record(name, model_type, fields) for name, (model_type, fields) in MODELS.items()]
    print("[\n" + ",\n".join(json.dumps(entry) for entry in records) + "\n]")


if __name__ == "__main__":
    main()
