"""`motley plan train` on a whole cluster, and what the other verbs do with its plans."""

import json
from pathlib import Path


ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "examples" / "train" / "lab.toml"
JOB = ROOT / "examples" / "train" / "job.toml"


def planned(run_to, path, *more):
    run_to("plan", "train", "--cluster", LAB, "--model", "llama-2-13b", "--workload", JOB, "-q", "-o", path, *more)
    return json.loads(path.read_text())


def test_a_plan_is_verified_explained_simulated_and_compared(run_to, tmp_path):
    path, other = tmp_path / "plan.json", tmp_path / "grid.json"
    plan = planned(run_to, path, "--deadline", "4 s")
    assert plan["kind"] == "train"
    assert sum(replica["share"] for replica in plan["replicas"]) == 1
    assert plan["search"]["bound"] <= plan["predicted"]["iteration_s"]
    assert json.loads(run_to("verify", path, "--json").stdout)["violations"] == []

    tree = json.loads(run_to("explain", path, "--json").stdout)
    assert abs(tree["total_s"] - plan["predicted"]["iteration_s"]) < 1e-9
    assert [term["name"] for term in tree["terms"]] == ["pipeline", "gradients", "update"]

    # What every stage holds, by cause, and what a byte more would be worth to it.
    assert len(tree["memory"]) == sum(len(replica["stages"]) for replica in plan["replicas"])
    for stage in tree["memory"]:
        assert stage["price_s_per_byte"] >= 0
        for device, memory in stage["devices"].items():
            assert memory == plan["predicted"]["memory_bytes"][device]
    shown = run_to("explain", path).stdout
    assert "price of memory" in shown
    for part in ("parts of replica", "products", "attention", "element-wise", "launches"):
        assert part in shown

    trace = tmp_path / "trace.json"
    step = json.loads(run_to("simulate", path, "--json", "-q", "--trace-out", trace).stdout)
    assert abs(step["iteration_s"] - plan["predicted"]["iteration_s"]) < 1e-9
    passes = [event for event in json.loads(trace.read_text())["traceEvents"] if event["name"].startswith("forward")]
    stages = sum(replica["micro_batches"] * len(replica["stages"]) for replica in plan["replicas"])
    assert len(passes) == stages

    grid = planned(run_to, other, "--stages", "7", "--replicas", "4")
    assert [len(replica["stages"]) for replica in grid["replicas"]] == [7, 7, 7, 7]
    side = json.loads(run_to("compare", path, other, "--json").stdout)
    ratio = plan["predicted"]["iteration_s"] / grid["predicted"]["iteration_s"]
    assert abs(side["plans"][1]["speed"] - ratio) < 1e-9


def test_what_is_missing_or_does_not_fit_is_said(run_to, tmp_path):
    missing = run_to("plan", "train", "--cluster", LAB, code=2)
    assert "--model is missing" in missing.stderr
    small = tmp_path / "small.toml"
    small.write_text('format = "motley.cluster/1"\n[[machine]]\nname = "box"\ndevices = ["T4*2"]\n')
    answer = run_to("plan", "train", "--cluster", small, "--model", "llama-2-70b", "--workload", JOB, "-q", code=1)
    assert "no division of llama-2-70b fits" in answer.stdout
    assert "weights, gradients and optimizer take" in answer.stdout
