"""Tiny random models of each family, made and saved by `transformers`."""

import torch
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, Gemma4ForCausalLM, Gemma4TextConfig, Glm4MoeConfig, Glm4MoeForCausalLM,
                          GptOssConfig, GptOssForCausalLM, LlamaConfig, LlamaForCausalLM, MiniMaxM2Config, MiniMaxM2ForCausalLM, MistralConfig, MistralForCausalLM,
                          MixtralConfig, MixtralForCausalLM, OPTConfig, OPTForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3_5ForCausalLM,
                          Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig,
                          Qwen3MoeForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM)

VOCABULARY = 211  # a prime: no rank's share of it is like another's
LAYERS = 6
COMMON = dict(vocab_size=VOCABULARY, hidden_size=96, intermediate_size=160, num_hidden_layers=LAYERS, max_position_embeddings=256,
              bos_token_id=1, eos_token_id=2, pad_token_id=0)


def llama(heads, kv_heads, tied=False, **rest):
    return LlamaForCausalLM, LlamaConfig(**COMMON, num_attention_heads=heads, num_key_value_heads=kv_heads, tie_word_embeddings=tied,
                                         **rest)


def opt(**rest):
    return OPTForCausalLM, OPTConfig(**{**dict(vocab_size=VOCABULARY, hidden_size=96, ffn_dim=160, num_hidden_layers=LAYERS,
                                               num_attention_heads=6, max_position_embeddings=256, word_embed_proj_dim=96, dropout=0.0),
                                        **rest})


def delta_net(model, config, value_heads, **rest):
    heads = dict(num_attention_heads=8, num_key_value_heads=4, head_dim=24, linear_num_key_heads=4, linear_num_value_heads=value_heads,
                 linear_key_head_dim=16, linear_value_head_dim=20)
    return model, config(**COMMON, **heads, **rest)


ROUTED = dict(moe_intermediate_size=40, shared_expert_intermediate_size=48, num_experts=8, num_experts_per_tok=3)
WITH_DELTA_NETS = {
    "qwen3-next": lambda: delta_net(Qwen3NextForCausalLM, Qwen3NextConfig, 8, **ROUTED, mlp_only_layers=[1]),
    "qwen3.5": lambda: delta_net(Qwen3_5ForCausalLM, Qwen3_5TextConfig, 12, linear_conv_kernel_dim=3,
                                 layer_types=["full_attention", *["linear_attention"] * 2] * 2),
    "qwen3.5-moe": lambda: delta_net(Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, 8, **ROUTED),
}



def gemma4(**rest):
    # The last layer has no window, whatever is said of it.
    return Gemma4ForCausalLM, Gemma4TextConfig(**COMMON, num_attention_heads=8, num_key_value_heads=4, head_dim=20, global_head_dim=24,
                                               sliding_window=17, hidden_size_per_layer_input=0, final_logit_softcapping=30.0, **rest)


