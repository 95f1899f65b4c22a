"""`motley group bench`: collectives timed between ranks that it starts, or that are started by hand."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIZES = ["--from", "1 KiB", "--to", "64 KiB", "--factor", "8", "--seconds", "0.01"]


def run(motley, *arguments, code=0):
    result = subprocess.run([motley, "group", "bench", *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize(("operation", "factor"), [("all-reduce", 4 / 3), ("reduce-scatter", 2 / 3), ("all-gather", 2 / 3), ("broadcast", 1), ("reduce", 1)])
def test_rates_follow_from_times(motley, transport, operation, factor):
    result = json.loads(run(motley, "--operation", operation, "--ranks", "3", "--transport", transport, *SIZES, "--json").stdout)
    assert (result["operation"], result["ranks"], result["transport"]) == (operation, 3, transport)
    assert [size["bytes"] for size in result["sizes"]] == [1020, 8184, 65532]  # whole elements for each of three ranks
    for size in result["sizes"]:
        assert size["wrong"] == 0 and size["calls"] >= 2
        assert size["algorithm_bytes_per_s"] == pytest.approx(size["bytes"] / size["time_s"])
        assert size["bus_bytes_per_s"] == pytest.approx(factor * size["algorithm_bytes_per_s"])


def test_ranks_that_are_started_by_hand_meet(motley):
    ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    members = ",".join(f"127.0.0.1:{port.getsockname()[1]}" for port in ports)
    for port in ports:
        port.close()
    other = subprocess.Popen([motley, "group", "bench", "--members", members, "--rank", "1", *SIZES], stdout=subprocess.PIPE, text=True)
    table = run(motley, "--members", members, "--rank", "0", *SIZES).stdout
    assert other.communicate(timeout=60)[0] == "" and other.returncode == 0  # rank 0 alone reports
    assert "2 ranks" in table and "65536" in table


def test_a_plan_runs(motley, tmp_path):
    plan = tmp_path / "plan.json"
    subprocess.run([motley, "plan", "allreduce", "--cluster", "examples/collectives/star.toml", "--bytes", "1 MB", "-q", "-o", plan], check=True,
                   cwd=ROOT, stdout=subprocess.DEVNULL)  # fmt: skip
    sizes = ["--from", "64 KiB", "--to", "1 MiB", "--factor", "16", "--seconds", "0.01"]
    result = json.loads(run(motley, "--plan", plan, "--ranks", "8", *sizes, "--json").stdout)
    assert [size["wrong"] for size in result["sizes"]] == [0, 0]
    assert "for 8 ranks in a group of 3" in run(motley, "--plan", plan, "--ranks", "3", *sizes, code=2).stderr


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--operation", "all-redcue"], "the operation must be a collective"),
        (["--transport", "rdma"], "--transport"),
        (["--ranks", "0"], "--ranks"),
        (["--to", "5"], "--to: \"5\" has no unit"),
        (["--from", "0 B"], "--from: a size must be between 1 B and 4 GB, found \"0 B\""),
        (["--from", "1 MiB", "--to", "1 KiB"], "--from must not be larger than --to"),
        (["--rank", "1"], "--rank needs --members"),
        (["--members", "127.0.0.1:1,127.0.0.1:2", "--rank", "2"], "--rank must be less than the number of members, found 2 of 2"),
        (["--members", "127.0.0.1:1,127.0.0.1:2", "--rank", "0", "--key", "/dev/null"], "/dev/null is empty"),
    ],
)
def test_bad_input_is_named(motley, arguments, cause):
    assert cause in run(motley, *arguments, code=2).stderr
