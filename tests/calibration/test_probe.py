"""`motley cluster probe`: everything about it that is not timing. How near simulation and server come is measured by bench/calibration."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GARAGE = ROOT / "examples/garage"
TALES = ROOT / "data/models/tales"


def call(motley, *arguments, **environment):
    return subprocess.run([str(motley), *map(str, arguments)], capture_output=True, text=True, timeout=300, env=os.environ | environment)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """Where the probe of the garage puts what it needs for a while."""
    return tmp_path_factory.mktemp("scratch")


@pytest.fixture(scope="module")
def probed(motley, scratch, tmp_path_factory):
    """(file, what was printed): the garage, measured."""
    if not (motley.parent / "motley-worker").exists():
        pytest.skip("motley-worker is not built")
    file = tmp_path_factory.mktemp("probe") / "garage.toml"
    guessed = file.with_name("guessed.toml")
    guessed.write_text((GARAGE / "cluster.toml").read_text().replace("[[device_type]]\n", "[[device_type]]\ntraining = { products = 0.5 }\n"))
    result = call(motley, "cluster", "probe", "--cluster", guessed, "--model", TALES, "--weight-type", "fp32", "--seconds", 4, "-o", file,
                  "--json", TMPDIR=str(scratch))
    assert result.returncode == 0, result.stderr
    assert "server" in result.stderr and "wrote" in result.stderr
    return file, json.loads(result.stdout)


def test_the_file_says_what_it_is_and_reads_back(motley, probed):
    file, printed = probed
    text = file.read_text()
    assert text.startswith("# Measured by `motley cluster probe` at ")
    assert tomllib.loads(text)["format"] == "motley.cluster/1"
    shown = call(motley, "cluster", "show", file, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout) == printed["cluster"]
    assert call(motley, "cluster", "check", file).returncode == 0


def test_devices_keep_their_memories_and_get_the_measured_figures(probed):
    file, _ = probed
    described = tomllib.loads((GARAGE / "cluster.toml").read_text())
    measured = tomllib.loads(file.read_text())
    assert [machine["devices"] for machine in measured["machine"]] == [machine["devices"] for machine in described["machine"]]
    memories = {device["name"]: device["memory"] for device in measured["device_type"]}
    assert memories == {device["name"]: device["memory"] for device in described["device_type"]}
    for device in measured["device_type"]:
        assert set(device["flops"]) == {"fp32", "bf16"}
        assert set(device["overhead"]) == {"layer", "step"}
        shares = {name: share for name, share in device["efficiency"].items() if name != "in_turn"}
        assert all(0 < share <= 1 for share in shares.values()) and len(shares) == 4
        assert "training" not in device, "what was measured holds for training, too"
    assert ["link" in machine for machine in measured["machine"]] == [True, True, False], "machines with several workers"
    assert measured["local"]["cores"] >= 1


def within(low, value, high):
    assert low < value < high, (low, value, high)


def test_figures_are_those_of_a_processor(probed):
    measured = probed[1]["measured"]
    for rates in measured["types"].values():
        within(0.2e9, rates["bandwidth_bytes_per_s"], 1e12)
        within(0.5e9, rates["product_flop_per_s"], 1e13)
        assert rates["attention_bandwidth_bytes_per_s"] > 0.1e9 and rates["attention_flop_per_s"] > 0.1e9
        assert 0 <= rates["layer_overhead_s"] < 0.01 and 0 <= rates["step_overhead_s"] < 0.01
        assert 0 <= rates["fit_error"]["median"] <= rates["fit_error"]["worst"]
    assert set(measured["channels"]) == {"shm", "tcp"} and set(measured["machines"]) == {"bench", "shelf"}
    for path in [*measured["channels"].values(), *measured["machines"].values()]:
        assert 0 < path["latency_s"] < 0.1 and path["bandwidth_bytes_per_s"] > 1e5
    assert 0 <= measured["driver_step_s"] < 0.1  # a difference, not below 0: while other programs run it may vanish


def test_plans_are_made_and_simulated_with_it(motley, probed, tmp_path):
    plan = tmp_path / "plan.json"
    made = call(motley, "plan", "serve", "--cluster", probed[0], "--model", TALES, "--workload", GARAGE / "workload.toml",
                "--weight-type", "fp32", "--max-tokens", 64, "--max-sequences", 8, "-o", plan)
    assert made.returncode == 0, made.stderr
    assert call(motley, "verify", plan).returncode == 0
    explained = call(motley, "explain", plan, "--depth", 4)
    assert explained.returncode == 0 and "driver" in explained.stdout and "attention" in explained.stdout
    # One after another: a machine that was measured while other programs ran is slow, and would have a queue.
    simulated = call(motley, "simulate", plan, "--requests", 20, "--rate", "0.02 /s", "--json")
    assert simulated.returncode == 0, simulated.stderr
    result = json.loads(simulated.stdout)
    assert result["requests"] == 20
    assert 0 < result["tpot_s"]["p50"] < result["ttft_s"]["p50"] < 10


def test_gpus_are_refused_before_any_work_where_they_cannot_be_measured(motley, tmp_path):
    """With a stand-in for NVIDIA's management library, which lists two GPUs of two types."""
    stub = motley.parent / "libnvml_stub.so"
    if not stub.exists():
        pytest.skip("the stand-in is not built")
    (tmp_path / "libnvidia-ml.so.1").symlink_to(stub)
    listed = dict(LD_LIBRARY_PATH=str(tmp_path))
    one = tmp_path / "one.toml"
    one.write_text('format = "motley.cluster/1"\nname = "box"\n[[machine]]\nname = "box"\ndevices = ["L4"]\n')

    def refused(*arguments, **environment):
        result = call(motley, "cluster", "probe", "--model", TALES, *arguments, "-o", tmp_path / "out.toml", **environment)
        assert not (tmp_path / "out.toml").exists()
        return result.returncode, result.stderr

    assert refused("--backend", "cuda")[0] == 3  # no driver
    code, said = refused("--backend", "cuda", **listed)
    assert code == 2 and "several types" in said and "CUDA_VISIBLE_DEVICES" in said
    assert refused("--cluster", one)[0] == 2 and 'vendor = "cpu"' in refused("--cluster", one)[1]
    assert refused("--backend", "cuda", "--disk", tmp_path, **listed)[0] == 2
    assert refused("--backend", "cuda", "--cluster", one, "--workload", GARAGE / "workload.toml")[0] == 2
    code, said = refused("--backend", "cuda", "--cluster", one, "--seconds", 1, **listed)  # the workers open LibTorch's CUDA library
    assert code == 3 and "CUDA" in said or "cuda" in said, said


