"""`motley train` as a user runs it: plans of every planner, texts, a kill, a damaged checkpoint, bad input."""

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy
import pytest

ROOT = Path(__file__).resolve().parents[2]
MOTLEY = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build" / "release")) / "motley"
TALES = ROOT / "data/models/tales"
LENGTH, BATCH = 32, 8


def workload_of(length):
    return f"""
format = "motley.workload/1"
[training]
sequence_length = {length}
global_batch = {BATCH}
precision = "fp32"
"""


WORKLOAD = workload_of(LENGTH)


def device_type(name, memory, speed):
    return (f'[[device_type]]\nname = "{name}"\nvendor = "cpu"\nmemory = "{memory}"\nmemory_bandwidth = "{speed // 5} GB/s"\n'
            f'flops = {{ fp32 = "{speed} GFLOP/s" }}\nreserve = "0 B"\n')


def cluster(*machines, types, network=""):
    text = 'format = "motley.cluster/1"\n'
    for name, rest in machines:
        text += f'[[machine]]\nname = "{name}"\n{rest}\n'
    return text + types + network


# One for each of the published systems: the kind of cluster that it plans for, as small as the tales model.
PLANNERS = {
    "galvatron": (cluster(("box", 'count = 4\ndevices = ["one"]'), types=device_type("one", "20 MiB", 50),
                          network='[network]\nwithin_site = { latency = "1 us", bandwidth = "10 Gbit/s" }\n'), ["--stages", "1"]),
    "osdp": (cluster(("box", 'count = 4\ndevices = ["one"]'), types=device_type("one", "20 MiB", 50),
                     network='[network]\nwithin_site = { latency = "1 us", bandwidth = "20 GB/s" }\n'), ["--stages", "1"]),
    "dtfm": (cluster(("here", 'count = 2\nsite = "here"\ndevices = ["one"]'), ("there", 'count = 2\nsite = "there"\ndevices = ["one"]'),
                     types=device_type("one", "1 GiB", 50),
                     network='[network]\nbetween_sites = { latency = "25 ms", bandwidth = "500 Mbit/s" }\n'),
             ["--cost", "dtfm", "--stages", "2", "--replicas", "2"]),
    "flashflex": (cluster(("a", 'devices = ["large*2"]'), ("b", 'devices = ["small*3"]'),
                          types=device_type("large", "64 MiB", 100) + device_type("small", "32 MiB", 50)), ["--cost", "flashflex"]),
}
WANTED = {"galvatron": lambda s: s["tp"] == 2 and s["shard"] == "zero3", "osdp": lambda s: s["split"] > 1,
          "dtfm": lambda s: s["tp"] == s["dp"] == 1, "flashflex": lambda s: s["recompute"]}
# Sequences so long that activations outweigh weights: dividing states is then cheaper than dividing products.
LENGTHS = {"galvatron": 128, "osdp": 128}


def motley(*arguments, **rest):
    return subprocess.run([MOTLEY, *map(str, arguments)], capture_output=True, text=True, timeout=240, **rest)


def make_plan(folder, text, options=(), workload=WORKLOAD):
    (folder / "cluster.toml").write_text(text)
    (folder / "job.toml").write_text(workload)
    plan = folder / "plan.json"
    result = motley("plan", "train", "--cluster", folder / "cluster.toml", "--model", TALES, "--workload", folder / "job.toml", "-q",
                    "-o", plan, *options)
    assert result.returncode == 0, result.stderr
    return plan


ONE = cluster(("box", 'devices = ["one"]'), types=device_type("one", "1 GiB", 50))


def tokens_of(folder, length):
    numpy.save(folder / "tokens.npy", numpy.random.default_rng(3).integers(6, 2048, length * 60 + 1).astype(numpy.uint16))
    return folder / "tokens.npy"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return tokens_of(tmp_path_factory.mktemp("tokens"), LENGTH)


def start(plan, data, run, steps, *more):
    return ["train", plan, "--model", TALES, "--data", data, "--output", run, "--steps", steps, "--local", *more]


def losses(run):
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def run_alone(tmp_path_factory):
    """By length of a sequence: tokens, and the losses of one device that trains on them."""

    @functools.cache
    def run(length):
        folder = tmp_path_factory.mktemp("alone")
        data = tokens_of(folder, length)
        result = motley(*start(make_plan(folder, ONE, workload=workload_of(length)), data, folder / "run", 20))
        assert result.returncode == 0, result.stderr
        return data, losses(folder / "run")

    return run


