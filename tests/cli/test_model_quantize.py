"""`motley model quantize`, and GGUF files as models of plans."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TALES = "data/models/tales"
GARAGE = "--cluster examples/garage/cluster.toml --max-tokens 64 --max-sequences 8 --no-roles -q"


@pytest.fixture(scope="module")
def quantised(run_to, tmp_path_factory):
    """A file of a type, made once."""
    folder = tmp_path_factory.mktemp("gguf")

    def quantised(kind):
        file = folder / f"{kind}.gguf"
        if not file.exists():
            run_to("model", "quantize", TALES, "--type", kind, "-o", file, "-q")
        return file

    return quantised


def test_a_file_says_what_its_folder_says(run_to, quantised):
    folder = json.loads(run_to("model", "show", TALES, "--json").stdout)
    assert json.loads(run_to("model", "show", quantised("q4_k"), "--json").stdout) == folder


def test_the_size_is_told(run_to, tmp_path):
    told = run_to("model", "quantize", TALES, "--type", "q8_0", "-o", tmp_path / "a.gguf").stdout
    assert "of weights, 8.52 bits each" in told
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_a_plan_carries_the_types_and_counts_with_them(run_to, quantised, tmp_path):
    plan = tmp_path / "plan.json"
    run_to("plan", "serve", *GARAGE.split(), "--model", quantised("q4_k"), "-o", plan)
    written = json.loads(plan.read_text())
    types = written["model"]["tensor_types"]
    assert types["model.layers.0.mlp.down_proj.weight"] == "q4_k"
    assert types["model.layers.0.self_attn.q_proj.weight"] == "q5_0", "rows of 192 are not whole blocks of 256"
    assert {(stage["weight_type"], stage["kv_type"]) for stage in written["stages"]} == {("file", "fp32")}
    run_to("verify", plan)
    types["model.layers.0.mlp.down_proj.weight"] = "q6_k"
    plan.write_text(json.dumps(written))
    assert "memory_bytes" in run_to("verify", plan, code=1).stdout


def test_files_of_fp32_and_bf16_are_planned_as_folders(run_to, quantised, tmp_path):
    for kind, planned in (("f32", "fp32"), ("bf16", "bf16"), ("f16", "file")):
        plan = tmp_path / f"{kind}.json"
        run_to("plan", "serve", "--cluster", "examples/clusters/mixed-cloud.toml", "-q", "--model", quantised(kind), "-o", plan)
        assert {stage["weight_type"] for stage in json.loads(plan.read_text())["stages"]} == {planned}


def test_a_folder_can_be_planned_in_a_quantised_type(run_to, tmp_path):
    plan = tmp_path / "plan.json"
    run_to("plan", "serve", *GARAGE.split(), "--model", TALES, "--weight-type", "q8_0", "-o", plan)
    written = json.loads(plan.read_text())
    assert "tensor_types" not in written["model"]
    assert {stage["weight_type"] for stage in written["stages"]} == {"q8_0"}


def test_the_fuzz_targets_begin_with_models(run_to, tmp_path):
    subprocess.run([sys.executable, ROOT / "tests/fuzz/gguf_seeds.py", tmp_path], check=True)
    families = {run_to("model", "show", file).stdout.split("family")[1].split()[0] for file in tmp_path.iterdir()}
    assert families == {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "glm4_moe", "minimax_m2", "gpt_oss", "gemma3_text", "gemma4_text",
                        "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"}


@pytest.mark.parametrize(
    "arguments, words, hint",
    [
        (["model", "quantize", TALES, "--type", "q4_2", "-o", "x.gguf"], '--type "q4_2" is not one of f32, f16, bf16', "did you mean"),
        (["model", "quantize", TALES, "--type", "q4_0", "-o", "nowhere/x.gguf"], "the folder nowhere does not exist", "mkdir"),
        (["model", "quantize", "data/models/opt-125m", "--type", "q4_0", "-o", "x.gguf"], "the family opt cannot be written", "--weight-type"),
        (["model", "show", "README.gguf"], "README.gguf: no such file or folder", "a GGUF file"),
        (["plan", "serve", *GARAGE.split(), "--model", TALES, "--weight-type", "file"], "does not say the types of its tensors", "GGUF file"),
        (["plan", "serve", *GARAGE.split(), "--model", TALES, "--kv-type", "q4_0"], "--kv-type must be a type that the engine computes in, found q4_0", "fp32, bf16, fp16 or q8_0"),
        (["plan", "serve", *GARAGE.split(), "--model", TALES, "--kv-type", "q8_0"], "q8_0 keys and values come in blocks of 32 along a head, and the model's head_dim is 24", "`kv_type` (`--kv-type`) to fp32 or bf16"),
        (["plan", "serve", *GARAGE.split(), "--model", TALES, "--kv-type", "q9"], "q9", "q8_0"),
        (["plan", "serve", *GARAGE.split(), "--model", TALES, "--crossing-type", "q8_0"], "activations cannot be sent in q8_0", "fp32, bf16 or int8"),
        (["model", "memory", TALES, "--kv-type", "q8_0"], "the model's head_dim is 24", "fp32 or bf16"),
        (["model", "memory", TALES, "--kv-type", "file"], "--kv-type must be a type of keys and values, found file", "q8_0"),
    ],
)
def test_refusals(run_to, arguments, words, hint):
    refused = run_to(*arguments, code=3 if "mkdir" in hint else 2).stderr
    assert words in refused and hint in refused


def test_a_damaged_file_is_named_with_its_place(run_to, quantised, tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(quantised("q8_0").read_bytes()[:200_000])
    refused = run_to("model", "show", damaged, code=2).stderr
    assert f"{damaged}: tensor " in refused and "cut off" in refused


def serves(run_to, plan, model, code=0):
    return run_to("serve", plan, "--model", model, "--local", "--dry-run", code=code).stderr


def test_a_plan_is_served_with_the_file_that_it_was_made_for(run_to, quantised, tmp_path):
    plan = tmp_path / "plan.json"
    run_to("plan", "serve", *GARAGE.split(), "--model", quantised("q4_k"), "-o", plan)
    written = json.loads(plan.read_text())
    digest = written["model"]["digest"]
    serves(run_to, plan, quantised("q4_k"))
    other = tmp_path / "other.gguf"
    content = quantised("q4_k").read_bytes()
    assert content.count(b"tokenizer.chat_template") == 1
    other.write_bytes(content.replace(b"tokenizer.chat_template", b"tokenizer.chat_templatE"))
    refused = serves(run_to, plan, other, code=2)
    assert f"{other} is not the file or folder that the plan was made for: its digest is sha256:" in refused
    assert f"the plan's is {digest}" in refused and f"plan again with --model {other}" in refused
    del written["model"]["digest"]
    plan.write_text(json.dumps(written))
    serves(run_to, plan, other)
    written["model"]["digest"] = digest[:-1]
    plan.write_text(json.dumps(written))
    assert "model.digest: expected sha256: and 64 hexadecimal digits" in run_to("verify", plan, code=2).stderr


def test_a_plan_for_a_folder_is_served_with_its_copy(run_to, tmp_path):
    plan, copy = tmp_path / "plan.json", tmp_path / "copy"
    run_to("plan", "serve", *GARAGE.split(), "--model", TALES, "-o", plan)
    shutil.copytree(ROOT / TALES, copy)
    serves(run_to, plan, copy)
    (copy / "config.json").write_text((copy / "config.json").read_text() + " ")
    assert f"{copy} is not the file or folder that the plan was made for" in serves(run_to, plan, copy, code=2)
    (copy / "model.safetensors").unlink()
    serves(run_to, plan, copy)  # without weights there is nothing to compare


def test_a_shape_has_no_digest(run_to, tmp_path):
    plan = tmp_path / "plan.json"
    run_to("plan", "serve", "--cluster", "examples/clusters/mixed-cloud.toml", "-q", "--model", "llama-2-70b", "-o", plan)
    assert "digest" not in json.loads(plan.read_text())["model"]
