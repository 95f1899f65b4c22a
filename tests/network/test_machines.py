"""`motley up` and `motley join` between network namespaces: from nothing to an answer, through faults, to nothing left."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import test_networks as networks

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "bench/machines/faults.py"
needs_etcd = pytest.mark.skipif(not shutil.which("etcd"), reason="needs Debian's etcd-server")


def run(*arguments, folder, motley, seconds=240):
    """One JSON object, of a deployment in namespaces of its own."""
    command = [sys.executable, FAULTS, "--folder", folder, "--build", motley.parent, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, err[-4000:]
    return json.loads(out.splitlines()[-1])


@networks.needs_namespaces
@pytest.mark.parametrize("kinds", [["worker killed", "agent killed", "machine removed"], ["worker stopped", "link cut", "leaves"]])
def test_no_request_is_lost(motley, tmp_path, kinds):
    only = [word for kind in kinds for word in ("--only", kind)]
    result = run("--machines", 3, "--memory", "9 MiB", "--faults", len(kinds), "--streams", 4, "--in-order", *only, folder=tmp_path / "d", motley=motley)
    assert result["faults"] == dict.fromkeys(kinds, 1)
    assert result["requests"] > 0 and result["failed"] == 0, result["failures"]
    assert result["changed"] == 0  # one device for each stage, and cuts between layers are exact
    assert result["processes_left"] == [] and result["exit_code"] == 0


# All workers compute on the stand-in of a GPU, where a step takes long: few faults, and with `./dev test standins` 100.
@networks.needs_namespaces
def test_no_request_is_lost_on_a_device_apart(motley, tmp_path):
    every = os.environ.get("MOTLEY_STANDINS") == "all"
    faults = ["--faults", 100] if every else ["--faults", 2, "--in-order", "--only", "worker killed", "--only", "leaves"]
    result = run("--backend", "apart", "--machines", 3, "--streams", 3, "--tokens", 12, *faults, folder=tmp_path / "d", motley=motley,
                 seconds=3600 if every else 240)  # fmt: skip
    assert result["requests"] > 0 and result["failed"] == 0, result["failures"]
    assert result["changed"] == 0
    assert result["processes_left"] == [] and result["exit_code"] == 0


@networks.needs_namespaces
def test_three_machines_serve_drain_and_serve_a_plan_again(motley, tmp_path):
    script = ROOT / "tests/network/machines_script.py"
    result = subprocess.run([sys.executable, script, tmp_path / "d", motley.parent], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr[-6000:]


@networks.needs_namespaces
def test_machines_that_cannot_connect_to_each_other_use_the_relay(motley, tmp_path):
    script = ROOT / "tests/network/relayed_script.py"
    result = subprocess.run([sys.executable, script, tmp_path / "d", motley.parent], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr[-6000:]


@networks.needs_namespaces
def test_copies_of_layers_are_not_loaded_after_a_loss(motley, tmp_path):
    script = ROOT / "tests/network/copies_script.py"
    result = subprocess.run([sys.executable, script, tmp_path / "d", motley.parent], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr[-6000:]


@networks.needs_namespaces
@needs_etcd
@pytest.mark.parametrize("found_by", ["address", "name"])
def test_another_machine_takes_over_from_the_drivers(motley, tmp_path, found_by):
    script = ROOT / "tests/network/standby_script.py"
    result = subprocess.run([sys.executable, script, tmp_path / "d", motley.parent, found_by], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr[-6000:]


@networks.needs_namespaces
@pytest.mark.parametrize("scenario", ["slow_worker", "lost_link"])
def test_what_no_longer_does_its_part_is_named_and_planned_around(motley, tmp_path, scenario):
    script = ROOT / "tests/network/degraded_script.py"
    result = subprocess.run([sys.executable, script, tmp_path / "d", motley.parent, scenario], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr[-6000:]


@networks.needs_namespaces
@pytest.mark.parametrize("scenario", ["tokens", "full_disk", "clock"])
def test_who_is_admitted_and_what_machines_lack(motley, tmp_path, scenario):
    script = ROOT / "tests/network/admission_script.py"
    result = subprocess.run([sys.executable, script, tmp_path / "d", motley.parent, scenario], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr[-6000:]


@networks.needs_namespaces
@pytest.mark.parametrize("scenario", ["peers", "lost_peer"])
def test_weights_come_from_other_machines_than_the_drivers(motley, tmp_path, scenario):
    script = ROOT / "tests/network/weights_script.py"
    result = subprocess.run([sys.executable, script, tmp_path / "d", motley.parent, scenario], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr[-6000:]


@networks.needs_namespaces
@pytest.mark.parametrize("scenario", ["killed", "removed", pytest.param("stored", marks=needs_etcd), "stopped"])
def test_training_over_machines(motley, tmp_path, scenario):
    script = ROOT / "tests/network/training_script.py"
    result = subprocess.run([sys.executable, script, tmp_path / "d", motley.parent, scenario], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr[-6000:]


def join(motley, link, *arguments, **options):
    return subprocess.run([motley, "join", *arguments], capture_output=True, text=True, timeout=60, env=os.environ | {"MOTLEY_LINK": link}, **options)


@pytest.fixture
def alone(motley, tmp_path):
    """`motley up` that waits for a second machine; its link."""
    environment = os.environ | {f"XDG_{kind}_HOME": str(tmp_path / kind) for kind in ("CACHE", "STATE")}
    process = subprocess.Popen([motley, "up", "--model", ROOT / "data/models/tales", "--wait", "2", "--name", "a", "--memory", "7 MiB",
                                "--port", "0", "--listen", "127.0.0.1", "-q"], stdout=subprocess.PIPE, text=True, env=environment)  # fmt: skip
    yield process, process.stdout.readline().split("'")[1]
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 130


def test_who_does_not_belong_is_told_so_at_once(motley, alone, tmp_path, monkeypatch):
    for kind in ("CACHE", "STATE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / "other" / kind))
    link = alone[1]
    token = link.split("token=")[1]
    for wrong, cause in [
        (link.replace(token, "0" * len(token)), "token"),
        (link[: -len(token) - 7], "lacks `token`: it is cut off"),
        (link.replace("authority=sha256:", "authority=sha256:0")[: len(link)], "is damaged"),
        ("http://" + link, "must begin with motley://"),
    ]:
        result = join(motley, wrong, "--memory", "7 MiB", "--name", "b")
        assert result.returncode in (2, 5) and cause in result.stderr and token not in result.stderr, result.stderr
    other = link.split("sha256:")[1][:64]
    result = join(motley, link.replace(other, other[::-1]), "--memory", "7 MiB", "--name", "b")
    assert result.returncode == 5 and "authority" in result.stderr, result.stderr
    result = join(motley, link, "--memory", "7 MiB", "--name", "a")
    assert result.returncode == 2 and 'another machine is called "a"' in result.stderr, result.stderr
    result = join(motley, link, "--memory", "9999 GiB", "--name", "b")
    assert result.returncode == 2 and "--memory 9999 GiB is more than" in result.stderr
