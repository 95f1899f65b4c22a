"""A deployment of `motley up` and `motley join` over machines that are network namespaces, with what can happen to them.

Runs in network, mount and process namespaces of its own (inside()): the first machine, 10.9.0.1, is that network
namespace itself, and everything that is started ends with it."""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def inside():
    """Runs this script again in namespaces of its own, unless it is there."""
    if os.environ.get("MOTLEY_INSIDE") == "1":
        return
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    os.environ["MOTLEY_INSIDE"] = "1"
    os.execvp(unshare[0], [*unshare, sys.executable, *sys.argv])


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True)


def processes():
    """Command lines by process id, of all that run here."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except (FileNotFoundError, ProcessLookupError):
                pass
    return found


class Share:
    """Parts of one processor (control groups of version 1), a millisecond in each period: for so long a program that has waited runs at
    full speed. All shares are of the first processor: two that compute at once may be threads of one core, and slow each other down.
    Whatever else runs has the others (on_the_rest())."""

    quota_us = 1000  # the kernel's least

    def __init__(self, name, processors, within=Path("/sys/fs/cgroup/cpu")):
        self.processors, self.parts = processors, []
        self.folder = Path(tempfile.mkdtemp(prefix=f"motley-{name}-", dir=within))
        (self.folder / "cpu.cfs_period_us").write_text(str(round(self.quota_us / processors)))
        (self.folder / "cpu.cfs_quota_us").write_text(str(self.quota_us))
        (self.folder / "cpu.shares").write_text("100000")  # other programs get what is left

    def inside(self, command):
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec taskset -c 0 "$@"', "sh", *map(str, command)]

    def divide(self, processes):
        """An equal part for each of them."""
        for number, process in enumerate(processes):
            self.parts.append(Share(str(number), self.processors / len(processes), self.folder))
            (self.parts[-1].folder / "cgroup.procs").write_text(str(process))

    def release(self, process):
        (self.folder.parent / "cgroup.procs").write_text(str(process))

    def remove(self):
        for part in self.parts:
            part.remove()
        self.folder.rmdir()


def on_the_rest():
    os.sched_setaffinity(0, os.sched_getaffinity(0) - {0})


class Bridge:
    """Links that are as fast as the kernel: one switch."""

    def enter(self):
        """Namespaces have no names yet."""
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
        ip("link", "set", "lo", "up")

    def begin(self):
        ip("link", "add", "bridge", "type", "bridge")
        ip("addr", "add", "10.9.0.1/24", "dev", "bridge")
        ip("link", "set", "bridge", "up")

    def attach(self, number):
        ip("link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", f"m{number}")
        ip("link", "set", f"v{number}", "master", "bridge", "up")
        ip("-n", f"m{number}", "addr", "add", f"10.9.0.{number}/24", "dev", "eth0")
        ip("-n", f"m{number}", "link", "set", "eth0", "up")

    def add(self, machine):
        ip("netns", "add", machine.name)
        self.attach(machine.number)
        ip("-n", machine.name, "link", "set", "lo", "up")

    def complete(self, machines):
        pass

    def within(self, machine):
        """Words before a command that is to run there."""
        return ["ip", "netns", "exec", machine.name]


class Loopback:
    """No namespaces: machines are but names, and connections between them are without TLS."""

    def enter(self):
        pass

    begin = enter

    def add(self, machine):
        pass

    complete = add

    def within(self, machine):
        return []


class Machine:
    """A namespace, numbered from 1, and the agent in it; the first has none of its own. `processors`: the share that its
    workers get, and the agent while it measures that."""

    def __init__(self, deployment, number, memory, processors=None, options=()):
        self.deployment, self.number, self.memory, self.options = deployment, number, memory, options
        self.name = f"m{number}"
        self.agent = None
        self.share = Share(self.name, processors) if processors else None
        if number > 1:
            self.make()

    def make(self):
        self.deployment.links.add(self)

    def join(self, *options):
        log = (self.deployment.folder / f"{self.name}.log").open("ab")
        command = [*self.deployment.links.within(self), self.deployment.motley, "join", "--name", self.name, "--memory", self.memory,
                   *self.options, *options]  # fmt: skip
        command = self.share.inside(command) if self.share else command
        environment = self.deployment.environment(self.name) | {"MOTLEY_LINK": self.deployment.link}
        self.agent = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def has_measured(self):
        return " connected " in (self.deployment.folder / f"{self.name}.log").read_text()

    def workers(self):
        """Process ids of the workers, by the parent."""
        agent = self.agent_process()
        return [pid for pid, words in processes().items() if words[0].endswith("motley-worker") and parent_of(pid) == agent]

    def agent_process(self):
        if self.number > 1:
            return self.agent.pid if self.agent and self.agent.poll() is None else 0
        return next((pid for pid, words in processes().items() if words[1:2] == ["join"] and self.name in words), 0)

    def link(self, up):
        ip("link", "set", f"v{self.number}", "up" if up else "down")

    def remove(self):
        """As if its power were cut: nothing is said any more."""
        ip("link", "del", f"v{self.number}")
        for pid in [*self.workers(), self.agent_process()]:
            if pid:
                os.kill(pid, signal.SIGKILL)
        if self.agent:
            self.agent.wait()
        ip("netns", "del", self.name)


def parent_of(pid):
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return -1


class Deployment:
    """`machines`: how many with `memory` each, or what Machine() takes for each after the first. Waits until it serves, unless `serves`
    is false. `training`: what `motley train --agents` is given, in place of serving."""

    def __init__(self, folder, memory, machines, motley=ROOT / "build/release/motley", model=ROOT / "data/models/tales", options=(), plan=None,
                 keep=False, links=None, patience_s=180, serves=True, training=None):  # fmt: skip
        self.folder, self.motley = Path(folder), str(motley)
        others = [{"memory": memory}] * (machines - 1) if isinstance(machines, int) else machines
        self.links = links or Bridge()
        if keep:  # caches and states of an earlier deployment, in the same namespaces
            for number in range(2, len(others) + 2):
                ip("link", "del", f"v{number}")  # at once, where the end of its namespace takes it some time later
                ip("netns", "del", f"m{number}")
            ip("link", "del", "bridge")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            self.links.enter()
        self.links.begin()
        self.machines = [Machine(self, 1, memory), *(Machine(self, number, **other) for number, other in enumerate(others, 2))]
        self.links.complete(self.machines)
        verb = ["up", "--wait", str(len(self.machines))] if plan is None else ["serve", str(plan), "--agents"]
        self.own = ["--memory", memory, "--name", "m1"]
        self.log, self.command = [], [self.motley, *verb, "--model", str(model), *self.own, "--port", "8000", *options]
        if training is not None:
            self.train(training)
        self.start()
        self.wait(lambda: self.link, "no link was printed", patience_s)
        self.wait(lambda: any(" waiting " in line for line in self.log), "it does not wait for machines", patience_s)
        for machine in self.machines[1:]:
            machine.join()
            if machine.share:  # one after the other: what they measure is of processors that they share here
                self.wait(machine.has_measured, f"{machine.name} does not join")
                machine.share.release(machine.agent.pid)
        if not serves:
            return
        self.wait(self.serves.is_set, "it does not serve", patience_s)
        for machine in self.machines[1:]:
            if machine.share:
                machine.share.divide(machine.workers())

    def train(self, words):
        """The driver's command from now on."""
        self.command = [self.motley, "train", *map(str, words), "--agents", *self.own]

    def start(self):
        """The driver; also again, after it was killed."""
        self.link, self.serves = None, threading.Event()
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment("m1"))
        threading.Thread(target=self._read, daemon=True).start()

    def environment(self, name):
        return os.environ | {f"XDG_{kind}_HOME": str(self.folder / name / kind.lower()) for kind in ("CACHE", "STATE")}

    def _read(self):
        for line in self.process.stdout:
            self.log.append(line)
            if found := re.search(r"motley join '([^']+)'", line):
                self.link = found[1]
            if "http://127.0.0.1" in line:
                self.serves.set()

    def wait(self, condition, otherwise, seconds=60):
        until = time.monotonic() + seconds
        while not self.holds(condition):
            assert time.monotonic() < until and self.process.poll() is None, otherwise + "\n" + self.text()
            time.sleep(0.02)

    def holds(self, condition):
        try:
            return condition()
        except (OSError, http.client.HTTPException):
            return False

    def text(self):
        logs = [f"--- {log.name}\n{log.read_text()}" for log in sorted(self.folder.glob("*.log"))]
        return f"exit code {self.process.poll()}\n" + "".join(self.log[-200:]) + "\n".join(logs)[-6000:]

    def plan(self):
        connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=30)
        connection.request("GET", "/plan")
        return json.load(connection.getresponse())

    def used(self):
        """Names of the machines whose workers serve."""
        return {worker["device"].split("/")[0] for worker in self.plan()["workers"]}

    def run(self, *words):
        """What a command of the program prints that asks this deployment, as its driver's own user."""
        result = subprocess.run([self.motley, "deployment", *words, "--port", "8000"], capture_output=True, text=True, timeout=60, env=self.environment("m1"))
        assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout

    def serving(self, machines=None):
        """A plan serves; and this many machines are there, where that is asked."""
        plan = self.plan()
        return plan["state"] == "serving" and machines in (None, len(plan["members"]))

    def complete(self, prompt, tokens, seed, arrivals=None):
        """The text of a streamed answer; `arrivals` gets the time of each piece. Raises where it fails."""
        body = {"prompt": prompt, "max_tokens": tokens, "seed": seed, "temperature": 0 if seed % 2 == 0 else 1, "stream": True, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {answer.read(500)}")
        text, done = "", False
        for line in answer:
            if line.startswith(b"data: [DONE]"):
                done = True
                break
            if line.startswith(b"data: "):
                chunk = json.loads(line[6:])
                if "choices" not in chunk:
                    raise RuntimeError(f"an error in the stream: {chunk}")
                text += "".join(choice["text"] for choice in chunk["choices"])
                if arrivals is not None:
                    arrivals.append(time.monotonic())
        connection.close()
        if not done:
            raise RuntimeError("the stream broke off")
        return text

    def end(self, seconds=10):
        """SIGINT; returns the processes that are left after this many seconds."""
        self.process.send_signal(signal.SIGINT)
        until = time.monotonic() + seconds
        left = self.left()
        while left and time.monotonic() < until:
            for machine in self.machines:
                if machine.agent:
                    machine.agent.poll()
            self.process.poll()
            time.sleep(0.05)
            left = self.left()
        if not left:
            self.process.wait()
            for machine in self.machines:
                if machine.share:
                    machine.share.remove()
        return left

    @staticmethod
    def left():
        return {pid: words for pid, words in processes().items() if "motley" in words[0].rsplit("/", 1)[-1]}
