"""What happens to a server when something dies or is in its way."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "server" / "cluster.toml"
MODEL = ROOT / "data" / "models" / "tales"


class Deployment:
    """A server over three devices, any two of which hold the model, and what it says of itself."""

    def __init__(self, server):
        self.server = server
        self.client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
        self.model = self.client.models.list().data[0].id

    def plan(self):
        with urllib.request.urlopen(self.server.url + "/plan", timeout=10) as answer:
            return json.load(answer)

    def workers(self):
        """Process ids by device; those that ever were are to be gone when the server is."""
        workers = {worker["device"]: worker["process"] for worker in self.plan()["workers"] if worker["alive"]}
        self.server.workers += workers.values()
        return workers

    def kill(self, device, at_the_end=False):
        """Returns when workers of another epoch serve."""
        epoch, until = self.plan()["epoch"], time.monotonic() + 30
        os.kill(self.workers()[device], signal.SIGKILL)
        while not at_the_end and (self.plan()["epoch"] == epoch or self.server.status("/ready") != 200):
            assert time.monotonic() < until, self.server.text()
            time.sleep(0.01)

    def ask(self, number, tokens=150):
        """The text; half of the requests stream, and a third are greedy."""
        stream = number % 2 == 0
        answer = self.client.chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": f"Tell me tale {number}."}], stream=stream, max_tokens=tokens, seed=number,
            temperature=0 if number % 3 == 0 else 1, extra_body={"ignore_eos": True})
        if not stream:
            return answer.choices[0].message.content
        return "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)


@pytest.fixture
def deployment(start_server, tmp_path):
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(CLUSTER.read_text().replace('"12 MiB"', '"16 MiB"').replace('"9 MiB"', '"14 MiB"'))
    return Deployment(start_server("--cluster", cluster, "--model", MODEL, "--weight-type", "fp32"))


def test_workers_die_under_load_and_no_request_notices(deployment):
    with ThreadPoolExecutor(8) as pool:
        undisturbed = list(pool.map(deployment.ask, range(8)))
        assert len(set(undisturbed)) > 5
        for device, number in deployment.workers().items():
            before = deployment.workers()
            requests = [pool.submit(deployment.ask, number) for number in range(8)]
            time.sleep(random.Random(number).uniform(0.1, 0.3))
            deployment.kill(device)
            assert [request.result(timeout=60) for request in requests] == undisturbed
            after = deployment.workers()
            assert {other for other in before if after[other] == before[other]} == before.keys() - {device}, "the others stay"
            read = {worker["device"]: worker["loaded_bytes"] for worker in deployment.plan()["workers"]}
            assert {other for other in read if read[other] == 0} == before.keys() - {device}, "and read no weights"


def test_a_plan_for_more_memory_than_there_is_serves_with_fewer_keys(motley, start_server, tmp_path):
    cluster, file = tmp_path / "cluster.toml", tmp_path / "plan.json"
    text = (ROOT / "examples/garage/one-device.toml").read_text()
    cluster.write_text(text.replace('memory = "64 MiB"', 'memory = "900 TiB"'))
    subprocess.run([motley, "plan", "serve", "--cluster", cluster, "--model", MODEL, "--weight-type", "fp32", "-q", "-o", file], check=True,
                   timeout=60, stdout=subprocess.DEVNULL)
    plan = json.loads(file.read_text())
    plan["stages"][0]["kv_tokens"] = 1 << 32
    del plan["predicted"]
    file.write_text(json.dumps(plan))
    deployment = Deployment(start_server(file, "--model", MODEL))
    found = re.search(r"of memory left: keys and values of (\d+) tokens in place of (\d+)", deployment.server.text())
    assert found, deployment.server.text()
    served = deployment.plan()
    assert 0 < served["plan"]["stages"][0]["kv_tokens"] <= int(found[1]) < int(found[2]) == 1 << 32
    assert served["epoch"] > 1 and deployment.ask(0, 20)


STREAMS = {
    "two choices": dict(n=2, temperature=1),
    "penalties": dict(presence_penalty=0.8, frequency_penalty=0.4, temperature=0),
    "penalties of two choices": dict(n=2, presence_penalty=-0.3, frequency_penalty=0.9, temperature=0.8, top_p=0.9),
    "log-probabilities": dict(logprobs=True, top_logprobs=3, temperature=1),
    "log-probabilities of two choices": dict(n=2, logprobs=True, top_logprobs=2, temperature=0.7, top_k=40),
    "stop strings": dict(stop=[" day.", " happy", "zzz", "!"], temperature=1, min_tokens=120),
    "stop strings late": dict(stop=["\n\n\n", "the end of the"], temperature=1, logprobs=True),
    "all together": dict(n=2, stop=[" friends", "?"], presence_penalty=0.5, frequency_penalty=0.2, logprobs=True, top_logprobs=1, top_k=50,
                         logit_bias={"300": 1.5, "17": -100}, temperature=1.2, min_tokens=100, return_token_ids=True),
}  # fmt: skip


def chunks_of(deployment, name):
    """What a stream sends of each choice, chunk by chunk, without what no two answers share; and its usage, but for what was there."""
    answer = deployment.client.chat.completions.create(
        model=deployment.model, messages=[{"role": "user", "content": f"Tell me of {name}."}], stream=True, max_tokens=200, seed=len(name),
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True} | STREAMS[name])  # fmt: skip
    chunks, usage = {}, None
    for chunk in answer:
        for choice in chunk.choices:
            chunks.setdefault(choice.index, []).append(choice.model_dump_json())
        usage = chunk.usage or usage
    return chunks, usage.model_dump_json(exclude={"prompt_tokens_details"})


def test_streams_send_the_same_bytes_when_workers_die(deployment):
    with ThreadPoolExecutor(len(STREAMS)) as pool:
        undisturbed = dict(zip(STREAMS, pool.map(lambda name: chunks_of(deployment, name), STREAMS)))
        assert len({str(stream) for stream in undisturbed.values()}) == len(STREAMS)
        tokens = sum(json.loads(usage)["completion_tokens"] for _, usage in undisturbed.values())
        assert tokens > 100 * len(STREAMS), "most of them are under way when a worker dies"
        for number, device in enumerate(deployment.workers()):
            streams = {name: pool.submit(chunks_of, deployment, name) for name in STREAMS}
            time.sleep(random.Random(number).uniform(0.1, 0.3))
            deployment.kill(device)
            for name, stream in streams.items():
                assert stream.result(timeout=60) == undisturbed[name], name


def test_a_device_whose_worker_only_dies_is_planned_around(deployment):
    """Once two of three devices are left; two of them are too few, which is the end."""
    first, second, third = deployment.workers()
    for _ in range(3):
        deployment.kill(first)
    assert set(deployment.workers()) == {second, third}
    assert len(deployment.ask(1).split()) > 20

    for _ in range(2):
        deployment.kill(second)
    deployment.kill(second, at_the_end=True)
    with pytest.raises(openai.APIError, match=second):
        deployment.ask(0)
    assert deployment.server.wait(timeout_s=30) == 5
    error, _, hint = deployment.server.log[-3:]
    assert error.startswith(f"error: {second} ") and "no other plan: does not fit" in error


def test_a_port_in_use(motley):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [motley, "serve", "--cluster", CLUSTER, "--model", MODEL, "--local", "--port", str(port)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 3
    assert f"127.0.0.1:{port}" in result.stderr and "--port" in result.stderr


@pytest.mark.parametrize("setting, words, hint", [
    ("MOTLEY_KERNELS", "MOTLEY_KERNELS names nonsense, which is not a set of kernels", "choose from: portable"),
    ("MOTLEY_ACTIVATIONS", "MOTLEY_ACTIVATIONS is nonsense", "choose int8 or fp32"),
])
def test_a_wrong_setting_of_the_kernels(motley, setting, words, hint):
    command = [motley, "serve", "--cluster", CLUSTER, "--model", MODEL, "--local", "--port", "0", "-q"]
    result = subprocess.run(command, env={**os.environ, setting: "nonsense"}, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert result.stderr.count("error:") == 1 and f": {words}" in result.stderr and hint in result.stderr


def test_interrupt_while_starting(motley):
    """Ctrl-C during the start ends everything at once."""
    command = [motley, "serve", "--cluster", CLUSTER, "--model", MODEL, "--local", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "text" in line:  # the tokenizer is open, the workers come next
            break
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130
    process.stderr.close()
