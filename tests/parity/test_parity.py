"""The engine against `transformers`: the same logits and the same greedy tokens, however the model is cut over devices, and however
requests are batched and prompts chunked."""

import json
import os
import sys

import gguf
import numpy
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, DynamicCache, Gemma3Config, Gemma3ForConditionalGeneration

import engine
import models

sys.path.append(str(engine.ROOT / "bench/decode"))
import make_model  # noqa: E402

GENERATE = 32
PROMPT_LENGTHS = [1, 7, 40, 83]
FP32_TOLERANCE = 1e-4
DELTA_NET_TOLERANCE = 5e-4  # of the deviation: `transformers` itself differs so between one prompt and the same in parts; Gemma 4, too
# bf16 keeps 8 bits of every activation. Both sides are held against the fp32 model, by the root mean square error of the logits: the
# engine's may be no more than half above that of `transformers`' own bf16 run (which rounds no partial sums of ranks).
BF16_EXCESS = 1.5


def chain(*degrees, cuts=None, **rest):
    """A layout of stages with these degrees; layers divided evenly, or cut at `cuts`."""
    layers = models.LAYERS
    cuts = cuts or [layers * (i + 1) // len(degrees) for i in range(len(degrees) - 1)]
    return engine.chain(*degrees, cuts=[0, *cuts, layers], **rest)


LAYOUTS = [
    chain(1),
    chain(1, 1),
    chain(1, 1, 1, cuts=[1, 5]),
    chain(2),
    chain(3, shares=[[0.5, 0.3, 0.2]]),
    chain(4),  # more than some models have KV heads
    chain(2, 3, 1, cuts=[1, 4]),
    chain(1, 4),
    chain(3, 2),
    chain(4, 1, 2, cuts=[3, 4]),
    chain(2, 2, shares=[[0.7, 0.3], [0.4, 0.6]]),
    chain(1, 3, cuts=[5], shares=[None, [0.6, 0.2, 0.2]]),
    chain(2, 3, transport="tcp"),
    chain(1, 1, 1, 1, 1, 1),
]
if os.environ.get("MOTLEY_PARITY") == "all":  # ./dev test parity: every cut into two stages, and two and three uneven ranks before and after it
    for cut in range(1, models.LAYERS):
        LAYOUTS += [chain(1, 1, cuts=[cut]),
                    chain(2, 1, cuts=[cut], shares=[[0.7, 0.3], None]),
                    chain(1, 2, cuts=[cut], shares=[None, [0.4, 0.6]]),
                    chain(3, 1, cuts=[cut], shares=[[0.5, 0.3, 0.2], None]),
                    chain(1, 3, cuts=[cut], shares=[None, [0.2, 0.3, 0.5]])]
LAYOUTS_AT_ONCE = 16  # of one run of the engine, which has ten minutes
SCRIPTS = [dict(name="alone"), dict(name="batched, chunks of 16", chunk=16, together=True)]
MORE_SCRIPTS = [dict(name="batched", together=True), dict(name="alone, chunks of 9", chunk=9)]  # in two of the layouts


def whole_experts(count):
    """Layouts whose ranks hold whole experts."""
    return [chain(2, shares=[[0.75, 0.25]], experts=[[count - 2, 2]]),
            chain(3, 2, cuts=[4], shares=[[0.5, 0.3, 0.2], None], experts=[[count - 3, 2, 1], [2, count - 2]]),
            chain(4, 2, experts=[[1, count - 3, 1, 1], None])]


def prompts():
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, models.VOCABULARY, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


def reference(model, prompt):
    """Greedy tokens and the logits that each was taken from: one pass over a growing sequence, without a cache."""
    tokens, rows = list(prompt), []
    with torch.no_grad():
        for _ in range(GENERATE):
            rows.append(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].float())
            tokens.append(int(rows[-1].argmax()))
    return tokens[len(prompt):], torch.stack(rows).numpy()


def run_engine(folder, tmp_path, **case):
    """Runs with their logits [GENERATE, vocabulary]."""
    return engine.run(dict(model=str(folder), requests=[dict(prompt=p, generate=GENERATE) for p in prompts()], **case), tmp_path)


