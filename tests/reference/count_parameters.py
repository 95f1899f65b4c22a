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
    "gpt-oss-20b": {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_local_experts": 32, "hidden_size": 2880,
                    "intermediate_size": 2880, "num_attention_heads": 64, "vocab_size": 201088},
    "gpt-oss-120b": {"model_type": "gpt_oss", "num_hidden_layers": 36, "hidden_size": 2880, "intermediate_size": 2880,
                     "num_attention_heads": 64, "vocab_size": 201088},
    "gemma-3-1b": {"model_type": "gemma3_text", "hidden_size": 1152, "num_hidden_layers": 26, "num_attention_heads": 4,
                   "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 6912, "vocab_size": 262144},
    "gemma-3-27b": {"model_type": "gemma3_text", "hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32,
                    "num_key_value_heads": 16, "head_dim": 128, "intermediate_size": 21504},
    "qwen3-moe-30b": {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
                      "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768,
                      "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936},
    "qwen3-moe-235b": {"model_type": "qwen3_moe", "hidden_size": 4096, "num_hidden_layers": 94, "num_attention_heads": 64,
                       "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 12288, "moe_intermediate_size": 1536,
                       "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936},
    "qwen3-moe-dense-layers": {"model_type": "qwen3_moe", "hidden_size": 48, "num_hidden_layers": 5, "num_attention_heads": 4,
                               "num_key_value_heads": 2, "intermediate_size": 101, "moe_intermediate_size": 28, "num_experts": 6,
                               "num_experts_per_tok": 2, "decoder_sparse_step": 2, "mlp_only_layers": [3], "vocab_size": 97},
    "glm-4.5-air": {"model_type": "glm4_moe", "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads": 96,
                    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10944, "moe_intermediate_size": 1408,
                    "n_routed_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151552, "attention_bias": True},
    "minimax-m2": {"model_type": "minimax_m2", "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads": 48,
                   "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 1536, "num_local_experts": 256,
                   "num_experts_per_tok": 8, "vocab_size": 200064},
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


def count(config: dict) -> int:
    fields = dict(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    records = []
    for path in sorted((ROOT / "data" / "models").glob("*/config.json")):
        if path.parent.name != "tales":
            records.append({"name": path.parent.name, "parameters": count(json.loads(path.read_text()))})
    for name, config in EXTRA.items():
        records.append({"name": name, "parameters": count(config), "config": config})
    print(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
