#!/usr/bin/env python3
"""Networks of namespaces on this machine: stars, two-level trees, and an emulated wide-area network.

    networks.py star  100mbit 100mbit 20mbit/5mbit               -- COMMAND...     rates of the ranks' links, up/down
    networks.py tree  1gbit:500mbit,500mbit 200mbit:100mbit,100mbit -- COMMAND...  per switch its uplink and its ranks
    networks.py wan   --ranks 2 --rate 500mbit --delay 25ms --loss 1e-4 -- COMMAND...

COMMAND runs once per rank, in the rank's namespace, with `{rank}`, `{ranks}`, `{address}` (its own), `{addresses}` (all,
comma between) and `{interface}` replaced, and MOTLEY_RANK, MOTLEY_RANKS, MOTLEY_ADDRESSES in its environment. Its output
is forwarded line by line, each line after its rank: "[0] ready". The exit code is the first that is not 0; then the other
ranks are ended.

All of it lives in mount, network and process namespaces of its own: with this process, however it ends, everything ends.
Needs root (or user namespaces) and /dev/net/tun.
"""

import argparse
import json
import os
import re
import selectors
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("MOTLEY_BUILD", ROOT / "build" / "release")) / "bench" / "network"
INSIDE = "MOTLEY_INSIDE_NETWORK"
UNITS = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "ms": 1e-3, "us": 1e-6, "s": 1.0, "kB": 1e3, "MB": 1e6}


def quantity(text):
    """"25ms" in seconds, "500mbit" in bytes/s, "2MB" in bytes."""
    match = re.fullmatch(r"([0-9.]+)([a-zA-Z]+)", text)
    if not match or match[2] not in UNITS:
        raise SystemExit(f'error: "{text}" is not a quantity\n\nhint: units: {", ".join(UNITS)}')
    return float(match[1]) * UNITS[match[2]]


def directions(text):
    """(up, down) in bytes/s of "20mbit" or "20mbit/5mbit"."""
    up, _, down = text.partition("/")
    return quantity(up), quantity(down or up)


def isolate():
    """Continues in namespaces of its own, as their first process: the kernel ends the others when it ends."""
    if os.environ.get(INSIDE):
        return
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    unshare += [] if os.geteuid() == 0 else ["--map-root-user"]
    os.execvpe("unshare", [*unshare, sys.executable, *sys.argv], os.environ | {INSIDE: "1"})


def sh(command):
    result = subprocess.run(shlex.split(command), capture_output=True, text=True)
    if result.returncode != 0:
        raise SystemExit(f"error: {command}: {result.stderr.strip()}")


def limit_rate(where, interface, bytes_per_s):
    """At most 50 ms of bytes wait; a burst of the size of the largest segment that TCP hands down."""
    sh(f"{where} tc qdisc add dev {interface} root tbf rate {8 * bytes_per_s:.0f}bit burst 66000 latency 50ms")


class RankLines:
    """Forwards what ranks write, each through pipes of its own, in whole lines with the rank before them."""

    def __init__(self):
        self._pipes = selectors.DefaultSelector()

    def add(self, rank, process):
        for pipe, sink in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
            os.set_blocking(pipe.fileno(), False)
            self._pipes.register(pipe, selectors.EVENT_READ, (rank, sink, bytearray()))

    def forward(self, timeout_s):
        """Waits at most `timeout_s` for output. A call empties the pipes: they hold no more than it reads of each."""
        if not self._pipes.get_map():
            time.sleep(timeout_s)
        for key, _ in self._pipes.select(timeout_s):
            rank, sink, text = key.data
            piece = os.read(key.fd, 1 << 16)
            text += piece
            if not piece:
                self._end(key)
            *lines, text[:] = text.split(b"\n")
            self._write(rank, sink, lines)

    def finish(self):
        """Forwards what ended ranks have left. A process of theirs that lives on may still hold a pipe, and is not waited for."""
        self.forward(0)
        for key in list(self._pipes.get_map().values()):
            self._end(key)

    def _end(self, key):
        rank, sink, text = key.data
        self._pipes.unregister(key.fileobj)
        if text:  # a last line without a newline
            self._write(rank, sink, [bytes(text)])
            text.clear()

    @staticmethod
    def _write(rank, sink, lines):
        sink.write(b"".join(b"[%d] %s\n" % (rank, line) for line in lines))
        sink.flush()


