"""`echo` with `logprobs`: what `/v1/completions` says about a prompt's tokens is what `transformers` computes."""

import json
import math
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "data" / "models" / "tales"
TEXT = ("Once upon a time there was a little fox who lived at the edge of the forest. Every morning she walked to the river, "
        "looked at the water, and wondered what was on the other side. One day a bird came and said: \"Follow me!\" ") * 3
CLUSTERS = {"one device": "examples/garage/one-device.toml", "several stages": "tests/server/cluster.toml"}


@pytest.fixture(scope="module", params=CLUSTERS)
def server(request, start_server):
    # Chunks of at most 48 tokens, whose logits come in groups of 3 rows.
    server = start_server("--cluster", ROOT / CLUSTERS[request.param], "--model", MODEL, "--weight-type", "fp32",
                          "--max-tokens", 48, "--max-sequences", 3)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(MODEL)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()


@torch.no_grad()
def logprobs_of(model, tokens):
    return torch.log_softmax(model(torch.tensor([tokens])).logits[0].double(), -1)


def post(server, **body):
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def echo(server, prompt, max_tokens=0, logprobs=5, **more):
    answer = post(server, prompt=prompt, echo=True, logprobs=logprobs, max_tokens=max_tokens, temperature=0, **more)
    return answer["choices"], answer["usage"]


@pytest.mark.parametrize("as_text", [True, False])
def test_prompt_logprobs_equal_transformers(server, tokenizer, model, as_text):
    tokens = tokenizer.encode(TEXT)
    expected = logprobs_of(model, tokens)
    (choice,), usage = echo(server, TEXT if as_text else tokens)
    assert choice["text"] == TEXT and choice["finish_reason"] == "length"
    assert usage == {"prompt_tokens": len(tokens), "completion_tokens": 0, "total_tokens": len(tokens),
                     "prompt_tokens_details": {"cached_tokens": 0}}  # fmt: skip
    said = choice["logprobs"]
    assert len(tokens) > 2 * 48, "the prompt must be cut into chunks"
    assert [len(said[key]) for key in said] == [len(tokens)] * 4
    assert said["token_logprobs"][0] is None and said["top_logprobs"][0] is None
    for place, token in enumerate(tokens[1:], 1):
        row = expected[place - 1]
        assert said["token_logprobs"][place] == pytest.approx(row[token].item(), abs=1e-3)
        top = said["top_logprobs"][place]
        assert sorted(top.values(), reverse=True) == pytest.approx(row.topk(5).values.tolist(), abs=1e-3)
        assert said["text_offset"][place - 1] <= said["text_offset"][place] < len(TEXT)
    # Offsets and texts of the tokens are those of the prompt.
    for token, start, end in zip(said["tokens"], said["text_offset"], said["text_offset"][1:] + [len(TEXT)]):
        assert TEXT[start:end] == token


def test_perplexity_equals_transformers(server, tokenizer, model):
    tokens = tokenizer.encode(TEXT)
    (choice,), _ = echo(server, tokens, logprobs=0)
    logprobs = choice["logprobs"]["token_logprobs"][1:]
    perplexity = math.exp(-sum(logprobs) / len(logprobs))
    with torch.no_grad():
        batch = torch.tensor([tokens])
        assert perplexity == pytest.approx(math.exp(model(batch, labels=batch).loss.item()), rel=1e-4)


def test_the_answer_follows_the_prompt(server, tokenizer):
    """As lm-evaluation-harness asks: several prompts, one token, with echo."""
    prompts = [tokenizer.encode(text) for text in ("Once upon a time", "The fox saw a bird", "One")]
    plain = post(server, prompt=prompts, max_tokens=1, temperature=0, logprobs=1)["choices"]
    choices, usage = echo(server, prompts, max_tokens=1, logprobs=1)
    assert usage["completion_tokens"] == len(prompts)
    for prompt, alone, choice in zip(prompts, plain, choices):
        said = choice["logprobs"]
        assert len(said["tokens"]) == len(prompt) + 1
        assert said["tokens"][-1] == alone["logprobs"]["tokens"][0] == choice["text"][said["text_offset"][-1]:]
        assert said["token_logprobs"][-1] == alone["logprobs"]["token_logprobs"][0]


def test_streams_begin_with_the_prompt(server):
    whole, _ = echo(server, "The fox", max_tokens=4, logprobs=2)
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps({
        "prompt": "The fox", "echo": True, "logprobs": 2, "max_tokens": 4, "temperature": 0, "stream": True}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        lines = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: {")]
    parts = [json.loads(line)["choices"][0] for line in lines]
    assert "".join(part["text"] for part in parts) == whole[0]["text"]
    assert sum((part["logprobs"]["tokens"] for part in parts if part["logprobs"]), []) == whole[0]["logprobs"]["tokens"]


def test_a_prompt_may_fill_the_context(server):
    context = json.loads((MODEL / "config.json").read_text())["max_position_embeddings"]
    (choice,), _ = echo(server, [7] * context, logprobs=0)
    assert len(choice["logprobs"]["token_logprobs"]) == context
    with pytest.raises(urllib.error.HTTPError) as error:
        echo(server, [7] * (context + 1), logprobs=0)
    assert json.load(error.value)["error"]["code"] == "context_length_exceeded"


def test_echo_alone(server):
    assert post(server, prompt=["Hello", "A fox"], echo=True, max_tokens=0)["choices"][1]["text"] == "A fox"
    with pytest.raises(urllib.error.HTTPError) as error:
        post(server, prompt="Hello", max_tokens=0)
    assert json.load(error.value)["error"]["param"] == "max_tokens"
