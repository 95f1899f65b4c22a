"""The benchmarks over several machines run, and divide layers as they say. What they measure is not looked at."""

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
from plans import divided  # noqa: E402

needs_quotas = pytest.mark.skipif(not os.access("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", os.W_OK), reason="needs control groups of version 1, and root")


@pytest.mark.parametrize(
    ("weights", "most", "counts"),
    [([1, 1, 1], [28, 28, 28], [10, 9, 9]), ([1, 2, 4], [28, 28, 28], [4, 8, 16]), ([1, 2, 4], [28, 28, 10], [6, 12, 10]),
     ([1, 1, 1], [5, 12, 12], [5, 12, 11]), ([3, 2, 1], [5, 5, 5], None)],
)  # fmt: skip
def test_layers_are_divided_in_proportion_as_far_as_they_fit(weights, most, counts):
    assert divided(weights, most, 28) == counts


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


@networks.needs_namespaces
@needs_quotas
def test_plans_for_unlike_machines_are_measured_and_simulated(motley, tmp_path):
    out = run("plans.py", "--setting", "two devices in one", "--plan", "grid", folder=tmp_path / "plans", motley=motley)
    assert re.search(r"^\| grid \| 4 on m2\+m3 > 4 on m4\+m4/1( \| [\d.]+){4} \|$", out, re.MULTILINE), out