class Network:
    """Ranks with addresses 10.9.0.1, 10.9.0.2, ... on `interface` of namespaces r0, r1, ..."""

    interface = "wire"

    def __init__(self, ranks, bits=24):
        self.ranks = ranks
        self.addresses = [f"10.9.0.{rank + 1}" for rank in range(ranks)]
        self.processes = []
        run = Path("/run/netns")
        run.mkdir(parents=True, exist_ok=True)
        sh("mount -t tmpfs tmpfs /run/netns")
        sh("ip link set lo up")
        self.bits = bits
        hosts = run / "hosts"  # seen here alone
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} r{rank}\n" for rank, address in enumerate(self.addresses)))
        sh(f"mount --bind {hosts} /etc/hosts")
        for rank in range(ranks):
            sh(f"ip netns add r{rank}")
            sh(f"ip -n r{rank} link set lo up")

    def inside(self, rank):
        """The command that enters a rank: its network, and a host name of its own."""
        return ["ip", "netns", "exec", f"r{rank}", "unshare", "--uts", "sh", "-c", f'hostname r{rank} && exec "$@"', "sh"]

    def start(self, rank, command, **options):
        facts = {"rank": rank, "ranks": self.ranks, "address": self.addresses[rank],
                 "addresses": ",".join(self.addresses), "interface": self.interface}
        filled = [re.sub(r"\{(\w+)\}", lambda match: str(facts.get(match[1], match[0])), word) for word in command]
        environment = os.environ | {"MOTLEY_RANK": str(rank), "MOTLEY_RANKS": str(self.ranks),
                                    "MOTLEY_ADDRESSES": facts["addresses"]}
        self.processes.append(subprocess.Popen(self.inside(rank) + filled, env=environment, **options))
        return self.processes[-1]

    def run(self, command, timeout_s=600):
        """Once per rank; the first exit code that is not 0."""
        left = [self.start(rank, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(self.ranks)]
        lines = RankLines()
        for rank, process in enumerate(left):
            lines.add(rank, process)
        until = time.monotonic() + timeout_s
        failed = 0
        while left and not failed:
            if time.monotonic() > until:
                print(f"error: not done after {timeout_s} s", file=sys.stderr)
                failed = 4
            done = [process for process in left if process.poll() is not None]
            failed = failed or next((process.returncode for process in done if process.returncode), 0)
            left = [process for process in left if process not in done]
            lines.forward(0.01)
        self.stop()
        lines.finish()
        return failed

    def output(self, rank, command, timeout_s=60):
        """What a command prints that succeeds in a rank's namespace."""
        process = self.start(rank, command, stdout=subprocess.PIPE, text=True)
        text, _ = process.communicate(timeout=timeout_s)
        if process.returncode != 0:
            raise SystemExit(f"error: {shlex.join(command)} failed in r{rank}")
        return text

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.processes.clear()


class Tree(Network):
    """Switches below one root; per switch its uplink's rates and its ranks' rates, each (up, down) in bytes/s.

    One switch without an uplink is a star."""

    def __init__(self, switches):
        super().__init__(sum(len(rates) for _, rates in switches))
        self.switches = switches
        self._bridge("root")
        rank = 0
        for number, (uplink, rates) in enumerate(switches):
            bridge = "root"
            if uplink:
                bridge = f"switch{number}"
                self._bridge(bridge)
                sh(f"ip link add up{number} type veth peer name down{number}")
                sh(f"ip link set up{number} master {bridge} up")
                sh(f"ip link set down{number} master root up")
                limit_rate("", f"up{number}", uplink[0])
                limit_rate("", f"down{number}", uplink[1])
            for up, down in rates:
                sh(f"ip link add port{rank} type veth peer name {self.interface} netns r{rank}")
                sh(f"ip link set port{rank} master {bridge} up")
                sh(f"ip -n r{rank} addr add {self.addresses[rank]}/{self.bits} dev {self.interface}")
                sh(f"ip -n r{rank} link set {self.interface} up")
                limit_rate(f"ip netns exec r{rank}", self.interface, up)
                limit_rate("", f"port{rank}", down)
                rank += 1

    @staticmethod
    def _bridge(name):
        sh(f"ip link add {name} type bridge")
        sh(f"ip link set {name} up")


class Wan(Network):
    """Every rank a site; each directed pair of sites a link of its own, in the user-space emulator."""

    def __init__(self, ranks, mtu=9000, seed=0, **settings):
        super().__init__(ranks)
        for rank in range(ranks):
            sh(f"ip -n r{rank} tuntap add mode tun name {self.interface}")
            sh(f"ip -n r{rank} addr add {self.addresses[rank]}/{self.bits} dev {self.interface}")
            sh(f"ip -n r{rank} link set {self.interface} mtu {mtu} txqueuelen 5000 up")
        self.emulator = subprocess.Popen([PROGRAMS / "wan_emulator"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks):
            self.tell(f"endpoint r{rank} {self.interface} {self.addresses[rank]}")
        self.tell(f"seed {seed}")
        self.set_link("*", "*", **settings)

    def tell(self, line):
        print(line, file=self.emulator.stdin, flush=True)
        answer = self.emulator.stdout.readline().strip()
        if not answer or answer.startswith("error"):
            raise SystemExit(f"error: the emulator says to \"{line}\": {answer or 'nothing'}")
        return answer

    def set_link(self, source, target, **settings):
        """bytes_per_s, delay_s, loss, loss_burst, queue_bytes, bucket_bytes of a directed link; ranks, or "*"."""
        self.tell(f"link {source} {target} " + " ".join(f"{key}={value}" for key, value in settings.items()))

    def statistics(self):
        return json.loads(self.tell("statistics"))


def parse(arguments):
    separator = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=float, default=600, help="seconds until COMMAND is ended")
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("star").add_argument("rates", nargs="+", type=directions)
    kinds.add_parser("tree").add_argument("switches", nargs="+")
    wan = kinds.add_parser("wan")
    wan.add_argument("--ranks", type=int, default=2)
    wan.add_argument("--rate", type=quantity, default="500mbit")
    wan.add_argument("--delay", type=quantity, default="25ms", help="one way")
    wan.add_argument("--loss", type=float, default=1e-4)
    wan.add_argument("--loss-burst", type=float, default=1)
    wan.add_argument("--queue", type=quantity, default="2MB")
    return parser.parse_args(arguments[:separator]), arguments[separator + 1 :]


def build(options):
    if options.kind == "star":
        return Tree([(None, options.rates)])
    if options.kind == "tree":
        parts = [switch.partition(":") for switch in options.switches]
        return Tree([(directions(up), [directions(rate) for rate in rates.split(",")]) for up, _, rates in parts])
    return Wan(options.ranks, bytes_per_s=options.rate, delay_s=options.delay, loss=options.loss,
               loss_burst=options.loss_burst, queue_bytes=options.queue)


def cluster(options):
    """The network as a cluster file, a device per rank."""
    if options.kind == "wan":
        link = f'{{ latency = "{options.delay * 1e3:g} ms", bandwidth = "{options.rate:.0f} B/s" }}'
        machines = "".join(f'[[machine]]\nname = "r{rank}"\nsite = "s{rank}"\ndevices = ["RTX 4090"]\n\n' for rank in range(options.ranks))
        return f'format = "motley.cluster/1"\nname = "test network"\n\n{machines}[network]\nbetween_sites = {link}\n'
    parts = [("", "", options.rates)] if options.kind == "star" else [
        (f"switch{number}", directions(up), [directions(rate) for rate in rates.split(",")])
        for number, (up, _, rates) in enumerate(switch.partition(":") for switch in options.switches)]
    machines, switches, rank = "", "", 0
    for name, uplink, rates in parts:
        ports = ""
        for up, down in rates:
            machines += f'[[machine]]\nname = "r{rank}"\ndevices = ["RTX 4090"]\n\n'
            ports += f'  {{ hosts = ["r{rank}"], latency = "50 us", bandwidth = "{min(up, down):.0f} B/s" }},\n'
            rank += 1
        switches += f'[[switch]]\nname = "{name or "switch"}"\n'
        if uplink:
            switches += f'uplink = {{ to = "root", latency = "50 us", bandwidth = "{min(uplink):.0f} B/s" }}\n'
        switches += f"ports = [\n{ports}]\n\n"
    return f'format = "motley.cluster/1"\nname = "test network"\n\n{machines}{switches}'


def main():
    options, command = parse(sys.argv[1:])
    if not command:
        raise SystemExit("error: no command after --")
    isolate()
    sys.exit(build(options).run(command, options.timeout))


if __name__ == "__main__":
    main()