def test_a_device_is_measured_alone_as_agents_measure_gpus(motley, tmp_path):
    """On a stand-in with memory of its own: the steps of workers, and the copies that `motley-worker --copies` measures."""
    library = motley.parent / "libapart_device.so"
    if not library.exists():
        pytest.skip("the stand-in is not built")

    def rates(*arguments):
        return call(motley, "cluster", "probe", "--rates", *arguments, MOTLEY_TEST_DEVICES=str(library), TMPDIR=str(tmp_path))

    result = rates("--backend", "apart:0", "--model", TALES, "--seconds", 1, "-q")
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout)
    assert set(measured["flops"]) == {"fp32", "bf16"} and measured["efficiency"]["basis"] == "measured"
    assert set(measured["overhead"]) == {"layer", "step"} and set(measured["copies"]) == {"upload", "download", "latency"}
    assert list(tmp_path.iterdir()) == []
    code, said = rates("--backend", "cuda").returncode, rates("--backend", "cpu").stderr
    assert code == 2 and "--rates measures one device" in said
    worker = motley.parent / "motley-worker"
    listed = call(worker, "--copies", "apart:0", "apart:1", MOTLEY_TEST_DEVICES=str(library))
    assert listed.returncode == 0, listed.stderr
    copies = json.loads(listed.stdout)
    assert [device["device"] for device in copies["devices"]] == ["apart:0", "apart:1"]
    assert [(link["from"], link["to"]) for link in copies["links"]] == [("apart:0", "apart:1"), ("apart:1", "apart:0")]
    refused = call(worker, "--copies", "cpu")
    assert refused.returncode != 0 and "no memory of its own" in refused.stderr


