"""Links with rates and delays between the machines of a deployment: `tc tbf` between those that are near each other, and the user-space
emulator (bench/network) on the way to those that are far."""

import json
import os
import subprocess
import sys
from pathlib import Path

from deployment import ROOT, Bridge, ip

sys.path.insert(0, str(ROOT / "bench/network"))
from networks import PROGRAMS, limit_rate  # noqa: E402


class SlowLinks(Bridge):
    """Ports of the switch that give `near_bytes_per_s`; between the machines `far` and all others `far_bytes_per_s` and, one way,
    `delay_s`, and packets are lost with the probability `loss`. The first machine is near, and forwards."""

    def __init__(self, near_bytes_per_s, far=(), far_bytes_per_s=0, delay_s=0, loss=0):
        self.near_bytes_per_s, self.far, self.far_bytes_per_s, self.delay_s, self.loss = near_bytes_per_s, far, far_bytes_per_s, delay_s, loss

    def begin(self):
        super().begin()
        ip("netns", "attach", "m1", str(os.getpid()))

    def attach(self, number):
        if number in self.far:
            ip("-n", f"m{number}", "tuntap", "add", "mode", "tun", "name", "wire")
            ip("-n", f"m{number}", "addr", "add", f"10.9.0.{number}/24", "dev", "wire")
            ip("-n", f"m{number}", "link", "set", "wire", "txqueuelen", "5000", "up")
            return
        super().attach(number)
        limit_rate(f"ip netns exec m{number}", "eth0", self.near_bytes_per_s)
        limit_rate("", f"v{number}", self.near_bytes_per_s)

    def complete(self, machines):
        """What comes from afar leaves the emulator by a device for each near machine."""
        if not self.far:
            return
        for setting in ("ip_forward", "conf/all/rp_filter", "conf/default/rp_filter", "conf/bridge/proxy_arp"):
            Path(f"/proc/sys/net/ipv4/{setting}").write_text("0" if "rp_filter" in setting else "1")
        self.emulator = subprocess.Popen([PROGRAMS / "wan_emulator"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in (machine.number for machine in machines):
            space, device = (f"m{number}", "wire") if number in self.far else ("m1", f"far{number}")
            if space == "m1":
                ip("tuntap", "add", "mode", "tun", "name", device)
                ip("link", "set", device, "txqueuelen", "5000", "up")
            self.tell(f"endpoint {space} {device} 10.9.0.{number}")
        for number in self.far:
            ip("route", "add", f"10.9.0.{number}/32", "dev", "far1", "src", "10.9.0.1")
        self.tell(f"link * * bytes_per_s={self.far_bytes_per_s} delay_s={self.delay_s} loss={self.loss} queue_bytes=4e6")

    def tell(self, line):
        answer = self.ask(line)
        assert answer == "ok", f"the emulator says to {line!r}: {answer}"

    def packets(self):
        """Of all far links together: sent, and lost on the way."""
        links = json.loads(self.ask("statistics")) if self.far else []
        return {"sent": sum(link["packets"] + link["lost"] for link in links), "lost": sum(link["lost"] for link in links)}

    def ask(self, line):
        print(line, file=self.emulator.stdin, flush=True)
        return self.emulator.stdout.readline().strip()
