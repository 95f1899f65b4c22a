"""What a training run shows: TensorBoard's events, the time line of its newest step, and the page of `motley report RUN`."""

import json
import shutil
from pathlib import Path

import numpy
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from test_report import Page

TALES = Path(__file__).resolve().parents[2] / "data/models/tales"
LENGTH, BATCH, MICRO_BATCHES = 32, 8, 4


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """Two stages, the second of two data-parallel ranks."""
    stages = [
        {"layers": [0, 3], "devices": ["box/0"], "strategies": [{"layers": [0, 3]}]},
        {"layers": [3, 8], "devices": ["box/1", "box/2"], "strategies": [{"layers": [3, 8], "dp": 2, "shard": "zero1"}]},
    ]
    one = {"name": "one", "vendor": "cpu", "memory": "1 GiB", "memory_bandwidth": "10 GB/s", "flops": {"fp32": "50 GFLOP/s"}, "reserve": "0 B"}
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    file.write_text(json.dumps({
        "format": "motley.plan/1", "kind": "train",
        "model": {"name": "tales", "config": json.loads((TALES / "config.json").read_text())},
        "cluster": {"format": "motley.cluster/1", "machine": [{"name": "box", "devices": ["one*3"]}], "device_type": [one]},
        "workload": {"format": "motley.workload/1", "training": {"sequence_length": LENGTH, "global_batch": BATCH, "precision": "fp32"}},
        "replicas": [{"share": 1, "micro_batches": MICRO_BATCHES, "stages": stages}],
    }))  # fmt: skip
    return file


@pytest.fixture(scope="module")
def run(plan, run_to, tmp_path_factory):
    """A run of six steps in two parts."""
    folder = tmp_path_factory.mktemp("run")
    data = folder / "tokens.npy"
    numpy.save(data, numpy.random.default_rng(3).integers(6, 2048, LENGTH * 20 + 1).astype(numpy.uint16))
    path = folder / "run"
    run_to("train", plan, "--model", TALES, "--data", data, "--output", path, "--steps", 4, "--save-every", 2, "--eval-data", data,
           "--eval-every", 2, "--local", "-q")  # fmt: skip
    run_to("train", "--resume", path, "--steps", 6, "-q")
    return path


def metrics_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def scalars_of(run):
    """Name -> [(step, value)], as TensorBoard reads them."""
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_tensorboard_reads_what_the_metrics_say(run):
    assert len(list((run / "tensorboard").iterdir())) == 2
    metrics, scalars = metrics_of(run), scalars_of(run)
    assert scalars.keys() == {"loss", "grad_norm", "learning_rate", "tokens_per_s", "eval_loss"}
    for name in ("loss", "grad_norm", "learning_rate"):
        assert scalars[name] == [(step["step"], numpy.float32(step[name])) for step in metrics]
    assert scalars["tokens_per_s"] == [(step["step"], pytest.approx(BATCH * LENGTH / step["seconds"])) for step in metrics]
    assert scalars["eval_loss"] == [(step["step"], numpy.float32(step["eval_loss"])) for step in metrics if "eval_loss" in step]
    assert [step for step, _ in scalars["eval_loss"]] == [2, 4, 6]


def test_tensorboard_forgets_the_steps_that_a_resumed_run_repeats(run, run_to, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    run_to("train", "--resume", copy, "--from", 4, "--steps", 5, "-q")
    assert [step for step, _ in scalars_of(copy)["loss"]] == [1, 2, 3, 4, 5]


def test_the_time_line_is_that_of_the_newest_step(run):
    timeline = json.loads((run / "timeline.json").read_text())
    assert timeline["step"] == 6 and timeline["seconds"] == metrics_of(run)[-1]["seconds"]
    assert [(lane["stage"], lane["device"]) for lane in timeline["workers"]] == [(0, "box/0"), (1, "box/1"), (1, "box/2")]
    assert [(lane["stage"], "device" in lane) for lane in timeline["predicted"]] == [(0, False), (1, False)]
    for lanes, seconds in (timeline["workers"], timeline["seconds"]), (timeline["predicted"], timeline["predicted_s"]):
        for lane in lanes:
            assert sorted((p["micro_batch"], p["backward"]) for p in lane["passes"]) == [(m, b) for m in range(MICRO_BATCHES) for b in (False, True)]
            spans = [*lane["passes"], lane["exchange"], lane["update"]]
            edges = [edge for span in spans for edge in (span["start_s"], span["end_s"])]
            assert edges == sorted(edges) and 0 <= edges[0] and edges[-1] <= seconds * (1 + 1e-9)


def test_the_page_of_a_run_tells_its_figures(run, run_to, tmp_path):
    result = run_to("report", run)
    page = Page(result.stdout)
    assert set(page.links) == {"#curves", "#figures", "#timeline"}
    metrics = metrics_of(run)
    assert f"training loss {metrics[-1]['loss']:.4f}" in page.text and f"validation loss {metrics[-1]['eval_loss']:.4f}" in page.text
    assert "measured / predicted" in page.text and "Step 6 took" in page.text and "r0/s1 predicted" in page.text
    file = tmp_path / "run.html"
    assert f"wrote {file}" in run_to("report", run, "-o", file).stderr
    assert file.read_text() == result.stdout


def test_a_folder_without_steps_has_no_page(run, run_to, tmp_path):
    result = run_to("report", tmp_path, code=2)
    assert "holds no run: run.json is missing" in result.stderr and result.stdout == ""
    shutil.copy(run / "run.json", tmp_path)
    assert "has no steps yet: metrics.jsonl is empty or missing" in run_to("report", tmp_path, code=2).stderr