def test_this_machine_without_a_description_and_its_tiers(motley, tmp_path):
    file, plan = tmp_path / "here.toml", tmp_path / "plan.json"
    result = call(motley, "cluster", "probe", "--model", TALES, "--transport", "tcp", "--worker-threads", 1, "--seconds", 4, "--disk", tmp_path,
                  "--disk-bytes", "64 MiB", "-o", file, "-q")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "one row" in result.stdout and "between two workers, tcp" in result.stdout
    measured = tomllib.loads(file.read_text())
    assert [machine["devices"] for machine in measured["machine"]] == [["worker*1"]]
    assert "over tcp" in file.read_text() and f"The disk is that of {tmp_path}." in file.read_text()
    assert list(tmp_path.iterdir()) == [file], "the test file is gone"
    machine = measured["machine"][0]
    assert set(machine["disk"]) == {"capacity", "read", "write", "both"} and set(machine["host"]) == {"upload"}
    made = call(motley, "plan", "offload", "--machine", file, "--model", TALES, "-q", "-o", plan)
    assert made.returncode == 0, made.stderr
    assert call(motley, "verify", plan).returncode == 0


def test_what_cannot_be_measured_is_said_before_anything_is(motley, tmp_path):
    gpus = call(motley, "cluster", "probe", "--cluster", ROOT / "examples/clusters/motivating-box.toml")
    assert gpus.returncode == 2 and "no device of this cluster is a CPU" in gpus.stderr
    types = call(motley, "cluster", "probe", "--weight-type", "int4")
    assert types.returncode == 2 and "int4" in types.stderr
    folder = call(motley, "cluster", "probe", "-o", tmp_path / "missing" / "x.toml")
    assert folder.returncode == 3 and "missing" in folder.stderr


def test_no_folder_remains(probed, scratch):
    assert list(scratch.iterdir()) == []


def test_training_is_measured_for_a_profile_that_plans_are_priced_with(motley, tmp_path):
    if not (motley.parent / "motley-worker").exists():
        pytest.skip("motley-worker is not built")
    cluster, job, profile = ROOT / "examples/training/garage.toml", tmp_path / "job.toml", tmp_path / "profile.json"
    job.write_text('format = "motley.workload/1"\n[training]\nsequence_length = 32\nglobal_batch = 8\nprecision = "fp32"\n')
    result = call(motley, "cluster", "probe", "--cluster", cluster, "--model", TALES, "--workload", job, "--seconds", 1, "-o", profile)
    assert result.returncode == 0, result.stderr
    measured = json.loads(profile.read_text())
    parts = {(time.get("tp", 1), time["micro_batch"], time["part"]) for time in measured["layer_time"]}
    assert {(1, b, part) for b in [1, 2, 4] for part in ["embedding", "block", "head"]} <= parts
    assert all(time["forward_s"] > 0 and time["backward_s"] > 0 for time in measured["layer_time"] if time["part"] == "block")
    assert all(rate["bytes_per_s"][0] > 0 for rate in measured["link_rate"]) and measured["link_rate"]
    # A device each, none of which the profile lacks: unequal shares of a layer are not measured.
    result = call(motley, "plan", "train", "--cluster", cluster, "--model", TALES, "--workload", job, "--profile", profile, "--stages", 6,
                  "--replicas", 1, "-q", "-o", tmp_path / "plan.json")
    assert result.returncode == 0, result.stderr
    result = call(motley, "explain", tmp_path / "plan.json", "--depth", 4)
    assert "times of the profile" in result.stdout


def test_training_needs_a_model_and_no_weight_type(motley, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text('format = "motley.workload/1"\n[training]\nsequence_length = 32\nglobal_batch = 8\n')
    result = call(motley, "cluster", "probe", "--workload", job)
    assert result.returncode == 2 and "--workload needs --model" in result.stderr
    result = call(motley, "cluster", "probe", "--workload", job, "--model", TALES, "--weight-type", "fp32")
    assert result.returncode == 2 and "--weight-type cannot be combined with --workload" in result.stderr
