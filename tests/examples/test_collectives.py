"""The example of collectives from C++, run as its page says."""

import re
import socket
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def start(motley, ranks):
    addresses = ",".join(free_addresses(ranks))
    program = motley.parent / "examples/average"
    assert program.exists(), f"{program} is not built"
    return [subprocess.Popen([program, str(rank), addresses], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(ranks)]


def test_the_example_prints_what_its_page_shows(motley):
    shown = re.findall(r"^    (step \d: .*)$", (ROOT / "examples/collectives/README.md").read_text(), re.MULTILINE)
    outputs = [process.communicate(timeout=60) for process in start(motley, 3)]
    assert len(shown) == 3 and outputs[0][0].splitlines() == shown, outputs
    assert [errors for _, errors in outputs] == ["", "", ""]


def test_a_rank_that_never_comes_is_named(motley):
    """Rank 1 is killed before or while it connects: rank 0 ends by itself, and says whom it misses."""
    processes = start(motley, 2)
    processes[1].kill()
    _, errors = processes[0].communicate(timeout=60)
    processes[1].communicate(timeout=60)
    assert processes[0].returncode == 5 and "rank 1" in errors.partition(": ")[2], errors
