"""The coordinator's machine stops: a second coordinator takes the group over from the log in etcd, and no step is lost."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEMBER = """
import ctypes, sys, time
from motley.comm import Session

session = Session(sys.argv[1].split(","), token="", id=sys.argv[2])
total = (ctypes.c_float * 1)()


def step(group):  # begins again where another epoch takes it up
    total[0] = 1
    group.all_reduce(ctypes.addressof(total), 4, "fp32")


for _ in range(int(sys.argv[3])):
    outcome = session.run(step, 60)
    print(outcome.status, outcome.step, outcome.members, total[0], flush=True)
    time.sleep(0.05)
session.leave(10)
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def start(tmp_path):
    processes = []

    def run(*command, **options):
        processes.append(subprocess.Popen([*map(str, command)], cwd=tmp_path, text=True, **options))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def etcd(start, tmp_path):
    place = f"127.0.0.1:{free_port()}"
    peer = f"http://127.0.0.1:{free_port()}"
    start("/usr/bin/etcd", "--data-dir", tmp_path / "etcd", "--listen-client-urls", f"http://{place}",
          "--advertise-client-urls", f"http://{place}", "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
          "--initial-cluster", f"default={peer}", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(f"http://{place}/health", timeout=2).read()
            return f"etcd://{place}/run"
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError("etcd did not start")


@pytest.mark.skipif(not shutil.which("etcd"), reason="needs Debian's etcd-server")
def test_a_standby_takes_over_and_the_one_that_comes_back_is_fenced(motley, start, etcd, tmp_path):
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    steps = 60

    def coordinate(address, *arguments):
        command = [motley, "group", "serve", "--listen", address, "--store", etcd, "--minimum-size", "2", *arguments]
        return start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    first = coordinate(addresses[0])
    assert first.stdout.readline().strip() == addresses[0]
    second = coordinate(addresses[1], "--standby")
    assert "another coordinator holds" in second.stderr.readline()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MOTLEY_")}
    environment |= {"PYTHONPATH": str(ROOT / "python"), "MOTLEY_COMM_LIBRARY": str(motley.parent / "libmotley_comm.so")}
    members = [start(sys.executable, "-c", MEMBER, ",".join(addresses), name, steps, env=environment, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE) for name in ("anna", "ben")]  # fmt: skip
    said = [[member.stdout.readline() for _ in range(5)] for member in members]
    first.send_signal(signal.SIGSTOP)  # the whole machine, as far as anybody can see
    assert second.stdout.readline().strip() == addresses[1]
    for lines, member in zip(said, members, strict=True):
        out, errors = member.communicate(timeout=90)
        assert member.returncode == 0, errors
        lines += out.splitlines(keepends=True)
        committed = [line.split() for line in lines]
        # Every step once, by both, with both in it.
        assert [(status, int(step), *rest) for status, step, *rest in committed] == [("committed", step + 1, "2", "2.0") for step in range(steps)]
    first.send_signal(signal.SIGCONT)
    _, errors = first.communicate(timeout=30)
    assert first.returncode == 5
    assert "another coordinator has taken over" in errors
    second.send_signal(signal.SIGTERM)
    assert second.communicate(timeout=30) and second.returncode == 0