@pytest.fixture(scope="module")
def alone(run_alone):
    return run_alone(LENGTH)[1]


@pytest.mark.parametrize("system", PLANNERS)
def test_plans_of_every_planner_are_trained(system, run_alone, tmp_path):
    text, options = PLANNERS[system]
    length = LENGTHS.get(system, LENGTH)
    tokens, alone = run_alone(length)
    plan = make_plan(tmp_path, text, options, workload_of(length))
    strategies = [s for r in json.loads(plan.read_text())["replicas"] for stage in r["stages"] for s in stage["strategies"]]
    assert any(WANTED[system]({"split": 1, **strategy}) for strategy in strategies), strategies
    result = motley(*start(plan, tokens, tmp_path / "run", 20))
    assert result.returncode == 0, result.stderr
    assert losses(tmp_path / "run") == pytest.approx(alone, rel=1e-4)  # default eps: see tests/parity/training.py


def test_a_run_that_is_killed_goes_on(tokens, alone, tmp_path):
    plan = make_plan(tmp_path, *PLANNERS["flashflex"])
    run = tmp_path / "run"
    driver = subprocess.Popen([MOTLEY, *map(str, start(plan, tokens, run, 20, "--save-every", 2, "--async-save", "-q"))])
    deadline = time.monotonic() + 120
    while not (run / "step-4").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    driver.kill()  # perhaps while it writes
    driver.wait()
    assert driver.returncode == -signal.SIGKILL
    (run / "step-99.partial").mkdir()  # what a kill leaves behind
    result = motley("train", "--resume", run)
    assert result.returncode == 0, result.stderr
    assert losses(run) == pytest.approx(alone, rel=1e-4)
    result = motley("train", "--resume", run)  # there is nothing left to do
    assert result.returncode == 0 and (run / "step-20").exists()


def worker_of(driver):
    for _ in range(1000):
        children = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(driver)], capture_output=True, text=True).stdout.split("\n")
        workers = [int(line.split()[0]) for line in children if "motley-worker" in line]
        if workers:
            return workers[-1]
        time.sleep(0.01)
    raise AssertionError("no worker")


