"""Machines hold copies of each other's layers: after a loss less is loaded; run by test_machines.py in namespaces of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/machines"))
from deployment import Deployment, inside  # noqa: E402

folder, build = Path(sys.argv[1]), Path(sys.argv[2])
inside()
OPTIONS = ["--max-tokens", "64", "--max-sequences", "8", "--device-threads", "1", "--all-devices", "--one-pipeline"]


def held(plan):
    """By device: the bytes of copies that its worker holds, and that it is to hold."""
    memory = plan["plan"]["predicted"]["memory_bytes"]
    return {worker["device"]: (worker["standby_bytes"], memory[worker["device"]].get("standby", 0)) for worker in plan["workers"]}


def lose_the_last(deployment):
    """Bytes that the machines which are left load then, as foretold and really; and the text of a stream through it."""
    deployment.wait(lambda: len(deployment.plan()["if_lost"]) == 3, "no spare plans are made")
    foretold = next(spare["loaded_bytes"] for spare in deployment.plan()["if_lost"] if spare["machine"] == "m3")
    deployment.machines[2].remove()
    deployment.wait(lambda: deployment.plan()["epoch"] > 1 and deployment.serving(), "it does not serve without m3")
    after = deployment.plan()
    assert {worker["device"] for worker in after["workers"]} == {"m1/0", "m2/0"}
    return foretold, sum(worker["loaded_bytes"] for worker in after["workers"]), deployment.complete("Once upon a time", 60, 1)


def main():
    plain = Deployment(folder, "14 MiB", 3, motley=build / "motley", options=OPTIONS)
    text = plain.complete("Once upon a time", 60, 1)
    assert not any(any(bytes_) for bytes_ in held(plain.plan()).values())
    foretold, loaded, again = lose_the_last(plain)
    assert again == text and foretold > 0 and loaded > 0, (foretold, loaded)
    left = plain.end()
    assert not left, left
    plain.machines[2].make()  # again, for the next deployment

    copies = Deployment(folder, "14 MiB", 3, motley=build / "motley", options=[*OPTIONS, "--standby-weights", "6 MiB"], keep=True)
    copies.wait(lambda: all(have == want > 0 for have, want in held(copies.plan()).values()), "the copies are not loaded")
    assert copies.complete("Once upon a time", 60, 1) == text
    foretold, loaded, again = lose_the_last(copies)
    assert again == text and foretold == loaded == 0, (foretold, loaded)
    # The next plan has copies of its own, as far as there is room.
    copies.wait(lambda: all(have == want for have, want in held(copies.plan()).values()), "the next copies are not loaded")
    left = copies.end()
    assert not left, left
    print("done")


main()
