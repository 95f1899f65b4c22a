"""Who may be part of a deployment, and what follows from machines that lack what they offer; run by test_machines.py in namespaces."""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/machines"))
from deployment import Deployment, inside  # noqa: E402

folder, build = Path(sys.argv[1]), Path(sys.argv[2])
inside()
OPTIONS = ["--max-tokens", "64", "--max-sequences", "8", "--device-threads", "1", "--all-devices"]


def members(deployment):
    return {member["name"] for member in deployment.plan()["members"]}


def refused(deployment, machine, cause):
    assert machine.agent.wait(timeout=30) in (2, 5)
    log = (deployment.folder / f"{machine.name}.log").read_text()
    assert cause in [line for line in log.splitlines() if line.startswith("error: ")][-1], log


def stranger(deployment, link):
    """What a machine that the deployment does not know is told."""
    command = ["ip", "netns", "exec", "m3", deployment.motley, "join", "--name", "stranger", "--memory", "7 MiB", "-q"]
    result = subprocess.run(command, env=deployment.environment("stranger") | {"MOTLEY_LINK": link}, capture_output=True, text=True, timeout=60)
    assert result.returncode in (2, 5) and link.split("token=")[1] not in result.stderr
    return result.stderr


def tokens():
    """Links expire and are revoked, and so are machines; those that have joined need none."""
    deployment = Deployment(folder, "7 MiB", 3, motley=build / "motley", options=[*OPTIONS, "--token-lifetime", "2 h"])
    _, second, third = deployment.machines
    text = deployment.complete("Once upon a time", 60, 1)
    old = deployment.link

    assert "admits new machines for 7200 s" in deployment.run("invite")
    deployment.wait(lambda: deployment.link != old, "no other link")
    printed = deployment.link
    assert "refuses those before it" in deployment.run("invite", "--revoke")
    deployment.wait(lambda: deployment.link != printed, "no other link")

    # An agent that is started again rejoins by its folder, whatever its link.
    deployment.link = old
    third.agent.kill()
    third.agent.wait()
    deployment.wait(lambda: members(deployment) == {"m1", "m2"}, "it is still there")
    third.join()
    deployment.wait(lambda: members(deployment) == {"m1", "m2", "m3"}, "it has not rejoined")
    deployment.wait(deployment.serving, "it does not serve")
    assert deployment.complete("Once upon a time", 60, 1) == text

    # Another machine does not join by it, nor by one that has expired.
    for link, cause in [(old, "the token has been revoked"), (printed, "the token has been revoked")]:
        assert cause in stranger(deployment, link)
    deployment.run("invite", "--token-lifetime", "1 ms")
    deployment.wait(lambda: deployment.link != old, "no other link")
    error = stranger(deployment, deployment.link)
    assert "the token expired" in error and "motley deployment invite" in error, error

    # A member that is revoked is cut off, and stays out with any link.
    before = deployment.link
    drained = deployment.run("drain", "m2", "--revoke")
    assert "m3 came by the same link and stays; cut it off with: motley deployment drain m3 --revoke" in drained and "m1 came" not in drained, drained
    assert "certified  m2 at " in deployment.text() and "revoked    m2, and every link so far" in deployment.text()
    assert members(deployment) == {"m1", "m3"} and deployment.used() == {"m1", "m3"}
    refused(deployment, second, 'the member "m2" has been revoked')
    deployment.wait(lambda: deployment.link != before, "no other link")
    second.join()
    refused(deployment, second, 'the member "m2" has been revoked')
    assert deployment.complete("Once upon a time", 60, 1) == text
    left = deployment.end()
    assert not left and deployment.process.returncode == 0, left


class LackingDeployment(Deployment):
    """The third machine's cache is on a disk that is too small."""

    def environment(self, name):
        environment = super().environment(name)
        if name == "m3":
            disk = self.folder / "small"
            if not disk.exists():
                disk.mkdir()
                subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
            environment["XDG_CACHE_HOME"] = str(disk)
        return environment


def full_disk():
    deployment = LackingDeployment(folder, "7 MiB", 3, motley=build / "motley", options=OPTIONS)
    assert deployment.used() == {"m1", "m2"}
    assert "m3" in deployment.text() and "No space left on device" in deployment.text(), deployment.text()
    assert len(deployment.complete("Once upon a time", 60, 1)) > 100
    left = deployment.end()
    assert not left and deployment.process.returncode == 0, left


CLOCK = """
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
time_t time(time_t *into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  const time_t shown = now.tv_sec + atol(getenv("CLOCK_AHEAD_S"));
  if (into) *into = shown;
  return shown;
}
"""


def clock():
    """A machine whose clock is wrong is told so."""
    deployment = Deployment(folder, "7 MiB", 2, motley=build / "motley", options=OPTIONS)
    library = folder / "clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=CLOCK, text=True, check=True)
    for ahead_s, cause in [(30 * 3600, "the clock of this machine is 30.0 h ahead of"), (-2 * 3600, "not valid yet, by the clock of this machine")]:
        command = ["ip", "netns", "exec", "m2", deployment.motley, "join", "--name", "late", "--memory", "7 MiB", "-q"]
        environment = deployment.environment("late") | {"MOTLEY_LINK": deployment.link, "LD_PRELOAD": str(library), "CLOCK_AHEAD_S": str(ahead_s)}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert result.returncode == 5 and cause in result.stderr, result.stderr
    assert deployment.complete("Once upon a time", 20, 1)
    left = deployment.end()
    assert not left and deployment.process.returncode == 0, left


{"tokens": tokens, "clock": clock, "full_disk": full_disk}[sys.argv[3]]()
print("done")