@pytest.mark.parametrize("name", models.MODELS)
def test_fp32_equals_transformers_in_every_layout(name, tmp_path):
    model = models.make(name, tmp_path / "model")
    expected = [reference(model, prompt) for prompt in prompts()]
    heads = model.config.num_attention_heads
    layouts = [layout for layout in LAYOUTS if all(stage["degree"] <= heads for stage in layout["stages"])]
    config = json.loads((tmp_path / "model/config.json").read_text())
    for count in {config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(key)}:
        layouts += whole_experts(count)
    assert len(layouts) >= 12
    assert numpy.concatenate([rows for _, rows in expected]).std(axis=0).mean() > 100 * FP32_TOLERANCE, "this model's logits hardly change"
    runs = []
    for first in range(0, len(layouts), LAYOUTS_AT_ONCE):
        runs += run_engine(tmp_path / "model", tmp_path, layouts=layouts[first:first + LAYOUTS_AT_ONCE], scripts=SCRIPTS)
    runs += run_engine(tmp_path / "model", tmp_path, layouts=[layouts[0], layouts[6]], scripts=MORE_SCRIPTS)
    for run, logits in runs:
        tokens, rows = expected[run["request"]]
        where = f"{run['layout']}, {run['script']}, request {run['request']}"
        assert run["tokens"] == tokens, where
        tolerance = DELTA_NET_TOLERANCE * rows.std() if name in (*models.WITH_DELTA_NETS, "gemma4", "gemma4-dense") else FP32_TOLERANCE
        assert abs(logits - rows).max() <= tolerance, where


def test_a_head_of_its_own_is_used_where_the_configuration_says_tied(tmp_path):
    """As a merged adapter is saved. `transformers` then ties nothing."""
    file = tmp_path / "model/model.safetensors"
    models.make("qwen2-tied", file.parent)
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    model = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32)
    expected = [reference(model, prompt) for prompt in prompts()]
    for run, logits in run_engine(file.parent, tmp_path, layouts=[chain(1), chain(1, 2)], scripts=SCRIPTS[:1]):
        tokens, rows = expected[run["request"]]
        assert run["tokens"] == tokens
        assert abs(logits - rows).max() <= FP32_TOLERANCE


def test_the_clamp_of_gpt_oss_acts(tmp_path, monkeypatch):
    model = models.make("gpt-oss", tmp_path / "model")
    gates = []
    experts = type(model.model.layers[0].mlp.experts)
    apply = experts._apply_gate
    monkeypatch.setattr(experts, "_apply_gate", lambda self, gate_up: gates.append(gate_up[..., ::2]) or apply(self, gate_up))
    reference(model, prompts()[-1])
    assert (torch.cat([gate.flatten() for gate in gates]) > model.config.swiglu_limit).float().mean() > 0.01


def as_mxfp4(matrices):
    """[..., rows, columns] as gpt-oss's files hold them: blocks, their exponents, and what these stand for."""
    kind = gguf.GGMLQuantizationType.MXFP4
    quantised = gguf.quantize(matrices.numpy(), kind)
    blocks = quantised.reshape(*matrices.shape[:-1], -1, 17)
    halves = numpy.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)  # in the order of the values
    packed = halves[..., 0::2] | halves[..., 1::2] << 4
    return torch.tensor(packed), torch.tensor(blocks[..., 0].copy()), torch.tensor(gguf.dequantize(quantised, kind))


def test_experts_in_mxfp4_are_those_that_the_blocks_stand_for(tmp_path):
    folder = tmp_path / "model"
    model = models.make("gpt-oss", tmp_path / "whole")
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                tensors[name + "_blocks"], tensors[name + "_scales"], values = as_mxfp4(tensors.pop(name).transpose(1, 2).contiguous())
                parameter.copy_(values.transpose(1, 2))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    prompt = prompts()[2]
    for run, logits in engine.run(dict(model=str(folder), requests=[dict(prompt=prompt, generate=GENERATE)],
                                       layouts=[chain(1), chain(2, 3, shares=[[0.7, 0.3], None]), *whole_experts(8)],
                                       scripts=SCRIPTS[:1]), tmp_path):
        assert abs(logits - engine.logits_along(model, prompt, run["tokens"])).max() <= FP32_TOLERANCE


