"""Plans whose weights are on disk and in the host's memory: served and generated from, with the tokens of the plan that keeps them all."""

import copy
import json
import os
import signal
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import alive, children

ROOT = Path(__file__).resolve().parents[2]
TALES = ROOT / "data/models/tales"
CLUSTER = """
format = "motley.cluster/1"
name = "one machine"

[[machine]]
name = "box"
devices = ["processor*1"]
host_memory = "64 MiB"
disk = { capacity = "1 GB", read = "1 GB/s", write = "1 GB/s" }

[[device_type]]
name = "processor"
vendor = "cpu"
memory = "48 MiB"
memory_bandwidth = "10 GB/s"
flops = { bf16 = "100 GFLOP/s", fp32 = "100 GFLOP/s" }
reserve = "0 B"
"""
PROMPTS = ["Once upon a time", "The dog", "A small red boat went", "Lily and Tom", "In the forest there was", "It rained"]


@pytest.fixture(scope="module")
def plans(motley, tmp_path_factory):
    """Files of a plan that keeps all on the device, and of one with 3 layers in the host's memory and 4 on disk."""
    folder = tmp_path_factory.mktemp("plans")
    (folder / "cluster.toml").write_text(CLUSTER)
    subprocess.run([motley, "plan", "serve", "--cluster", folder / "cluster.toml", "--model", TALES, "--weight-type", "fp32", "--max-tokens",
                    "64", "--max-sequences", "4", "--no-roles", "-q", "-o", folder / "resident.json"], check=True)
    plan = json.loads((folder / "resident.json").read_text())
    assert len(plan["stages"]) == 1
    offloaded = copy.deepcopy(plan)
    offloaded["predicted"].pop("memory_bytes", None)
    offloaded["stages"][0]["offload"] = dict(batches=1, weights=dict(device=1 / 8, host=3 / 8, disk=4 / 8), kv=dict(device=1),
                                             activations=dict(device=1))
    (folder / "offloaded.json").write_text(json.dumps(offloaded))
    return folder


def completion(server, prompt):
    body = dict(prompt=prompt, max_tokens=24, temperature=0)
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["choices"][0]["text"]


@pytest.fixture(scope="module")
def texts(plans, start_server):
    server = start_server(plans / "resident.json", "--model", TALES)
    answers = {prompt: completion(server, prompt) for prompt in PROMPTS}
    server.stop()
    return answers


def test_an_offloaded_plan_serves_the_same_tokens(plans, texts, start_server):
    server = start_server(plans / "offloaded.json", "--model", TALES)
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        assert dict(zip(PROMPTS, clients.map(lambda prompt: completion(server, prompt), PROMPTS))) == texts
    with urllib.request.urlopen(server.url + "/plan", timeout=10) as answer:
        held = json.load(answer)["workers"][0]["weight_bytes"]
    whole = sum(file.stat().st_size for file in TALES.glob("*.safetensors")) * 2  # the file is bf16
    assert held < 0.6 * whole
    assert server.stop() == 0


