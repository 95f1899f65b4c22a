"""Renting as a person or a script meets it: worked examples, tables, JSON, the rented machines, refusals."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = "examples/renting/measured.json"
DEMAND = "examples/renting/demand.json"
MODEL = ["--model", "llama-2-70b", "--workload", "examples/renting/workload.toml"]
MARKET = ["--offers", "examples/renting/market.toml"]


def refused(result, code, *words):
    assert result.returncode == code, result
    text = result.stderr if code != 1 else result.stdout
    for word in words:
        assert word in text


def test_the_worked_example_prints_its_fleet_and_what_binds_it(run):
    result = run("plan rent", "--offers", MEASURED, "--budget", "8 $/h", "-q")
    assert result.returncode == 0 and result.stderr == ""
    assert "3.5172 requests/s" in result.stdout and "available t2" in result.stdout
    for word in ("limits of each class", "value of one more", "alone, unlimited", "all 1.25x"):
        assert word in result.stdout


def test_json_holds_the_documented_keys(run, tmp_path):
    file = tmp_path / "fleet.json"
    result = run("plan rent", "--offers", DEMAND, "--cheapest", "--json", "-o", file)
    assert result.returncode == 0 and result.stdout == file.read_text()
    plan = json.loads(result.stdout)
    assert plan["format"] == "motley.plan/1" and plan["kind"] == "rent"
    assert {(entry["configuration"], entry["copies"]) for entry in plan["fleet"]} == {("A", 1), ("B", 1)}
    for entry in plan["fleet"]:
        assert {"configuration", "devices", "copies", "usd_per_hour"} <= entry.keys()
    predicted = plan["predicted"]
    assert predicted["cost_usd_per_hour"] == pytest.approx(4.68, abs=1e-9)
    assert {"throughput_per_s", "shadow_price_usd_per_hour", "homogeneous", "classes", "slower"} <= predicted.keys()
    assert {entry["type"] for entry in predicted["homogeneous"]} == {"A", "B"}
    for shares in plan["assignment"].values():
        assert sum(shares.values()) == pytest.approx(1)
    assert plan["search"]["status"] == "optimal" and plan["search"]["gap"] <= 1e-6


def test_same_inputs_same_plan(run):
    def plan():
        made = json.loads(run("plan rent", *MODEL, *MARKET, "--budget", "15 $/h", "--json", "-q").stdout)
        assert made["search"].pop("elapsed_s") >= 0
        return made

    assert plan() == plan()


def test_verify_and_explain_take_its_plans(run, tmp_path):
    file = tmp_path / "fleet.json"
    assert run("plan rent", "--offers", MEASURED, "--budget", "8 $/h", "-o", file).returncode == 0
    assert run("verify", file).returncode == 0
    assert "limits of each class" in run("explain", file).stdout
    tree = json.loads(run("explain", file, "--json").stdout)
    assert tree["usd_per_hour"] == pytest.approx(sum(term["usd_per_hour"] for term in tree["terms"]["terms"])) == 8
    plan = json.loads(file.read_text())
    plan["fleet"][0]["copies"] = 7
    file.write_text(json.dumps(plan))
    result = run("verify", file)
    assert result.returncode == 1 and "available" in result.stdout
    refused(run("plan rent", "--offers", MEASURED, "--budget", "8 $/h", "--current", tmp_path / "none.json"), 2, "none.json")


def test_a_model_is_rented_for_and_the_machines_are_a_cluster_to_plan_on(run, tmp_path):
    cluster = tmp_path / "rented.json"
    result = run("plan rent", *MODEL, *MARKET, "--cheapest", "--json", "--cluster-out", cluster)
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert plan["predicted"]["headroom"] >= 1 - 1e-6
    assert plan["offers"]["utilisation"] == 0.8
    assert plan["search"]["cost"] == "motley" and plan["model"]["name"] == "llama-2-70b"
    devices = sum(entry["copies"] * sum(entry["devices"].values()) for entry in plan["fleet"])
    served = run("plan serve", "--cluster", cluster, *MODEL, "--json", "-q")
    assert served.returncode == 0, served.stderr
    serve = json.loads(served.stdout)
    used = [device for stage in serve["stages"] for device in stage["devices"]]
    assert len(used) + len(serve["unused"]) == devices


def test_copies_that_run_are_kept_where_starting_others_costs_more(run, tmp_path):
    file = tmp_path / "now.json"
    offers = json.loads((ROOT / DEMAND).read_text())
    offers["classes"] = [{"name": "all", "demand_per_s": 4}]
    offers["configurations"] = [
        {"name": "A", "devices": {"A": 1}, "rate_per_s": [1]},
        {"name": "B", "devices": {"B": 1}, "rate_per_s": [4]},
    ]
    offers["types"] = {"A": {"price_usd_per_hour": 1.0}, "B": {"price_usd_per_hour": 3.9}}
    (tmp_path / "offers.json").write_text(json.dumps(offers))
    offers["types"]["A"]["price_usd_per_hour"] = 0.9
    (tmp_path / "before.json").write_text(json.dumps(offers))
    assert run("plan rent", "--offers", tmp_path / "before.json", "--cheapest", "-o", file).returncode == 0

    def fleet(*more):
        made = json.loads(run("plan rent", "--offers", tmp_path / "offers.json", "--cheapest", "--json", "-q", *more).stdout)
        return {entry["configuration"]: entry["copies"] for entry in made["fleet"]}

    assert fleet() == {"B": 1}
    assert fleet("--current", file, "--startup", "10 min", "--interval", "1 h") == {"A": 4}


def test_the_fleet_survives_the_loss_of_a_domain(run, tmp_path):
    offers = json.loads((ROOT / DEMAND).read_text())
    offers["types"]["A"]["domain"], offers["types"]["B"]["domain"] = "east", "west"
    file = tmp_path / "offers.json"
    file.write_text(json.dumps(offers))
    plan = json.loads(run("plan rent", "--offers", file, "--cheapest", "--survive", "0.5", "--json", "-q").stdout)
    assert set(plan["fallback"]) == {"east", "west"}
    assert all(set(shares) == {"B"} for shares in plan["fallback"]["east"].values())
    assert plan["predicted"]["cost_usd_per_hour"] > 4.68


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--offers", MEASURED], 2, ["--budget or --cheapest is missing", "--cheapest"]),
        (["--offers", MEASURED, "--budget", "8 $/h", "--cheapest"], 2, ["--budget and --cheapest cannot be combined"]),
        (["--offers", MEASURED, "--budget", "8"], 2, ["must be an amount of money", "30 $/h"]),
        (["--offers", MEASURED, "--cheapest"], 2, ["demand_per_s"]),
        (["--budget", "8 $/h"], 2, ["--offers", "--model"]),
        (["--offers", MEASURED, "--model", "llama-2-7b", "--budget", "8 $/h"], 2, ["leave out --model"]),
        (["--offers", "none.json", "--budget", "8 $/h"], 2, ["none.json"]),
        (["--offers", MEASURED, "--budget", "8 $/h", "--survive", "0.5"], 2, ["domain"]),
        (["--offers", MEASURED, "--budget", "1 $/h"], 1, ["0 requests/s", "2 $/h"]),
    ],
)
def test_wrong_usage_and_impossible_goals_say_what_would_work(run, arguments, code, words):
    refused(run("plan rent", *arguments), code, *words)


def test_a_refusal_as_json_carries_nothing(run):
    result = run("plan rent", "--offers", MEASURED, "--budget", "1 $/h", "--json")
    answer = json.loads(result.stdout)
    assert result.returncode == 1 and answer["status"] == "infeasible" and answer["throughput_per_s"] == 0
    assert answer["reason"] and answer["hint"]


def test_help_teaches_by_examples(run):
    result = run("plan rent", "--help")
    assert result.returncode == 0
    for word in ("--offers", "--cheapest", "--cluster-out", "examples/renting/measured.json", "--survive"):
        assert word in result.stdout
