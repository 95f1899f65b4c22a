"""Writes whole models of some hundred bytes as GGUF files, for the fuzz targets to start from.

    tests/fuzz/gguf_seeds.py FOLDER
"""

import math
import struct
import sys
from pathlib import Path

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
PACKED = {U32: "<I", F32: "<f", BOOL: "<?", 5: "<i"}
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22),
         "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
         "MXFP4": (39, 32, 17), "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136)}
HIDDEN, FFN, HEADS = 4, 256, 2


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind, given):
    if kind == STRING:
        return text(given)
    if kind == ARRAY:
        inner, items = given
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack(PACKED[kind], given)


def gguf(keys, tensors):
    """`keys`: name, kind, value; `tensors`: name, shape with the row's length first, type."""
    head = struct.pack("<IIQQ", 0x46554747, 3, len(tensors), len(keys))
    for name, kind, given in keys:
        head += text(name) + struct.pack("<I", kind) + value(kind, given)
    data = b""
    for name, shape, type_name, *content in tensors:
        number, values, size = TYPES[type_name]
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, len(data))
        length = math.prod(shape) // values * size
        data += (content[0] if content else bytes(place * 7 % 60 for place in range(length))).ljust(-(-length // 32) * 32, b"\0")
    return head + bytes(-len(head) % 32) + data


def sentencepiece():
    tokens = ["<unk>", "<s>", "</s>", "<0x41>", "\u2581", "a", "t", "l", "e", "al", "\u2581t", "tal"]
    kinds = [UNKNOWN, CONTROL, CONTROL, BYTE] + [NORMAL] * 8
    scores = [float(-place) for place in range(len(tokens))]
    return len(tokens), [("tokenizer.ggml.model", STRING, "llama"), ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
                         ("tokenizer.ggml.scores", ARRAY, (F32, scores)), ("tokenizer.ggml.token_type", ARRAY, (5, kinds)),
                         ("tokenizer.ggml.add_space_prefix", BOOL, True), ("tokenizer.ggml.bos_token_id", U32, 1),
                         ("tokenizer.ggml.eos_token_id", U32, 2), ("tokenizer.chat_template", STRING, "{{ messages[0].content }}")]


def merged_pieces():
    tokens = ["<unk>", "<bos>", "<|tool_response>", "<|channel>", "<0x41>", "\u2581", "a", "t", "l", "e", "\n", "al", "\u2581t", "\n\n"]
    kinds = [UNKNOWN, CONTROL, USER_DEFINED, USER_DEFINED, BYTE] + [NORMAL] * 9
    return len(tokens), [("tokenizer.ggml.model", STRING, "gemma4"), ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
                         ("tokenizer.ggml.token_type", ARRAY, (5, kinds)), ("tokenizer.ggml.unknown_token_id", U32, 0),
                         ("tokenizer.ggml.merges", ARRAY, (STRING, ["a l", "\u2581 t", "\n \n"])),
                         ("tokenizer.ggml.bos_token_id", U32, 1), ("tokenizer.ggml.add_bos_token", BOOL, False)]


def byte_pairs(rule):
    tokens = ["a", "t", "l", "e", "\u0120", "1", "2", ",", "al", "\u0120t", "<|eot_id|>", "<|begin|>"]
    kinds = [NORMAL] * 10 + [CONTROL] * 2
    return len(tokens), [("tokenizer.ggml.model", STRING, "gpt2"), ("tokenizer.ggml.pre", STRING, rule),
                         ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)), ("tokenizer.ggml.token_type", ARRAY, (5, kinds)),
                         ("tokenizer.ggml.merges", ARRAY, (STRING, ["a l", "\u0120 t"])), ("tokenizer.ggml.eos_token_id", U32, 10),
                         ("tokenizer.ggml.bos_token_id", U32, 11), ("tokenizer.ggml.add_bos_token", BOOL, True)]


