"""A mixture whose layers look back on a window, of which each sequence keeps no more: nothing of that shows in a text."""

import json
import random
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from test_failure import CLUSTER, Deployment

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = range(8)


@pytest.fixture
def files(motley, tmp_path):
    """The model's folder, and a plan over two of three devices."""
    model, cluster, plan = tmp_path / "mixture", tmp_path / "cluster.toml", tmp_path / "plan.json"
    shutil.copytree(ROOT / "tests/data/tales-mixture", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"sliding_window": 40}))
    cluster.write_text(CLUSTER.read_text().replace('"12 MiB"', '"15 MiB"').replace('"9 MiB"', '"14 MiB"'))
    subprocess.run([motley, "plan", "serve", "--cluster", cluster, "--model", model, "--weight-type", "fp32", "--max-tokens", "64",
                    "--max-sequences", "8", "-q", "-o", plan], check=True, timeout=60, stdout=subprocess.DEVNULL)  # fmt: skip
    return model, plan


def texts(deployment):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(deployment.ask, NUMBERS))


def test_workers_die_and_no_text_changes(files, start_server, tmp_path):
    model, file = files
    plan = json.loads(file.read_text())
    assert all(stage["kv_sequences"] >= 8 for stage in plan["stages"])
    whole = json.loads(file.read_text())
    for stage in whole["stages"]:
        del stage["kv_sequences"]
        stage["kv_tokens"] = 2048
    del whole["predicted"]
    (tmp_path / "whole.json").write_text(json.dumps(whole))
    expected = texts(Deployment(start_server(tmp_path / "whole.json", "--model", model)))
    assert len(set(expected)) > 5

    deployment = Deployment(start_server(file, "--model", model))
    assert texts(deployment) == expected
    for device, number in deployment.workers().items():
        with ThreadPoolExecutor(8) as pool:
            requests = [pool.submit(deployment.ask, number) for number in NUMBERS]
            time.sleep(random.Random(number).uniform(0.1, 0.3))
            deployment.kill(device)
            assert [request.result(timeout=60) for request in requests] == expected


def test_sequences_that_are_preempted_or_wait_for_a_slot_say_the_same(files, start_server):
    model, file = files
    plan = json.loads(file.read_text())
    for stage in plan["stages"]:
        stage["kv_sequences"] = 3
        stage["kv_tokens"] = 512
    del plan["predicted"]
    few = file.with_name("few.json")
    few.write_text(json.dumps(plan))
    assert texts(Deployment(start_server(few, "--model", model))) == texts(Deployment(start_server(file, "--model", model)))
