"""Mixtures of experts on piles of unlike cards: sound plans, explained with experts as a part of their own, that the
simulator finds as near to their prediction as those of dense models."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PILES = sorted((ROOT / "tests/data/piles").glob("*.toml"))
MODELS = ["mixtral-8x7b", "qwen3-235b-a22b", "glm-4.5-air", "gpt-oss-120b"]


@pytest.fixture
def run(motley, tmp_path):
    def run(*words):
        result = subprocess.run([str(motley), *map(str, words)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def dense_like(name):
    """As many layers and bytes: one FFN as wide as all experts."""
    config = json.loads((ROOT / "data/models" / name / "config.json").read_text())
    experts = next(config[key] for key in ("num_local_experts", "num_experts", "n_routed_experts") if key in config)
    kept = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
            "max_position_embeddings", "torch_dtype")
    return {"model_type": "llama", "intermediate_size": experts * config.get("moe_intermediate_size", config["intermediate_size"]),
            **{key: config[key] for key in kept if key in config}}


def simulated_over_predicted(run, plan):
    predicted = json.loads(plan.read_text())["predicted"]
    rate = predicted["requests_per_s"]
    arrivals = f"--rate={3 * rate} /s", f"--duration={300 / rate} s", "--max-queue=100000"
    return json.loads(run("simulate", plan, *arrivals, "--json", "--quiet"))["tokens_per_s"] / predicted["tokens_per_s"]


def named(term, name):
    """All terms of this name below."""
    for child in term.get("terms", []):
        if child["name"] == name:
            yield child
        yield from named(child, name)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pile", PILES, ids=lambda pile: pile.stem)
def test_a_plan_is_sound_and_simulates_like_a_dense_one(run, tmp_path, pile, model):
    (tmp_path / "dense.json").write_text(json.dumps(dense_like(model)))
    ratios = []
    for name, file in ((model, "mixture-plan.json"), ("dense.json", "dense-plan.json")):
        run("plan", "serve", "--cluster", pile, "--model", name, "--weight-type", "q4_k", "--objective", "throughput", "-o", file, "--quiet")
        run("verify", file)
        ratios.append(simulated_over_predicted(run, tmp_path / file))
    assert abs(ratios[0] - 1) <= abs(ratios[1] - 1) + 0.03, ratios

    layers = [term for term in named(json.loads(run("explain", "mixture-plan.json", "--json")), "products")]
    assert layers
    for products in layers:
        for part in ("memory", "compute"):
            experts, = named(next(named(products, part)), "experts")
            assert experts["seconds"] > 0 and "per step, layer and rank" in experts["note"]
    assert not list(named(json.loads(run("explain", "dense-plan.json", "--json")), "experts"))