def model(architecture, down, rest="F16", tokenizer=None, more=(), factors=None, biases=(), norms=None, experts=0, ffn_norm="ffn_norm",
          shared=False, selection_bias=False, sinks=False, delta_net=False, both=False):
    """One layer, whose FFN's second matrix (or that of each expert) has rows of 256 values in the type `down`. `norms` has the sizes of
    further ones."""
    vocabulary, tokenizer_keys = tokenizer or sentencepiece()
    counts = {"block_count": 1, "embedding_length": HIDDEN, "feed_forward_length": FFN, "attention.head_count": HEADS,
              "attention.head_count_kv": 1, "context_length": 64}
    keys = [("general.architecture", STRING, architecture), ("general.name", STRING, "seed"),
            *((f"{architecture}.{name}", U32, count) for name, count in counts.items()),
            (f"{architecture}.attention.layer_norm_rms_epsilon", F32, 1e-5), (f"{architecture}.rope.freq_base", F32, 1e4),
            *((f"{architecture}.{name}", kind, given) for name, kind, given in more), *tokenizer_keys]
    head = HIDDEN // HEADS
    attention = {"attn_q": (HIDDEN, HIDDEN), "attn_k": (HIDDEN, head), "attn_v": (HIDDEN, head), "attn_output": (HIDDEN, HIDDEN)}
    rates = {"ssm_ba": (HIDDEN, 4)} if architecture == "qwen3next" else {"ssm_alpha": (HIDDEN, 2), "ssm_beta": (HIDDEN, 2)}
    states = {"attn_qkv": (HIDDEN, 8), "attn_gate": (HIDDEN, 4), **rates, "ssm_out": (4, HIDDEN)}
    shapes = {**(states if delta_net else attention),
              **({} if experts else {"ffn_gate": (HIDDEN, FFN), "ffn_up": (HIDDEN, FFN)})}
    ffn = [("blk.0.ffn_gate_inp.weight", (HIDDEN, experts), "F32"), ("blk.0.ffn_gate_exps.weight", (HIDDEN, FFN, experts), rest),
           ("blk.0.ffn_up_exps.weight", (HIDDEN, FFN, experts), rest), ("blk.0.ffn_down_exps.weight", (FFN, HIDDEN, experts), down)]
    biases_of = {**shapes, "ffn_gate_inp": (HIDDEN, experts), "ffn_gate_exps": (HIDDEN, FFN, experts),
                 "ffn_up_exps": (HIDDEN, FFN, experts), "ffn_down_exps": (FFN, HIDDEN, experts)}
    tensors = [("token_embd.weight", (HIDDEN, vocabulary), rest), ("output_norm.weight", (HIDDEN,), "F32"),
               *((f"blk.0.{name}.weight", shape, rest) for name, shape in shapes.items()),
               *(ffn if experts else [("blk.0.ffn_down.weight", (FFN, HIDDEN), down)]),
               *((f"blk.0.{name}.weight", (HIDDEN,), "F32") for name in ("attn_norm", ffn_norm)),
               *((f"blk.0.{name}.weight", (size,), "F32") for name, size in (norms or {}).items()),
               *([("blk.0.ffn_gate_shexp.weight", (HIDDEN, FFN), rest), ("blk.0.ffn_up_shexp.weight", (HIDDEN, FFN), rest),
                  ("blk.0.ffn_down_shexp.weight", (FFN, HIDDEN), down)] if shared else []),
               *([("blk.0.ffn_gate_inp_shexp.weight", (HIDDEN,), "F32")] if shared and delta_net else []),
               *([("blk.0.ffn_gate.weight", (HIDDEN, FFN), rest), ("blk.0.ffn_up.weight", (HIDDEN, FFN), rest),
                  ("blk.0.ffn_down.weight", (FFN, HIDDEN), down), ("blk.0.ffn_gate_inp.scale", (HIDDEN,), "F32"),
                  ("blk.0.ffn_down_exps.scale", (experts,), "F32")] if both else []),
               *([("blk.0.exp_probs_b.bias", (experts,), "F32")] if selection_bias else []),
               *([("blk.0.attn_sinks.weight", (HEADS,), "F32")] if sinks else []),
               *([("blk.0.ssm_conv1d.weight", (4, 8), "F32"), ("blk.0.ssm_a", (2,), "F32", struct.pack("<2f", -1, -2)),
                  ("blk.0.ssm_dt.bias", (2,), "F32"), ("blk.0.ssm_norm.weight", (2,), "F32")] if delta_net else []),
               *((f"blk.0.{name}.bias", biases_of[name][1:], "F32") for name in biases)]
    if factors:
        tensors.append(("rope_freqs.weight", (len(factors),), "F32", struct.pack(f"<{len(factors)}f", *factors)))
    return gguf(keys, tensors)


YARN = [("rope.scaling.type", STRING, "yarn"), ("rope.scaling.factor", F32, 4.0), ("rope.scaling.attn_factor", F32, 1.0),
        ("rope.scaling.original_context_length", U32, 16)]
