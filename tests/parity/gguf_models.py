"""GGUF files as models of `transformers`, with the values that the pip package `gguf` makes of their blocks."""

import gguf
import torch
from transformers import AutoConfig, AutoModelForCausalLM

RECORDED = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]  # what llama.cpp makes of them is in tests/data
TYPES = RECORDED + ["mxfp4", "iq4_nl", "iq4_xs"]
# Changes to the shape of 135 M parameters: rows of 576, of 1536, and of no whole number of blocks.
ROWS_OF_MANY_LENGTHS = dict(num_hidden_layers=2, vocab_size=256, head_dim=36)
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "mixtral": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}


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

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gate_up_proj"):  # of all experts, as `transformers` holds them
                layer = name.split(".")[2]
                values = torch.cat([take(f"blk.{layer}.ffn_{part}_exps.weight") for part in ("gate", "up")], dim=1)
            else:
                values = take(names.get_name(name.removesuffix(".weight")) + ".weight")
            if config.model_type in ("llama", "mixtral") and (".q_proj." in name or ".k_proj." in name):
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
