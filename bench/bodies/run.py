#!/usr/bin/env python3
"""What another client waits while the server handles one large body, and what memory that takes.

    run.py [--program PATH] [--bytes N] [--seconds S] [--memory MB]

Starts `motley serve` of the tales model on one device, asks for one token every 20 ms, and sends bodies of N bytes
(default 8 MiB), one after another. The table has the longest of those waits, which should be at most S seconds (0.5),
and what memory grew by at the most, which should be at most MB (256). Exits 1 where one is more.
"""

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

from decode.local_server import listening

MODEL = ROOT / "data" / "models" / "tales"
CLUSTER = ROOT / "examples" / "garage" / "one-device.toml"
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
KEY = "of-this-run"  # the operator's: plans are read for it alone
SMALL = json.dumps({"prompt": "Once", "max_tokens": 1}).encode()
MESSAGE = b'{"role":"user","content":"a"}'


def listed(item, size):
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def keys(size):
    return b"{" + b",".join(b'"%x":0' % i for i in range(size // 10)) + b"}"


def nested(size):
    return listed(b"[" * 60 + b"]" * 60, size)


def completion(prompt):
    return b'{"max_tokens":1,"prompt":' + prompt + b"}"


def chat(messages):
    return b'{"max_tokens":1,"messages":' + messages + b"}"


# Path and body of this many bytes.
BODIES = {
    "many keys": lambda n: (COMPLETIONS, keys(n)),
    "one long key": lambda n: (COMPLETIONS, b'{"prompt":"a","max_tokens":1,"' + b"k" * n + b'":0}'),
    "a prompt of one word": lambda n: (COMPLETIONS, completion(b'"' + b"a" * n + b'"')),
    "a prompt of words": lambda n: (COMPLETIONS, completion(b'"' + b"once upon " * (n // 10) + b'"')),
    "a prompt of spaces": lambda n: (COMPLETIONS, completion(b'"' + b" " * n + b'"')),
    "64 prompts": lambda n: (COMPLETIONS, completion(listed(b'"' + b"a " * (n // 128) + b'"', n))),
    "token ids": lambda n: (COMPLETIONS, completion(listed(b"3", n))),
    "token ids with echo": lambda n: (COMPLETIONS, b'{"echo":true,' + completion(listed(b"3", n))[1:]),
    "escapes": lambda n: (COMPLETIONS, completion(b'"' + b"\\u00e4\\n" * (n // 8) + b'"')),
    "nested lists": lambda n: (COMPLETIONS, completion(nested(n))),
    "messages": lambda n: (CHATS, chat(listed(MESSAGE, n))),
    "as many messages as fit": lambda n: (CHATS, chat(listed(MESSAGE, 21000 * (len(MESSAGE) + 1)))),
    "one long message": lambda n: (CHATS, chat(b'[{"role":"user","content":"' + b"a " * (n // 2) + b'"}]')),
    "parts of a message": lambda n: (CHATS, chat(b'[{"role":"user","content":' + listed(b'{"type":"text","text":"a"}', n) + b"}]")),
    "a message with lists": lambda n: (CHATS, chat(b'[{"role":"user","content":"a","x":' + nested(n) + b"}]")),
    "a plan of keys": lambda n: ("/plan", keys(n)),
    "a plan of lists": lambda n: ("/plan", b'{"format":"motley.plan/1","kind":"serve","stages":' + nested(n) + b"}"),
}


def post(port, path, body):
    """The status, and how long it took."""
    begin = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", path, body, {"content-type": "application/json", "authorization": f"Bearer {KEY}"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, time.monotonic() - begin


class Waits(threading.Thread):
    """A client that asks for one token again and again; its longest wait."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.longest, self.done = port, 0.0, threading.Event()
        self.start()

    def run(self):
        while not self.done.wait(0.02):
            status, wait_s = post(self.port, COMPLETIONS, SMALL)
            if status != 200:
                raise RuntimeError(f"a small request is answered {status}")
            self.longest = max(self.longest, wait_s)

    def end(self):
        self.done.set()
        self.join()
        return self.longest


def peak_mb(pid):
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1000


def driver_of(port):
    """The process that listens: the server was started by another function's caller."""
    address = f"{port:04X}"
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = row.split()
        if words[1].endswith(":" + address) and words[3] == "0A":
            inode = f"socket:[{words[9]}]"
            for link in Path("/proc").glob("[0-9]*/fd/*"):
                try:
                    if os.readlink(link) == inode:
                        return int(link.parts[2])
                except OSError:
                    continue
    sys.exit(f"no process listens at port {port}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=ROOT / "build" / "release" / "motley")
    parser.add_argument("--bytes", type=int, default=8 << 20)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--memory", type=float, default=256)
    options = parser.parse_args()
    size = options.bytes - 200
    with tempfile.TemporaryDirectory(prefix="motley-bodies-") as folder:
        plan = Path(folder) / "plan.json"
        command = [options.program, "plan", "serve", "--cluster", CLUSTER, "--model", MODEL, "-o", plan, "--quiet"]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
        with listening([options.program, "serve", plan, "--model", MODEL, "--local", "--port", "0"], env=os.environ | {"MOTLEY_OPERATOR_KEY": KEY}) as address:
            port = int(address.rpartition(":")[2])
            pid = driver_of(port)
            while post(port, COMPLETIONS, SMALL)[0] != 200:
                time.sleep(0.1)
            failed = False
            print("| body | MB | answer | its time | another client's wait | memory |\n|---|---|---|---|---|---|")
            for name, make in {"none": None, **BODIES}.items():
                path, body = make(size) if make else (COMPLETIONS, SMALL)
                Path(f"/proc/{pid}/clear_refs").write_text("5")
                before, waits = peak_mb(pid), Waits(port)
                time.sleep(0.3)
                status, took_s = post(port, path, body)
                wait_s, grown_mb = waits.end(), peak_mb(pid) - before
                failed = failed or wait_s > options.seconds or grown_mb > options.memory
                print(f"| {name} | {len(body) / 1e6:.1f} | {status} | {took_s:.2f} s | {wait_s:.2f} s | {grown_mb:.0f} MB |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
