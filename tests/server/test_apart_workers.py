"""Workers on the stand-in device (tests/vendor/apart): what they say and survive is what workers on processors do."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from test_failure import CLUSTER, MODEL, Deployment

BUILD = Path(os.environ.get("MOTLEY_BUILD", Path(__file__).resolve().parents[2] / "build" / "release"))
SEEDS = range(1, 9) if os.environ.get("MOTLEY_STANDINS") == "all" else [1]
NUMBERS = range(3)
TOKENS = 6


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
    processors.stop()
    deployment = Deployment(start_server(*arguments, "--backend", "apart:0"))
    assert {worker["kernels"] for worker in deployment.plan()["workers"]} == {"aten"}
    assert texts(deployment) == expected
    device = random.Random(seed).choice(sorted(deployment.workers()))
    with ThreadPoolExecutor(len(NUMBERS)) as pool:
        requests = [pool.submit(deployment.ask, number, TOKENS) for number in NUMBERS]
        time.sleep(random.Random(seed).uniform(0.1, 0.4))
        deployment.kill(device)
        assert [request.result(timeout=60) for request in requests] == expected
