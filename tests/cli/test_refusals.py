"""Options and files that a verb cannot use: refused before anything is computed, in words that say what it takes instead."""

import socketserver
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOX = "examples/clusters/motivating-box.toml"
JOB = 'format = "motley.workload/1"\n[training]\nsequence_length = 2048\nglobal_batch = 8\n'
TRACED = 'format = "motley.workload/1"\narrival = { process = "trace", file = "trace.csv" }\n'
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,10,10\n1,10,10\n"


@pytest.fixture(scope="module")
def files(run, tmp_path_factory):
    """A plan, and workloads that are for other verbs."""
    folder = tmp_path_factory.mktemp("refusals")
    made = run("plan serve -q", "--cluster", BOX, "--model", "llama-2-70b", "-o", folder / "plan.json")
    assert made.returncode == 0, made.stderr
    for name, text in {"job.toml": JOB, "traced.toml": TRACED, "trace.csv": TRACE}.items():
        (folder / name).write_text(text)
    return folder


def refused(result, words, code=2):
    assert result.returncode == code, result
    assert result.stdout == ""
    assert f"error: {words}" in result.stderr and "hint: " in result.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "the workload has no rate of requests"),
        (["--rate", "4"], '--rate must be a positive rate, found "4"'),
        (["--rate", "0 /s"], '--rate must be a positive rate, found "0 /s"'),
        (["--rate", "inf /s"], '--rate must be a positive rate, found "inf /s"'),
        (["--rate", "4 /s", "--duration", "0 s"], "--duration must be longer than 0 s"),
        (["--rate", "4 /s", "--duration", "-1 s"], '--duration must be a time of at least 0 s, found "-1 s"'),
        (["--rate", "4 /s", "--duration", "nan s"], '--duration must be a time of at least 0 s, found "nan s"'),
        (["--rate", "4 /s", "--duration", "1e-9 s"], "no request arrives within --duration"),
        (["--rate", "4 /s", "--fault", "box/3"], '--fault needs a device and a time, found "box/3"'),
        (["--rate", "4 /s", "--fault", "@3s"], '--fault needs a device and a time, found "@3s"'),
        (["--rate", "4 /s", "--fault", "box/3@x"], '--fault must be a time of at least 0 s, found "x"'),
        (["--rate", "4 /s", "--fault", "box/99@3s"], 'the cluster has no device "box/99"'),
        (["--rate", "4 /s", "--fault", "box/3@60s-30s"], "box/3 leaves at 60 s and returns at 30 s"),
        (["--rate", "4 /s", "--set", "motley.batch=3"], 'the simulator has no setting "motley.batch"'),
        (["--rate", "4 /s", "--set", "motley.step_overhead_s=-1"], "motley.step_overhead_s must be a time in seconds"),
        (["--workload", "job.toml"], "the workload is a training job"),
        (["--workload", "traced.toml", "--rate", "4 /s"], "--rate cannot be combined with a trace"),
    ],
)
def test_simulate(run, files, arguments, words):
    refused(run("simulate", files / "plan.json", *[files / word if word.endswith(".toml") else word for word in arguments]), words)


PLANS = {
    "rent": ["plan rent -q --offers examples/renting/measured.json --budget", "8 $/h"],
    "chain": ["plan train -q --chain examples/chain/layers.json"],
    "collective": ["plan allreduce -q --cluster examples/collectives/star.toml --bytes", "400 MB"],
}


@pytest.fixture(scope="module")
def plans(run, files):
    """kind -> a plan of it."""
    for kind, command in PLANS.items():
        made = run(*command, "-o", files / f"{kind}.json")
        assert made.returncode == 0, made.stderr
    return {kind: files / f"{kind}.json" for kind in PLANS} | {"serve": files / "plan.json"}


@pytest.mark.parametrize(
    "command, kind, taken, made",
    [
        ("simulate PLAN", "rent", '"serve", "train" or "offload"', "`motley plan serve`, `motley plan train` or `motley plan offload`"),
        ("simulate PLAN", "collective", '"serve", "train" or "offload"', "`motley plan serve`, `motley plan train` or `motley plan offload`"),
        (
            "compare PLAN PLAN",
            "chain",
            '"serve", "train" or "collective"',
            "`motley plan serve`, `motley plan train` or `motley plan allreduce`",
        ),
        ("serve PLAN --local --model data/models/tales", "collective", '"serve" or "offload"', "`motley plan serve` or `motley plan offload`"),
        ("chat PLAN --model data/models/tales", "rent", '"serve" or "offload"', "`motley plan serve` or `motley plan offload`"),
        ("plan serve --from PLAN --without box/0", "chain", '"serve"', "`motley plan serve`"),
        ("plan rent --budget 8$/h --current PLAN", "serve", '"rent"', "`motley plan rent`"),
        ("bench comm --ranks 6 --plan PLAN", "serve", '"collective"', "`motley plan allreduce`"),
    ],
)
def test_a_plan_of_another_kind(run, plans, command, kind, taken, made):
    """One sentence in all commands: what the plan is, what is taken, what makes one."""
    path = plans[kind]
    result = run("", *[path if word == "PLAN" else word for word in command.split()])
    refused(result, f'{path}:3: kind: this is a plan of kind "{kind}", not {taken}')
    assert f"hint: make one with {made}\n" in result.stderr


