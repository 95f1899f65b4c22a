"""Training that outlives its workers: one is killed, another joins, and the losses are those of an undisturbed run."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LINE = re.compile(r"step (\d+) epoch (\d+) members (\d+) loss (\S+)")


class Worker:
    def __init__(self, environment, coordinator, stop_file):
        command = [sys.executable, HERE / "elastic_script.py", coordinator, str(stop_file)]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.steps, self.parameters, self.errors = {}, None, ""
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self.readers:
            reader.start()

    def _read(self):
        for line in self.process.stdout:
            if match := LINE.match(line):
                self.steps[int(match[1])] = (int(match[3]), float(match[4]))
            elif line.startswith("parameters "):
                self.parameters = line.split()[1]

    def _read_errors(self):
        self.errors = self.process.stderr.read()

    def wait_for(self, condition, what, timeout_s=90):
        until = time.monotonic() + timeout_s
        while not condition(self):
            assert time.monotonic() < until and self.process.poll() is None, f"{what}: {self.steps} {self.errors}"
            time.sleep(0.02)

    def end(self):
        code = self.process.wait(60)
        for reader in self.readers:
            reader.join(10)
        return code


def last_members(worker):
    return worker.steps[max(worker.steps)][0] if worker.steps else 0


def reference_losses(script, steps):
    """The same training by one process that nobody disturbs."""
    net = script.network()
    optimizer = script.optimizer_of(net)
    losses = {}
    for step in range(1, steps + 1):
        inputs, target = script.batch(step)
        loss = torch.nn.functional.mse_loss(net(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()
    return losses


@pytest.fixture
def elastic(motley, tmp_path, monkeypatch):
    """(start a worker, the file that stops all): with a coordinator in this process."""
    library = motley.parent / "libmotley_comm.so"
    assert library.exists(), f"{library} is not built"
    monkeypatch.setenv("MOTLEY_COMM_LIBRARY", str(library))
    monkeypatch.syspath_prepend(str(ROOT / "python"))
    from motley.comm import Coordinator

    coordinator = Coordinator(tmp_path / "log", group="train", token="secret", minimum_size=2)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    workers = []

    def start():
        workers.append(Worker(environment, coordinator.address, tmp_path / "stop"))
        return workers[-1]

    yield start, tmp_path / "stop"
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
    coordinator.close()


def test_a_worker_is_killed_another_joins_and_the_losses_are_the_same(elastic):
    start, stop_file = elastic
    first, second, doomed = start(), start(), start()
    first.wait_for(lambda worker: len(worker.steps) >= 5 and last_members(worker) == 3, "three train")
    doomed.process.kill()
    first.wait_for(lambda worker: last_members(worker) == 2, "two go on")
    joiner = start()
    joiner.wait_for(lambda worker: last_members(worker) == 3 and len(worker.steps) >= 5, "the joiner trains")
    stop_file.touch()
    assert [worker.end() for worker in (first, second, joiner)] == [0, 0, 0], (first.errors, second.errors, joiner.errors)

    last = max(first.steps)
    # No step is lost. Two begin, and the third joins them: one of those that stay is there from the first step on.
    assert sorted(first.steps | second.steps) == list(range(1, last + 1))
    assert min(joiner.steps) > 5
    expected = reference_losses(spec_of("elastic_script"), last)
    for worker in (first, second, joiner):
        assert max(worker.steps) == last
        for step, (_, loss) in worker.steps.items():
            assert loss == pytest.approx(expected[step], rel=1e-3)
    assert first.parameters == second.parameters == joiner.parameters != None  # noqa: E711


def spec_of(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
