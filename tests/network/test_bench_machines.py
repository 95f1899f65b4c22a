"""The benchmarks over several machines run, and divide layers as they say. What they measure is not looked at."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import test_networks as networks

ROOT = Path(__file__).resolve().parents[2]
MACHINES = ROOT / "bench/machines"
sys.path.insert(0, str(MACHINES))
from one_card import on_one_machine  # noqa: E402
from plans import divided  # noqa: E402
from unlike import with_rates_of  # noqa: E402

needs_quotas = pytest.mark.skipif(not os.access("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", os.W_OK), reason="needs control groups of version 1, and root")


@pytest.mark.parametrize(
    ("weights", "most", "counts"),
    [([1, 1, 1], [28, 28, 28], [10, 9, 9]), ([1, 2, 4], [28, 28, 28], [4, 8, 16]), ([1, 2, 4], [28, 28, 10], [6, 12, 10]),
     ([1, 1, 1], [5, 12, 12], [5, 12, 11]), ([3, 2, 1], [5, 5, 5], None)],
)  # fmt: skip
def test_layers_are_divided_in_proportion_as_far_as_they_fit(weights, most, counts):
    assert divided(weights, most, 28) == counts


def test_a_round_is_simulated_with_the_rates_of_its_own_machines():
    shares = {"compute": 0.9}
    types = [{"name": f"x of m1/{slot}", "memory_bandwidth": "1 GB/s", "flops": {"bf16": "1 GFLOP/s", "fp32": "1 GFLOP/s"}, "efficiency": shares} for slot in (0, 1)]
    plan = {"stages": [], "cluster": {"machine": [{"name": "m1", "devices": ["x of m1/0", "x of m1/1"]}], "device_type": types}}
    members = [{"name": "m1", "devices": [{"device": "m1/0", "bytes_per_s": 3e9, "flop_per_s": 5e10}, {"device": "m1/1", "bytes_per_s": 4e9, "flop_per_s": 6e10}]}]
    changed = with_rates_of(plan, members)["cluster"]["device_type"]
    assert [kind["memory_bandwidth"] for kind in changed] == ["3000000000.0 B/s", "4000000000.0 B/s"]
    assert changed[1]["flops"] == {"bf16": "60000000000.0 FLOP/s", "fp32": "60000000000.0 FLOP/s"}
    assert all(kind["efficiency"] == shares for kind in changed) and plan["cluster"]["device_type"] == types


def run(script, *arguments, folder, motley):
    command = [sys.executable, MACHINES / script, "--folder", folder, "--build", motley.parent, "--model", ROOT / "data/models/tales", "--rounds", "1", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, err[-4000:]
    return out


@networks.needs_namespaces
def test_two_machines_with_two_devices_each_serve_one_plan(motley, tmp_path):
    out = run("tls.py", "--streams", "2", folder=tmp_path / "tls", motley=motley)
    assert re.search(r"^\| [\d.]+ \| [\d.]+ \| [\d.]+ \|$", out, re.MULTILINE), out


@pytest.mark.parametrize("loopback", [pytest.param([], marks=networks.needs_namespaces), ["--loopback"]])
def test_two_agents_offer_one_device_as_two_machines(loopback, motley, tmp_path):
    """What a check of a GPU runs, here on the processor."""
    model = ROOT / "data/models/tales"
    command = [sys.executable, MACHINES / "one_card.py", "--motley", motley, "--model", model, "--memory", "7 MiB", "--folder", tmp_path / "two",
               "--threads", "1", *loopback, "--", "--max-tokens", "64", "--max-sequences", "8", "--weight-type", "bf16"]  # fmt: skip
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-4000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert {stage["devices"][0] for stage in found["plan"]["stages"]} == {"m1/0", "m2/0"}
    for whole, layers in {True: [[0, 8]], False: [[0, 4], [4, 8]]}.items():
        plan = on_one_machine(found["plan"], whole)
        assert [stage["layers"] for stage in plan["stages"]] == layers
        file = tmp_path / "plan.json"
        file.write_text(json.dumps(plan))
        assert subprocess.run([motley, "verify", file], capture_output=True, timeout=60).returncode == 0
    assert [len(answer) for answer in found["answers"]] == [16] * 6


@networks.needs_namespaces
@needs_quotas
def test_plans_for_unlike_machines_are_measured_and_simulated(motley, tmp_path):
    out = run("plans.py", "--setting", "two devices in one", "--plan", "grid", folder=tmp_path / "plans", motley=motley)
    assert re.search(r"^\| grid \| 4 on m2\+m3 > 4 on m4\+m4/1( \| [\d.]+){4} \|$", out, re.MULTILINE), out
