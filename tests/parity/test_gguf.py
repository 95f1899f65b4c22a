"""Quantised weights from GGUF files: against `transformers` on the same values where activations are in fp32, and against what llama.cpp
made of the same files where they are in int8 (tests/reference/llama_cpp_goldens.py). The files are of the tales model (llama, some of
whose rows are not whole blocks of 256) and of random weights (qwen3, mixtral and gemma3, all of whose rows are, and gpt-oss, most of whose
are not). MOTLEY_PARITY_SHAPES names more shapes of bench/decode/make_model.py for the former."""

import json
import os
import subprocess
import sys

import gguf
import numpy
import pytest
import torch
from transformers import (AutoModelForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig, Glm4MoeConfig, Glm4MoeForCausalLM, MiniMaxM2Config, MiniMaxM2ForCausalLM, MixtralConfig,
                          MixtralForCausalLM, Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig,
                          Qwen3MoeConfig, Qwen3MoeForCausalLM, Qwen3NextConfig, Qwen3NextForCausalLM)

import engine
import gguf_models
import models

sys.path.append(str(engine.ROOT / "bench/decode"))
import make_model  # noqa: E402

MODELS = ["tales", "small256"]
SHAPES = MODELS + os.environ.get("MOTLEY_PARITY_SHAPES", "").split()
CASES = [(name, kind) for name in SHAPES for kind in gguf_models.TYPES]
CASES += [(name, kind) for name in ("experts256", "gpt-oss288", "gemma256") for kind in ("f32", "q5_0", "q4_k")]
CASES += [("experts256", kind) for kind in ("f16", "mxfp4", "iq4_xs")] + [("gpt-oss288", "mxfp4")]
PROMPT_LENGTHS = [1, 9, 40]
GENERATE = 8
FP32_TOLERANCE = 1e-4

TOLD, ASKED = 65, 32  # tokens of a chunk
CLEAR = 0.05
KL_LIMIT = 1e-3
PERPLEXITY_LIMIT = 0.005
FLOOR = 15.9  # below the best logit; llama-perplexity tells no logits that are 16 below
# This many of the 640 positions may have another next token though llama.cpp's is clear: it rounds activations that meet these types with
# one scale for 256 of them, the engine with one for 32.
OTHER_CHOICES = {"q4_k": 3, "q5_k": 3, "q6_k": 3}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def model_folder(name):
        if name == "tales":
            return engine.ROOT / "data/models/tales"
        if not (folder / name).exists():
            make_model.make(name, folder / name)
        return folder / name

    return model_folder


def quantise(folder, kind, file):
    subprocess.run([engine.BUILD / "motley", "model", "quantize", folder, "--type", kind, "-o", file, "-q"], check=True)
    return file


def layers_of(folder):
    return json.loads((folder / "config.json").read_text())["num_hidden_layers"]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_with_fp32_activations_logits_are_those_of_transformers(name, kind, model_folder, tmp_path, monkeypatch):
    folder = model_folder(name)
    file = quantise(folder, kind, tmp_path / "model.gguf")
    model = gguf_models.dequantised(folder, file)
    generator = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 2000, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]
    layers = layers_of(folder)
    monkeypatch.setenv("MOTLEY_ACTIVATIONS", "fp32")
    runs = engine.run(dict(model=str(file), weight_type="fp32" if kind == "f32" else "file",
                           requests=[dict(prompt=p, generate=GENERATE) for p in prompts],
                           layouts=[engine.chain(1, cuts=[0, layers]),
                                    engine.chain(2, 1, cuts=[0, 2, layers], shares=[[0.6, 0.4], None])],
                           scripts=[dict(name="batched", together=True)]), tmp_path)
    for run, logits in runs:
        expected = engine.logits_along(model, prompts[run["request"]], run["tokens"])
        where = f"{run['layout']}, request {run['request']}"
        assert expected.std(axis=0).mean() > 1000 * FP32_TOLERANCE, "this model's logits hardly change"
        assert abs(logits - expected).max() <= FP32_TOLERANCE, where
        assert expected.argmax(axis=1).tolist() == run["tokens"], where


