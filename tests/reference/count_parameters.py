"""Records the parameter counts of `transformers` for the shapes that motley/model is tested with.

    .venv-reference/bin/python tests/reference/count_parameters.py > tests/data/parameter_counts.json

Models are made on the `meta` device: shapes without memory. A tied table counts once.
"""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]

# Shapes other than those of data/models: published ones, and small ones with odd sizes.
EXTRA = {
    "qwen2-0.5b": {"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
                   "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
                   "tie_word_embeddings": True},
    "qwen2-72b": {"model_type": "qwen2", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                  "num_key_value_heads": 8, "intermediate_size": 29568, "vocab_size": 152064},
    "opt-350m": {"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                 "ffn_dim": 4096, "vocab_size": 50272, "word_embed_proj_dim": 512, "do_layer_norm_before": False},
    "llama-3.2-1b": {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
                     "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192, "vocab_size": 128256,
                     "max_position_embeddings": 131072, "rope_theta": 500000.0, "tie_word_embeddings": True,
                     "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                                      "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
    "llama-biased": {"model_type": "llama", "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 6,
                     "num_key_value_heads": 2, "intermediate_size": 101, "vocab_size": 97, "attention_bias": True,
                     "mlp_bias": True},
    "qwen3-moe-dense-layers": {"model_type": "qwen3_moe", "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4,
                               "num_key_value_heads": 2, "intermediate_size": 101, "moe_intermediate_size": 28, "num_experts": 6,
                               "num_experts_per_tok": 2, "decoder_sparse_step": 2, "mlp_only_layers": [3], "vocab_size": 97},
    "mistral-wide-heads": {"model_type": "mistral", "hidden_size": 48, "num_hidden_layers": 2,
                           "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 14,
                           "intermediate_size": 77, "vocab_size": 101, "sliding_window": None},
    "mistral-defaults": {"model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 1,
                         "num_attention_heads": 16, "intermediate_size": 72, "vocab_size": 64},
    "mixtral-defaults": {"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 2,
                         "num_attention_heads": 16, "intermediate_size": 40, "vocab_size": 64},
    "qwen3-biased": {"model_type": "qwen3", "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "intermediate_size": 99, "vocab_size": 103, "attention_bias": True,
                     "tie_word_embeddings": True},
    "opt-unbiased": {"model_type": "opt", "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3,
                     "ffn_dim": 50, "vocab_size": 77, "max_position_embeddings": 33, "enable_bias": False,
                     "tie_word_embeddings": False, "_remove_final_layer_norm": True},
}


def count(config: dict) -> dict:
    """All parameters, and those that a token passes where it passes some of the experts alone."""
    fields = dict(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
    model.tie_weights()
    counts = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    of_experts = sum(parameter.numel() for name, parameter in model.named_parameters() if ".experts." in name)
    if of_experts > 0:
        experts = next(getattr(model.config, key) for key in ("n_routed_experts", "num_local_experts", "num_experts") if hasattr(model.config, key))
        active = next(getattr(model.config, key) for key in ("num_experts_per_tok", "top_k_experts") if hasattr(model.config, key))
        counts["active"] = counts["parameters"] - of_experts // experts * (experts - active)
    return counts


def main() -> None:
    records = []
    for path in sorted((ROOT / "data" / "models").glob("*/config.json")):
        if path.parent.name != "tales":
            records.append({"name": path.parent.name, **count(json.loads(path.read_text()))})
    for name, config in EXTRA.items():
        records.append({"name": name, **count(config), "config": config})
    print(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