def write_requests(path, count):
    lines = [dict(custom_id=f"request {number}", method="POST", url="/v1/completions",
                  body=dict(prompt=PROMPTS[number % len(PROMPTS)], max_tokens=24, temperature=0)) for number in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [line["custom_id"] for line in lines]


def generate_command(motley, plans, folder):
    return [motley, "generate", plans / "offloaded.json", "--model", TALES, "--input", folder / "in.jsonl", "--output", folder / "out.jsonl"]


def answers_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_request_is_answered_once(motley, plans, texts, tmp_path):
    names = write_requests(tmp_path / "in.jsonl", 20)
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write(json.dumps(dict(custom_id="wrong", method="POST", url="/v1/completions", body=dict(prompt="x", max_tokens=-1))) + "\n")
    result = subprocess.run(generate_command(motley, plans, tmp_path), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    answers = {answer["custom_id"]: answer for answer in answers_of(tmp_path / "out.jsonl")}
    assert sorted(answers) == sorted([*names, "wrong"])
    assert answers["wrong"]["response"]["status_code"] == 400 and "max_tokens" in answers["wrong"]["response"]["body"]["error"]["message"]
    for number, name in enumerate(names):
        assert answers[name]["error"] is None and answers[name]["response"]["status_code"] == 200
        assert answers[name]["response"]["body"]["choices"][0]["text"] == texts[PROMPTS[number % len(PROMPTS)]], name
    assert "21 of 21, " in result.stderr and " tokens/s, 0 s left" in result.stderr
    again = subprocess.run(generate_command(motley, plans, tmp_path), capture_output=True, text=True)
    assert again.returncode == 0 and "all 21 are there" in again.stderr
    assert len(answers_of(tmp_path / "out.jsonl")) == 21


def test_goes_on_after_a_kill_and_leaves_nothing_behind(motley, plans, texts, tmp_path):
    spill, files = tmp_path / "spill", tmp_path / "files"
    spill.mkdir()
    files.mkdir()
    names = write_requests(files / "in.jsonl", 60)
    environment = os.environ | {"TMPDIR": str(spill)}
    for _ in range(2):
        before = (files / "out.jsonl").read_text().count("\n") if (files / "out.jsonl").exists() else 0
        process = subprocess.Popen(generate_command(motley, plans, files), stderr=subprocess.DEVNULL, env=environment)
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None:
            if (files / "out.jsonl").exists() and (files / "out.jsonl").read_text().count("\n") > before:
                break
            time.sleep(0.005)
        workers = children(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        while any(map(alive, workers)) and time.monotonic() < until:
            time.sleep(0.02)
        assert not any(map(alive, workers))
        assert sorted(os.listdir(files)) == ["in.jsonl", "out.jsonl"] and os.listdir(spill) == []
    with (files / "out.jsonl").open("a") as file:
        file.write('{"id": "batch_req_60", "custom_id": "request 5')  # as a process that is killed may leave it
    subprocess.run(generate_command(motley, plans, files), check=True, stderr=subprocess.DEVNULL, env=environment)
    answers = answers_of(files / "out.jsonl")
    assert sorted(answer["custom_id"] for answer in answers) == sorted(names)
    for answer in answers:
        prompt = PROMPTS[names.index(answer["custom_id"]) % len(PROMPTS)]
        assert answer["response"]["body"]["choices"][0]["text"] == texts[prompt]
    assert sorted(os.listdir(files)) == ["in.jsonl", "out.jsonl"] and os.listdir(spill) == []


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_keeps_the_answers_that_fit(motley, plans, small_disk, tmp_path):
    write_requests(tmp_path / "in.jsonl", 12)
    (small_disk / "filler").write_bytes(bytes(60 << 10))  # a page for the answers
    command = [*generate_command(motley, plans, tmp_path)[:-1], small_disk / "out.jsonl"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 3, result.stderr
    assert f"{small_disk}/out.jsonl" in result.stderr and "No space left on device" in result.stderr
    kept = answers_of(small_disk / "out.jsonl")
    assert 0 < len(kept) < 12 and (small_disk / "out.jsonl").read_text().endswith("\n")
    (small_disk / "filler").unlink()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    assert len({answer["custom_id"] for answer in answers_of(small_disk / "out.jsonl")}) == 12


def test_a_disk_too_small_for_the_weights_is_named_with_its_figures(motley, plans, small_disk, tmp_path):
    write_requests(tmp_path / "in.jsonl", 1)
    result = subprocess.run(generate_command(motley, plans, tmp_path), capture_output=True, text=True,
                            env=os.environ | {"MOTLEY_SPILL_DIR": str(small_disk)})
    assert result.returncode == 3, result.stderr
    assert f"the disk of {small_disk} is full: streamed weights take 6.20 MiB, and 64.0 KiB are free" in result.stderr


def test_a_device_too_small_for_one_layer_is_an_error_with_the_arithmetic(motley, plans, tmp_path):
    write_requests(tmp_path / "in.jsonl", 1)
    plan = json.loads((plans / "offloaded.json").read_text())
    plan["cluster"]["device_type"][0]["memory"] = "2 MiB"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = generate_command(motley, plans, tmp_path)
    command[2] = tmp_path / "plan.json"
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert "box/0" in result.stderr and "weights" in result.stderr and "2.00 MiB" in result.stderr, result.stderr


@pytest.mark.parametrize("line, message", [
    ("{", "in.jsonl:2"),
    ('{"custom_id": "request 0", "method": "POST", "url": "/v1/completions", "body": {}}', "the custom_id `request 0` was used before"),
    ('{"method": "POST", "url": "/v1/completions", "body": {}}', "in.jsonl:2: the line has no `custom_id`"),
    ('{"custom_id": "b", "method": "GET", "url": "/v1/completions", "body": {}}', "`method` must be POST, found GET"),
    ('{"custom_id": "b", "method": "POST", "url": "/v1/images", "body": {}}', "`url` /v1/images is not answered here"),
    ('{"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"stream": true}}', "are not streamed"),
])
def test_a_wrong_line_is_named_before_any_worker_starts(motley, plans, tmp_path, line, message):
    write_requests(tmp_path / "in.jsonl", 1)
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write(line + "\n")
    result = subprocess.run(generate_command(motley, plans, tmp_path), capture_output=True, text=True)
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert "weights" not in result.stderr