@pytest.fixture(scope="module")
def goldens():
    with numpy.load(engine.ROOT / "tests/data/llama_cpp.npz") as file:
        return dict(file)


def log_probabilities(file, chunks, layers, tmp_path):
    """[chunks, ASKED, vocabulary] after the first TOLD tokens and each of those that follow."""
    end = TOLD + ASKED
    requests = [dict(prompt=chunk[:TOLD].tolist(), generate=ASKED, forced=chunk[TOLD:end].tolist()) for chunk in chunks]
    runs = engine.run(dict(model=str(file), weight_type="file", requests=requests, layouts=[engine.chain(1, cuts=[0, layers])],
                           scripts=[dict(name="batched", together=True)]), tmp_path)
    return torch.log_softmax(torch.tensor(numpy.stack([logits for _, logits in runs])).double(), 2).numpy()


def divergence(theirs, mine):
    """Mean KL of rows of log-probabilities, among the tokens whose logits are told: the others' share is below 3e-4."""
    told = theirs > theirs.max(axis=1, keepdims=True) - FLOOR
    theirs, mine = (x - numpy.log((numpy.exp(x) * told).sum(axis=1, keepdims=True)) for x in (theirs, mine))
    return (numpy.exp(theirs) * told * (theirs - mine)).sum(axis=1).mean()


@pytest.mark.parametrize("kind", gguf_models.RECORDED)
@pytest.mark.parametrize("name", MODELS)
def test_with_int8_activations_it_says_what_llama_cpp_says(name, kind, model_folder, goldens, tmp_path):
    expected = {key: goldens[f"{name}.{kind}.{key}"] for key in ("best", "margin", "following", "rows")}
    chunks, layers = goldens["tokens"], layers_of(model_folder(name))
    assert len(chunks) == 20
    file = quantise(model_folder(name), kind, tmp_path / "model.gguf")
    logs = log_probabilities(file, chunks, layers, tmp_path)

    mine = numpy.take_along_axis(logs, chunks[:, TOLD:TOLD + ASKED, None].astype(int), axis=2)[:, :, 0]
    assert numpy.exp((expected["following"] - mine).mean()) == pytest.approx(1, abs=PERPLEXITY_LIMIT)
    each = numpy.arange(len(chunks))
    assert divergence(expected["rows"] / -100, logs[each, each]) < KL_LIMIT

    others = (logs.argmax(axis=2) != expected["best"]) & (expected["margin"] > CLEAR)
    assert others.sum() <= OTHER_CHOICES.get(kind, 0), numpy.argwhere(others).tolist()
    if others.any():  # the rounding is why
        model = gguf_models.round_activations(gguf_models.dequantised(model_folder(name), file), file)
        for chunk, i in numpy.argwhere(others):
            tokens = torch.tensor(chunks[None, chunk, :TOLD + i].astype(int))
            with torch.no_grad():
                assert model(tokens, use_cache=False).logits[0, -1].argmax() == expected["best"][chunk, i], (chunk, i)


ALIKE = dict(vocab_size=512, hidden_size=256, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             head_dim=64, num_experts_per_tok=2, max_position_embeddings=512, bos_token_id=1, eos_token_id=2)
# Two value heads are a block of 256, and three ranks have two key heads each.
DELTA = dict(linear_num_key_heads=6, linear_num_value_heads=12, linear_key_head_dim=128, linear_value_head_dim=128, full_attention_interval=3)
OF_DELTA = {"ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 6, "ssm.time_step_rank": 12, "ssm.inner_size": 1536,
            "full_attention_interval": 3}
