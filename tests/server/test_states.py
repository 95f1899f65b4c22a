"""A model that keeps states of sequences: computed again from its first token, a sequence says the same."""

import json
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from test_failure import CLUSTER, Deployment

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "parity"))
import models  # noqa: E402

NUMBERS = range(8)
MIXTURE = ROOT / "tests/data/tales-mixture"  # whose tokenizer it has


@pytest.fixture
def files(motley, tmp_path):
    model, cluster, plan = tmp_path / "states", tmp_path / "cluster.toml", tmp_path / "plan.json"
    models.make("qwen3.5-moe", model, vocab_size=json.loads((MIXTURE / "config.json").read_text())["vocab_size"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MIXTURE / name, model)
    cluster.write_text(CLUSTER.read_text().replace('"12 MiB"', '"6 MiB"').replace('"9 MiB"', '"5 MiB"'))
    subprocess.run([motley, "plan", "serve", "--cluster", cluster, "--model", model, "--weight-type", "fp32", "--max-tokens", "64",
                    "--max-sequences", "8", "-q", "-o", plan], check=True, timeout=60, stdout=subprocess.DEVNULL)  # fmt: skip
    return model, plan


def texts(deployment):
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda number: deployment.ask(number, 60), NUMBERS))


def test_workers_die_and_no_text_changes(files, start_server):
    model, file = files
    assert all(stage["kv_sequences"] > 0 for stage in json.loads(file.read_text())["stages"])
    deployment = Deployment(start_server(file, "--model", model))
    expected = texts(deployment)
    assert len(set(expected)) > 5
    for device, number in deployment.workers().items():
        with ThreadPoolExecutor(8) as pool:
            requests = [pool.submit(deployment.ask, number, 60) for number in NUMBERS]
            time.sleep(random.Random(number).uniform(0.1, 0.3))
            deployment.kill(device)
            assert [request.result(timeout=60) for request in requests] == expected


def test_sequences_that_are_preempted_or_wait_for_a_slot_say_the_same(files, start_server):
    model, file = files
    plan = json.loads(file.read_text())
    for stage in plan["stages"]:
        stage["kv_sequences"] = 3
        stage["kv_tokens"] = 208
    del plan["predicted"]
    few = file.with_name("few.json")
    few.write_text(json.dumps(plan))
    assert texts(Deployment(start_server(few, "--model", model))) == texts(Deployment(start_server(file, "--model", model)))
