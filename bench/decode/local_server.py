"""`motley serve` on this machine, for as long as a benchmark asks it."""

import contextlib
import re
import subprocess
import sys


@contextlib.contextmanager
def listening(command, **options):
    """The address that the server of this command listens at; `options` are Popen's. What it says before goes to stderr."""
    server = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, **options)
    try:
        for line in server.stderr:
            if found := re.search(r"http://[\d.]+:\d+(?=/v1)", line):
                yield found[0]
                break
            print(line, end="", file=sys.stderr)
        else:
            sys.exit("motley serve ended before it listened")
    finally:
        server.terminate()
        server.communicate()
