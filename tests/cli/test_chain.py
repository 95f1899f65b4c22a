"""One strategy chain as a script meets it: plan, front, verify, explain, refusals."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = "examples/chain/layers.json"


def changed(tmp_path, change):
    chain = json.loads((ROOT / LAYERS).read_text())
    change(chain)
    file = tmp_path / "chain.json"
    file.write_text(json.dumps(chain))
    return file


def test_plan_verify_explain(run, tmp_path):
    file = tmp_path / "plan.json"
    result = run("plan train", "--chain", LAYERS, "--front", "--json", "-o", file)
    assert result.returncode == 0 and result.stdout == file.read_text()
    plan = json.loads(result.stdout)
    assert plan["format"] == "motley.plan/1" and plan["kind"] == "chain"
    assert plan["choice"] in ([0, 1, 1], [1, 1, 0])
    assert plan["predicted"]["time_s"] == pytest.approx(5.3, abs=1e-12) and plan["predicted"]["bytes"] == 10
    assert [(point["bytes"], round(point["time_s"], 9)) for point in plan["front"]] == [(9, 6), (10, 5.3), (11, 4.3), (12, 3)]
    assert plan["search"]["status"] == "optimal" and plan["search"]["gap"] == 0
    assert run("verify", file).returncode == 0
    explained = json.loads(run("explain", file, "--json").stdout)
    assert explained["total_s"] == pytest.approx(5.3, abs=1e-12)
    assert [term["name"] for term in explained["terms"]] == ["sites", "synchronising", "layout changes"]


def test_a_tampered_plan_is_caught(run, tmp_path):
    file = tmp_path / "plan.json"
    run("plan train", "--chain", LAYERS, "-o", file)
    plan = json.loads(file.read_text())
    plan["choice"] = [0, 0, 0]
    file.write_text(json.dumps(plan))
    result = run("verify", file)
    assert result.returncode == 1 and "the budget is 10" in result.stdout
    assert run("explain", file).returncode == 2


def test_what_does_not_fit_names_the_site_and_the_least_memory(run, tmp_path):
    file = changed(tmp_path, lambda chain: chain.update(budget_bytes=8))
    result = run("plan train", "--chain", file, "--json")
    answer = json.loads(result.stdout)
    assert result.returncode == 1 and answer["status"] == "infeasible"
    assert answer["site"] == 2 and answer["least_bytes"] == 9 and "sites[0] (layer)" in answer["reason"]
    alone = changed(tmp_path, lambda chain: chain.update(budget_bytes=2))
    assert "alone needs at least 3 bytes" in run("plan train", "--chain", alone).stdout


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda chain: chain["sites"][0]["options"][1].update(bytes=-3), "sites[0].options[1].bytes: -3 is out of range"),
        (lambda chain: chain["sites"][0]["options"][1].update(layout="c"), '"c" is not among the layouts'),
        (lambda chain: chain["sites"][0].update(options=[]), "sites[0] has no options"),
        (lambda chain: chain["layout_change_s"].pop(), "1 rows for 2 layouts"),
        (lambda chain: chain.pop("budget_bytes"), "`budget_bytes` is missing"),
        (lambda chain: chain.update(format="motley.chain/2"), "motley.chain/"),
    ],
)
def test_bad_chains_are_refused_with_their_place(run, tmp_path, change, words):
    result = run("plan train", "--chain", changed(tmp_path, change))
    assert result.returncode == 2 and words in result.stderr and "hint:" in result.stderr