def test_compare_takes_plans_of_one_kind(run, plans):
    refused(run("compare", plans["serve"], plans["collective"]), f'{plans["collective"]}:3: kind: this is a plan of kind "collective", not "serve"')


@pytest.mark.parametrize("kind", PLANS)
def test_changes_are_for_serving_plans(run, plans, kind):
    refused(run("explain", plans[kind], "--without", "box/0"), "--if-lost, --without, --add and --what-if are for serving plans")


@pytest.mark.parametrize("command", ["verify", "explain", "report", "simulate"])
def test_a_plan_of_a_newer_motley(run, files, command):
    newer = files / "newer.json"
    newer.write_text((files / "plan.json").read_text().replace('"motley 0.', '"motley 90.').replace('"stages"', '"phases"'))
    result = run(command, newer)
    assert result.returncode == 2
    assert "phases: unknown key: motley 90." in result.stderr and " wrote the file, and this is motley " in result.stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--what-if", "tp8 on box"], '--what-if needs a degree and a machine, found "tp8 on box"'),
        (["--what-if", "tp=8 on "], '--what-if needs a degree and a machine, found "tp=8 on "'),
        (["--what-if", "tp=99999999999 on box"], '--what-if needs a degree and a machine, found "tp=99999999999 on box"'),
        (["--what-if", "tp=-1 on box"], "tensor-parallel degree -1 on box"),
        (["--add", "A100*2 @ moon"], '--add "A100*2 @ moon": the cluster has no site "moon"'),
        (["--add", "A100*x"], 'the cluster with --add: machine[1].devices[0]: "A100*x" needs a count'),
        (["--without", "missing"], 'the cluster has no device "missing"'),
    ],
)
def test_explain(run, files, arguments, words):
    refused(run("explain", files / "plan.json", *arguments), words)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--from", "plan.json"], "--from needs --without: the devices that are lost"),
        (["--from", "plan.json", "--without", "box/0", "--cluster", BOX], "--from cannot be combined with --cluster, --model or --workload: the plan has them"),
        (["--model", "a", "--model", "b", "--workload", "x", "--front"], "--from and --front need a single model"),
        (["--model", "a", "--model", "b", "--workload", "x"], "--cluster is missing"),
        (["--model", "a", "--model", "b", "--workload", "x", "--cluster", BOX], "2 models need as many workloads, found 1"),
    ],
)
def test_plan_serve(run, files, arguments, words):
    refused(run("plan serve", *[files / word if word == "plan.json" else word for word in arguments]), words)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "--budget or --cheapest is missing"),
        (["--budget", "30 $/h", "--cheapest"], "--budget and --cheapest cannot be combined"),
        (["--budget", "30 $/h"], "--offers and --model are missing"),
        (["--budget", "30"], '--budget must be an amount of money per hour, found "30"'),
        (["--budget", "-3 $/h"], '--budget must be an amount of money per hour, found "-3 $/h"'),
        (["--budget", "inf $/h"], '--budget must be an amount of money per hour, found "inf $/h"'),
        (["--cheapest", "--model", "llama-2-70b"], "--cheapest needs a demand: no class of the workload has a rate"),
        (["--budget", "30 $/h", "--model", "llama-2-70b", "--weight-type", "int8"], "--weight-type must be a type that the engine computes in, found int8"),
        (["--budget", "30 $/h", "--model", "llama-2-70b", "--kv-type", "int4"], "--kv-type must be a type that the engine computes in, found int4"),
        (["--budget", "30 $/h", "--startup", "1 min", "--interval", "0 s"], "--interval must be longer than 0 s"),
        (["--budget", "30 $/h", "--startup", "soon"], '--startup must be a time of at least 0 s, found "soon"'),
        (["--budget", "30 $/h", "--offers", "examples/renting/measured.json", "--model", "llama-2-70b"], "examples/renting/measured.json has configurations"),
    ],
)
def test_plan_rent(run, arguments, words):
    refused(run("plan rent", *arguments), words)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--bytes", "0 B"], '--bytes must be between 1 B and 1 PB, found "0 B"'),
        (["--bytes", "2000 TB"], '--bytes must be between 1 B and 1 PB, found "2000 TB"'),
        (["--bytes", "4"], '--bytes: "4" has no unit'),
        (["--bytes", "4 MB", "--set", "genmodel.message_s=-1"], "--set genmodel.message_s: a message's time must not be negative"),
        (["--bytes", "4 MB", "--set", "genmodel.x=1"], "--set genmodel.x: collectives have no constant of this name"),
        (["--bytes", "4 MB", "--objective", "fast"], '--objective must be pipelined or rounds, found "fast"'),
    ],
)
def test_plan_allreduce(run, arguments, words):
    refused(run("plan allreduce --cluster examples/collectives/star.toml", *arguments), words)