@pytest.mark.parametrize(("how", "saves"), [(signal.SIGKILL, ["--save-every", 2]), (signal.SIGSTOP, [])])
def test_a_worker_that_is_lost_ends_the_run_with_its_name(how, saves, tokens, tmp_path):
    plan = make_plan(tmp_path, *PLANNERS["flashflex"])
    run = tmp_path / "run"
    driver = subprocess.Popen([MOTLEY, *map(str, start(plan, tokens, run, 100000, *saves))], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    under_way = (run / "step-2").exists if saves else lambda: (run / "metrics.jsonl").exists() and losses(run)
    while not under_way() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(worker_of(driver.pid), how)
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 5
    assert re.search(r"the worker of [ab]/\d \(rank \d of stage r\d/s\d\) " + {signal.SIGKILL: "was killed by signal 9", signal.SIGSTOP: "has been silent"}[how], errors), errors
    if saves:
        newest = (run / "latest").read_text().strip().removeprefix("step-")
        assert f"goes on from the checkpoint of step {newest} with `motley train --resume {run}`" in errors, errors
    else:
        assert f"the run has no checkpoint: `motley train --resume {run}` begins it again" in errors, errors


def test_a_worker_that_ends_before_it_has_a_part_names_the_way_on_too(tokens, tmp_path):
    run = tmp_path / "run"
    assert motley(*start(make_plan(tmp_path, ONE), tokens, run, 4, "--save-every", 2)).returncode == 0
    program, worker = tmp_path / "bin/motley", tmp_path / "bin/motley-worker"
    program.parent.mkdir()
    shutil.copy(MOTLEY, program)
    worker.write_text("#!/bin/sh\nexit 7\n")
    worker.chmod(0o755)
    result = subprocess.run([program, "train", "--resume", run, "--from", "2"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 5
    assert re.search(r"the worker of \S+ exited with code 7", result.stderr), result.stderr
    assert f"goes on from the checkpoint of step 4 with `motley train --resume {run}`" in result.stderr


def test_ctrl_c_saves_and_ends(tokens, tmp_path):
    run = tmp_path / "run"
    driver = subprocess.Popen([MOTLEY, *map(str, start(make_plan(tmp_path, ONE), tokens, run, 100000))], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not ((run / "metrics.jsonl").exists() and losses(run)) and time.monotonic() < deadline:
        time.sleep(0.01)
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130, errors
    step = len(losses(run))
    assert f"stopped after step {step}" in errors and (run / f"step-{step}/motley.json").exists()


def test_a_damaged_checkpoint_is_named(tokens, tmp_path):
    run = tmp_path / "run"
    plan = make_plan(tmp_path, ONE)
    assert motley(*start(plan, tokens, run, 4, "--save-every", 2)).returncode == 0
    newest = run / "step-4"

    def refused(*words):
        result = motley("train", "--resume", run, "--steps", 6)
        assert result.returncode == 2
        for word in (*words, "--from N"):
            assert word in result.stderr, result.stderr

    kept = tmp_path / "kept"
    shutil.copytree(newest, kept)
    weights = next(newest.glob("model-*.safetensors"))
    damaged = bytearray(weights.read_bytes())
    damaged[-100] ^= 1
    weights.write_bytes(damaged)
    refused(str(weights), "damaged")
    weights.write_bytes(damaged[:-1])
    refused(str(weights), "bytes")
    weights.unlink()
    refused(str(weights), "missing")
    (newest / "motley.json").unlink()
    refused(str(newest), "motley.json")
    assert motley("train", "--resume", run, "--steps", 5, "--from", 2).returncode == 0
    assert len(losses(run)) == 5


def test_steps_without_a_number_are_skipped(tokens, tmp_path):
    workload = WORKLOAD + "learning_rate = 1e30\n"
    run = tmp_path / "run"
    result = motley(*start(make_plan(tmp_path, ONE, workload=workload), tokens, run, 30, "--save-every", 1, "--max-bad-steps", 3))
    assert result.returncode == 4
    assert "steps in a row were skipped" in result.stderr and "is skipped" in result.stderr
    metrics = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert 0 < len(metrics) < 30


def test_bad_input(tokens, tmp_path):
    plan = make_plan(tmp_path, ONE)

    def refused(code, *words, arguments):
        result = motley(*arguments)
        assert result.returncode == code, result.stderr
        for word in words:
            assert word in result.stderr, result.stderr

    short = tmp_path / "short.npy"
    numpy.save(short, numpy.arange(LENGTH * 3 + 1, dtype=numpy.uint16))
    refused(2, str(short), "3 sequences of 32 tokens", arguments=start(plan, short, tmp_path / "a", 2))
    outside = tmp_path / "outside.npy"
    numpy.save(outside, numpy.full(LENGTH * 20 + 1, 5000, dtype=numpy.uint16))
    refused(2, str(outside), "5000", arguments=start(plan, outside, tmp_path / "b", 2))
    refused(2, "--output is missing", arguments=["train", plan, "--model", TALES, "--data", tokens, "--steps", 2, "--local"])
    refused(2, "--local or --agents is missing", arguments=["train", plan, "--model", TALES, "--data", tokens, "--output", tmp_path / "c",
                                              "--steps", 2])
    refused(2, "another model than the plan",
            arguments=["train", plan, "--model", ROOT / "data/models/opt-125m", "--data", tokens, "--output", tmp_path / "d", "--steps", 2,
                       "--local"])
    refused(2, "holds no run", arguments=["train", "--resume", tmp_path / "nothing"])
    small = json.loads(plan.read_text())
    small["cluster"]["device_type"][0]["memory"] = "20 MiB"
    del small["predicted"]["memory_bytes"]
    (tmp_path / "small.json").write_text(json.dumps(small))
    refused(2, "but the device has 20", arguments=start(tmp_path / "small.json", tokens, tmp_path / "e", 2))


def test_texts_are_learnt_and_served_from_the_checkpoint(tmp_path):
    """From text to a model that transformers continues with: the loss falls, masked prompts do not count."""
    lines = [{"prompt": f"How many legs has animal {i % 7}?", "completion": f" It has {i % 7} legs."} for i in range(400)]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text, options = PLANNERS["dtfm"]
    run = tmp_path / "run"
    result = motley(*start(make_plan(tmp_path, text, options), data, run, 12, "--eval-data", data, "--eval-every", 6))
    assert result.returncode == 0, result.stderr
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all(line["tokens"] < LENGTH * BATCH for line in metrics)
    assert metrics[-1]["loss"] < metrics[0]["loss"]
    assert metrics[5]["eval_loss"] > metrics[11]["eval_loss"]
    again = tmp_path / "again"
    result = motley(*start(make_plan(tmp_path, ONE), data, again, 2))
    assert result.returncode == 0, result.stderr
    assert losses(again) == pytest.approx(losses(run)[:2], rel=1e-4)
    assert (run / "step-12/tokenizer.json").exists() and (run / "step-12/config.json").exists()
