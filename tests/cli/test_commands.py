"""The commands as a person or a script meets them: what goes to stdout, what to files, messages and exit codes."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOX = "examples/clusters/motivating-box.toml"
VERBS = ["plan serve", "explain", "verify", "cluster show", "cluster check", "model show", "model memory", "doctor"]
SMALL = """format = "motley.cluster/1"
name = "small"

[[machine]]
name = "desk"
devices = ["A4000*2"]
"""


@pytest.fixture(scope="module")
def made(run, tmp_path_factory):
    """The plan of the motivating box: the process that made it, and its file."""
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    result = run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "-o", file)
    assert result.returncode == 0, result.stderr
    return result, file


def read(file):
    return json.loads(Path(file).read_text())


def edited(plan_file, folder, change):
    plan = read(plan_file)
    change(plan)
    file = folder / "edited.json"
    file.write_text(json.dumps(plan))
    return file


def without_elapsed(text):
    plan = json.loads(text)
    elapsed = plan["search"].pop("elapsed_s")
    assert elapsed >= 0
    return json.dumps(plan)


def refused(result, code, *words):
    """An error tells the cause on stderr, and stdout stays empty."""
    assert result.returncode == code, result
    assert result.stdout == ""
    assert "error: " in result.stderr
    for word in words:
        assert word in result.stderr


# ---- plan serve ----


def test_plan_tables_go_to_stdout_and_progress_to_stderr(made):
    result, file = made
    assert "llama-2-70b" in result.stdout and "box/6-7" in result.stdout and "output tokens" in result.stdout
    assert "planning" in result.stderr and str(file) in result.stderr
    assert "planning" not in result.stdout


def test_quiet_leaves_stderr_empty(run):
    result = run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "-q")
    assert result.returncode == 0 and result.stderr == "" and "box/0" in result.stdout


def test_json_holds_the_documented_keys(run):
    result = run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "--json")
    assert result.returncode == 0
    plan = json.loads(result.stdout)
    assert plan["format"] == "motley.plan/1" and plan["kind"] == "serve"
    assert {"model", "cluster", "workload", "stages", "routes", "predicted", "unused", "search"} <= plan.keys()
    for stage in plan["stages"]:
        assert {"id", "role", "layers", "devices", "embedding", "head", "kv_tokens", "weight_type", "kv_type"} <= stage.keys()
    predicted = plan["predicted"]
    assert {"tokens_per_s", "requests_per_s", "latency_s", "bottleneck_s", "memory_bytes"} <= predicted.keys()
    used = [device for stage in plan["stages"] for device in stage["devices"]]
    assert sorted(used) == sorted(predicted["memory_bytes"]) and len(used) == len(set(used))
    for memory in predicted["memory_bytes"].values():
        assert sum(memory[part] for part in ("weights", "kv", "activations", "reserve")) <= memory["limit"]
    assert {"planner", "cost", "seed", "status", "elapsed_s", "evaluated"} <= plan["search"].keys()
    layers = [layer for route in plan["routes"] for step in route["path"] for layer in range(*step["layers"])]
    assert layers == list(range(80)) * len(plan["routes"])


def test_json_and_file_are_the_same_document(run, tmp_path):
    file = tmp_path / "plan.json"
    result = run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "--json", "-o", file)
    assert result.returncode == 0 and result.stdout == file.read_text()


def test_same_inputs_same_plan_whatever_the_threads(run, made):
    first = without_elapsed(made[1].read_text())
    for threads in (1, 3):
        again = run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "--json", "--threads", threads, "--seed", 0)
        assert without_elapsed(again.stdout) == first


def test_options_reach_the_planner(run):
    fastest = run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "--json", "--objective", "latency")
    assert json.loads(fastest.stdout)["routes"][0]["batch"] == 1
    published = run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "--json", "--cost", "hexgen", "--seed", 7)
    assert json.loads(published.stdout)["search"]["cost"] == "hexgen"
    assert json.loads(published.stdout)["search"]["seed"] == 7


def test_front_holds_only_layouts_that_no_other_beats(run):
    result = run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "--front", "--json")
    front = json.loads(result.stdout)["front"]
    assert len(front) > 1
    points = sorted((entry["latency_s"], entry["bottleneck_s"]) for entry in front)
    for (faster, busier), (slower, idler) in zip(points, points[1:]):
        assert faster < slower and busier > idler
    for entry in front:
        assert [layer for stage in entry["stages"] for layer in range(*stage["layers"])] == list(range(80))
        assert sum(len(stage["devices"]) for stage in entry["stages"]) == 8
    assert "front" in run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "--front").stdout


def test_a_cluster_too_small_says_by_how_much(run, tmp_path):
    cluster = tmp_path / "small.toml"
    cluster.write_text(SMALL)
    result = run("plan serve", "--cluster", cluster, "--model", "llama-2-70b", "-o", tmp_path / "none.json")
    assert result.returncode == 1
    text = result.stdout + result.stderr
    assert "does not fit" in text and "98.7 GiB" in text and "A4000" in text
    answer = run("plan serve", "--cluster", cluster, "--model", "llama-2-70b", "--json")
    assert answer.returncode == 1
    assert "98.7 GiB" in json.loads(answer.stdout)["reason"]


# ---- explain and verify ----


def check_sums(term):
    for child in term.get("terms", []):
        check_sums(child)
    if term.get("of") == "sum":
        assert sum(child["seconds"] for child in term["terms"]) == pytest.approx(term["seconds"], rel=1e-9)
    if term.get("of") == "max":
        assert max(child["seconds"] for child in term["terms"]) == pytest.approx(term["seconds"], rel=1e-9)


def test_explain_is_a_tree_whose_parts_add_up(run, made):
    result = run("explain", made[1], "--json")
    assert result.returncode == 0
    tree = json.loads(result.stdout)
    assert tree["total_s"] == pytest.approx(read(made[1])["predicted"]["latency_s"], rel=1e-9)
    assert sum(term["seconds"] for term in tree["terms"]) == pytest.approx(tree["total_s"], rel=1e-9)
    for term in tree["terms"]:
        assert {"name", "seconds", "share"} <= term.keys()
        check_sums(term)


def test_explain_for_people_and_in_the_published_form(run, made):
    own = run("explain", made[1])
    assert own.returncode == 0 and "where the latency goes" in own.stdout and "decode" in own.stdout
    assert "how long a step takes" in own.stdout
    steps = json.loads(run("explain", made[1], "--json").stdout)["steps"]
    assert steps and all(step["full_step_s"] >= step["one_token_s"] > 0 and step["tokens_at_no_cost"] > 0 for step in steps)
    assert all(step["max_sequences_s"] > step["one_token_s"] for step in steps)
    slower = json.loads(run("explain", made[1], "--set", "motley.step_overhead_s=1", "--json").stdout)["steps"]
    assert all(step["one_token_s"] > 1 for step in slower)
    batch = run("explain", made[1], "--set", "motley.batch=4", "--json")
    assert json.loads(batch.stdout)["steps"] == steps
    published = run("explain", made[1], "--cost", "hexgen")
    assert published.returncode == 0 and "cost form hexgen" in published.stdout
    assert published.stdout != own.stdout


def test_explain_says_what_does_not_fit_any_more(run, made):
    without = [word for slot in range(4) for word in ("--without", f"box/{slot}")]
    result = run("explain", made[1], *without)
    assert result.returncode == 1 and "does not fit" in result.stdout and "hint" in result.stdout
    assert json.loads(run("explain", made[1], *without, "--json").stdout)["status"] == "infeasible"


def test_explain_says_what_each_loss_costs(run, tmp_path):
    cluster, file = tmp_path / "two.toml", tmp_path / "two.json"
    cluster.write_text(SMALL + '[[machine]]\nname = "attic"\ndevices = ["A4000"]\n')
    assert run("plan serve", "--cluster", cluster, "--model", "llama-2-13b", "-o", file).returncode == 0
    used = {device for stage in read(file)["stages"] for device in stage["devices"]}
    losses = json.loads(run("explain", file, "--if-lost", "--json").stdout)["if_lost"]
    names = [loss.get("machine") or loss["device"] for loss in losses]
    assert names == ["attic", "desk", "desk/0", "desk/1"] and used == {"attic/0", "desk/0", "desk/1"}
    assert [loss["fits"] for loss in losses] == [True, False, True, True]
    now = read(file)["predicted"]["tokens_per_s"]
    assert all(0 < loss["tokens_per_s"] < now and loss["loaded_bytes"] > 0 for loss in losses if loss["fits"])
    lines = run("explain", file, "--if-lost").stdout.splitlines()
    table = [line.split() for line in lines[next(place for place, line in enumerate(lines) if line.startswith("if lost")) :]]
    assert [row[0] for row in table[1:]] == names and table[2][1:] == ["does", "not", "fit"]


def test_copies_of_layers_make_a_loss_cheaper(run, tmp_path):
    cluster, file = tmp_path / "three.toml", tmp_path / "three.json"
    cluster.write_text('format = "motley.cluster/1"\n[[machine]]\nname = "box"\ncount = 3\ndevices = ["A4000"]\n')
    planned = ["plan serve", "--cluster", cluster, "--model", "llama-2-13b", "--all-devices", "--one-pipeline", "-o", file]
    loaded, tokens_per_s = [], []
    for options in ([], ["--standby-weights", "4 GiB"]):
        report = run(*planned, *options)
        assert report.returncode == 0 and ("copies of " in report.stdout) == bool(options), report.stdout + report.stderr
        assert run("verify", file).returncode == 0
        assert [("standby_weights" in stage) for stage in read(file)["stages"]] == 3 * [bool(options)]
        losses = json.loads(run("explain", file, "--if-lost", "--json").stdout)["if_lost"]
        loaded.append(sum(loss["loaded_bytes"] for loss in losses if loss["fits"]))
        tokens_per_s.append(read(file)["predicted"]["tokens_per_s"])
    assert loaded[1] < 0.7 * loaded[0] and tokens_per_s[1] <= tokens_per_s[0], (loaded, tokens_per_s)
    result = run(*planned, "--standby-weights", "4")
    assert result.returncode == 2 and "--standby-weights" in result.stderr, result.stderr


def test_verify_accepts_the_planners_plan(run, made):
    assert run("verify", made[1]).returncode == 0
    assert json.loads(run("verify", made[1], "--json").stdout) == {"violations": []}


def twice(plan):
    plan["stages"][1]["devices"] = plan["stages"][0]["devices"]


def missing(plan):
    plan["stages"][-1]["layers"][1] -= 1
    plan["routes"][0]["path"][-1]["layers"][1] -= 1


def overfull(plan):
    for stage in plan["stages"]:
        stage["kv_tokens"] *= 16


def weightless(plan):
    plan["routes"][0]["weight"] = 0


@pytest.mark.parametrize("change, word", [(twice, "box/4"), (missing, "79"), (overfull, "GiB"), (weightless, "weight")])
def test_verify_finds_what_was_broken(run, made, tmp_path, change, word):
    file = edited(made[1], tmp_path, change)
    result = run("verify", file)
    assert result.returncode == 1 and word in result.stdout
    violations = json.loads(run("verify", file, "--json").stdout)["violations"]
    assert violations and all({"place", "what", "hint"} <= violation.keys() for violation in violations)


# ---- descriptions ----


def test_cluster_show_and_check(run):
    shown = run("cluster show", BOX)
    assert shown.returncode == 0 and "A5000" in shown.stdout and "20.0 GB/s" in shown.stdout
    assert json.loads(run("cluster show", BOX, "--json").stdout)["name"] == "motivating box"
    for file in sorted((ROOT / "examples").glob("*/*.toml")):
        if 'format = "motley.cluster/' in file.read_text():
            assert run("cluster check", file).returncode == 0, file


def test_catalogue(run):
    result = run("cluster show", "--devices")
    assert result.returncode == 0
    for name in ("A100-80", "H100", "RTX 4090", "MI300X"):
        assert name in result.stdout


def test_model_show_and_memory(run):
    shown = run("model show", "llama-2-70b")
    assert shown.returncode == 0 and "68976648192" in shown.stdout
    assert json.loads(run("model show", "llama-2-70b", "--json").stdout)
    whole = run("model memory", "llama-2-70b", "--layers", "0,20", "--tp", 2, "--kv-tokens", 8192)
    assert whole.returncode == 0 and "320 MiB" in whole.stdout  # 20 layers x 8192 tokens x 2 x 4 heads x 128 x 2 bytes
    uneven = run("model memory", "llama-2-70b", "--tp", 3, "--shares", 0.5, 0.25, 0.25)
    assert uneven.returncode == 0 and " 4 " in uneven.stdout and " 2 " in uneven.stdout  # of 8 KV heads


SCALED = {"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
          "intermediate_size": 12288, "vocab_size": 151936, "max_position_embeddings": 40960,
          "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}


def test_the_longest_sequence_is_the_scaled_one_or_the_one_given(run, tmp_path):
    config, long, plan = tmp_path / "config.json", tmp_path / "long.toml", tmp_path / "plan.json"
    config.write_text(json.dumps(SCALED))
    long.write_text('format = "motley.workload/1"\n[[class]]\nname = "long"\nprompt_tokens = 60000\noutput_tokens = 500\n')
    assert json.loads(run("model show --json", config).stdout)["context_tokens"] == 131072
    planning = ("plan serve --deadline 1s --cluster", BOX, "--model", config)
    assert run(*planning, "--workload", long, "-o", plan).returncode == 0
    assert "context" not in json.loads(plan.read_text())["model"]
    refused(run(*planning, "--workload", long, "--context", 60000), 2, "has 60500 tokens", "context 60000")
    beyond = run(*planning, "--context", 200000, "-o", plan)
    assert beyond.returncode == 0 and "--context 200000 is beyond the 131072 tokens" in beyond.stderr
    assert json.loads(plan.read_text())["model"]["context"] == 200000
    assert run("verify", plan).returncode == 0
    refused(run("plan serve --context 2049 --model opt-30b --cluster", BOX), 2, "2048 positions", "choose at most 2048")
    refused(run("plan serve --context 0 --model opt-30b --cluster", BOX), 2, "--context")


def test_a_quantised_checkpoint_is_refused_by_its_method(run, tmp_path):
    config = tmp_path / "config.json"
    for key, method, name in (("quantization", {"group_size": 64, "bits": 4}, "MLX (4 bits"), ("compression_config", {}, "compressed-tensors"),
                              ("quantization_config", {"quant_method": "new"}, "by new")):
        config.write_text(json.dumps({**SCALED, key: method}))
        refused(run("plan serve --model", config, "--cluster", BOX), 2, name, "original weights")


def test_doctor(run):
    result = run("doctor")
    assert result.returncode in (0, 3)  # 3: something that plans need to run is missing
    assert "73 device types" in result.stdout
    assert json.loads(run("doctor", "--json").stdout)


def test_doctor_says_what_gpus_have_room_for(motley, tmp_path):
    """With a stand-in for NVIDIA's management library."""
    (tmp_path / "libnvidia-ml.so.1").symlink_to(motley.parent / "libnvml_stub.so")
    result = subprocess.run([motley, "doctor", "--json"], capture_output=True, text=True, timeout=60,
                            env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)})
    findings = {finding["what"]: finding["detail"] for finding in json.loads(result.stdout)["findings"]}
    assert findings["gpu 1"] == ("Stub 1, 20.0 GiB free of 24.0 GiB, compute capability 8.6, room for qwen3.5-9b in bf16 or qwen3.5-35b-a3b in q4_k")


