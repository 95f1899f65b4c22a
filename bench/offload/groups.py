"""Control groups (version 1 or 2, as root) that hold what runs in them to a limit of memory, or to a number of bytes per second of a disk."""

import os
import sys
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


class ControlGroup:
    """Of one limit; `command()` puts a command into it. Where it cannot be made nothing is limited, and that is said."""

    def __init__(self, controller, limits):
        """`limits`: {version: {file: text}}"""
        self.folder = None
        for version, root in ((1, ROOT / controller), (2, ROOT)):
            folder = root / f"motley-offload-{os.getpid()}"
            try:
                folder.mkdir()
                for file, text in limits[version].items():
                    (folder / file).write_text(text)
            except OSError:
                if folder.is_dir():
                    folder.rmdir()
                continue
            self.folder = folder
            break
        if self.folder is None:
            print(f"no control group can be made here: nothing is held to its {controller}", file=sys.stderr, flush=True)

    def command(self, command):
        if self.folder is None:
            return list(map(str, command))
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh", *map(str, command)]

    def remove(self):
        if self.folder is not None:
            self.folder.rmdir()


class Groups:
    """Several limits at once."""

    def __init__(self, groups):
        self.groups = groups

    def command(self, command):
        for group in self.groups:
            command = group.command(command)
        return command


def memory_group(limit):
    """Of this many bytes for the whole process tree."""
    return ControlGroup("memory", {1: {"memory.limit_in_bytes": str(limit)}, 2: {"memory.max": str(limit)}})


def disk_group(folder, rate):
    """Of this many bytes per second in each direction, of the disk that holds the folder."""
    device = os.stat(folder).st_dev
    disk = f"{os.major(device)}:{os.minor(device)}"
    return ControlGroup("blkio", {1: {f"blkio.throttle.{way}_bps_device": f"{disk} {rate}" for way in ("read", "write")},
                                  2: {"io.max": f"{disk} rbps={rate} wbps={rate}"}})