# The smallest number of KV heads first: layouts go beyond it.
MODELS = {
    "llama-gqa-llama3": lambda: llama(12, 3, rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                                                  high_freq_factor=4.0, original_max_position_embeddings=64)),
    "llama-mha-untied": lambda: llama(6, 6),
    "llama-mqa-linear-biases": lambda: llama(4, 1, tied=True, attention_bias=True, mlp_bias=True,
                                             rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
    "llama-yarn": lambda: llama(8, 4, rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                                           original_max_position_embeddings=64)),
    "mistral-sliding": lambda: (MistralForCausalLM, MistralConfig(**COMMON, num_attention_heads=6, num_key_value_heads=3, head_dim=20,
                                                                  sliding_window=17)),
    "mixtral": lambda: (MixtralForCausalLM, MixtralConfig(**COMMON, num_attention_heads=8, num_key_value_heads=4, num_local_experts=5,
                                                          num_experts_per_tok=2)),
    "qwen3-moe": lambda: (Qwen3MoeForCausalLM, Qwen3MoeConfig(**COMMON, num_attention_heads=8, num_key_value_heads=4, head_dim=24,
                                                              moe_intermediate_size=48, num_experts=8, num_experts_per_tok=3,
                                                              norm_topk_prob=True, mlp_only_layers=[0, 3])),
    "qwen3-moe-shares-of-all": lambda: (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        **COMMON, num_attention_heads=6, num_key_value_heads=3, head_dim=20, moe_intermediate_size=48, num_experts=8,
        num_experts_per_tok=3, norm_topk_prob=False, decoder_sparse_step=2, attention_bias=True, use_sliding_window=True,
        sliding_window=17)),
    "glm4-moe": lambda: (Glm4MoeForCausalLM, Glm4MoeConfig(**COMMON, num_attention_heads=8, num_key_value_heads=4, head_dim=24,
                                                           moe_intermediate_size=40, n_routed_experts=8, num_experts_per_tok=3,
                                                           n_shared_experts=2, routed_scaling_factor=1.5, first_k_dense_replace=2,
                                                           use_qk_norm=True, attention_bias=True)),
    "minimax-m2": lambda: (MiniMaxM2ForCausalLM, MiniMaxM2Config(**{**COMMON, "intermediate_size": 48}, num_attention_heads=8,
                                                                 num_key_value_heads=2, head_dim=24, rotary_dim=12,
                                                                 num_local_experts=8, num_experts_per_tok=3)),
    # Of heads of 20, the ramp of YaRN begins and ends between two pairs.
    "gpt-oss": lambda: (GptOssForCausalLM, GptOssConfig(
        **COMMON, num_attention_heads=8, num_key_value_heads=4, head_dim=20, num_local_experts=8, num_experts_per_tok=3, sliding_window=17,
        rope_parameters=dict(rope_type="yarn", rope_theta=150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                             original_max_position_embeddings=64))),
    "gemma3": lambda: (Gemma3ForCausalLM, Gemma3TextConfig(
        **COMMON, num_attention_heads=8, num_key_value_heads=4, head_dim=20, sliding_window=17, query_pre_attn_scalar=48,
        rope_parameters=dict(full_attention=dict(rope_type="linear", rope_theta=1000000.0, factor=8.0),
                             sliding_attention=dict(rope_type="default", rope_theta=10000.0)))),
    "gemma4": lambda: gemma4(num_global_key_value_heads=2, attention_k_eq_v=True, enable_moe_block=True, num_experts=8, top_k_experts=3,
                             moe_intermediate_size=40,
                             layer_types=[f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full", "full")]),
    "gemma4-dense": lambda: gemma4(),
    "qwen2-tied": lambda: (Qwen2ForCausalLM, Qwen2Config(**COMMON, num_attention_heads=6, num_key_value_heads=3, tie_word_embeddings=True,
                                                         use_sliding_window=True, sliding_window=13, max_window_layers=3)),
    "qwen3-qk-norm": lambda: (Qwen3ForCausalLM, Qwen3Config(**COMMON, num_attention_heads=8, num_key_value_heads=4, head_dim=24)),
    "opt": lambda: opt(),
    "opt-projected-post-norm": lambda: opt(word_embed_proj_dim=64, do_layer_norm_before=False),
    **WITH_DELTA_NETS,
}


def tokens(count, seed):
    return torch.randint(3, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def make(name, folder, deviation=0.14, **changes):
    """Saves the model into `folder` and returns it. The weights are large: tokens differ, and logits are far apart."""
    torch.manual_seed(sum(map(ord, name)))
    model_class, config = MODELS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name and parameter_name.endswith("weight"):
                parameter.uniform_(0.5, 1.5)
                if name.startswith(("gemma3", "qwen3-next", "qwen3.5")) and "linear_attn" not in parameter_name:  # times one more than that
                    parameter.sub_(1)
            elif parameter_name.endswith("A_log"):
                parameter.normal_(-2, 1)  # some heads remember for long
            elif parameter_name.endswith("conv1d.weight"):
                parameter.normal_(0, 0.5)
            elif parameter_name.endswith(("router.scale", "per_expert_scale")):
                parameter.uniform_(0.5, 1.5)
            elif parameter_name.endswith("router.proj.weight"):
                parameter.normal_(0, 3)  # what it reads is scaled down
            elif parameter_name.endswith("sinks"):
                parameter.normal_(0, 1.5)
            elif name.startswith("gpt-oss") and parameter_name.endswith("gate_up_proj"):
                parameter.normal_(0, 3 * deviation)  # the clamp acts
            elif "embed_positions" in parameter_name:
                parameter.normal_(0, 1)
            elif parameter.dim() == 1 or "embed_tokens" in parameter_name or "lm_head" in parameter_name:
                parameter.normal_(0, 0.1)
            else:
                parameter.normal_(0, deviation)
        for buffer_name, buffer in model.named_buffers():
            if buffer_name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.2)
            elif buffer_name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
    # Several files with an index for some, one file for the others.
    model.save_pretrained(folder, max_shard_size="300KB" if len(name) % 2 else "5GB")
    return model
