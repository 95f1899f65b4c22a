"""Collective plans as a script meets them: plan, verify, explain, compare, refusals; the examples reach what they say."""

import json

import pytest

EXAMPLES = "examples/collectives/"


def planned(run, verb, cluster, *arguments):
    result = run(f"plan {verb} --cluster {EXAMPLES}{cluster} --json -q --bytes", *(arguments or ("400 MB",)))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def without_clock(plan):
    return {**plan, "search": {**plan["search"], "elapsed_s": 0}}


@pytest.mark.parametrize("cluster, limit_s", [("star.toml", 3.2), ("two-sites.toml", 3.2), ("two-racks.toml", None)])
def test_the_examples_reach_the_limit_of_their_network(run, cluster, limit_s):
    plan = planned(run, "allreduce", cluster)
    predicted = plan["predicted"]
    assert plan["kind"] == "collective" and plan["operation"] == "all_reduce" and plan["bytes"] == 400_000_000
    assert predicted["steady_s"] <= 1.01 * predicted["limit_s"]
    assert predicted["efficiency"] > 0.9 and predicted["binding_cut"]
    if limit_s:
        assert predicted["limit_s"] == pytest.approx(limit_s, rel=1e-6)
    assert [int(rank) for rank in plan["program"]] == list(range(plan["ranks"]))


def test_slow_machines_own_nothing(run):
    plan = planned(run, "allreduce", "star.toml")
    for rank in ("6", "7"):
        assert all(step["op"] != "reduce" for step in plan["program"][rank])


@pytest.mark.parametrize("verb", ["allreduce", "reduce-scatter", "all-gather", "broadcast"])
def test_verify_and_explain(run, verb, tmp_path):
    file = tmp_path / "plan.json"
    result = run(f"plan {verb} --cluster {EXAMPLES}two-racks.toml -q -o", file, "--bytes", "8 MiB")
    assert result.returncode == 0 and "limit" in result.stdout
    assert run("verify", file).returncode == 0
    plan = json.loads(file.read_text())
    pipelined, rounds = (json.loads(run("explain --json --cost", form, file).stdout) for form in ("motley", "genmodel"))
    assert pipelined["total_s"] == pytest.approx(plan["predicted"]["pipelined_s"], rel=1e-9)
    assert rounds["total_s"] == pytest.approx(plan["predicted"]["time_s"], rel=1e-9)

    broken = json.loads(file.read_text())
    broken["program"]["3"].pop()
    file.write_text(json.dumps(broken))
    result = run("verify", file)
    assert result.returncode == 1 and "rank 3" in result.stdout + result.stderr or "program[3]" in result.stdout


def test_compare_and_objectives(run, tmp_path):
    files = []
    for objective in ("pipelined", "rounds"):
        files.append(tmp_path / f"{objective}.json")
        run(f"plan allreduce --cluster {EXAMPLES}two-racks.toml --bytes", "400 MB", "--objective", objective, "-o", files[-1])
    plans = json.loads(run("compare --json", *files).stdout)["plans"]
    assert [plan["plan"] for plan in plans] == ["pipelined.json", "rounds.json"]
    assert plans[0]["pipelined_s"] <= plans[1]["pipelined_s"] * (1 + 1e-9)
    assert plans[1]["time_s"] <= plans[0]["time_s"] * (1 + 1e-9)


def test_same_inputs_same_plan(run):
    one, other = (without_clock(planned(run, "allreduce", "two-racks.toml")) for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["plan", "allreduce", "--cluster", EXAMPLES + "star.toml", "--bytes", "0 B"], "--bytes"),
        (["plan", "allreduce", "--cluster", EXAMPLES + "star.toml", "--bytes", "400"], "unit"),
        (["plan", "all-gather", "--cluster", EXAMPLES + "star.toml", "--bytes", "1001 B"], "equal blocks"),
        (["plan", "broadcast", "--cluster", EXAMPLES + "star.toml", "--bytes", "1 MB", "--root", "m-9/0"], "m-9/0"),
        (["plan", "allreduce", "--cluster", EXAMPLES + "star.toml", "--bytes", "1 MB", "--objective", "fast"], "pipelined"),
        (["plan", "allreduce", "--cluster", EXAMPLES + "star.toml", "--bytes", "1 MB", "--set", "genmodel.alpha=1"], "message_s"),
    ],
)
def test_what_cannot_be_is_refused(run, arguments, words):
    result = run(arguments[0], *arguments[1:])
    assert result.returncode == 2 and words in result.stderr, result.stderr
