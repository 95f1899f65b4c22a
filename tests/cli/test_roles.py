"""Prefill and decode apart, from the command line: planned where they win, verified, explained, simulated."""

import json
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = """format = "motley.cluster/1"
[[machine]]
name = "thinker"
devices = ["compute*2"]
[[machine]]
name = "keeper"
devices = ["stream*2"]
[[device_type]]
name = "compute"
vendor = "nvidia"
memory = "24 GiB"
memory_bandwidth = "300 GB/s"
flops = { fp16 = "300 TFLOP/s" }
[[device_type]]
name = "stream"
vendor = "nvidia"
memory = "24 GiB"
memory_bandwidth = "2 TB/s"
flops = { fp16 = "40 TFLOP/s" }
[network]
within_machine = { latency = "5 us", bandwidth = "50 GB/s" }
within_site = { latency = "20 us", bandwidth = "BANDWIDTH" }
"""
WORKLOAD = """format = "motley.workload/1"
[[class]]
name = "read"
rate = "5 /s"
prompt_tokens = 1500
output_tokens = 300
"""


@pytest.fixture(scope="module")
def run(motley, tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles")
    (folder / "fast.toml").write_text(CLUSTER.replace("BANDWIDTH", "25 GB/s"))
    (folder / "slow.toml").write_text(CLUSTER.replace("BANDWIDTH", "50 Mbit/s"))
    (folder / "workload.toml").write_text(WORKLOAD)

    def run(words):
        command = [str(motley), *words.split()]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)

    run("plan serve -q --cluster fast.toml --model llama-2-7b --workload workload.toml -o fast.json")
    run("plan serve -q --cluster slow.toml --model llama-2-7b --workload workload.toml -o slow.json")
    run("plan serve -q --cluster fast.toml --model llama-2-7b --workload workload.toml --no-roles -o both.json")
    run.folder = folder
    return run


def plan_of(run, name):
    return json.loads((run.folder / name).read_text())


def roles_of(run, name):
    return {stage["role"] for stage in plan_of(run, name)["stages"]}


def test_they_are_chosen_over_a_fast_link_only(run):
    assert roles_of(run, "fast.json") >= {"prefill", "decode"}
    assert roles_of(run, "slow.json") == {"any"}
    assert roles_of(run, "both.json") == {"any"}
    fast, both = plan_of(run, "fast.json")["predicted"], plan_of(run, "both.json")["predicted"]
    assert fast["requests_per_s"] > 1.02 * both["requests_per_s"]


def test_the_plan_verifies_and_the_simulator_runs_it(run):
    assert run("verify fast.json").returncode == 0
    simulated = {}
    for plan in ("fast.json", "both.json"):
        result = run(f"simulate {plan} --rate 100/s --requests 1000 --max-queue 100000 --json")
        assert result.returncode == 0, result.stderr
        simulated[plan] = json.loads(result.stdout)["tokens_per_s"]
    assert simulated["fast.json"] > simulated["both.json"]


def test_explain_shows_keys_and_values_on_their_way(run):
    result = run("explain fast.json")
    assert result.returncode == 0, result.stderr
    assert "keys and values" in result.stdout


def test_the_report_names_the_roles_and_what_to_do_with_them(run):
    result = run("plan serve -q --cluster fast.toml --model llama-2-7b --workload workload.toml")
    assert "prefill" in result.stdout and "decode" in result.stdout
    assert "--no-roles" in result.stdout


def test_the_published_form_refuses_them(run):
    result = run("explain fast.json --cost hexgen")
    assert result.returncode == 2
    assert "hexgen" in result.stderr
