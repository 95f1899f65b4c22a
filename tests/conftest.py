"""Fixtures for tests that run the built program."""

import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from processes import alive, children, name_of

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build" / "release"))


@pytest.fixture(scope="session")
def motley():
    program = BUILD / "motley"
    assert program.exists(), f"{program} is not built"
    return program


class RunningServer:
    """`motley serve ...` on a free port, from the start of its workers to its end."""

    def __init__(self, program, arguments, timeout_s=120):
        command = [str(program), "serve", *map(str, arguments), "--local", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log = []
        self.port = None
        self._port_known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._port_known.wait(timeout_s) or self.port is None:
            self.process.kill()
            raise AssertionError("the server did not get ready:\n" + self.text())
        assert self.status("/ready") == 200
        started = children(self.process.pid)
        self.workers = [process for process in started if name_of(process) == "motley-worker"]
        self.helpers = [process for process in started if process not in self.workers]  # Python's, for texts

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            if match := re.search(r"http://127\.0\.0\.1:(\d+)/v1", line):
                self.port = int(match[1])
                self._port_known.set()
        self._port_known.set()

    def text(self):
        return "".join(self.log)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def status(self, path):
        try:
            with urllib.request.urlopen(self.url + path, timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def wait(self, timeout_s=60):
        """The exit code; asserts that nothing outlives the server."""
        code = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        until = time.monotonic() + 5
        while any(map(alive, self.workers + self.helpers)) and time.monotonic() < until:
            time.sleep(0.05)
        left = [process for process in self.workers + self.helpers if alive(process)]
        assert not left, f"processes remain: {left}"
        return code

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.wait()


@pytest.fixture(scope="session")
def start_server(motley):
    """start_server(arguments..., program=motley) -> RunningServer; those still running at the end are stopped, in order and with code 0."""
    servers = []

    def start(*arguments, program=motley):
        servers.append(RunningServer(program, arguments))
        return servers[-1]

    yield start
    codes = [server.stop() for server in servers if server.process.poll() is None]
    assert codes == [0] * len(codes)
