"""GGUF files as models of `transformers`, with the values that the pip package `gguf` makes of their blocks."""

import gguf
import torch
from transformers import AutoConfig, AutoModelForCausalLM

RECORDED = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]  # what llama.cpp makes of them is in tests/data
TYPES = RECORDED + ["mxfp4", "iq4_nl", "iq4_xs"]
# Changes to the shape of 135 M parameters: rows of 576, of 1536, and of no whole number of blocks.
ROWS_OF_MANY_LENGTHS = dict(num_hidden_layers=2, vocab_size=256, head_dim=36)
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "mistral": gguf.MODEL_ARCH.LLAMA, "mixtral": gguf.MODEL_ARCH.LLAMA,
                 "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3,
                 "gpt_oss": gguf.MODEL_ARCH.GPT_OSS, "gemma3_text": gguf.MODEL_ARCH.GEMMA3, "gemma4_text": gguf.MODEL_ARCH.GEMMA4,
                 "qwen3_next": gguf.MODEL_ARCH.QWEN3NEXT, "qwen3_5_text": gguf.MODEL_ARCH.QWEN35, "qwen3_5_moe_text": gguf.MODEL_ARCH.QWEN35MOE,
                 "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE, "minimax_m2": gguf.MODEL_ARCH.MINIMAXM2}


def types_by_tensor(file):
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}


def halves(weight, heads):
    """Rows of queries or keys in Hugging Face's order: llama.cpp rotates neighbours, `transformers` rotates halves of a head."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


WITH_DELTA_NETS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")


def of_delta_net(config, layer, name, take):
    """A tensor of a gated delta net as `transformers` has it. In files of Qwen3.5 the value heads of a key head are not side by side."""
    keys, values = config.linear_num_key_heads, config.linear_num_value_heads
    key_rows, value_size = keys * config.linear_key_head_dim, config.linear_value_head_dim

    def of_block(part):
        return take(f"blk.{layer}.{part}")

    def grouped(tensor, dim=0):
        if config.model_type == "qwen3_next":
            return tensor
        return tensor.unflatten(dim, (values // keys, keys, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)

    def with_values(tensor):
        return torch.cat([tensor[:2 * key_rows], grouped(tensor[2 * key_rows:])])

    if name == "in_proj_qkvz.weight":
        q, k, v = of_block("attn_qkv.weight").split([key_rows, key_rows, values * value_size])
        return torch.cat([part.unflatten(0, (keys, -1)) for part in (q, k, v, of_block("attn_gate.weight"))], 1).flatten(0, 1)
    return {"in_proj_qkv.weight": lambda: with_values(of_block("attn_qkv.weight")),
            "in_proj_z.weight": lambda: grouped(of_block("attn_gate.weight")),
            "in_proj_b.weight": lambda: grouped(of_block("ssm_beta.weight")),
            "in_proj_a.weight": lambda: grouped(of_block("ssm_alpha.weight")),
            "in_proj_ba.weight": lambda: of_block("ssm_ba.weight"),
            "conv1d.weight": lambda: with_values(of_block("ssm_conv1d.weight")).unsqueeze(1),
            "A_log": lambda: torch.log(-grouped(of_block("ssm_a"))),
            "dt_bias": lambda: grouped(of_block("ssm_dt.bias")),
            "norm.weight": lambda: of_block("ssm_norm.weight"),
            "out_proj.weight": lambda: grouped(of_block("ssm_out.weight"), 1)}[name]()


def dequantised(folder, file):
    """The model of `folder` in fp32 with the weights of `file`."""
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    names = gguf.get_tensor_name_map(ARCHITECTURES[config.model_type], config.num_hidden_layers)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}

    def take(name):
        tensor = stored.pop(name)
        return torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))

    buffers = [(name, values) for name, values in model.named_buffers() if name.endswith(("e_score_correction_bias", "layer_scalar"))]

    def of_experts(name):
        """Of all, as `transformers` holds them: gpt-oss's are transposed, and rows of gate and up come by turns."""
        layer, by_turns = name.split(".")[2], config.model_type == "gpt_oss"
        parts, kind = ("gate", "up") if "gate_up" in name else ("down",), "bias" if name.endswith("bias") else "weight"
        values = [take(f"blk.{layer}.ffn_{part}_exps.{kind}") for part in parts]
        values = torch.stack(values, dim=2).flatten(1, 2) if by_turns else torch.cat(values, dim=1)
        return values.swapaxes(1, 2) if by_turns and kind == "weight" else values

    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *buffers]:
            layer = name.split(".")[2] if ".layers." in name else None
            if name.endswith("e_score_correction_bias"):
                values = take(f"blk.{layer}.exp_probs_b.bias")
            elif name.endswith(".router.scale"):
                values = take(f"blk.{layer}.ffn_gate_inp.scale")
            elif name.endswith(".per_expert_scale"):
                values = take(f"blk.{layer}.ffn_down_exps.scale")
            elif ".linear_attn." in name:
                values = of_delta_net(config, layer, name.split(".linear_attn.")[1], take)
            elif ".experts." in name:
                values = of_experts(name)
            elif name.endswith(".bias"):
                values = take(names.get_name(name.removesuffix(".bias")) + ".bias")
            else:
                values = take(names.get_name(name.removesuffix(".weight")) + ".weight")
            if config.model_type in ("gemma3_text", *WITH_DELTA_NETS) and name.endswith("norm.weight") and ".linear_attn." not in name:
                values = values - 1
            if config.model_type in ("llama", "mistral", "mixtral") and (".q_proj." in name or ".k_proj." in name):
                values = halves(values, config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads)
            parameter.copy_(values.reshape(parameter.shape))
    if config.model_type == "gemma4_text":
        full = next(module for module in model.modules() if hasattr(module, "full_attention_inv_freq")).full_attention_inv_freq
        assert ((take("rope_freqs.weight") == 1) == (full != 0)).all()
    assert not stored, f"tensors that the model lacks: {list(stored)}"
    return model


def rounded(values, block):
    """As llama.cpp rounds activations: 8 bits, with a scale for each block."""
    blocks = values.reshape(-1, block)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    if block == 32:  # the scale is kept as fp16
        scale = largest.abs() / 127
        kept = scale.half().float()
    else:  # the largest becomes -127
        kept = scale = largest / -127
    return (torch.where(scale != 0, torch.round(blocks / scale), 0) * kept).reshape(values.shape)


def round_activations(model, file):
    """Lets each matrix of the model meet what it meets in llama.cpp, whose blocks are of 256 values where it is of a K type."""
    types = types_by_tensor(file)
    names = gguf.get_tensor_name_map(ARCHITECTURES[model.config.model_type], model.config.num_hidden_layers)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            stored = types["token_embd.weight" if name == "lm_head" else names.get_name(name) + ".weight"]
            block = 256 if stored.endswith("_K") else 32
            module.register_forward_pre_hook(lambda _, inputs, block=block: (rounded(inputs[0], block),))
    return model
