"""What people do with a deployment on three machines; run by test_machines.py in namespaces of its own."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/machines"))
from deployment import Deployment, Machine, inside  # noqa: E402

folder, build = Path(sys.argv[1]), Path(sys.argv[2])
inside()
# Plans use all machines, whatever speed was measured for them here.
OPTIONS = ["--max-tokens", "64", "--max-sequences", "8", "--device-threads", "1", "--all-devices"]


def fetched(deployment):
    return [line for line in deployment.log if " fetched " in line]


def by_stage(plan, field):
    return {worker["stage"]: worker[field] for worker in plan["workers"]}


def all_serve(deployment):
    return deployment.serving() and deployment.used() == {"m1", "m2", "m3"}


def others_stay(deployment, text):
    """The worker of the middle stage is killed during an answer: the others keep all that they have."""
    deployment.wait(lambda: all_serve(deployment), "not all machines serve", 90)  # one that was silent is tried again after a minute
    before = deployment.plan()
    middle = before["workers"][1]
    arrivals, answers = [], []
    stream = threading.Thread(target=lambda: answers.append(deployment.complete("Once upon a time", 60, 1, arrivals)))
    stream.start()
    deployment.wait(lambda: len(arrivals) > 10, "no tokens come")
    os.kill(middle["process"], signal.SIGKILL)
    stream.join()
    assert answers == [text]
    after = deployment.plan()
    first, second, third = (worker["stage"] for worker in after["workers"])
    processes, loaded = by_stage(after, "process"), by_stage(after, "loaded_bytes")
    replayed = {stage: tokens - before["replayed_tokens"].get(stage, 0) for stage, tokens in after["replayed_tokens"].items()}
    kept = {stage: process for stage, process in by_stage(before, "process").items() if stage != second}
    assert kept.items() <= processes.items() and processes[second] != middle["process"], (before, after)
    assert loaded[first] == loaded[third] == 0 and loaded[second] > 0, loaded
    assert replayed[first] == replayed[second] > 0 and replayed.get(third, 0) == 0, replayed


def newcomer_is_measured(deployment):
    """The links of a machine that joins later are measured before it is planned with."""
    newcomer = Machine(deployment, 4, "7 MiB")
    deployment.machines.append(newcomer)
    newcomer.join()
    for other in ("m1", "m2", "m3"):
        deployment.wait(lambda: any(f" links      {other} to m4: " in line for line in deployment.log), f"no link of {other} and m4")  # noqa: B023
    newcomer.agent.send_signal(signal.SIGTERM)
    deployment.wait(lambda: newcomer.agent.poll() is not None, "it does not leave")
    deployment.machines.remove(newcomer)
    deployment.wait(deployment.serving, "it does not serve")


def driver_returns(deployment, text):
    """Killed and started again with the same folder, it takes up the deployment: the others come back by themselves."""
    authority, agents = deployment.link.split("authority=")[1].split("&")[0], [machine.agent.pid for machine in deployment.machines[1:]]
    deployment.process.kill()
    deployment.process.wait()
    deployment.start()
    deployment.wait(deployment.serves.is_set, "it does not serve again")
    assert deployment.link.split("authority=")[1].split("&")[0] == authority
    assert [member["name"] for member in deployment.plan()["members"]] == ["m1", "m2", "m3"]
    assert [machine.agent.pid for machine in deployment.machines[1:]] == agents and all(machine.agent.poll() is None for machine in deployment.machines[1:])
    assert deployment.complete("Once upon a time", 60, 1) == text


def spare_plan_is_taken(deployment, text):
    """A plan for the loss of each machine is there before it is lost."""
    deployment.wait(lambda: len(deployment.plan()["if_lost"]) == 3, "no spare plans are made")
    spares = {spare["machine"]: spare for spare in deployment.plan()["if_lost"]}
    assert sorted(spares) == ["m1", "m2", "m3"] and spares["m3"]["fits"] and spares["m3"]["loaded_bytes"] > 0, spares
    status = deployment.run("status")
    row = next(line.split() for line in status[status.index("if lost") :].splitlines() if line.startswith("m3 "))
    assert row[1] == f"{spares['m3']['tokens_per_s']:.4g}" and row[2].endswith("%"), status
    deployment.machines[2].remove()
    deployment.wait(lambda: deployment.plan()["epoch"] > 1 and deployment.serving(), "it does not serve without m3")
    assert any("without what was lost, as prepared: " in line for line in deployment.log), deployment.text()
    assert deployment.used() == {"m1", "m2"}
    assert abs(deployment.plan()["plan"]["predicted"]["tokens_per_s"] / spares["m3"]["tokens_per_s"] - 1) < 1e-9
    assert deployment.complete("Once upon a time", 60, 1) == text


STREAMS = [
    dict(n=2, temperature=1, seed=1),
    dict(presence_penalty=0.7, frequency_penalty=0.3, temperature=0.9, seed=2),
    dict(n=2, logprobs=2, temperature=1, seed=3),
    dict(stop=["friend", " sun", "zzz"], n=2, temperature=1, seed=4, min_tokens=40, logprobs=1),
]


def stream(body):
    """What is sent of each choice, chunk by chunk, and the usage; `id` and `created` differ from answer to answer."""
    body = dict(prompt="Once upon a time", max_tokens=100, stream=True, stream_options=dict(include_usage=True)) | body
    connection = http.client.HTTPConnection("127.0.0.1", 8000, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    chunks = {}
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            for choice in chunk["choices"]:
                chunks.setdefault(choice["index"], []).append(choice)
            if not chunk["choices"]:
                chunks["usage"] = chunk["usage"]
    return chunks


def streams_survive(deployment):
    """The same bytes whether or not a worker of each machine dies meanwhile."""
    with ThreadPoolExecutor(len(STREAMS)) as pool:
        undisturbed = list(pool.map(stream, STREAMS))
        assert all("usage" in chunks for chunks in undisturbed)
        for machine in deployment.machines:
            epoch = deployment.plan()["epoch"]
            streams = [pool.submit(stream, body) for body in STREAMS]
            time.sleep(0.15)
            os.kill(machine.workers()[0], signal.SIGKILL)
            assert [result.result(timeout=90) for result in streams] == undisturbed
            assert deployment.plan()["epoch"] > epoch


def main():
    deployment = Deployment(folder, "7 MiB", 3, motley=build / "motley", options=OPTIONS)
    text = deployment.complete("Once upon a time", 60, 1)
    plan = deployment.plan()
    assert deployment.used() == {"m1", "m2", "m3"} and len(fetched(deployment)) == 2  # the first has the model itself
    streams_survive(deployment)
    deployment.wait(deployment.serving, "it does not serve")
    assert all(worker["process"] > 0 and worker["alive"] for worker in plan["workers"])
    assert [member["name"] for member in plan["members"]] == ["m1", "m2", "m3"]
    others_stay(deployment, text)
    newcomer_is_measured(deployment)
    driver_returns(deployment, text)
    status = deployment.run("status")
    assert "3 machines" in status and "m2 at 10.9.0.2, 7.00 MiB" in status and "m3/0" in status, status
    assert "m2 is not used any more" in deployment.run("drain", "m2") and deployment.used() == {"m1", "m3"}
    assert deployment.complete("Once upon a time", 60, 1) == text
    missing = subprocess.run([build / "motley", "deployment", "drain", "attic", "--port", "8000"], capture_output=True, text=True, timeout=60,
                             env=deployment.environment("m1"))
    assert missing.returncode == 2 and 'no machine called "attic"' in missing.stderr, missing.stderr
    left = deployment.end()
    assert not left and deployment.process.returncode == 0, left

    file = folder.parent / "plan.json"
    file.write_text(json.dumps(plan["plan"]))
    again = Deployment(folder, "7 MiB", 3, motley=build / "motley", plan=file, options=["--device-threads", "1"], keep=True)
    assert again.used() == {"m1", "m2", "m3"} and again.plan()["plan"]["stages"] == plan["plan"]["stages"]
    assert again.complete("Once upon a time", 60, 1) == text
    assert not fetched(again), "the cache was there"
    spare_plan_is_taken(again, text)
    left = again.end()
    assert not left and again.process.returncode == 0, left
    print("done")


main()
