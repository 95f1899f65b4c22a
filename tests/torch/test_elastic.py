"""Training that outlives its workers: one is killed, another joins, and the losses are those of an undisturbed run."""

import importlib.util
import re
import time
from pathlib import Path

import pytest
import torch

from ranks import Script

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LINE = re.compile(r"^step (\d+) epoch (\d+) members (\d+) contributors (\d+) loss (\S+)$", re.MULTILINE)


class Worker(Script):
    """Of an elastic group."""

    @property
    def lines(self):
        return [match.groups() for match in LINE.finditer(self.text())]

    @property
    def steps(self):
        """By step: its members and its loss."""
        return {int(step): (int(members), float(loss)) for step, _, members, _, loss in self.lines}

    @property
    def contributors(self):
        return {int(step): int(contributors) for step, _, _, contributors, _ in self.lines}

    @property
    def parameters(self):
        """The digest at the end."""
        found = re.search(r"^parameters (\S+)$", self.text(), re.MULTILINE)
        return found and found[1]

    def wait_for(self, condition, what, timeout_s=90):
        until = time.monotonic() + timeout_s
        while not condition(self):
            assert time.monotonic() < until and self.running(), f"{what}: {self.steps} {self.error_text()}"
            time.sleep(0.02)


def last_members(worker):
    steps = worker.steps
    return steps[max(steps)][0] if steps else 0


def reference_losses(script, steps):
    """The same training by one process that is not disturbed."""
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
    workers = []

    def start(*words):
        files = {name: tmp_path / f"{name} of worker {len(workers)}" for name in ("output", "errors")}
        environment = {"MOTLEY_COMM_LIBRARY": str(library)}
        workers.append(Worker("elastic_script.py", coordinator.address, tmp_path / "stop", *words, environment=environment, **files))
        return workers[-1]

    yield start, tmp_path / "stop"
    for worker in workers:
        worker.kill()
    coordinator.close()


def check_losses(workers, last):
    expected = reference_losses(spec_of("elastic_script"), last)
    for worker in workers:
        assert max(worker.steps) == last
        for step, (_, loss) in worker.steps.items():
            assert loss == pytest.approx(expected[step], rel=1e-3)
    assert len({worker.parameters for worker in workers}) == 1 and workers[0].parameters is not None


def test_a_worker_is_killed_another_joins_and_the_losses_are_the_same(elastic):
    start, stop_file = elastic
    first, second, doomed = start(), start(), start()
    first.wait_for(lambda worker: len(worker.steps) >= 5 and last_members(worker) == 3, "three train")
    doomed.kill()
    first.wait_for(lambda worker: last_members(worker) == 2, "two go on")
    joiner = start()
    joiner.wait_for(lambda worker: last_members(worker) == 3 and len(worker.steps) >= 5, "the joiner trains")
    stop_file.touch()
    assert [worker.end(60) for worker in (first, second, joiner)] == [0, 0, 0], [worker.error_text() for worker in (first, second, joiner)]

    last = max(first.steps)
    # No step is lost. Two begin, and the third joins them: one of those that stay is there from the first step on.
    assert sorted(first.steps | second.steps) == list(range(1, last + 1))
    assert min(joiner.steps) > 5
    check_losses([first, second, joiner], last)


def test_a_joiner_learns_the_state_while_the_others_train(elastic):
    start, stop_file = elastic
    first, second = start("0.1"), start("0.1")
    first.wait_for(lambda worker: len(worker.steps) >= 5, "two train")
    joiner = start("0.1")
    joiner.wait_for(lambda worker: 3 in worker.contributors.values(), "the joiner has the state")
    second.kill()
    first.wait_for(lambda worker: last_members(worker) == 2, "two go on")
    stop_file.touch()
    assert [worker.end(60) for worker in (first, joiner)] == [0, 0], [worker.error_text() for worker in (first, joiner)]

    last = max(first.steps)
    assert sorted(first.steps) == list(range(1, last + 1))
    begun = min(joiner.steps)
    learning = [step for step, count in joiner.contributors.items() if count == 2 and joiner.steps[step][0] == 3]
    # Five items, an item first: these are several steps, without a gap from its first one on.
    assert learning == list(range(begun, begun + len(learning))) and len(learning) >= 3
    check_losses([first, joiner], last)


def test_a_state_in_items_is_the_state(elastic):
    from motley.items import ParameterItems, pack, unpack

    def trainee(seed, steps):
        torch.manual_seed(seed)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
        net[2].bias.requires_grad_(False)
        optimizer = torch.optim.AdamW([{"params": net[:2].parameters()}, {"params": [net[2].weight], "lr": 0.1}], lr=0.01)
        parts = {"net": net, "optimizer": optimizer, "rate": torch.optim.lr_scheduler.StepLR(optimizer, 2)}
        return parts, [train(parts, step) for step in range(steps)]

    def train(parts, step):
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        parts["optimizer"].zero_grad()
        loss = parts["net"](inputs).square().mean()
        loss.backward()
        parts["optimizer"].step()
        parts["rate"].step()
        return loss.item()

    giver, _ = trainee(1, 5)
    taker, _ = trainee(2, 0)
    given, taken = ParameterItems(giver), ParameterItems(taker)
    assert given.count == taken.count == 6
    for item in range(given.count):
        taken.load(item, given.save(item))
    assert [train(giver, step) for step in range(5, 9)] == [train(taker, step) for step in range(5, 9)]
    assert [given.save(item) for item in range(given.count)] == [taken.save(item) for item in range(given.count)]
    odd = {"a": (1, None, 2.5, [True, "x"]), 3: torch.zeros(0), "h": torch.tensor(1.5, dtype=torch.bfloat16)}
    assert repr(unpack(pack(odd))) == repr(odd)
    with pytest.raises(TypeError, match="a set"):
        pack({"a": {1}})


def spec_of(name):
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