ROUTED = [("expert_count", U32, 3), ("expert_used_count", U32, 2), ("expert_feed_forward_length", U32, FFN)]
OF_HEADS = dict(attn_q_norm=HIDDEN // HEADS, attn_k_norm=HIDDEN // HEADS)
STATES = [("ssm.conv_kernel", U32, 4), ("ssm.state_size", U32, 2), ("ssm.group_count", U32, 1), ("ssm.time_step_rank", U32, 2),
          ("ssm.inner_size", U32, 4), ("attention.recurrent_layers", ARRAY, (BOOL, [True])), ("rope.dimension_count", U32, 2)]
SEEDS = {
    **{f"llama-{name}": lambda name=name: model("llama", name, rest="F32" if name == "F32" else "F16") for name in TYPES},
    "llama-scaled": lambda: model("llama", "Q6_K", tokenizer=byte_pairs("llama-bpe"), factors=[1.0]),
    "llama-merged": lambda: model("llama", "Q8_0", tokenizer=merged_pieces()),
    "mistral": lambda: model("llama", "Q8_0", more=[("attention.sliding_window", U32, 32)]),
    "mixtral": lambda: model("llama", "Q6_K", more=[("expert_count", U32, 3), ("expert_used_count", U32, 2)], experts=3),
    "qwen2": lambda: model("qwen2", "Q4_K", tokenizer=byte_pairs("qwen2"), biases=("attn_q", "attn_k", "attn_v"), more=YARN),
    "qwen3": lambda: model("qwen3", "BF16", tokenizer=byte_pairs("gpt-2"), norms=OF_HEADS),
    "qwen3-moe": lambda: model("qwen3moe", "Q4_K", tokenizer=byte_pairs("qwen2"), norms=OF_HEADS, experts=3, more=ROUTED),
    "glm4-moe": lambda: model("glm4moe", "Q5_K", tokenizer=byte_pairs("glm4"), norms=OF_HEADS, experts=3, ffn_norm="post_attention_norm",
                              shared=True, selection_bias=True, biases=("attn_q", "attn_k", "attn_v"), more=[
                                  *ROUTED, ("expert_shared_count", U32, 1), ("leading_dense_block_count", U32, 0),
                                  ("expert_gating_func", U32, 2), ("expert_weights_scale", F32, 1.5), ("expert_weights_norm", BOOL, True),
                                  ("rope.dimension_count", U32, 2), ("nextn_predict_layers", U32, 0)]),
    "gpt-oss": lambda: model("gpt-oss", "Q8_0", tokenizer=byte_pairs("gpt-4o"), experts=3, ffn_norm="post_attention_norm", sinks=True,
                             biases=("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps",
                                     "ffn_down_exps"), more=[*ROUTED, *YARN, ("attention.sliding_window", U32, 8)]),
    "gemma3": lambda: model("gemma3", "Q6_K", norms=dict(**OF_HEADS, post_attention_norm=HIDDEN, post_ffw_norm=HIDDEN),
                            more=[("attention.sliding_window", U32, 8), ("rope.freq_base_swa", F32, 1e4),
                                  ("rope.scaling.type", STRING, "linear"), ("rope.scaling.factor", F32, 8.0)]),
    "gemma4": lambda: model("gemma4", "Q6_K", experts=3, both=True, norms=dict(
        **OF_HEADS, post_attention_norm=HIDDEN, post_ffw_norm=HIDDEN, post_ffw_norm_1=HIDDEN, pre_ffw_norm_2=HIDDEN, post_ffw_norm_2=HIDDEN,
        layer_output_scale=1), more=[
            *ROUTED, ("attention.sliding_window", U32, 8), ("attention.sliding_window_pattern", ARRAY, (BOOL, [False])),
            ("attention.key_length", U32, HIDDEN // HEADS), ("attention.key_length_swa", U32, HIDDEN // HEADS),
            ("rope.freq_base_swa", F32, 1e4), ("embedding_length_per_layer_input", U32, 0), ("attention.shared_kv_layers", U32, 0),
            ("final_logit_softcapping", F32, 30.0)]),
    "qwen3.5": lambda: model("qwen35", "Q6_K", tokenizer=byte_pairs("qwen35"), delta_net=True, ffn_norm="post_attention_norm", more=STATES),
    "qwen3.5-moe": lambda: model("qwen35moe", "Q4_K", tokenizer=byte_pairs("qwen35"), experts=3, shared=True, delta_net=True,
                                 ffn_norm="post_attention_norm", more=[
                                     *STATES, *ROUTED, ("expert_shared_feed_forward_length", U32, FFN),
                                     ("rope.dimension_sections", ARRAY, (5, [1, 0, 0, 0]))]),
    "qwen3-next": lambda: model("qwen3next", "Q5_K", tokenizer=byte_pairs("qwen2"), experts=3, shared=True, delta_net=True,
                                ffn_norm="post_attention_norm",
                                more=[*STATES, *ROUTED, ("expert_shared_feed_forward_length", U32, FFN)]),
    "minimax-m2": lambda: model("minimax-m2", "Q8_0", tokenizer=byte_pairs("minimax-m2"), experts=3, selection_bias=True,
                                norms=dict(attn_q_norm=HIDDEN, attn_k_norm=HIDDEN // HEADS),
                                more=[*ROUTED, ("expert_gating_func", U32, 2), ("rope.dimension_count", U32, 2)]),
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in SEEDS.items():
        (folder / f"{name}.gguf").write_bytes(made())