def test_a_worker_lists_the_gpus_or_says_why_there_are_none(motley):
    result = subprocess.run([motley.parent / "motley-worker", "--devices"], capture_output=True, text=True, timeout=60)
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    if result.returncode == 0:
        assert all(line["uuid"].startswith(("GPU-", "MIG-")) and line["free_bytes"] <= line["total_bytes"] for line in lines)
    else:
        assert result.returncode == 3 and len(lines) == 1 and lines[0]["cause"]


def test_doctor_misses_a_worker(motley, tmp_path):
    alone = shutil.copy(motley, tmp_path)
    result = subprocess.run([alone, "doctor", "--json"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 3
    states = {finding["what"]: finding["state"] for finding in json.loads(result.stdout)["findings"]}
    assert states["worker"] == "missing" and states["data"] == "ok"


# ---- help ----


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_each_verb_has_an_example(run, verb):
    result = run(verb, "--help")
    assert result.returncode == 0 and result.stderr == ""
    example = result.stdout.partition("example: ")[2]
    assert example.startswith(f"motley {verb}")


def test_help_of_the_program(run):
    result = run("", "--help")
    assert result.returncode == 0
    for verb in {verb.split()[0] for verb in VERBS}:
        assert verb in result.stdout
    assert "exit codes" in result.stdout


# ---- bad input ----


@pytest.mark.parametrize(
    "old, new, line, words",
    [
        ('devices = ["A6000*4"', 'device = ["A6000*4"', 7, ["device", "unknown key", "`devices`"]),
        ('"20 GB/s"', '"20 GiB"', 8, ["GiB", "GB/s"]),
        ('"20 GB/s"', "20", 8, ["unit", "GB/s"]),
        ("A4000*2", "A400*2", 7, ["A400", "[[device_type]]"]),
        ("A6000*4", "A6000*0", 7, ["A6000*0"]),
        ('"motley.cluster/1"', '"motley.cluster/2"', 2, ["motley.cluster/2", "motley.cluster/1"]),
    ],
)
def test_a_wrong_cluster_file_is_refused_with_its_line(run, tmp_path, old, new, line, words):
    text = (ROOT / BOX).read_text()
    assert old in text
    file = tmp_path / "wrong.toml"
    file.write_text(text.replace(old, new))
    refused(run("cluster check", file), 2, f"{file}:{line}", *words)
    assert run("plan serve", "--cluster", file, "--model", "llama-2-70b").returncode == 2


@pytest.mark.parametrize("verb", ["verify", "explain"])
def test_a_truncated_plan_is_refused_with_its_line(run, made, tmp_path, verb):
    text = made[1].read_text()
    for share in (0.1, 0.5, 0.9):
        file = tmp_path / "truncated.json"
        file.write_text(text[: int(share * len(text))])
        refused(run(verb, file), 2, f"{file}:")


@pytest.mark.parametrize("verb", ["verify", "explain", "cluster check"])
def test_missing_files_and_files_of_another_kind(run, made, verb):
    refused(run(verb, "nowhere.json"), 2, "nowhere.json")
    other = made[1] if verb == "cluster check" else BOX
    refused(run(verb, other), 2, "motley.cluster/1", "motley.plan/1")


def test_a_plan_for_another_model_is_not_served(run, made):
    if run("", "serve", "--help").returncode != 0:
        pytest.skip("built without the runtime")
    if not (ROOT / "data/models/tales/model.safetensors").exists():
        pytest.skip("the tales model is not here")
    refused(run("serve", made[1], "--model", "data/models/tales", "--local"), 2, "another model", "data/models/tales")


def test_a_plan_of_fp16_says_that_it_is_not_served_and_what_is(run):
    planning = f"plan serve --cluster {BOX} --model llama-2-7b"  # whose checkpoint is fp16
    plain = run(planning)
    assert "warning: this plan can be simulated but not served" in plain.stderr and "fp16" in plain.stderr
    for told in (plain.stderr, plain.stdout.splitlines()[-1]):
        assert "--weight-type fp32, bf16, q8_0" in told
    assert "motley simulate" in plain.stdout and "motley serve" not in plain.stdout
    assert run(f"{planning} -q").stderr == ""
    served = run(f"{planning} --weight-type bf16")
    assert "warning" not in served.stderr and "motley serve" in served.stdout
    both = run(f"{planning} --weight-type bf16 --kv-type fp16")
    assert "--kv-type fp32, bf16 or q8_0" in both.stderr


def test_serving_refuses_fp16_before_it_plans_or_starts_anything(run, tmp_path):
    if run("", "serve", "--help").returncode != 0:
        pytest.skip("built without the runtime")
    garage = "--model data/models/tales --cluster examples/garage/cluster.toml --workload examples/garage/workload.toml"
    refused(run(f"serve {garage} --weight-type fp16 --local"), 2, "--weight-type must be a type that workers compute in, found fp16", "choose --weight-type fp32, bf16, q8_0")
    refused(run(f"serve {garage} --weight-type bf16 --kv-type fp16 --local"), 2, "--kv-type must be a type that workers compute in, found fp16", "choose --kv-type fp32, bf16 or q8_0")
    refused(run(f"serve --cluster {BOX} --model data/models/llama-2-7b --local"), 2, "the weight type of data/models/llama-2-7b must be a type that workers compute in, found fp16", "choose --weight-type fp32, bf16, q8_0")
    plan = tmp_path / "half.json"
    assert run(f"plan serve {garage} --weight-type fp16 --max-tokens 64 --max-sequences 8 -q -o", plan).returncode == 0
    refused(run("serve", plan, "--model", "data/models/tales", "--local"), 2, str(plan), "stages[0].weight_type", "--weight-type fp32, bf16, q8_0")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("pln serve", ["`motley` has no command \"pln\"", "`plan`"]),
        ("plan", ["`motley plan` needs a command", "serve, rent, train"]),
        ("plan serve --modle llama-2-70b", ["--modle", "did you mean `--model`?"]),
        ("verify plan.json --jsn", ["--jsn", "did you mean `--json`?"]),
        ("simulate plan.json --wibble 3", ["--wibble", "`motley simulate --help`"]),
        ("plan sevre", ["`serve`"]),
        ("cluster shwo", ["`show`"]),
        ("plan serve --model llama-2-70b", ["--cluster"]),
        (f"plan serve --cluster {BOX}", ["--model"]),
        (f"plan serve --cluster {BOX} --model llama-2-70", ["llama-2-70b"]),
        ("plan serve --cluster nowhere.toml --model llama-2-70b", ["nowhere.toml"]),
        (f"plan serve --cluster {BOX} --model llama-2-70b --objective fast", ["fast", "throughput"]),
        (f"plan serve --cluster {BOX} --model llama-2-70b --cost hexgn", ["hexgn", "hexgen"]),
        (f"plan serve --cluster {BOX} --model llama-2-70b --set motley.batsch=3", ["motley.batsch", "motley.batch"]),
        (f"plan serve --cluster {BOX} --model llama-2-70b --set motley.batch", ["KEY=VALUE"]),
        (f"plan serve --cluster {BOX} --model llama-2-70b --set motley.batch=x", ["motley.batch=x"]),
        (f"plan serve --cluster {BOX} --model llama-2-70b --deadline 5", ["--deadline", "unit"]),
        (f"plan serve --cluster {BOX} --model llama-2-70b --weight-type int7", ["int7", "bf16"]),
        (f"plan serve --cluster {BOX} --model llama-2-70b --max-batch 0", ["--max-batch"]),
        ("model show nope", ["nope", "llama-2-70b"]),
        ("model memory llama-2-70b --layers 20,10", ["20,10", "80 layers"]),
        ("model memory llama-2-70b --tp 3 --shares 0.5 0.5", ["2 shares", "3 devices"]),
        ("cluster show", ["cluster"]),
        ("explain", ["plan"]),
    ],
)
def test_wrong_arguments_say_what_is_right(run, arguments, words):
    refused(run(arguments), 2, *words)


def test_output_into_a_missing_folder_leaves_nothing(run, tmp_path):
    target = tmp_path / "missing" / "plan.json"
    refused(run("plan serve", "--cluster", BOX, "--model", "llama-2-70b", "-o", target), 3, str(target))
    assert list(tmp_path.iterdir()) == []
