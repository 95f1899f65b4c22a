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
                 "gpt_oss": gguf.MODEL_ARCH.GPT_OSS, "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
                 "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE, "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE, "minimax_m2": gguf.MODEL_ARCH.MINIMAXM2}


def types_by_tensor(file):
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(file).tensors}


def halves(weight, heads):
    """Rows of queries or keys in Hugging Face's order: llama.cpp rotates neighbours, `transformers` rotates halves of a head."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def dequantised(folder, file):
    """The model of `folder` in fp32 with the weights of `file`."""
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    names = gguf.get_tensor_name_map(ARCHITECTURES[config.model_type], config.num_hidden_layers)
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}

    def take(name):
        tensor = stored.pop(name)
        return torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))

    selection_biases = [(name, values) for name, values in model.named_buffers() if name.endswith("e_score_correction_bias")]

    def of_experts(name):
        """Of all, as `transformers` holds them: gpt-oss's are transposed, and rows of gate and up come by turns."""
        layer, by_turns = name.split(".")[2], config.model_type == "gpt_oss"
        parts, kind = ("gate", "up") if "gate_up" in name else ("down",), "bias" if name.endswith("bias") else "weight"
        values = [take(f"blk.{layer}.ffn_{part}_exps.{kind}") for part in parts]
        values = torch.stack(values, dim=2).flatten(1, 2) if by_turns else torch.cat(values, dim=1)
        return values.swapaxes(1, 2) if by_turns and kind == "weight" else values

    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *selection_biases]:
            layer = name.split(".")[2] if ".layers." in name else None
            if name.endswith("e_score_correction_bias"):
                values = take(f"blk.{layer}.exp_probs_b.bias")
            elif ".experts." in name:
                values = of_experts(name)
            elif name.endswith(".bias"):
                values = take(names.get_name(name.removesuffix(".bias")) + ".bias")
            else:
                values = take(names.get_name(name.removesuffix(".weight")) + ".weight")
            if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
                values = values - 1
            if config.model_type in ("llama", "mistral", "mixtral") and (".q_proj." in name or ".k_proj." in name):
                values = halves(values, config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads)
            parameter.copy_(values)
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
