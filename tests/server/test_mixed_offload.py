"""Pipelines of which one stage streams its weights: the tokens of the plan that keeps them all."""

import copy
import json
import os
import signal
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TALES = ROOT / "data/models/tales"
EXAMPLE = ROOT / "examples/offload"
CLUSTER = """
format = "motley.cluster/1"
name = "two machines"

[[machine]]
name = "near"
devices = ["processor*1"]
host_memory = "64 MiB"
disk = { capacity = "1 GB", read = "1 GB/s", write = "1 GB/s" }

[[machine]]
name = "far"
devices = ["processor*1"]
host_memory = "64 MiB"
disk = { capacity = "1 GB", read = "1 GB/s", write = "1 GB/s" }

[[device_type]]
name = "processor"
vendor = "cpu"
memory = "48 MiB"
memory_bandwidth = "10 GB/s"
flops = { bf16 = "100 GFLOP/s", fp32 = "100 GFLOP/s" }
reserve = "0 B"

[network]
within_site = { latency = "20 us", bandwidth = "2 GB/s" }
"""
PROMPTS = ["Once upon a time", "The dog", "A small red boat went", "Lily and Tom", "In the forest there was", "It rained"]


def chat(server, prompt):
    body = dict(messages=[dict(role="user", content=prompt)], max_tokens=24, temperature=0)
    request = urllib.request.Request(server.url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


def chats(server):
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        return list(clients.map(lambda prompt: chat(server, prompt), PROMPTS))


def served(server):
    with urllib.request.urlopen(server.url + "/plan", timeout=10) as answer:
        return json.load(answer)


def weight_bytes(server):
    return [worker["weight_bytes"] for worker in served(server)["workers"]]


@pytest.fixture(scope="module")
def resident(motley, tmp_path_factory):
    """A plan of two stages, four layers each, that keep all they have."""
    folder = tmp_path_factory.mktemp("plans")
    (folder / "cluster.toml").write_text(CLUSTER)
    subprocess.run([motley, "plan", "serve", "--cluster", folder / "cluster.toml", "--model", TALES, "--weight-type", "fp32", "--max-tokens",
                    "64", "--max-sequences", "4", "--no-roles", "--all-devices", "--one-pipeline", "-q", "-o", folder / "plan.json"], check=True)
    plan = json.loads((folder / "plan.json").read_text())
    assert len(plan["stages"]) == 2
    for stage, layers in zip(plan["stages"], [[0, 4], [4, 8]]):
        stage["layers"] = layers
    for hop, layers in zip(plan["routes"][0]["path"], [[0, 4], [4, 8]]):
        hop["layers"] = layers
    plan["predicted"].pop("memory_bytes")
    return plan


@pytest.fixture(scope="module")
def expected(resident, start_server, tmp_path_factory):
    path = tmp_path_factory.mktemp("resident") / "plan.json"
    path.write_text(json.dumps(resident))
    server = start_server(path, "--model", TALES)
    answers = chats(server)
    held = weight_bytes(server)
    assert server.stop() == 0
    return answers, held


STREAMED = {
    "weights on host and disk": dict(weights=dict(device=1 / 4, host=1 / 4, disk=2 / 4), kv=dict(device=1)),
    "keys and values away, too": dict(weights=dict(device=0, host=1 / 4, disk=3 / 4), kv=dict(device=1 / 4, host=1 / 4, disk=2 / 4)),
}


@pytest.mark.parametrize("homes", STREAMED)
@pytest.mark.parametrize("streaming", [0, 1])
def test_a_pipeline_of_a_resident_and_a_streaming_stage_serves_the_same_tokens(resident, expected, start_server, tmp_path, streaming, homes):
    answers, held = expected
    plan = copy.deepcopy(resident)
    plan["stages"][streaming]["offload"] = dict(batches=1, activations=dict(device=1), cpu_attention=True) | STREAMED[homes]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    server = start_server(tmp_path / "plan.json", "--model", TALES)
    assert chats(server) == answers
    now = weight_bytes(server)
    assert now[1 - streaming] == held[1 - streaming] and now[streaming] < held[streaming]
    assert server.stop() == 0


def test_a_planned_pipeline_streams_on_the_device_that_is_too_small(motley, start_server, tmp_path):
    """The example: two devices do not hold the model; one has host memory and a disk behind it."""
    command = [motley, "plan", "serve", "--cluster", EXAMPLE / "two.toml", "--model", TALES, "--workload", EXAMPLE / "chat.toml", "-q"]
    subprocess.run([*command, "-o", tmp_path / "plan.json"], check=True)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert ["offload" in stage for stage in plan["stages"]].count(True) == 1 and len(plan["stages"]) == 2
    assert subprocess.run([*command, "--no-offload"], capture_output=True).returncode == 1

    large = (EXAMPLE / "two.toml").read_text().replace('\nmemory = "6 MiB"', '\nmemory = "32 MiB"')
    (tmp_path / "large.toml").write_text(large)
    subprocess.run([*command[:4], tmp_path / "large.toml", *command[5:], "--one-pipeline", "-o", tmp_path / "large.json"], check=True)
    assert all("offload" not in stage for stage in json.loads((tmp_path / "large.json").read_text())["stages"])
    answers = {}
    for name in ("large", "plan"):
        server = start_server(tmp_path / f"{name}.json", "--model", TALES)
        answers[name] = chats(server)
        assert server.stop() == 0
    assert answers["plan"] == answers["large"]

    explained = subprocess.run([motley, "explain", tmp_path / "plan.json"], capture_output=True, text=True, check=True).stdout
    assert "streams" in explained and "bound by" in explained
    subprocess.run([motley, "verify", tmp_path / "plan.json"], check=True, capture_output=True)
    report = subprocess.run([motley, "report", tmp_path / "plan.json", "-o", tmp_path / "plan.html"], capture_output=True)
    assert report.returncode == 0 and "streams" in (tmp_path / "plan.html").read_text()
    (tmp_path / "busy.toml").write_text((EXAMPLE / "chat.toml").read_text() + 'rate = "1000 /s"\n')
    simulate = [motley, "simulate", tmp_path / "plan.json", "--workload", tmp_path / "busy.toml", "--requests", "400", "--json", "-q"]
    simulated = json.loads(subprocess.run(simulate, capture_output=True, text=True, check=True).stdout)
    assert 0.5 < simulated["tokens_per_s"] / plan["predicted"]["tokens_per_s"] < 1.5


def kill(server, device):
    """Returns when workers of another epoch serve."""
    before, until = served(server), time.monotonic() + 60
    [process] = [worker["process"] for worker in before["workers"] if worker["device"] == device]
    server.workers.append(process)
    os.kill(process, signal.SIGKILL)
    while served(server)["epoch"] == before["epoch"] or server.status("/ready") != 200:
        assert time.monotonic() < until, server.text()
        time.sleep(0.02)


def test_what_is_left_after_a_loss_streams_before_it_gives_up(motley, start_server, tmp_path):
    """Two devices hold the model; the one that is left does not, and has memory and a disk behind it."""
    (tmp_path / "cluster.toml").write_text(CLUSTER.replace('"48 MiB"', '"12 MiB"'))
    subprocess.run([motley, "plan", "serve", "--cluster", tmp_path / "cluster.toml", "--model", TALES, "--weight-type", "fp32",
                    "--max-tokens", "64", "--max-sequences", "4", "--no-roles", "--no-offload", "-q", "-o", tmp_path / "plan.json"], check=True)
    server = start_server(tmp_path / "plan.json", "--model", TALES)
    before = chats(server)
    assert all("offload" not in stage for stage in served(server)["plan"]["stages"])
    lost = served(server)["plan"]["stages"][1]["devices"][0]
    for _ in range(3):
        kill(server, lost)
    [stage] = served(server)["plan"]["stages"]
    assert stage["devices"] != [lost] and stage["offload"]["weights"]["device"] < 1
    assert chats(server) == before
    assert server.stop() == 0
