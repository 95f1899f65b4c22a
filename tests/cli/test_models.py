"""Several models on one cluster, from the command line."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TWO = "--cluster cluster.toml --model llama-2-7b --workload often.toml --model llama-2-13b --workload seldom.toml"
CLUSTER = """format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["A6000*2", "A5000*2"]
"""
WORKLOAD = """format = "motley.workload/1"
[[class]]
name = "chat"
rate = "RATE /s"
prompt_tokens = 500
output_tokens = 100
"""


@pytest.fixture
def run(motley, tmp_path):
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    (tmp_path / "often.toml").write_text(WORKLOAD.replace("RATE", "4"))
    (tmp_path / "seldom.toml").write_text(WORKLOAD.replace("RATE", "1"))
    (tmp_path / "never.toml").write_text(WORKLOAD.replace('rate = "RATE /s"', ""))

    def run(words):
        command = [str(motley), *words.split()]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return run


def test_each_gets_its_devices_and_the_share_is_the_least(run, tmp_path):
    result = run(f"plan serve {TWO} --json -o plan.json")
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    used = [{d for stage in plan["stages"] for d in stage["devices"]} for plan in answer["plans"]]
    assert used[0] and used[1] and not used[0] & used[1]
    rates = [plan["predicted"]["requests_per_s"] for plan in answer["plans"]]
    assert answer["share"] == pytest.approx(min(rates[0] / 4, rates[1] / 1))
    assert answer["exact"] is True
    for name, others in (("plan-llama-2-7b.json", "llama-2-13b"), ("plan-llama-2-13b.json", "llama-2-7b")):
        assert run(f"verify {name}").returncode == 0
        assert run(f"simulate {name} --requests 50").returncode == 0
        reasons = {unused["reason"] for unused in json.loads((tmp_path / name).read_text())["unused"]}
        assert f"serves {others}" in reasons


def test_tables_tell_the_share_of_each(run):
    result = run(f"plan serve {TWO}")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("of its demand") == 2
    assert "times its demand" in result.stdout


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (TWO.replace(" --workload seldom.toml", ""), 2, ["2 models need as many workloads, found 1", "its own --workload"]),
        (TWO.replace("seldom", "never"), 2, ["llama-2-13b", "rate"]),
        (TWO + " --front", 2, ["--front"]),
        (TWO.replace("llama-2-13b", "llama-2-70b"), 1, ["llama-2-70b does not fit in addition to the other models"]),
    ],
)
def test_what_is_missing_is_told(run, arguments, code, words):
    result = run(f"plan serve {arguments}")
    assert result.returncode == code, result
    for word in words:
        assert word in result.stderr + result.stdout
