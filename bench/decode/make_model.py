"""Random weights of a published shape as a model folder, in bf16; `motley model quantize` makes GGUF files of it. Run with the reference
environment:

    make_model.py FOLDER [--shape 1b|135m|qwen3-0.6b|mixtral4|small256|experts256|gpt-oss288|gemma256] [--tokenizer]

1b is Llama-3.2-1B with a smaller vocabulary, 135m is SmolLM2-135M, mixtral4 is Mixtral-8x7B cut to 4 layers (11 GB). small256,
experts256 and gemma256 are as small as models with rows of 256 can be, whose vocabulary is that of the tales model; most rows of
gpt-oss288 are of 9 x 32. Embeddings deviate by 0.02, as those of new models do; other matrices are scaled so that values
neither grow nor vanish on their way through the layers: logits depend on every matrix and every token before. The tokenizer is that of
the tales model with pairs of its tokens added, as many as the vocabulary has room for.
"""

import argparse
import itertools
import json
import shutil
from pathlib import Path

import numpy
import torch
from safetensors.torch import save_file

FILE_BYTES = 3 << 30  # of larger models each of several files
TALES = Path(__file__).resolve().parents[2] / "data/models/tales"
LLAMA = dict(architectures=["LlamaForCausalLM"], model_type="llama", rms_norm_eps=1e-5, max_position_embeddings=4096, bos_token_id=1,
             eos_token_id=2, attention_bias=False, mlp_bias=False)
QWEN3 = dict(architectures=["Qwen3ForCausalLM"], model_type="qwen3", rms_norm_eps=1e-6, max_position_embeddings=4096, rope_theta=1e6,
             bos_token_id=0, eos_token_id=1, attention_bias=False)

MIXTRAL = dict(architectures=["MixtralForCausalLM"], model_type="mixtral", rms_norm_eps=1e-5, max_position_embeddings=4096, rope_theta=1e6,
               bos_token_id=1, eos_token_id=2, num_experts_per_tok=2)
GPT_OSS = dict(architectures=["GptOssForCausalLM"], model_type="gpt_oss", rms_norm_eps=1e-5, max_position_embeddings=256, bos_token_id=1,
               eos_token_id=2, sliding_window=16, num_experts_per_tok=2, rope_theta=150000.0,
               rope_scaling=dict(rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                                 original_max_position_embeddings=64))
GEMMA3 = dict(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", rms_norm_eps=1e-6, max_position_embeddings=256, bos_token_id=2,
              eos_token_id=1, sliding_window=16, query_pre_attn_scalar=64, rope_theta=1e6, rope_local_base_freq=1e4,
              rope_scaling=dict(rope_type="linear", factor=8.0))


def sizes(layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary):
    return dict(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
                intermediate_size=ffn, vocab_size=vocabulary, hidden_act="silu", tie_word_embeddings=True, torch_dtype="bfloat16")


SHAPES = {
    "1b": LLAMA | sizes(16, 2048, 32, 8, 64, 8192, 32000) | dict(rope_theta=5e5),
    "135m": LLAMA | sizes(30, 576, 9, 3, 64, 1536, 49152) | dict(rope_theta=1e5),
    "qwen3-0.6b": QWEN3 | sizes(28, 1024, 16, 8, 128, 3072, 151936),
    "mixtral4": MIXTRAL | sizes(4, 4096, 32, 8, 128, 14336, 32000) | dict(num_local_experts=8),
    "experts256": MIXTRAL | sizes(3, 256, 4, 2, 64, 512, 2048) | dict(num_local_experts=5),
    "gpt-oss288": GPT_OSS | sizes(3, 288, 4, 2, 64, 288, 2048) | dict(num_local_experts=5),
    "gemma256": GEMMA3 | sizes(7, 256, 4, 2, 64, 768, 2048),
    "small256": QWEN3 | sizes(4, 256, 4, 2, 64, 768, 2048),
}


def block_shapes(config):
    hidden, ffn, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes = {"input_layernorm": (hidden,), "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
              "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries), "post_attention_layernorm": (hidden,)}
    whole_names = {}
    if config["model_type"] == "gpt_oss":
        experts = config["num_local_experts"]
        shapes["mlp.router"] = (experts, hidden)
        whole_names = {"self_attn.sinks": (config["num_attention_heads"],), "mlp.router.bias": (experts,),
                       **{f"self_attn.{name}_proj.bias": (size,) for name, size in dict(q=queries, k=keys, v=keys, o=hidden).items()},
                       "mlp.experts.gate_up_proj": (experts, hidden, 2 * ffn), "mlp.experts.gate_up_proj_bias": (experts, 2 * ffn),
                       "mlp.experts.down_proj": (experts, ffn, hidden), "mlp.experts.down_proj_bias": (experts, hidden)}
    elif config["model_type"] == "mixtral":
        shapes["block_sparse_moe.gate"] = (config["num_local_experts"], hidden)
        for expert in range(config["num_local_experts"]):
            shapes |= {f"block_sparse_moe.experts.{expert}.{name}": shape
                       for name, shape in {"w1": (ffn, hidden), "w3": (ffn, hidden), "w2": (hidden, ffn)}.items()}
    else:
        shapes |= {"mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn)}
    if config["model_type"] in ("qwen3", "gemma3_text"):
        shapes |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    if config["model_type"] == "gemma3_text":
        shapes |= {"pre_feedforward_layernorm": (hidden,), "post_feedforward_layernorm": (hidden,)}
    return {f"{name}.weight": shape for name, shape in shapes.items()} | whole_names


def deviation(name, shape):
    if name == "model.embed_tokens.weight":
        return 0.02
    if name.endswith(("sinks", "bias")):
        return 1.5 if name.endswith("sinks") else 0.2
    return shape[1] ** -0.5 * (3 if name.endswith("experts.gate_up_proj") else 1)  # so that gpt-oss's clamp acts


def make(shape, folder, **changes):
    """Writes the model, the same on every machine; `changes` are to config.json."""
    config = SHAPES[shape] | changes
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], config["hidden_size"]), "model.norm.weight": (config["hidden_size"],)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block_shapes(config).items()}
    random = numpy.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    tensors, places = {}, {}

    def write(file):
        save_file(tensors, folder / file, {"format": "pt"})
        places.update(dict.fromkeys(tensors, file))
        tensors.clear()

    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            values = random.uniform(0.5, 1.5, shape).astype(numpy.float32) - (config["model_type"] == "gemma3_text")
        else:
            values = random.standard_normal(shape, numpy.float32) * numpy.float32(deviation(name, shape))
        tensors[name] = torch.from_numpy(values).to(torch.bfloat16)
        if sum(tensor.nbytes for tensor in tensors.values()) > FILE_BYTES:
            write(f"model-{name}.safetensors")
    if places:
        write("model-rest.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    else:
        write("model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def write_tokenizer(folder):
    """For servers, which read and write text."""
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tokenizer = json.loads((TALES / "tokenizer.json").read_text())
    vocabulary, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    plain = [token for token in vocabulary if token not in special]
    for left, right in itertools.product(plain, plain):
        if len(vocabulary) == size:
            break
        if left + right not in vocabulary:
            vocabulary[left + right] = len(vocabulary)
            merges.append([left, right])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    shutil.copy(TALES / "tokenizer_config.json", folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--tokenizer", action="store_true", help="also one with as many tokens as the model has")
    arguments = parser.parse_args()
    if not (arguments.folder / "config.json").exists():
        make(arguments.shape, arguments.folder)
    if arguments.tokenizer:
        write_tokenizer(arguments.folder)


if __name__ == "__main__":
    main()
