"""Random weights of a Llama shape as a model folder, in bf16, and the same as GGUF files for llama.cpp: 1b, a billion parameters (that
of Llama-3.2-1B, with a smaller vocabulary), or 135m (that of SmolLM2-135M). Run with the reference environment:

    make_model.py FOLDER [--shape 1b|135m] [--gguf PATH_OF_GGUF_PYTHON_PACKAGE]
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

SHAPES = {"1b": (2048, 16, 32, 8, 8192, 32000, 500000.0), "135m": (576, 30, 9, 3, 1536, 49152, 100000.0)}
SHAPE = sys.argv[sys.argv.index("--shape") + 1] if "--shape" in sys.argv else "1b"
HIDDEN, LAYERS, HEADS, KV_HEADS, FFN, VOCABULARY, THETA = SHAPES[SHAPE]
CONTEXT, EPSILON = 4096, 1e-5
HEAD_DIM = HIDDEN // HEADS

CONFIG = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=HIDDEN, num_hidden_layers=LAYERS,
              num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, intermediate_size=FFN, vocab_size=VOCABULARY,
              max_position_embeddings=CONTEXT, rms_norm_eps=EPSILON, rope_theta=THETA, hidden_act="silu", tie_word_embeddings=True,
              attention_bias=False, mlp_bias=False, bos_token_id=1, eos_token_id=2, torch_dtype="bfloat16")

# Hugging Face name of a block's tensor -> (GGUF name, shape)
BLOCK = {
    "input_layernorm": ("attn_norm", (HIDDEN,)),
    "self_attn.q_proj": ("attn_q", (HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.k_proj": ("attn_k", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.v_proj": ("attn_v", (KV_HEADS * HEAD_DIM, HIDDEN)),
    "self_attn.o_proj": ("attn_output", (HIDDEN, HEADS * HEAD_DIM)),
    "post_attention_layernorm": ("ffn_norm", (HIDDEN,)),
    "mlp.gate_proj": ("ffn_gate", (FFN, HIDDEN)),
    "mlp.up_proj": ("ffn_up", (FFN, HIDDEN)),
    "mlp.down_proj": ("ffn_down", (HIDDEN, FFN)),
}


def write_folder(folder):
    torch.manual_seed(1)
    tensors = {"model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN) * 0.02, "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(LAYERS):
        for name, (_, shape) in BLOCK.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * 0.02
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))


def interleaved(weight, heads):
    """llama.cpp rotates neighbouring elements of a head where Hugging Face rotates its halves."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(folder, kind):
    import gguf
    tensors = load_file(folder / "model.safetensors")
    writer = gguf.GGUFWriter(folder / f"model-{kind}.gguf", "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(THETA)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if kind == "bf16" else gguf.LlamaFileType.ALL_F32)

    def add(name, tensor):
        if kind == "bf16" and tensor.dim() == 2:
            writer.add_tensor(name, tensor.contiguous().view(torch.uint8).numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, tensor.float().numpy())

    add("token_embd.weight", tensors["model.embed_tokens.weight"])
    add("output_norm.weight", tensors["model.norm.weight"])
    for layer in range(LAYERS):
        for name, (gguf_name, _) in BLOCK.items():
            tensor = tensors[f"model.layers.{layer}.{name}.weight"]
            if name == "self_attn.q_proj":
                tensor = interleaved(tensor, HEADS)
            if name == "self_attn.k_proj":
                tensor = interleaved(tensor, KV_HEADS)
            add(f"blk.{layer}.{gguf_name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--gguf", help="folder of the `gguf` Python package")
    arguments = parser.parse_args()
    if not (arguments.folder / "config.json").exists():
        write_folder(arguments.folder)
    if arguments.gguf:
        sys.path.insert(0, arguments.gguf)
        for kind in ("bf16", "fp32"):
            if not (arguments.folder / f"model-{kind}.gguf").exists():
                write_gguf(arguments.folder, kind)


main()
