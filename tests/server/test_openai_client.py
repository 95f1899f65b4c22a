"""The official OpenAI client against `motley serve`: what existing programs would do."""

import http.client
import json
import math
import os
import signal
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "data" / "models" / "tales"
QUESTION = [{"role": "user", "content": "Tell me a short tale about a fox."}]


@pytest.fixture(scope="module")
def server(start_server):
    return start_server("--cluster", ROOT / "tests" / "server" / "cluster.toml", "--model", MODEL)


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def get(server, path):
    with urllib.request.urlopen(server.url + path, timeout=10) as answer:
        return answer.read().decode()


def metric(server, name):
    lines = [line.rsplit(" ", 1) for line in get(server, "/metrics").splitlines() if not line.startswith("#")]
    return sum(float(value) for key, value in lines if key.partition("{")[0] == name)


def chat(client, model, **parameters):
    return client.chat.completions.create(
        model=model, messages=QUESTION, **{"temperature": 0, "max_tokens": 32, **parameters})


def test_models(client, model):
    assert client.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_chat(client, model):
    answer = chat(client, model)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == model
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert 1 <= answer.usage.completion_tokens <= 32
    assert chat(client, model).choices[0].message.content == choice.message.content


def test_streaming_is_the_same_text(client, model):
    whole = chat(client, model)
    chunks = list(chat(client, model, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len(chunks) > 5


def test_seeds(client, model):
    def draw(seed):
        return chat(client, model, temperature=1, seed=seed).choices[0].message.content

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(4)}) > 1


def test_logprobs(client, model):
    choice = chat(client, model, logprobs=True, top_logprobs=3, max_tokens=8).choices[0]
    content = choice.logprobs.content
    assert len(content) == 8
    assert b"".join(bytes(token.bytes) for token in content).decode() == choice.message.content
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token  # the likeliest, since the temperature is 0
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert sum(math.exp(other.logprob) for other in token.top_logprobs) <= 1 + 1e-4
    streamed = []
    for chunk in chat(client, model, logprobs=True, top_logprobs=3, max_tokens=8, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [token.token for token in streamed] == [token.token for token in content]


def test_completions(client, model):
    answer = client.completions.create(model=model, prompt=["Once upon a time", "The fox"], max_tokens=5, temperature=0, logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
        assert choice.logprobs.text_offset[0] == 0
    alone = client.completions.create(model=model, prompt="The fox", max_tokens=5, temperature=0)
    assert alone.choices[0].text == answer.choices[1].text
    from_tokens = client.completions.create(model=model, prompt=[6, 7, 8], max_tokens=5, temperature=0,
                                            extra_body={"return_token_ids": True, "ignore_eos": True})
    assert from_tokens.usage.prompt_tokens == 3
    assert len(from_tokens.choices[0].token_ids) == 5
    assert from_tokens.choices[0].finish_reason == "length"


def test_stop_strings(client, model):
    text = chat(client, model, max_tokens=48).choices[0].message.content
    for stop in (text[10:13], text[7], text[-2:]):
        before = text[: text.index(stop)]
        answer = chat(client, model, max_tokens=48, stop=[stop, "never in a tale"])
        assert answer.choices[0].message.content == before
        assert answer.choices[0].finish_reason == "stop"
        pieces = chat(client, model, max_tokens=48, stop=stop, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces) == before


def test_several_choices(client, model):
    answer = chat(client, model, n=3, temperature=1, seed=11, max_tokens=16)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    alone = chat(client, model, temperature=1, seed=12, max_tokens=16)
    assert alone.choices[0].message.content == answer.choices[1].message.content
    texts = {}
    for chunk in chat(client, model, n=3, temperature=1, seed=11, max_tokens=16, stream=True):
        part = chunk.choices[0]
        texts[part.index] = texts.get(part.index, "") + (part.delta.content or "")
    assert [texts[i] for i in range(3)] == [choice.message.content for choice in answer.choices]


def test_lengths(client, model):
    answer = chat(client, model, max_tokens=3, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 3 and answer.choices[0].finish_reason == "length"
    assert chat(client, model, max_completion_tokens=2, extra_body={"min_tokens": 2}).usage.completion_tokens == 2


def test_penalties_and_bias_change_the_text(client, model):
    plain = chat(client, model, extra_body={"return_token_ids": True})
    first = plain.choices[0].token_ids[0]
    biased = chat(client, model, logit_bias={str(first): -100}, extra_body={"return_token_ids": True})
    assert first not in biased.choices[0].token_ids
    assert chat(client, model, frequency_penalty=2, presence_penalty=2).choices[0].message.content


def test_parameters_that_change_nothing(client, model):
    text = chat(client, model).choices[0].message.content
    for same in ({"tool_choice": "none"}, {"tool_choice": "auto"}, {"extra_body": {"repetition_penalty": 1.0, "best_of": 1, "chat_template_kwargs": {}}}):
        assert chat(client, model, **same).choices[0].message.content == text


@pytest.mark.parametrize("parameters, param", [
    ({"temperature": 5}, "temperature"),
    ({"n": 100}, "n"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"extra_body": {"temprature": 1}}, "temprature"),
])
def test_wrong_parameters(client, model, parameters, param):
    with pytest.raises(openai.BadRequestError) as error:
        chat(client, model, **parameters)
    assert error.value.param == param


def test_wrong_requests(client, model, server):
    with pytest.raises(openai.NotFoundError) as error:
        chat(client, "another")
    assert error.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "fox " * 5000}])
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=[])
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=model, input="text")
    for body in (b"{", b'{"messages": "\xff"}', b"[" * 100000):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 400 and json.load(answer)["error"]["type"] == "invalid_request_error"
        connection.close()
    assert chat(client, model).choices[0].message.content  # the others are still served


