"""A mixture whose routing has been learnt (tests/data/tales-mixture): logits against `transformers`, and how many experts a step takes
against what a plan's price counts."""

import json
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


@pytest.fixture(scope="module")
def chosen(model, texts):
    """[layers, texts, tokens, experts of each]."""
    config, layers = model.config, []
    hooks = [layer.mlp.gate.register_forward_hook(lambda gate, inputs, _: layers.append(
        (inputs[0].reshape(len(texts), -1, config.hidden_size) @ gate.weight.T).topk(config.num_experts_per_tok).indices))
        for layer in model.model.layers]
    with torch.no_grad():
        model(torch.tensor(texts), use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack(layers)


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
