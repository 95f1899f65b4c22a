"""The test networks give no more than they are asked for, lose what they should, and leave nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NETWORK = ROOT / "bench/network"


def has_networks():
    """Containers often forbid namespaces, or their kernel lacks a device."""
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists():
        return False
    attempt = (
        "ip link add v0 type veth peer name v1 && tc qdisc add dev v0 root tbf rate 1mbit burst 10kb latency 10ms && ip tuntap add t0 mode tun"
    )
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.run([*unshare, "sh", "-c", attempt], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not has_networks(), reason="namespaces, veth, tbf and TUN devices need root, and a kernel that has them")


def run(program, *arguments, code=0):
    result = subprocess.run([sys.executable, NETWORK / program, *arguments], capture_output=True, text=True, timeout=60)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout


def of_rank(rank, text):
    """What networks.py forwards of one rank."""
    prefix = f"[{rank}] "
    return "".join(line.removeprefix(prefix) for line in text.splitlines(keepends=True) if line.startswith(prefix))


def cases(kind):
    lines = map(json.loads, run("check.py", "--seconds", "0.3", "--datagrams", "5000", kind).splitlines())
    return {line["case"]: (line["asked"], line["measured"]) for line in lines}


@needs_namespaces
@pytest.mark.parametrize("kind", ["star", "tree"])
def test_no_link_is_faster_than_asked(kind):
    """What a bucket lets through at once is 66 kB, up to 9 % of the slowest of these measurements."""
    for asked, measured in cases(kind).values():
        assert 0 < measured["bytes_per_s"] < 1.15 * asked["bytes_per_s"]


@needs_namespaces
def test_the_wide_area_has_its_delay_rate_and_losses():
    wan = cases("wan")
    asked, measured = wan["wide area, cubic"]
    assert measured["round_trip_least_s"] >= asked["round_trip_s"]
    assert 0 < measured["bytes_per_s"] <= 1.02 * asked["bytes_per_s"]
    for burst in (1, 10):
        asked, measured = wan[f"wide area, losses in runs of {burst}"]
        # Runs of n packets: 2n - 1 times the variance of single losses.
        deviation = (asked["loss"] * (2 * burst - 1) / 5000) ** 0.5
        assert abs(measured["loss"] - asked["loss"]) < 5 * deviation


@needs_namespaces
def test_memory_over_the_wide_area_is_bounded_by_what_is_under_way(motley, tmp_path):
    """Twice the bandwidth-delay product, and the pool of pieces that came before their turn (32 MiB, docs/concepts/collectives.md)."""
    bytes_per_s, round_trip_s, pool = 200e6 / 8, 0.05, 32 << 20
    secret = tmp_path / "secret"
    secret.write_text("x")
    members = ",".join(f"10.9.0.{rank + 1}:4711" for rank in range(2))
    bench = [motley, "group", "bench", "--transport", "tcp", "--members", members, "--rank", "{rank}", "--key", secret, "--plain",
             "--from", "40 MiB", "--to", "40 MiB", "--seconds", "0.1", "-q", "-o", tmp_path / "of-rank-0.json"]  # fmt: skip
    network = ["wan", "--ranks", "2", "--rate", "200mbit", "--delay", "25ms", "--loss", "1e-4"]
    run("networks.py", *network, "--", *map(str, bench))
    (row,) = json.loads((tmp_path / "of-rank-0.json").read_text())["sizes"]
    assert row["wrong"] == 0
    assert row["streams"] >= 4
    assert 2 << 20 <= row["peak_extra_bytes"] <= 2 * bytes_per_s * round_trip_s + pool


@needs_namespaces
def test_a_command_runs_once_per_rank_and_its_failure_is_the_result():
    text = run("networks.py", "star", "10mbit", "10mbit", "--", "sh", "-c", "echo {rank} of {ranks} at {address}; ip -br addr show {interface}")
    for rank in (0, 1):
        first, *others = of_rank(rank, text).splitlines()
        assert first == f"{rank} of 2 at 10.9.0.{rank + 1}" and f"10.9.0.{rank + 1}/24" in "".join(others)
    # One rank fails, the other would run for long.
    run("networks.py", "star", "10mbit", "10mbit", "--", "sh", "-c", "[ {rank} = 0 ] && exit 7; sleep 1000", code=7)


@needs_namespaces
def test_no_line_of_a_rank_is_torn_or_lost():
    """Both write in pieces, at the same time, more than a pipe holds, and a last line that does not end."""
    writer = "import sys\nfor line in range(3000): sys.stdout.write(f'{line} of '); sys.stdout.flush(); sys.stdout.write('{rank}' * 40 + '\\n')\n"
    text = run("networks.py", "star", "10mbit", "10mbit", "--", sys.executable, "-c", writer + "print('the end', end='')")
    for rank in (0, 1):
        assert of_rank(rank, text).splitlines() == [f"{line} of {str(rank) * 40}" for line in range(3000)] + ["the end"]


@needs_namespaces
def test_nothing_is_left_when_the_process_is_killed(tmp_path):
    held = tmp_path / "held"
    os.mkfifo(held)
    descriptor = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    ranks = ["sh", "-c", f"exec 3>{held}; echo ready; exec sleep 999.125"]
    command = [sys.executable, NETWORK / "networks.py", "star", "10mbit", "10mbit", "--", *ranks]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert sorted(process.stdout.readline() for _ in range(2)) == ["[0] ready\n", "[1] ready\n"]
    process.kill()
    process.wait()
    # The ranks alone hold the other end: it is closed when they have ended.
    os.set_blocking(descriptor, True)
    assert os.read(descriptor, 1) == b""
    os.close(descriptor)
    assert not list(Path("/run/netns").glob("r0"))
