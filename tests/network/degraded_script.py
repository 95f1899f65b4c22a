"""What does not die but no longer does its part; run by test_machines.py in namespaces of its own. Who is to blame is named, the
deployment goes over to another plan once, and the streams go on."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path += [str(BENCH / "machines"), str(BENCH / "decode")]
from deployment import Deployment, inside  # noqa: E402

folder, build, scenario = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
inside()
OPTIONS = ["--max-tokens", "64", "--max-sequences", "8", "--device-threads", "1"]


class Streams:
    """Answers to one request, one after the other, by several at once."""

    def __init__(self, deployment, count):
        self.deployment, self.stop = deployment, threading.Event()
        self.expected = deployment.complete("Once upon a time", 60, 1)
        self.answers, self.failures, self.gaps = 0, [], []
        # Where a check fails they must not keep the script, and hence the deployment, from ending.
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self):
        while not self.stop.is_set():
            arrivals = []
            try:
                text = self.deployment.complete("Once upon a time", 60, 1, arrivals)
            except Exception as failure:
                self.failures.append(repr(failure))
                return
            self.answers += 1
            self.gaps += [b - a for a, b in zip(arrivals, arrivals[1:])]
            if text != self.expected:
                self.failures.append("another text")

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()
        assert not self.failures, self.failures
        return max(self.gaps)


# A process of its own: what else this one does must not keep the other running. It is let run until it has computed a little, which on a
# busy machine takes a while, and stopped for 19 times as long.
ALTERNATE = """
import os, signal, sys, time
pid = int(sys.argv[1])
clock = ~pid << 3 | 2  # of the process's processor time, as clock_getcpuclockid() has it
os.setpriority(os.PRIO_PROCESS, 0, -20)
while True:
    begin, before = time.monotonic(), time.clock_gettime(clock)
    os.kill(pid, signal.SIGCONT)
    while time.clock_gettime(clock) == before and time.monotonic() < begin + 0.001:
        time.sleep(0.00003)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(19 * (time.monotonic() - begin))
"""


@contextlib.contextmanager
def at_a_twentieth(pid):
    """A process that computes about a twentieth of the time that it would."""
    alternate = subprocess.Popen([sys.executable, "-c", ALTERNATE, str(pid)], stderr=subprocess.DEVNULL)
    yield
    alternate.kill()
    alternate.wait()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def epoch_after(deployment, before):
    deployment.wait(lambda: deployment.plan()["epoch"] > before and deployment.serving(), "it stays with its plan", 60)
    return deployment.plan()["epoch"]


def named(deployment, pattern, since):
    """How long after `since` a line of the log names who is to blame."""
    deployment.wait(lambda: any(re.search(pattern, line) for line in deployment.log), f"nothing says {pattern!r}", 60)
    return time.monotonic() - since


def made_model():
    """110 MB: its steps are long compared with what else holds up a process."""
    from make_model import make, write_tokenizer

    model = folder.parent / "model"
    make("small256", model, num_hidden_layers=8, hidden_size=768, num_attention_heads=12, num_key_value_heads=4, intermediate_size=2304)
    write_tokenizer(model)
    return model


def slow_worker():
    machines = [{"memory": "90 MiB", "options": ["--device-threads", "1"]}] * 2
    deployment = Deployment(folder, "90 MiB", machines, motley=build / "motley", options=OPTIONS, model=made_model())
    before = deployment.plan()
    slow = max(before["workers"], key=lambda worker: worker["weight_bytes"])
    streams = Streams(deployment, 6)
    time.sleep(6)
    assert not any(" slow " in line for line in deployment.log), deployment.text()
    with at_a_twentieth(slow["process"]):
        took = named(deployment, rf" slow +{slow['device']} computes", time.monotonic())
        assert epoch_after(deployment, before["epoch"]) == before["epoch"] + 1
    after = deployment.plan()
    layers = {worker["device"]: worker["weight_bytes"] for worker in after["workers"]}
    assert layers.get(slow["device"], 0) < slow["weight_bytes"], (before, after)
    time.sleep(4)
    assert deployment.plan()["epoch"] == after["epoch"], "one change is enough"
    print(f"named after {took:.1f} s; longest pause {streams.end():.1f} s")
    return deployment


def lost_link():
    """What one machine sends to the next goes to an address that no machine has; both still reach the driver."""
    deployment = Deployment(folder, "4.6 MiB", 4, motley=build / "motley", options=OPTIONS)
    before = deployment.plan()
    machines = [worker["device"].split("/")[0] for worker in before["workers"]]
    a, b = next((a, b) for a, b in zip(machines, machines[1:]) if "m1" not in (a, b))
    streams = Streams(deployment, 2)
    time.sleep(1)
    begin = time.monotonic()
    subprocess.run(["ip", "-n", a, "neigh", "replace", f"10.9.0.{b[1:]}", "lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"],
                   check=True)  # fmt: skip
    took = named(deployment, rf"the link from {a}/0 to {b}/0 is lost", begin)
    assert epoch_after(deployment, before["epoch"]) == before["epoch"] + 1
    print(f"named after {took:.1f} s; longest pause {streams.end():.1f} s")
    return deployment


deployment = {"slow_worker": slow_worker, "lost_link": lost_link}[scenario]()
left = deployment.end()
assert not left and deployment.process.returncode == 0, left
if "-v" in sys.argv:
    print(deployment.text())
print("done")