def test_the_language_model_of_one_that_sees_is_served(tmp_path):
    text = models.MODELS["gemma3"]()[1]
    vision = dict(model_type="siglip_vision_model", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                  image_size=28, patch_size=14)
    torch.manual_seed(3)
    model = Gemma3ForConditionalGeneration(Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4)).eval()
    with torch.no_grad():
        for parameter in model.model.language_model.parameters():
            parameter.normal_(0, 0.14)
    model.save_pretrained(tmp_path / "model")
    prompt = prompts()[2]
    (run, logits), = engine.run(dict(model=str(tmp_path / "model"), requests=[dict(prompt=prompt, generate=GENERATE)],
                                     layouts=[chain(1, 1)], scripts=SCRIPTS[:1]), tmp_path)
    rows = engine.logits_along(model, prompt, run["tokens"])
    assert rows.std(axis=0).mean() > 100 * FP32_TOLERANCE
    assert abs(logits - rows).max() <= FP32_TOLERANCE


def test_a_released_folder_has_experts_in_one_tensor_and_parts_that_are_left_out(tmp_path):
    """Qwen3.5's: experts stacked, names of the language model inside a larger one, layers that predict, and what sees."""
    model = models.make("qwen3.5-moe", tmp_path / "saved")
    model.save_pretrained(tmp_path / "saved")  # in one file
    tensors = load_file(tmp_path / "saved/model.safetensors")
    kept = {f"model.language_model.{name.removeprefix('model.')}" if name.startswith("model.") else name: tensor
            for name, tensor in tensors.items() if ".experts." not in name}
    for name, parameter in model.named_parameters():
        if ".experts." in name:
            kept[f"model.language_model.{name.removeprefix('model.')}"] = parameter.detach().clone()
    kept |= {"mtp.fc.weight": torch.zeros(4, 4), "model.visual.patch_embed.proj.weight": torch.zeros(4, 4)}
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((tmp_path / "saved/config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_5_moe", "text_config": text, "vision_config": {}}))
    prompt = prompts()[2]
    for run, logits in engine.run(dict(model=str(folder), requests=[dict(prompt=prompt, generate=GENERATE)],
                                       layouts=[chain(1), chain(2, 3, shares=[[0.7, 0.3], None])], scripts=SCRIPTS[:1]), tmp_path):
        expected = engine.logits_along(model, prompt, run["tokens"])
        assert abs(logits - expected).max() <= DELTA_NET_TOLERANCE * expected.std()


@pytest.mark.parametrize("name", ["llama-gqa-llama3", "qwen3-qk-norm", "opt", "gemma3"])
@pytest.mark.parametrize("kv_type", ["bf16", "fp32"])
def test_bf16_is_as_close_to_fp32_as_transformers_is(name, kv_type, tmp_path):
    exact = models.make(name, tmp_path / "model")
    with torch.no_grad():
        for parameter in exact.parameters():  # what both sides hold as weights; rotary frequencies stay in fp32 everywhere
            parameter.copy_(parameter.to(torch.bfloat16))
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16).eval()
    runs = run_engine(tmp_path / "model", tmp_path, weight_type="bf16", kv_type=kv_type, layouts=[chain(1), chain(2, 3, 1)],
                      scripts=SCRIPTS)
    for run, logits in runs:
        prompt = prompts()[run["request"]]
        truth = engine.logits_along(exact, prompt, run["tokens"])
        theirs = engine.logits_along(rounded, prompt, run["tokens"])
        error, allowed = (numpy.sqrt(numpy.mean((x - truth) ** 2)) for x in (logits, theirs))
        assert error <= BF16_EXCESS * allowed, f"{run['layout']}, {run['script']}: {error} against {allowed}"


