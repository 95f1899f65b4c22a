"""Mixtures of experts on piles of unlike cards: sound plans, explained with experts as a part of their own. How near the
simulator comes to their prediction: bench/mixture_bench.cpp."""

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


def named(term, name):
    """All terms of this name below."""
    for child in term.get("terms", []):
        if child["name"] == name:
            yield child
        yield from named(child, name)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("pile", PILES, ids=lambda pile: pile.stem)
def test_a_plan_is_sound_and_explains_experts_apart(run, pile, model):
    run("plan", "serve", "--cluster", pile, "--model", model, "--weight-type", "q4_k", "--objective", "throughput", "-o", "plan.json", "--quiet")
    run("verify", "plan.json")
    of_layers = list(named(json.loads(run("explain", "plan.json", "--json")), "products"))
    parts = [part for products in of_layers for name in ("memory", "compute") for part in named(products, name)]
    with_experts = [part for part in parts if "terms" in part]
    assert with_experts and (len(with_experts) == len(parts) or model == "glm-4.5-air"), "GLM's first layer has none"
    for part in with_experts:
        others, experts = part["terms"]
        assert (others["name"], experts["name"]) == ("other weights", "experts")
        assert experts["seconds"] > 0 and experts["seconds"] + others["seconds"] == pytest.approx(part["seconds"])


def test_dense_models_have_no_experts_to_explain(run):
    run("plan", "serve", "--cluster", PILES[0], "--model", "llama-2-70b", "--weight-type", "q4_k", "-o", "plan.json", "--quiet")
    assert not list(named(json.loads(run("explain", "plan.json", "--json")), "experts"))
