"""What people do with a deployment on three machines; run by test_machines.py in namespaces of its own."""

import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench/machines"))
from deployment import Deployment, inside  # noqa: E402

folder, build = Path(sys.argv[1]), Path(sys.argv[2])
inside()
OPTIONS = ["--max-tokens", "64", "--max-sequences", "8", "--device-threads", "1"]


def run(*words):
    result = subprocess.run([build / "motley", *words, "--port", "8000"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
    return result.stdout


def used(deployment):
    return {worker["device"].split("/")[0] for worker in deployment.plan()["workers"]}


def fetched(deployment):
    return [line for line in deployment.log if " fetched " in line]


def main():
    deployment = Deployment(folder, "7 MiB", 3, motley=build / "motley", options=OPTIONS)
    text = deployment.complete("Once upon a time", 60, 1)
    plan = deployment.plan()
    assert used(deployment) == {"m1", "m2", "m3"} and len(fetched(deployment)) == 2  # the first has the model itself
    assert all(worker["process"] > 0 and worker["alive"] for worker in plan["workers"])
    assert [member["name"] for member in plan["members"]] == ["m1", "m2", "m3"]
    status = run("status")
    assert "3 machines" in status and "m2 at 10.9.0.2, 7.00 MiB" in status and "m3/0" in status, status
    assert "m2 is not used any more" in run("drain", "m2") and used(deployment) == {"m1", "m3"}
    assert deployment.complete("Once upon a time", 60, 1) == text
    missing = subprocess.run([build / "motley", "drain", "attic", "--port", "8000"], capture_output=True, text=True, timeout=60)
    assert missing.returncode == 2 and 'no machine called "attic"' in missing.stderr, missing.stderr
    left = deployment.end()
    assert not left and deployment.process.returncode == 0, left

    file = folder.parent / "plan.json"
    file.write_text(json.dumps(plan["plan"]))
    again = Deployment(folder, "7 MiB", 3, motley=build / "motley", plan=file, options=["--device-threads", "1"], keep=True)
    assert used(again) == {"m1", "m2", "m3"} and again.plan()["plan"]["stages"] == plan["plan"]["stages"]
    assert again.complete("Once upon a time", 60, 1) == text
    assert not fetched(again), "the cache was there"
    left = again.end()
    assert not left and again.process.returncode == 0, left
    print("done")


main()
