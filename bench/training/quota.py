"""Processor quotas for processes that compute for seconds: control groups of version 1, as root."""

import tempfile
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/cpu")
# With shorter ones a quota of a whole processor gives less: 0.95 with 10 ms, 0.6 with 1 ms.
PERIOD_US = 20000


def made(processors):
    """The folder of a new group, to be removed (`rmdir()`) once its processes have ended."""
    folder = Path(tempfile.mkdtemp(prefix="motley-training-", dir=GROUPS))
    (folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(round(PERIOD_US * processors)))
    return folder


def hold(folder, process):
    (folder / "cgroup.procs").write_text(str(process))