ROUTED = dict(num_experts=5, moe_intermediate_size=256, shared_expert_intermediate_size=256)
OF_ROUTED = dict(expert_count=5, expert_used_count=2, expert_feed_forward_length=256, expert_shared_feed_forward_length=256)
MIXTURES = {  # and what their files say of experts and delta nets
    "mixtral": (MixtralForCausalLM, MixtralConfig(**ALIKE, num_local_experts=5), "llama",
                dict(expert_count=5, expert_used_count=2, feed_forward_length=256)),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig(**ALIKE, num_experts=5, moe_intermediate_size=256, norm_topk_prob=True), "qwen3moe",
                  dict(expert_count=5, expert_used_count=2, expert_feed_forward_length=256)),
    "glm4_moe": (Glm4MoeForCausalLM, Glm4MoeConfig(**ALIKE, n_routed_experts=5, moe_intermediate_size=256, n_shared_experts=2,
                                                   routed_scaling_factor=1.5, use_qk_norm=True, attention_bias=True), "glm4moe",
                 dict(expert_count=5, expert_used_count=2, expert_feed_forward_length=256, expert_shared_count=2, expert_gating_func=2,
                      leading_dense_block_count=1, expert_weights_scale=1.5, expert_weights_norm=True)),
    "minimax_m2": (MiniMaxM2ForCausalLM, MiniMaxM2Config(**ALIKE, num_local_experts=5, rotary_dim=32), "minimax-m2",
                   dict(expert_count=5, expert_used_count=2, expert_feed_forward_length=256, expert_gating_func=2)),
    "qwen3_next": (Qwen3NextForCausalLM, Qwen3NextConfig(**ALIKE, **DELTA, **ROUTED), "qwen3next", OF_DELTA | OF_ROUTED),
    "qwen3_5_moe_text": (Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig(**ALIKE, **DELTA, **ROUTED), "qwen35moe",
                         OF_DELTA | OF_ROUTED | {"rope.dimension_sections": [11, 11, 10, 0]}),
    "qwen3_5_text": (Qwen3_5ForCausalLM, Qwen3_5TextConfig(**ALIKE, **DELTA), "qwen35", OF_DELTA),
    "gemma4_text": (Gemma4ForCausalLM, Gemma4TextConfig(**ALIKE, num_experts=5, top_k_experts=2, moe_intermediate_size=256,
                                                        enable_moe_block=True, global_head_dim=128, num_global_key_value_heads=1,
                                                        attention_k_eq_v=True, hidden_size_per_layer_input=0, sliding_window=16,
                                                        final_logit_softcapping=30.0), "gemma4",
                    dict(expert_count=5, expert_used_count=2, expert_feed_forward_length=256, feed_forward_length=256,
                         embedding_length_per_layer_input=0, final_logit_softcapping=30.0) | {
                             "attention.head_count_kv": [2, 2, 1], "attention.sliding_window_pattern": [True, True, False],
                             "attention.key_length": 128, "attention.key_length_swa": 64, "attention.value_length_swa": 64,
                             "rope.dimension_count_swa": 64, "attention.sliding_window": 16, "attention.shared_kv_layers": 0}),
}
ROTATED = {"glm4_moe": 32, "minimax_m2": 32, "gemma4_text": 128} | dict.fromkeys(gguf_models.WITH_DELTA_NETS, 16)  # of the 64 dimensions of a head
DELTA_NET_TOLERANCE = 5e-4  # and of Gemma 4


def ffn_parts(name):
    return [f"ffn_{part}{'_exps' if 'expert_count' in MIXTURES[name][3] else ''}" for part in ("gate", "up", "down")]


@pytest.fixture(scope="module", params=MIXTURES)
def mixture(request, tmp_path_factory):
    """All of whose rows are whole blocks of 256, with every parameter changed."""
    folder = tmp_path_factory.mktemp("mixture") / request.param
    torch.manual_seed(3)
    model_class, config, _, _ = MIXTURES[request.param]
    model = model_class(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("scale"):
                parameter += 0.3 * torch.randn_like(parameter)
            elif name.endswith(".bias"):
                parameter.normal_(0, 0.2)
            elif name.endswith("conv1d.weight"):
                parameter.normal_(0, 0.5)
            else:
                parameter.normal_(0, 0.15 if name.endswith("mlp.gate.weight") else 3 if name.endswith("router.proj.weight") else 0.06)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.2)
            elif name.endswith("layer_scalar"):
                buffer.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    return folder


