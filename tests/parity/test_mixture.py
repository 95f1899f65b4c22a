"""A mixture whose routing has been learnt (tests/data/tales-mixture): logits against `transformers`, and how many experts a step takes
against what a plan's price counts."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import engine

sys.path.append(str(engine.ROOT / "examples/tales"))
import talks  # noqa: E402

FOLDER = engine.ROOT / "tests/data/tales-mixture"
GENERATE = 16
UNLIKE_SEQUENCES, ONE_TEXT = 0.87, 0.75  # motley/cost/serve/step.cpp
MOST_ABOVE = 1.4  # the price's count over the true one: no loss balanced these experts, so popular ones are more popular than elsewhere


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def texts():
    """The first 64 tokens of talks that it has not seen."""
    tokenizer, rng = AutoTokenizer.from_pretrained(FOLDER), talks.random.Random("held out")
    written = [tokenizer.apply_chat_template(talks.messages(rng, (3, 6)), tokenize=False) for _ in range(80)]
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in written]
    return [text[:64] for text in tokens if len(text) >= 64]


def test_its_logits_are_those_of_transformers(model, texts, tmp_path):
    prompts = [texts[0][:9], texts[1], texts[2][:40]]
    runs = engine.run(dict(model=str(FOLDER), requests=[dict(prompt=prompt, generate=GENERATE) for prompt in prompts],
                           layouts=[engine.chain(1, cuts=[0, 6]), engine.chain(3, 2, cuts=[0, 2, 6], shares=[[0.5, 0.3, 0.2], None])],
                           scripts=[dict(name="batched", together=True)]), tmp_path)
    for run, logits in runs:
        expected = engine.logits_along(model, prompts[run["request"]], run["tokens"])
        assert abs(logits - expected).max() <= 1e-4 * expected.std(), f"{run['layout']}, request {run['request']}"
        assert expected.argmax(axis=1).tolist() == run["tokens"]


def choose(model, texts):
    """[layers, texts, tokens, experts of each]."""
    config, layers = model.config, []
    hooks = [layer.mlp.gate.register_forward_hook(lambda gate, inputs, _: layers.append(
        (inputs[0].reshape(len(texts), -1, config.hidden_size) @ gate.weight.T).topk(config.num_experts_per_tok).indices))
        for layer in model.model.layers]
    with torch.no_grad():
        model(texts, use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack(layers)


@pytest.fixture(scope="module")
def chosen(model, texts):
    return choose(model, torch.tensor(texts))


def run_motley(*words, cwd):
    result = subprocess.run([engine.BUILD / "motley", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


PROBED_TOKENS, PIECE = 4096, 512  # motley/probe/routing_probe.cpp


def long_text(seed):
    rng = talks.random.Random(seed)
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    text = "".join(tokenizer.apply_chat_template(talks.messages(rng, (3, 6)), tokenize=False) for _ in range(60))
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(tokens) >= PROBED_TOKENS
    return text, tokens[:PROBED_TOKENS]


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """What the probe makes of one text."""
    folder = tmp_path_factory.mktemp("probe")
    (folder / "text.txt").write_text(long_text("probed")[0])
    run_motley("cluster", "probe", "--routing", "--model", FOLDER, "--text", "text.txt", "--weight-type", "fp32", "-o", "profile.json", cwd=folder)
    return json.loads((folder / "profile.json").read_text())


def counted(model, tokens):
    """{(layer, size): (of tokens far apart, of neighbours)}: means over the whole text."""
    pieces = torch.tensor(tokens).view(-1, PIECE)
    chosen = choose(model, pieces).flatten(1, 2)
    means = {}
    for layer, of_tokens in enumerate(chosen):
        for size in (1, 4, 16, 64):
            apart, neighbours = of_tokens.view(size, -1, of_tokens.shape[-1]).transpose(0, 1), of_tokens.view(-1, size, of_tokens.shape[-1])
            means[layer, size] = tuple(sum(len(group.unique()) for group in groups) / len(groups) for groups in (apart, neighbours))
    return means


def test_the_probe_counts_the_experts_that_transformers_takes(model, profile):
    means = counted(model, long_text("probed")[1])
    assert len(profile["routing"]) == len(means)
    for count in profile["routing"]:
        assert count["model"] == FOLDER.name
        expected = means[count["layer"], count["tokens"]]
        assert (count["distinct"], count["distinct_of_prompt"]) == pytest.approx(expected, rel=1e-3)


def by_gamma(tokens, gamma, which):
    independent, before = 1, 1
    for part in gamma:
        end = min(tokens, part["tokens"])
        independent, before = independent * (end / before) ** part[which], end
    config = json.loads((FOLDER / "config.json").read_text())
    count = config["num_local_experts"]
    return count * (1 - (1 - config["num_experts_per_tok"] / count) ** independent)


@pytest.mark.parametrize("tokens", [1, 4, 16, 64])
def test_probed_gamma_predicts_the_experts_of_another_text(model, profile, tokens):
    means = counted(model, long_text("another")[1])
    for i, which in enumerate(("sequences", "prompt")):
        of_layers = [value[i] for (_, size), value in means.items() if size == tokens]
        assert by_gamma(tokens, profile["gamma"], which) == pytest.approx(sum(of_layers) / len(of_layers), rel=0.05)


def test_a_plan_carries_the_profile_and_reads_fewer_experts(profile, tmp_path):
    (tmp_path / "profile.json").write_text(json.dumps(profile))
    plan = "plan", "serve", "--cluster", engine.ROOT / "examples/clusters/desk.toml", "--model", FOLDER, "--weight-type", "fp32"
    run_motley(*plan, "-o", "uncounted.json", cwd=tmp_path)
    run_motley(*plan, "--profile", "profile.json", "-o", "counted.json", cwd=tmp_path)
    counted_plan = json.loads((tmp_path / "counted.json").read_text())
    assert counted_plan["profile"]["gamma"] == profile["gamma"]
    run_motley("verify", "counted.json", cwd=tmp_path)
    uncounted_plan = json.loads((tmp_path / "uncounted.json").read_text())
    assert counted_plan["predicted"]["tokens_per_s"] > uncounted_plan["predicted"]["tokens_per_s"]


def distinct(chosen):
    """The mean over layers of how many experts are among these."""
    return sum(len(layer.unique()) for layer in chosen) / len(chosen)


def priced(tokens, exponent):
    config = json.loads((FOLDER / "config.json").read_text())
    count = config["num_local_experts"]
    return count * (1 - (1 - config["num_experts_per_tok"] / count) ** tokens ** exponent)


@pytest.mark.parametrize("tokens", [1, 4, 16, 64])
def test_a_step_takes_the_experts_that_its_price_counts(chosen, tokens):
    assert chosen.shape[1] >= 64
    unlike = sum(distinct(chosen[:, :tokens, place].flatten(1)) for place in range(20, 60, 4)) / 10
    assert 1 <= priced(tokens, UNLIKE_SEQUENCES) / unlike <= MOST_ABOVE
    one_text = sum(distinct(text[:, :tokens].flatten(1)) for text in chosen[:, :8].unbind(1)) / 8
    assert 1 <= priced(tokens, ONE_TEXT) / one_text <= MOST_ABOVE
    assert tokens < 64 or unlike > 24, "its routing has collapsed"
