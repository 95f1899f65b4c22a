"""Prompts that begin with the same tokens are computed once, and no text changes for it."""

import json
import os
import random
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from test_failure import CLUSTER, MODEL, Deployment

COUNT = 200 if os.environ.get("MOTLEY_PREFIXES") == "all" else 60
STORY = ["Once upon a time there was a little dog. It had a red ball and played in the park every day. ",
         "One day a big bird came and took the ball. The dog was sad and ran after it. ",
         "A girl named Lily saw them. She wanted to help the dog, so she called her mom. "]  # fmt: skip


def parts(number):
    """Of the messages of a conversation: where several begin, they begin alike."""
    chosen = random.Random(number)
    count = chosen.randrange(1, 6)
    branch = number % 4
    return [{"role": ["user", "assistant"][i % 2], "content": STORY[(i + branch) % 3] * (1 + i % 2)} for i in range(2 * count - 1)]


def ask(deployment, number, tokens=24, **rest):
    answer = deployment.client.chat.completions.create(
        model=deployment.model, messages=parts(number), max_tokens=tokens, seed=number, temperature=0 if number % 3 == 0 else 1,
        extra_body={"ignore_eos": True, **rest})  # fmt: skip
    return answer.choices[0].message.content, answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens


def texts(answers):
    return [text for text, _, _ in answers]


@pytest.fixture(scope="module")
def plan(motley, tmp_path_factory):
    """Over three devices, with room for some of the conversations alone."""
    folder = tmp_path_factory.mktemp("prefixes")
    cluster, file = folder / "cluster.toml", folder / "plan.json"
    cluster.write_text(CLUSTER.read_text().replace('"12 MiB"', '"16 MiB"').replace('"9 MiB"', '"14 MiB"'))
    subprocess.run([motley, "plan", "serve", "--cluster", cluster, "--model", MODEL, "--weight-type", "fp32", "-q", "-o", file], check=True,
                   timeout=60, stdout=subprocess.DEVNULL)
    made = json.loads(file.read_text())
    for stage in made["stages"]:
        stage["kv_tokens"] = 640
    del made["predicted"]
    file.write_text(json.dumps(made))
    return file


@pytest.fixture(scope="module")
def without(start_server, plan):
    """The answers of a server that computes every prompt."""
    server = start_server(plan, "--model", MODEL, "--prefix-cache", "off")
    deployment = Deployment(server)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: ask(deployment, number), range(COUNT)))
    assert server.stop() == 0
    assert all(cached == 0 for _, cached, _ in answers)
    assert len(set(texts(answers))) > COUNT / 2
    return texts(answers)


def metrics(deployment):
    with urllib.request.urlopen(deployment.server.url + "/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {line.split("{")[0].split()[0]: float(line.split()[-1]) for line in lines}


def test_texts_are_those_without_it_over_preemptions_and_a_loss(start_server, plan, without):
    deployment = Deployment(start_server(plan, "--model", MODEL))
    with ThreadPoolExecutor(12) as pool:
        requests = [pool.submit(ask, deployment, number) for number in range(COUNT)]
        while sum(request.done() for request in requests) < COUNT // 3:
            time.sleep(0.02)
        deployment.kill(sorted(deployment.workers())[-1])
        answers = [request.result(timeout=60) for request in requests]
    assert texts(answers) == without
    seen = metrics(deployment)
    assert seen["motley_prefix_cache_hits_total"] > 0.2 * seen["motley_prefix_cache_queries_total"]
    assert seen["motley_preemptions_total"] > 0, seen
    assert sum(cached for _, cached, _ in answers) > 0


def test_a_second_question_finds_the_first(start_server, plan, without):
    deployment = Deployment(start_server(plan, "--model", MODEL))
    text, cached, prompt = ask(deployment, 0)
    assert (text, cached) == (without[0], 0)
    text, cached, _ = ask(deployment, 0)
    assert text == without[0] and prompt - 16 <= cached + 16 <= prompt + 15, "all but the last tokens"
    assert ask(deployment, 0, cache_salt="another")[:2] == (without[0], 0)
    assert ask(deployment, 0, cache_salt="another", prompt_cache_key="tale")[1] == cached
    with pytest.raises(openai.BadRequestError, match="`prompt_cache_key` must have at most 1024 bytes"):
        ask(deployment, 0, prompt_cache_key="x" * 2000)


def test_answers_are_found_too_and_streams_tell(start_server, plan):
    deployment = Deployment(start_server(plan, "--model", MODEL))
    said = [{"role": "user", "content": STORY[0] + STORY[1]}]
    found = []
    for turn in range(4):
        stream = deployment.client.chat.completions.create(model=deployment.model, messages=said, max_tokens=60, temperature=0, stream=True,
                                                           stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
        chunks = list(stream)
        found.append((chunks[-1].usage.prompt_tokens_details.cached_tokens, chunks[-1].usage.prompt_tokens))
        said.append({"role": "assistant", "content": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)})
        said.append({"role": "user", "content": STORY[turn % 3]})
    assert found[0][0] == 0
    for (_, before), (cached, _) in zip(found, found[1:]):
        assert cached > before, "tokens of the answer, too"


def test_keys_share_nothing_unless_told_so(start_server, plan):
    def cached(server, key):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60)
        answer = client.completions.create(model="tales", prompt=" ".join(STORY), max_tokens=2)
        return answer.usage.prompt_tokens_details.cached_tokens

    keys = ("--model", MODEL, "--api-key", "one", "--operator-key", "two")
    apart = start_server(plan, *keys)
    assert cached(apart, "one") == 0 < cached(apart, "one")
    assert cached(apart, "two") == 0
    shared = start_server(plan, *keys, "--share-prefixes")
    assert cached(shared, "one") == 0 < cached(shared, "two")


def test_what_is_scored_is_computed(start_server, plan):
    deployment = Deployment(start_server(plan, "--model", MODEL))

    def score():
        answer = deployment.client.completions.create(model="tales", prompt=STORY[0], max_tokens=1, echo=True, logprobs=1, temperature=0)
        return answer.choices[0].logprobs.token_logprobs, answer.usage.prompt_tokens_details.cached_tokens

    first = score()
    assert first[1] == 0 and score() == first