def test_leaving_cancels(client, model, server):
    """A client that leaves frees its place at once: long before its tokens could have been generated."""
    generated = metric(server, "motley_generated_tokens_total")
    stream = chat(client, model, stream=True, max_tokens=400, temperature=1, extra_body={"ignore_eos": True})
    for _, _ in zip(range(4), stream):
        pass
    stream.close()
    until = time.monotonic() + 20
    while metric(server, "motley_requests_running") > 0 and time.monotonic() < until:
        time.sleep(0.02)
    assert metric(server, "motley_requests_running") == 0
    assert metric(server, "motley_generated_tokens_total") - generated < 300
    assert metric(server, "motley_kv_blocks_free") == metric(server, "motley_kv_blocks")


def test_many_at_once(client, model):
    """Twenty streams together give what each gives alone."""
    def run(seed):
        chunks = chat(client, model, temperature=1, seed=seed, max_tokens=24, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    alone = {seed: run(seed) for seed in (0, 7, 19)}
    with ThreadPoolExecutor(20) as pool:
        together = list(pool.map(run, range(20)))
    assert all(together)
    assert {seed: together[seed] for seed in alone} == alone


def test_plan_and_metrics(client, model, server):
    chat(client, model)
    report = json.loads(get(server, "/plan"))
    assert report["ready"] and report["plan"]["kind"] == "serve"
    assert report["generated_tokens"] > 0 and report["tokens_per_s"]["measured"] > 0
    assert sorted(worker["process"] for worker in report["workers"]) == sorted(server.workers)
    for worker in report["workers"]:
        assert worker["weight_bytes"] == worker["memory_bytes"]["measured"]["weights"] > 0
        assert worker["kernels"]
        assert worker["alive"] and worker["steps"] > 0 and worker["busy_s"] > 0
        for part, predicted in worker["memory_bytes"]["predicted"].items():
            measured = worker["memory_bytes"]["measured"][part]
            assert measured == pytest.approx(predicted, rel=0.01), (worker["device"], part)
    text = get(server, "/metrics")
    for name in ("motley_time_to_first_token_seconds_bucket", "motley_time_per_output_token_seconds_count",
                 "motley_kv_blocks_free", "motley_worker_up", "motley_requests_total"):
        assert name in text
    assert get(server, "/health") and get(server, "/ready")


def test_interrupt_drains(start_server):
    """SIGINT: the answer under way is given whole, and nothing is left."""
    server = start_server("--cluster", ROOT / "tests" / "server" / "cluster.toml", "--model", MODEL)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
    stream = client.chat.completions.create(model=client.models.list().data[0].id, messages=QUESTION, stream=True, max_tokens=200,
                                            extra_body={"ignore_eos": True})
    first = next(iter(stream))
    result = []
    stopper = threading.Thread(target=lambda: result.append(server.stop(signal.SIGINT)))
    stopper.start()
    chunks = [first, *stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    stopper.join()
    assert result == [0]
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    assert not (state / "motley" / "operators" / f"127.0.0.1:{server.port}").exists()


def test_nothing_to_do_costs_nothing(server, client, model):
    """Between requests neither the server nor its workers look for work: less than 5 % of one processor for all."""
    assert chat(client, model).choices[0].finish_reason  # its connection stays open

    def processor_s():
        seconds = 0
        for process in [server.process.pid, *server.workers]:
            words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        return seconds

    before_s, before = processor_s(), time.monotonic()
    time.sleep(2)
    assert processor_s() - before_s < 0.05 * (time.monotonic() - before)
