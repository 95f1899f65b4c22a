"""The driver's machine is lost and another one goes on, by what it kept in etcd; run by test_machines.py in namespaces of its own.

It is found by an address that moves to the other machine, or by a name (NAME in /etc/hosts) that stands for another address then."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/machines"))
from deployment import ROOT, Bridge, Deployment, Machine, inside, ip  # noqa: E402

folder, build, found_by = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
inside()
NAME, HOSTS = "driver.example", Path("/etc/hosts")
STORE = "http://10.9.0.9:2379"
OPTIONS = ["--max-tokens", "64", "--max-sequences", "8", "--device-threads", "1", "--store", STORE.replace("http", "etcd") + "/tales"]
OPTIONS += ["--listen", NAME] if found_by == "name" else []
ASK = """
import json, sys, urllib.request
body = {"prompt": "Once upon a time", "max_tokens": 60, "seed": 1, "temperature": 1, "ignore_eos": True}
request = urllib.request.Request("http://127.0.0.1:8000/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
print(json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"], end="")
"""


class WithEtcd(Bridge):
    """And a machine with etcd, which nothing happens to."""

    def complete(self, machines):
        ip("netns", "add", "m9")
        self.attach(9)
        ip("-n", "m9", "link", "set", "lo", "up")
        words = ["etcd", "--data-dir", str(folder / "etcd"), "--listen-client-urls", STORE, "--advertise-client-urls", STORE, "--unsafe-no-fsync"]
        self.etcd = subprocess.Popen(["ip", "netns", "exec", "m9", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while not self.answers():
            assert time.monotonic() < until and self.etcd.poll() is None, "etcd does not start"
            time.sleep(0.1)

    @staticmethod
    def answers():
        try:
            return urllib.request.urlopen(f"{STORE}/health", timeout=2).status == 200
        except OSError:
            return False


class Standby:
    """A driver with --standby in the namespace of a machine."""

    def __init__(self, deployment, machine, name):
        self.inside = ["ip", "netns", "exec", machine] if machine else []
        words = [deployment.motley, "up", "--wait", "3", "--model", ROOT / "data/models/tales", "--memory", "7 MiB", "--name", name, *OPTIONS, "--standby"]
        self.log, environment = [], deployment.environment(name)
        self.process = subprocess.Popen(self.inside + [*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.log.append(line)

    def wait(self, text, seconds=60):
        until = time.monotonic() + seconds
        while not any(text in line for line in self.log):
            assert time.monotonic() < until and self.process.poll() is None, f"no {text!r}\n" + "".join(self.log)
            time.sleep(0.02)

    def run(self, *words):
        return subprocess.run(self.inside + [*map(str, words)], capture_output=True, text=True, timeout=90, check=True).stdout


def etcd_is_away(deployment, text):
    """For longer than the driver's lease, which has then run out; no driver stands by."""
    etcd = deployment.links.etcd
    etcd.send_signal(signal.SIGSTOP)
    deployment.wait(lambda: any(" store " in line and "is away" in line for line in deployment.log), "the driver does not notice")
    time.sleep(6)
    assert deployment.complete("Once upon a time", 60, 1) == text
    etcd.send_signal(signal.SIGCONT)
    words = [deployment.motley, "deployment", "invite", "--port", "8000"]
    environment = deployment.environment("m1")
    deployment.wait(lambda: subprocess.run(words, capture_output=True, env=environment).returncode == 0, "it cannot keep anything any more")


def names_the_driver(address):
    HOSTS.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")


def move_address():
    ip("addr", "add", "10.9.0.101/24", "dev", "bridge")
    ip("addr", "del", "10.9.0.1/24", "dev", "bridge")
    ip("addr", "add", "10.9.0.101/24", "dev", "bridge", check=False)  # where it was secondary, it went with the first


def main():
    if found_by == "name":
        hosts = folder.parent / "hosts"
        hosts.touch()
        subprocess.run(["mount", "--bind", hosts, HOSTS], check=True)  # of this mount namespace
        names_the_driver("10.9.0.1")
    deployment = Deployment(folder, "7 MiB", 3, motley=build / "motley", options=OPTIONS, links=WithEtcd())
    text = deployment.complete("Once upon a time", 60, 1)
    agents = [machine.agent for machine in deployment.machines[1:]]
    etcd_is_away(deployment, text)
    Machine(deployment, 4, "7 MiB")
    standby = Standby(deployment, "m4", "m4")
    standby.wait(" standby ")

    # The first machine hangs, and its address moves, or its name.
    first = deployment.machines[0]
    hung = [deployment.process.pid, first.agent_process(), *first.workers()]
    for process in hung:
        os.kill(process, signal.SIGSTOP)
    if found_by == "name":
        standby.wait(" resumed ")
        names_the_driver("10.9.0.4")
    else:
        move_address()
        standby.wait("not yet")  # the store is free before the address is there
        ip("-n", "m4", "addr", "add", "10.9.0.1/24", "dev", "eth0")
        for machine in ("m2", "m3", "m9"):
            ip("-n", machine, "neigh", "flush", "all")
    standby.wait("http://127.0.0.1:8000")
    assert standby.run(sys.executable, "-c", ASK) == text
    status = json.loads(standby.run(deployment.motley, "deployment", "status", "--json"))
    assert [member["name"] for member in status["members"]] == ["m2", "m3", "m4"], status["members"]
    assert all(agent.poll() is None for agent in agents)

    # It goes on, and finds that the deployment is another's.
    for process in hung:
        os.kill(process, signal.SIGCONT)
    assert deployment.process.wait(timeout=30) == 5, deployment.text()
    assert any("another driver has taken the deployment in" in line for line in deployment.log), deployment.text()
    assert standby.run(sys.executable, "-c", ASK) == text

    # The end of a deployment is the end of those who stand by.
    third = Standby(deployment, None, "m1")
    third.wait(" standby ")
    deployment.process = standby.process
    left = deployment.end(0)
    assert standby.process.wait(timeout=30) == 0 and third.process.wait(timeout=30) == 0, left
    assert any(" ended " in line for line in third.log), third.log
    assert [agent.wait(timeout=30) for agent in agents] == [0, 0] and not deployment.left()
    print("done")


main()