def test_the_experts_of_a_layer_are_one_tensor_of_a_file(mixture, tmp_path):
    file = quantise(mixture, "fp32", tmp_path / "model.gguf")
    reader = gguf.GGUFReader(file)
    _, _, prefix, said = MIXTURES[mixture.name]
    assert {key: reader.fields[f"{prefix}.{key}"].contents() for key in said} == said
    assert reader.fields[f"{prefix}.rope.dimension_count"].contents() == ROTATED.get(mixture.name, 64)
    shapes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    for part in ffn_parts(mixture.name):
        assert shapes[f"blk.2.{part}.weight"] == ([256, 256, 5] if "_exps" in part else [256, 256])
    kept = AutoModelForCausalLM.from_pretrained(mixture, dtype=torch.float32).state_dict()
    found = gguf_models.dequantised(mixture, file).state_dict()
    assert kept.keys() == found.keys()
    for name, expected in kept.items():
        if mixture.name in gguf_models.WITH_DELTA_NETS and name.endswith(("norm.weight", "A_log")):  # plus one, or minus their exponential
            torch.testing.assert_close(expected, found[name], rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(expected, found[name]), name


@pytest.mark.parametrize("kind", ["f32", "q8_0", "q4_k"])
def test_quantised_experts_are_those_of_transformers(kind, mixture, tmp_path, monkeypatch):
    file = quantise(mixture, kind, tmp_path / "model.gguf")
    types = gguf_models.types_by_tensor(file)
    assert {types[f"blk.2.{part}.weight"] for part in (*ffn_parts(mixture.name), "attn_q")} == {kind.upper()}
    assert types.get("blk.2.ffn_gate_inp.weight", "F32") == "F32"  # a rounded router would take other experts
    assert {types.get(f"blk.0.ssm_{part}", "F32") for part in ("conv1d.weight", "a", "dt.bias", "norm.weight")} == {"F32"}
    model = gguf_models.dequantised(mixture, file)
    prompts = [torch.randint(3, 512, (length,), generator=torch.Generator().manual_seed(5)).tolist() for length in PROMPT_LENGTHS]
    monkeypatch.setenv("MOTLEY_ACTIVATIONS", "fp32")
    whole = [engine.chain(2, 2, cuts=[0, 1, 3], shares=[[0.6, 0.4], None], experts=[[4, 1], [2, 3]])]
    runs = engine.run(dict(model=str(file), weight_type="fp32" if kind == "f32" else "file",
                           requests=[dict(prompt=p, generate=GENERATE) for p in prompts],
                           layouts=[engine.chain(1, cuts=[0, 3]), engine.chain(2, 1, cuts=[0, 1, 3], shares=[[0.6, 0.4], None]),
                                    engine.chain(3, cuts=[0, 3], shares=[[0.5, 0.3, 0.2]]),
                                    *(whole if "expert_count" in MIXTURES[mixture.name][3] else [])],
                           scripts=[dict(name="batched", together=True)]), tmp_path)
    for run, logits in runs:
        expected = engine.logits_along(model, prompts[run["request"]], run["tokens"])
        loose = mixture.name in (*gguf_models.WITH_DELTA_NETS, "gemma4_text")
        tolerance = DELTA_NET_TOLERANCE if loose else FP32_TOLERANCE
        assert abs(logits - expected).max() <= tolerance * expected.std(), f"{run['layout']}, request {run['request']}"
        assert expected.argmax(axis=1).tolist() == run["tokens"]


# Of families that the shapes above leave out. Qwen2's files cannot say that some layers have windows.
OTHERS = {"mistral-sliding": {}, "qwen2-tied": dict(use_sliding_window=False, sliding_window=None, layer_types=["full_attention"] * 6)}


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
@pytest.mark.parametrize("name", OTHERS)
def test_files_of_small_rows_are_those_of_transformers(name, kind, tmp_path, monkeypatch):
    models.make(name, tmp_path / "model", **OTHERS[name])
    file = quantise(tmp_path / "model", kind, tmp_path / "model.gguf")
    model = gguf_models.dequantised(tmp_path / "model", file)
    prompts = [models.tokens(length, 5) for length in PROMPT_LENGTHS]
    monkeypatch.setenv("MOTLEY_ACTIVATIONS", "fp32")
    runs = engine.run(dict(model=str(file), weight_type="fp32" if kind == "f32" else "file",
                           requests=[dict(prompt=p, generate=GENERATE) for p in prompts],
                           layouts=[engine.chain(1, cuts=[0, 6]), engine.chain(2, 1, cuts=[0, 1, 6], shares=[[0.6, 0.4], None])],
                           scripts=[dict(name="batched", together=True)]), tmp_path)
    for run, logits in runs:
        expected = engine.logits_along(model, prompts[run["request"]], run["tokens"])
        assert abs(logits - expected).max() <= FP32_TOLERANCE * expected.std(), f"{run['layout']}, request {run['request']}"
        assert expected.argmax(axis=1).tolist() == run["tokens"]


def as_newer_converters_write(file, to):
    """Gates and ups in one tensor, and a list of the layers that have delta nets."""
    reader = gguf.GGUFReader(file)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(to, architecture)
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and not field.name.endswith(("general.architecture", "full_attention_interval")):
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    if architecture != "gemma4":
        writer.add_array(f"{architecture}.attention.recurrent_layers", [True, True, False])
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in tensors.items():
        if "ffn_gate_exps" in name:
            both = numpy.concatenate([tensor.data, tensors[name.replace("gate", "up")].data], axis=1)
            writer.add_tensor(name.replace("gate", "gate_up"), both, raw_dtype=tensor.tensor_type)
        elif "ffn_up_exps" not in name:
            writer.add_tensor(name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ["qwen3_next", "qwen3_5_moe_text", "gemma4_text"])
def test_gates_and_ups_of_experts_may_be_one_tensor(name, tmp_path):
    torch.manual_seed(3)
    model_class, config, _, _ = MIXTURES[name]
    model_class(config).save_pretrained(tmp_path / "model")
    file = quantise(tmp_path / "model", "q8_0", tmp_path / "model.gguf")
    as_newer_converters_write(file, tmp_path / "newer.gguf")
    runs = [engine.run(dict(model=str(one), weight_type="file", requests=[dict(prompt=list(range(3, 30)), generate=GENERATE)],
                            layouts=[engine.chain(2, 1, cuts=[0, 1, 3], shares=[[0.6, 0.4], None])], scripts=[dict(name="alone")]), tmp_path)
            for one in (file, tmp_path / "newer.gguf")]
    assert numpy.array_equal(runs[0][0][1], runs[1][0][1])


@pytest.mark.parametrize(("changes", "said"), [
    (dict(mlp_only_layers=[1]), "layer 1, whose FFN is dense (`mlp_only_layers`, `decoder_sparse_step`),"),
    (dict(norm_topk_prob=False), "a router whose shares are not normalised (`norm_topk_prob`)"),
])
def test_what_a_file_cannot_say_is_refused(changes, said, tmp_path):
    config = Qwen3MoeConfig(**{**ALIKE, "hidden_size": 32, "head_dim": 8, "norm_topk_prob": True, **changes}, num_experts=5,
                            moe_intermediate_size=16)
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path / "model")
    run = subprocess.run([engine.BUILD / "motley", "model", "quantize", tmp_path / "model", "--type", "q8_0", "-o", tmp_path / "model.gguf"],
                         capture_output=True, text=True)
    assert run.returncode != 0
    assert f"{said} cannot be written to a GGUF file" in run.stderr


def test_rows_that_do_not_fit_get_the_types_of_llama_quantize(tmp_path):
    make_model.make("135m", tmp_path / "model", **gguf_models.ROWS_OF_MANY_LENGTHS)
    expected = json.loads((engine.ROOT / "tests/data/llama_cpp_types.json").read_text())
    assert set(expected["q4_k"].values()) == {"F32", "F16", "Q5_0", "Q4_K"}
    for kind in gguf_models.RECORDED:
        file = quantise(tmp_path / "model", kind, tmp_path / f"{kind}.gguf")
        assert gguf_models.types_by_tensor(file) == expected[kind], kind
