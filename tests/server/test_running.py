"""A deployment that runs, as `motley status` and `motley plan apply` see it."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "tests" / "server" / "cluster.toml"
MODEL = ROOT / "data" / "models" / "tales"


def make_plan(motley, path, *options):
    subprocess.run([motley, "plan", "serve", "--cluster", CLUSTER, "--model", MODEL, "-q", "-o", path, *options], check=True,
                   stdout=subprocess.DEVNULL, timeout=60)
    return path


@pytest.fixture(scope="module")
def plans(motley, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    return {"whole": make_plan(motley, folder / "whole.json"), "pair": make_plan(motley, folder / "pair.json", "--without", "box/1")}


@pytest.fixture(scope="module")
def server(start_server, plans):
    return start_server(plans["whole"], "--model", MODEL)


def run(motley, server, *words):
    return subprocess.run([motley, *words, "--port", str(server.port)], capture_output=True, text=True, timeout=60)


def test_status(motley, server):
    shown = run(motley, server, "status")
    assert shown.returncode == 0, shown.stderr
    assert "model     tales\nstate     serving, plan number 1, up for " in shown.stdout
    assert all(device in shown.stdout for device in ("box/0", "box/1", "box/2"))
    status = json.loads(run(motley, server, "status", "--json").stdout)
    assert status["state"] == "serving" and len(status["workers"]) == 3


def test_plans_take_turns_under_load(motley, server, plans):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)

    def ask(number):
        answer = client.completions.create(model="tales", prompt=f"There was once {number}", max_tokens=200, temperature=0, stream=True,
                                           extra_body={"ignore_eos": True})
        return sum(len(choice.text) for event in answer for choice in event.choices)

    with ThreadPoolExecutor(8) as pool:
        requests = [pool.submit(ask, number) for number in range(8)]
        for name in ("pair", "whole"):
            applied = run(motley, server, "plan", "apply", plans[name])
            assert applied.returncode == 0, applied.stderr
            assert " serves, after " in applied.stdout
            status = json.loads(run(motley, server, "status", "--json").stdout)
            assert [stage["devices"] for stage in status["plan"]["stages"]] == [
                stage["devices"] for stage in json.loads(plans[name].read_text())["stages"]]
        assert all(request.result(timeout=60) > 200 for request in requests)


def test_a_plan_for_another_model_is_refused(motley, server, plans, tmp_path):
    plan = json.loads(plans["pair"].read_text())
    plan["model"]["config"]["eos_token_id"] = 7
    other = tmp_path / "other.json"
    other.write_text(json.dumps(plan))
    refused = run(motley, server, "plan", "apply", other)
    assert refused.returncode == 2 and "is served" in refused.stderr
    assert run(motley, server, "status").returncode == 0


def test_a_server_that_is_not_there(motley, server):
    shown = subprocess.run([motley, "status", "--port", "1"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 5 and "Connection refused" in shown.stderr and "hint:" in shown.stderr
