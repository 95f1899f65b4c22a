"""Machines that cannot connect to each other: the driver's relay joins them; run by test_machines.py in namespaces of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/machines"))
from deployment import Bridge, Deployment, inside, ip  # noqa: E402

folder, build = Path(sys.argv[1]), Path(sys.argv[2])
inside()
OPTIONS = ["--max-tokens", "64", "--max-sequences", "8", "--device-threads", "1", "--all-devices", "--one-pipeline", "--relay"]


class Apart(Bridge):
    """Every machine reaches the first one, and no other."""

    def complete(self, machines):
        for machine in machines[1:]:
            for other in machines[1:]:
                if other is not machine:
                    ip("-n", machine.name, "route", "add", "blackhole", f"10.9.0.{other.number}/32")


def main():
    relayed = {"memory": "7 MiB", "options": ["--relayed"]}
    deployment = Deployment(folder, "64 MiB", [relayed, relayed], motley=build / "motley", options=OPTIONS, links=Apart())
    assert ip("-n", "m2", "route", "get", "10.9.0.3", check=False).returncode != 0
    stages = {device.split("/")[0]: stage["layers"] for stage in deployment.plan()["plan"]["stages"] for device in stage["devices"]}
    assert sorted(stages) == ["m1", "m2", "m3"]
    ends = sorted((stages["m2"], stages["m3"]))
    assert ends[0][1] == ends[1][0] or stages["m1"][0] not in (0, ends[1][1]), f"m2 and m3 do not send to each other: {stages}"
    text = deployment.complete("Once upon a time", 60, 1)
    assert any("joined a=" in line and "10.9.0.2:" in line and "10.9.0.3:" in line for line in deployment.log), deployment.text()
    for name in ("m2", "m3"):
        deployment.run("drain", name)
    assert deployment.used() == {"m1"} and deployment.complete("Once upon a time", 60, 1) == text
    left = deployment.end()
    assert not left and deployment.process.returncode == 0, left
    print("done")


main()
