"""A deployment that runs, as `motley deployment status` and `motley deployment apply` see it."""

import json
import os
import subprocess
import urllib.error
import urllib.request
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
    return subprocess.run([motley, "deployment", *words, "--port", str(server.port)], capture_output=True, text=True, timeout=60)


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
            applied = run(motley, server, "apply", plans[name])
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
    refused = run(motley, server, "apply", other)
    assert refused.returncode == 2 and "is served" in refused.stderr
    assert run(motley, server, "status").returncode == 0


def key_file(port):
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return state / "motley" / "operators" / f"127.0.0.1:{port}"


def post(server, path, body, key=None):
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, json.dumps(body).encode(), headers), timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_its_own_user_operates_a_server(motley, server, plans, tmp_path):
    file = key_file(server.port)
    assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o777 == 0o700
    key = file.read_text().strip()
    assert len(key) == 64 and [post(server, path, {}, wrong) for path in ("/plan", "/drain", "/link") for wrong in (None, "none", key[:-1])] == [401] * 9
    assert post(server, "/drain", {"member": "box"}, key) == 400  # it has one machine
    other = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    for words in (["apply", plans["pair"]], ["drain", "box"], ["invite"]):
        refused = subprocess.run([motley, "deployment", *words, "--port", str(server.port)], capture_output=True, text=True, timeout=60, env=other)
        assert refused.returncode == 2 and "operator's key" in refused.stderr, refused.stderr
        taken = subprocess.run([motley, "deployment", *words, "--port", str(server.port), "--operator-key", key], capture_output=True, text=True, timeout=60, env=other)
        assert "operator's key" not in taken.stderr, taken.stderr
    # A key that others can read is not believed.
    file.chmod(0o644)
    assert run(motley, server, "invite").returncode == 2 and "operator's key" in run(motley, server, "invite").stderr
    file.chmod(0o600)
    assert "was not started by `motley up`" in run(motley, server, "invite").stderr


def test_a_key_that_was_chosen_is_not_kept(motley, start_server, plans):
    server = start_server(plans["whole"], "--model", MODEL, "--api-key", "sesame", "--operator-key", "chosen")
    assert not key_file(server.port).exists()
    assert post(server, "/link", {}, "sesame") == 401 and post(server, "/link", {}, "chosen") == 400
    assert run(motley, server, "status").returncode == 2  # it has no key at all
    for key in (["--api-key", "sesame"], ["--operator-key", "chosen"]):
        assert run(motley, server, "status", *key).returncode == 0
    assert "operator's key" in run(motley, server, "invite", "--api-key", "sesame").stderr
    assert "was not started by `motley up`" in run(motley, server, "invite", "--operator-key", "chosen").stderr
    assert server.stop() == 0


@pytest.mark.parametrize("options", [["--cors", "chat.example.com"], ["--new-per-address", "0"], ["--api-key", "one", "--operator-key", "one"]])
def test_wrong_options_are_refused(motley, plans, options):
    refused = subprocess.run([motley, "serve", plans["whole"], "--model", MODEL, "--local", "--port", "0", *options], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and options[-2] in refused.stderr, refused.stderr


def test_a_server_that_is_not_there(motley, server):
    shown = subprocess.run([motley, "deployment", "status", "--port", "1"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 5 and "Connection refused" in shown.stderr and "hint:" in shown.stderr
