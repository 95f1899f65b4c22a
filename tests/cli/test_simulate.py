"""`motley simulate` as a person or a script meets it."""

import json

import pytest

BOX = "examples/clusters/motivating-box.toml"
WORKLOAD = """format = "motley.workload/1"
[[class]]
name = "chat"
rate = "0.5 /s"
prompt_tokens = { mean = 300, p50 = 200 }
output_tokens = 20
deadline = { first_token = "2 s", total = "20 s" }
[[class]]
name = "code"
rate = "0.25 /s"
prompt_tokens = 500
output_tokens = 5
deadline = { first_token = "1 ms" }
[arrival]
process = "gamma"
cv = 2
"""


@pytest.fixture(scope="module")
def plan(run, tmp_path_factory):
    file = tmp_path_factory.mktemp("simulate") / "plan.json"
    result = run("plan serve -q", "--cluster", BOX, "--model", "llama-2-70b", "--deadline", "2 s", "-o", file)
    assert result.returncode == 0, result.stderr
    return file


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    file = tmp_path_factory.mktemp("simulate") / "workload.toml"
    file.write_text(WORKLOAD)
    return file


def refused(result, *words):
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert "error: " in result.stderr and "hint: " in result.stderr
    for word in words:
        assert word in result.stderr


def test_tables_for_people(run, plan, workload):
    result = run("simulate", plan, "--workload", workload, "--requests", 80)
    assert result.returncode == 0, result.stderr
    assert "80 requests" in result.stdout
    for word in ["chat", "code", "all", "r0/s0", "KV cache in use", "tokens/s"]:
        assert word in result.stdout
    assert result.stderr == ""


def test_json_for_machines(run, plan, workload):
    result = run("simulate --json", plan, "--workload", workload, "--duration", "100 s", "--seed", 4)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert 40 < report["requests"] < 120
    assert report["finished"] == report["requests"]
    for key in ["ttft_s", "tpot_s", "latency_s"]:
        assert 0 < report[key]["p50"] <= report[key]["p90"] <= report[key]["p99"]
    assert report["measured_s"] == 100
    assert report["tokens_per_s"] > 5
    stages = {stage["id"] for stage in json.loads(plan.read_text())["stages"]}
    assert {stage["id"] for stage in report["stages"]} == stages
    assert all(0 < stage["use"] < 1 for stage in report["stages"])
    chat, code = report["classes"]
    assert chat["name"] == "chat" and chat["slo_attainment"] > 0.5
    assert code["name"] == "code" and code["slo_attainment"] == 0
    weighted = chat["slo_attainment"] * chat["requests"] / report["requests"]
    assert report["slo_attainment"] == pytest.approx(weighted)


def test_the_seed_says_everything(run, plan, workload):
    def play(seed):
        return run("simulate --json", plan, "--workload", workload, "--requests", 60, "--seed", seed).stdout

    assert play(1) == play(1)
    assert play(1) != play(2)


def test_a_higher_rate_makes_requests_wait(run, plan, workload):
    def first_token_s(scale):
        result = run("simulate --json", plan, "--workload", workload, "--requests", 200, "--rate-scale", scale)
        return json.loads(result.stdout)["ttft_s"]["p99"]

    assert first_token_s(40) > 2 * first_token_s(0.1)


def test_the_timeline_opens(run, plan, workload, tmp_path):
    file = tmp_path / "timeline.json"
    result = run("simulate", plan, "--workload", workload, "--requests", 20, "--trace-out", file)
    assert result.returncode == 0 and str(file) in result.stderr
    events = json.loads(file.read_text())["traceEvents"]
    tracks = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    stages = [stage["id"] for stage in json.loads(plan.read_text())["stages"]]
    assert tracks[: len(stages)] == stages and len(tracks) >= 2 * len(stages) - 1
    assert {event["ph"] for event in events} == {"M", "X", "C"}
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_a_device_that_leaves_and_comes_back(run, plan, workload):
    arguments = ["--json", plan, "--workload", workload, "--duration", "60 s"]
    calm = json.loads(run("simulate", *arguments).stdout)
    fault = json.loads(run("simulate", *arguments, "--fault", "box/0@20s-40s").stdout)
    assert fault["finished"] == calm["finished"]
    assert fault["latency_s"]["p99"] > calm["latency_s"]["p99"] + 5
    gone = json.loads(run("simulate", *arguments, "--fault", "box/0@20s").stdout)
    assert gone["unfinished"] > 0


def test_a_trace_is_replayed(run, plan, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,class\n0,100,3,chat\n5,200,4,chat\n9,50,5,code\n")
    workload = tmp_path / "workload.toml"
    workload.write_text('format = "motley.workload/1"\n[arrival]\nprocess = "trace"\nfile = "trace.csv"\n')
    report = json.loads(run("simulate --json", plan, "--workload", workload).stdout)
    assert report["requests"] == 3
    assert [c["name"] for c in report["classes"]] == ["chat", "code"]

    trace.write_text("arrival_s,prompt_tokens,output_tokens\n5,100,3\n4,200,4\n")
    refused(run("simulate", plan, "--workload", workload), "trace.csv:3", "sort")
    trace.write_text("arrival_s,prompt_tokens\n5,100\n")
    refused(run("simulate", plan, "--workload", workload), "output_tokens", "missing")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--duration", "60"], ["--duration", '"60"']),
        (["--fault", "box/0"], ["--fault needs a device and a time"]),
        (["--fault", "box/9@1s"], ["box/9"]),
        (["--fault", "box/0@5"], ["--fault", '"5"']),
        (["--fault", "box/0@5s-4s"], ["give a return after the loss"]),
        (["--rate", "5"], ["--rate", "/s"]),
        (["--set", "motley.nothing=1"], ["motley.nothing"]),
    ],
)
def test_bad_options_are_told(run, plan, workload, arguments, words):
    refused(run("simulate", plan, "--workload", workload, *arguments), *words)


def test_a_workload_without_rates_asks_for_one(run, plan):
    refused(run("simulate", plan), "no rate of requests", "--rate")
    result = run("simulate --json", plan, "--rate", "1 /s", "--requests", 20)
    assert json.loads(result.stdout)["finished"] == 20


def test_help_has_an_example(run):
    result = run("simulate", "--help")
    assert result.returncode == 0 and "example: motley simulate" in result.stdout