@pytest.mark.parametrize(
    "arguments, words, code",
    [
        (["serve"], "--model is missing", 2),
        (["serve", "--model", "data/models/llama-2-7b"], "the plan is missing", 2),
        (["serve", "PLAN", "--model", "data/models/llama-2-7b", "--cluster", BOX], "a plan and --cluster cannot be combined", 2),
        (["serve", "PLAN", "--model", "data/models/llama-2-7b", "--local"], "data/models/llama-2-7b has another model than the plan", 2),
        (["chat", "PLAN", "--url", "127.0.0.1:1"], "--url and a plan cannot be combined", 2),
        (["chat", "--url", "https://127.0.0.1:1"], "https:// is not supported", 2),
        (["chat", "--url", "host:http"], '"host:http" is not a server address', 2),
        (["chat", "--url", "127.0.0.1:1"], "http://127.0.0.1:1/v1/models: Connection refused", 5),
        (["group", "bench", "--operation", "nothing"], 'the operation must be a collective, found "nothing"', 2),
        (["group", "bench", "--from", "8 GB"], '--from: a size must be between 1 B and 4 GB, found "8 GB"', 2),
        (["group", "bench", "--ranks", "2", "--rank", "1"], "--members needs --rank, and --rank needs --members", 2),
        (["cluster", "probe", "--model", "llama-2-70b", "--weight-type", "int4"], "the probe runs fp32 or bf16 weights, found int4", 2),
        (["cluster", "probe", "--disk", "/missing"], "cannot look at the disk of /missing", 3),
        (["cluster", "probe", "--disk", "/", "--disk-bytes", "1000 TB"], "the disk of / has ", 3),
        (["cluster", "probe", "--disk", "/", "--disk-bytes", "none"], "--disk-bytes", 2),
        (["cluster", "probe", "--disk", "/", "--cluster", "examples/garage/cluster.toml"], "--disk measures one machine, and the cluster has 3", 2),
        (["cluster", "probe", "--disk", "/", "--workload", "examples/training/job.toml"], "--disk cannot be combined with --workload", 2),
        (["cluster", "probe", "--disk", "/", "--members", "a:1,b:1", "--rank", "0"], "--members cannot be combined with", 2),
        (["cluster", "probe", "--routing", "--text", "README.md"], "--routing needs --model", 2),
        (["cluster", "probe", "--routing", "--model", "data/models/tales"], "--routing needs --text", 2),
        (["cluster", "probe", "--routing", "--model", "data/models/tales", "--text", "README.md"], "tales has no experts", 2),
        (["cluster", "probe", "--routing", "--model", "tests/data/tales-mixture", "--text", "tests/cluster.txt"], "tests/cluster.txt: cannot be read", 2),
        (["cluster", "probe", "--routing", "--model", "tests/data/tales-mixture", "--text", "dev", "--disk", "/"], "--routing cannot be combined with", 2),
        (["cluster", "probe", "--routing", "--model", "tests/data/tales-mixture", "--text", "examples/garage/workload.toml"], "the text must have at least 256 tokens", 2),
        (["cluster", "probe", "--text", "README.md"], "--text needs --routing", 2),
        (["cluster", "show"], "the cluster file is missing", 2),
    ],
)
def test_verbs_that_run_plans(run, files, arguments, words, code):
    if run("serve --help").returncode != 0:
        pytest.skip("built without the runtime")
    refused(run("", *[files / "plan.json" if word == "PLAN" else word for word in arguments]), words, code)


class HalfAnAnswer(socketserver.BaseRequestHandler):
    def handle(self):
        self.request.recv(4096)
        self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")


def test_a_cause_without_a_hint_of_its_own(run):
    """What went wrong is at the other end: the command says where to look."""
    if run("serve --help").returncode != 0:
        pytest.skip("built without the runtime")
    with socketserver.TCPServer(("127.0.0.1", 0), HalfAnAnswer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        refused(run("chat --url", f"127.0.0.1:{server.server_address[1]}"), "the server's answer broke off", 5)
        server.shutdown()
