"""Workers on the stand-in device (tests/vendor/apart): what they say and survive is what workers on processors do."""

import json
import os
import random
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from test_failure import CLUSTER, MODEL, Deployment

BUILD = Path(os.environ.get("MOTLEY_BUILD", Path(__file__).resolve().parents[2] / "build" / "release"))
SEEDS = range(1, 9) if os.environ.get("MOTLEY_STANDINS") == "all" else [1]
NUMBERS = range(3)
TOKENS = 6
# Less of its own memory than the model takes, and less of the host's than what is left of it.
CARD = """
format = "motley.cluster/1"
name = "card"

[[machine]]
name = "box"
devices = ["card"]
host_memory = "6 MiB"
disk = { capacity = "1 GB", read = "1 GB/s", write = "1 GB/s" }

[[device_type]]
name = "card"
vendor = "nvidia"
memory = "14 MiB"
memory_bandwidth = "10 GB/s"
flops = { bf16 = "100 GFLOP/s", fp32 = "100 GFLOP/s" }
reserve = "0 B"
"""


def texts(deployment):
    with ThreadPoolExecutor(len(NUMBERS)) as pool:
        return list(pool.map(lambda number: deployment.ask(number, TOKENS), NUMBERS))


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_on_a_device_apart_die_and_no_text_changes(seed, start_server, tmp_path, monkeypatch):
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(CLUSTER.read_text().replace('"12 MiB"', '"16 MiB"').replace('"9 MiB"', '"14 MiB"'))
    monkeypatch.setenv("MOTLEY_TEST_DEVICES", str(BUILD / "libapart_device.so"))
    monkeypatch.setenv("MOTLEY_APART_SEED", str(seed))
    arguments = ("--cluster", cluster, "--model", MODEL, "--weight-type", "fp32")
    processors = start_server(*arguments)
    expected = texts(Deployment(processors))
    assert len(set(expected)) > 1
    devices = sorted(Deployment(processors).workers())
    processors.stop()
    broken = random.Random(-seed).choice(devices)
    monkeypatch.setenv("MOTLEY_FAULT", f"illegal_access@4,{broken}")
    deployment = Deployment(start_server(*arguments, "--backend", "apart:0"))
    assert {worker["kernels"] for worker in deployment.plan()["workers"]} == {"aten"}
    before = deployment.workers()
    assert texts(deployment) == expected
    after = deployment.workers()
    assert [device for device in sorted(before) if after[device] != before[device]] == [broken]
    assert re.search(f"{broken}, at or before step \\d+: .*an illegal memory access was encountered", deployment.server.text())
    device = random.Random(seed).choice(sorted(deployment.workers()))
    with ThreadPoolExecutor(len(NUMBERS)) as pool:
        requests = [pool.submit(deployment.ask, number, TOKENS) for number in NUMBERS]
        time.sleep(random.Random(seed).uniform(0.1, 0.4))
        deployment.kill(device)
        assert [request.result(timeout=60) for request in requests] == expected


def test_weights_stream_to_a_device_apart_and_no_text_changes(motley, start_server, tmp_path, monkeypatch):
    (tmp_path / "card.toml").write_text(CARD)
    plan = tmp_path / "plan.json"
    subprocess.run([motley, "plan", "offload", "--weights-only", "--machine", tmp_path / "card.toml", "--model", MODEL, "--weight-type", "fp32",
                    "--kv-type", "fp32", "--context", "128", "--max-batch", "4", "-q", "-o", plan], check=True)  # fmt: skip
    homes = json.loads(plan.read_text())["weights"]
    assert all(homes[tier] > 0 for tier in ("device", "host", "disk")), homes
    monkeypatch.setenv("MOTLEY_TEST_DEVICES", str(BUILD / "libapart_device.so"))
    processors = start_server(plan, "--model", MODEL)
    expected = texts(Deployment(processors))
    processors.stop()
    assert texts(Deployment(start_server(plan, "--model", MODEL, "--backend", "apart:0"))) == expected
