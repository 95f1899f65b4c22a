"""Processes of this machine, by /proc."""

import os
import signal
import time
from pathlib import Path


def children(process):
    """Ids of all processes that descend from this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                pass
    found, frontier = [], [process]
    while frontier:
        frontier = [child for child, parent in parents.items() if parent in frontier]
        found += frontier
    return found


def alive(process):
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(process):
    """Returns when it is dead: on a busy machine a process outlives its signal by a while."""
    os.kill(process, signal.SIGKILL)
    until = time.monotonic() + 10
    while alive(process):
        assert time.monotonic() < until, f"process {process} outlives SIGKILL"
        time.sleep(0.01)


def name_of(process):
    return (Path("/proc") / str(process) / "comm").read_text().strip()