class EightBitCache(DynamicCache):
    """Keys and values as the pip package `gguf` rounds them to Q8_0."""

    @staticmethod
    def rounded(heads):
        kind = gguf.GGMLQuantizationType.Q8_0
        return torch.tensor(gguf.dequantize(gguf.quantize(heads.numpy(), kind), kind))

    def update(self, key_states, value_states, *rest, **more):
        return super().update(self.rounded(key_states), self.rounded(value_states), *rest, **more)


def test_keys_and_values_of_eight_bits_equal_those_of_a_rounded_cache(tmp_path):
    make_model.make("small256", tmp_path / "model")  # heads of 64
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32).eval()
    layouts = [engine.chain(1, cuts=[0, 4]), engine.chain(2, 1, cuts=[0, 1, 4])]
    differences = []
    for run, logits in run_engine(tmp_path / "model", tmp_path, kv_type="q8_0", layouts=layouts, scripts=SCRIPTS):
        prompt = prompts()[run["request"]]
        tokens = torch.tensor([prompt + run["tokens"][:-1]])
        with torch.no_grad():
            rounded, exact = (model(tokens, past_key_values=cache).logits[0, len(prompt) - 1:].numpy() for cache in (EightBitCache(), None))
        # A value that lies between two numbers of eight bits can become either, as the last bit of fp32 has it.
        error, rounding = (numpy.sqrt(numpy.mean((rows - rounded) ** 2)) for rows in (logits, exact))
        assert error <= 0.1 * rounding, f"{run['layout']}, {run['script']}: {error} of {rounding}"
        differences.append(abs(logits - rounded).max())
    assert min(differences) <= FP32_TOLERANCE / 10, "where no value lies so"


def with_outliers(folder):
    """A model whose residual stream has two channels of 1000 standard deviations, as trained models have a few."""
    model = models.make("llama-gqa-llama3", folder)
    outliers = [5, 77]
    others = [channel for channel in range(model.config.hidden_size) if channel not in outliers]
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight
        embedding[:, outliers] = 1000 * embedding.std() * torch.tensor([1.0, -1.0])
        for name, parameter in model.named_parameters():
            if "norm" in name:  # which divide all channels by the outliers' size
                parameter[others] *= 100
                parameter[outliers] *= 0.01
    model.save_pretrained(folder)
    return model


def test_activations_of_eight_bits_keep_a_model_with_outliers(tmp_path):
    with_outliers(tmp_path / "model")
    layouts = [chain(1, 1), chain(1, 1, 1), chain(2, 3)]
    forced = [dict(prompt=prompt, generate=GENERATE, forced=models.tokens(GENERATE, 9)) for prompt in prompts()]

    def logits(crossing_type):
        case = dict(model=str(tmp_path / "model"), requests=forced, crossing_type=crossing_type, layouts=layouts, scripts=SCRIPTS)
        return engine.run(case, tmp_path)

    exact, half, eight = (logits(crossing_type) for crossing_type in ("fp32", "bf16", "int8"))
    texts = {}
    for (run, of_fp32), (_, of_bf16), (_, of_int8) in zip(exact, half, eight):
        where = f"{run['layout']}, {run['script']}, request {run['request']}"
        for name, other in (("fp32", of_fp32), ("bf16", of_bf16)):
            difference = numpy.sqrt(numpy.mean((of_int8 - other) ** 2) / numpy.mean(other ** 2))
            assert difference <= 0.01, f"{where}: {difference:.2%} from {name}"
        # Whatever else is in a step, a row crosses alike.
        alone = texts.setdefault((run["layout"], run["request"]), of_int8)
        assert abs(alone - of_int8).max() <= FP32_TOLERANCE, where


def test_weights_that_do_not_fit_config_json_are_refused(tmp_path):
    models.make("llama-mha-untied", tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["num_key_value_heads"] = 2
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    case = dict(model=str(tmp_path / "model"), requests=[dict(prompt=[1], generate=1)], layouts=[chain(1)], scripts=SCRIPTS[:1])
    result, _ = engine.check(case, tmp_path)
    assert result.returncode != 0
    assert "the model needs the tensor model.layers.0.self_attn.k_proj.weight 32x96" in result.stderr
    assert "holds 96x96" in result.stderr
