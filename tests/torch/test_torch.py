"""The "motley" backend of torch.distributed: scripts of PyTorch's own kind, unchanged but for the backend's name."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ranks import Script, end_of_all

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def environment_of(motley, **more):
    library = motley.parent / "libmotley_comm.so"
    assert library.exists(), f"{library} is not built"
    return {"PYTHONPATH": str(ROOT / "python"), "MOTLEY_COMM_LIBRARY": str(library), "OMP_NUM_THREADS": "1"} | more


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def run_ranks(motley, tmp_path):
    """run_ranks(script, ranks, words...) -> what each rank prints, with what torchrun would tell them."""

    def run(script, ranks, *words, plans="", **more):
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        environment = environment_of(motley, MOTLEY_PLANS=str(plans), **rendezvous, **more)
        run = len(list(tmp_path.iterdir()))
        outputs = [tmp_path / f"output of run {run}, rank {rank}" for rank in range(ranks)]
        scripts = [Script(script, *words, environment=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, output=output, errors=output)
                   for rank, output in enumerate(outputs)]  # fmt: skip
        ends = end_of_all(scripts, 180)
        texts = [script.text() for script in scripts]
        assert ends == [0] * ranks, "\n".join(texts)
        return texts

    return run


@pytest.fixture
def torchrun(motley, tmp_path):
    """torchrun(script, ranks, words...) -> what each rank prints."""

    def run(script, ranks, *words):
        logs = tmp_path / "logs of torchrun"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "--log-dir", logs,
                   "--redirects", "3", HERE / script, *words]  # fmt: skip
        result = subprocess.run(command, env=os.environ | environment_of(motley), capture_output=True, text=True, timeout=180)
        texts = {file.relative_to(logs): file.read_text() for file in sorted(logs.rglob("*.log"))}
        assert result.returncode == 0, f"{result.stdout}{result.stderr}{texts}"
        return [text for file, text in texts.items() if file.name == "stdout.log"]

    return run


WRONG = """
import torch
import torch.distributed as dist
from motley.comm import Credentials, Fabric, Group, Session
from motley.items import pack
from motley.torch import _check_op, _plain

fabric = Fabric()
group = Group(fabric, "g", [("0", "here", fabric.address)], 0)
for call in (
    lambda: Credentials.from_environment(),
    lambda: Session([], credentials=Credentials()),
    lambda: group.all_reduce(0, 0, "fp31"),
    lambda: group.all_reduce(0, 0, "fp32", reduction="product"),
    lambda: _plain(torch.zeros(2, device="meta")),
    lambda: _plain(torch.zeros(2, dtype=torch.float8_e5m2)),
    lambda: _check_op(dist.ReduceOp.PREMUL_SUM, []),
    lambda: pack({"a": {1}}),
):
    try:
        call()
    except Exception as error:
        print(error)
"""


def test_errors_say_what_would_do(motley):
    environment = os.environ | environment_of(motley, MOTLEY_TOKEN="no/file")
    result = subprocess.run([sys.executable, "-c", WRONG], env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    told = result.stdout.splitlines()
    # In the order of the calls: what is wrong, and what to give instead.
    wanted = [("no/file", "MOTLEY_TOKEN"), ("coordinator", "HOST:PORT"), ("fp31", "bf16"), ("product", "mean"), ("meta", "cpu()"),
              ("float8_e5m2", "bfloat16"), ("PREMUL_SUM", "SUM"), ("set", "tensors")]  # fmt: skip
    assert len(told) == len(wanted), told
    for line, words in zip(told, wanted, strict=True):
        assert all(word in line for word in words), line


def losses(text):
    return [(name, float(value)) for name, value in re.findall(r"^(.*)loss (\S+)$", text, re.MULTILINE)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective_gives_what_it_must(run_ranks, ranks):
    texts = run_ranks("collectives_script.py", ranks)
    assert all(f"rank {rank} done" in text.splitlines() for rank, text in enumerate(texts)), texts
    assert "disagreement:" in texts[0]


@pytest.mark.parametrize(("script", "ranks", "steps"), [("ddp_script.py", 2, 18), ("ddp_script.py", 4, 9), ("fsdp_script.py", 2, 16)])
def test_training_has_the_losses_of_gloo(run_ranks, torchrun, script, ranks, steps):
    run = torchrun if script == "ddp_script.py" and ranks == 2 else run_ranks
    ours, theirs = losses(run(script, ranks, "motley")[0]), losses(run_ranks(script, ranks, "gloo")[0])
    assert len(ours) == len(theirs) == steps
    for (name, mine), (other, reference) in zip(ours, theirs, strict=True):
        # The order of additions is another; the losses are not.
        assert name == other and mine == pytest.approx(reference, rel=1e-4)


def test_a_plan_runs_in_place_of_the_librarys_own_program(run_ranks, motley, tmp_path):
    cluster, plan = tmp_path / "cluster.toml", tmp_path / "plan.json"
    cluster.write_text('format = "motley.cluster/1"\n[[machine]]\nname = "m"\ncount = 3\ndevices = ["RTX 4090"]\n'
                       '[network]\nwithin_site = { latency = "50 us", bandwidth = "1 Gbit/s" }\n')  # fmt: skip
    subprocess.run([motley, "plan", "allreduce", "--cluster", cluster, "--bytes", "1 MB", "-q", "-o", plan], check=True)
    assert len(losses(run_ranks("ddp_script.py", 3, "motley", plans=plan)[0])) == 12
    with pytest.raises(AssertionError, match="a collective plan for 3 ranks in a group of 2"):
        run_ranks("ddp_script.py", 2, "motley", plans=plan)


def test_a_rank_that_dies_ends_the_operations_of_the_others(run_ranks):
    """Not their own timeout of minutes, and not a hang: an error that names the rank."""
    texts = run_ranks("dying_script.py", 3)
    assert all(re.search(r"^was told: .*rank 1", texts[rank], re.MULTILINE) for rank in (0, 2)), texts


def test_ranks_ask_a_coordinator_for_their_certificates(motley, run_ranks, tmp_path):
    create = [motley, "group", "create", tmp_path / "lab", "--group", "lab", "--json"]
    fingerprint = json.loads(subprocess.run(create, check=True, capture_output=True, text=True).stdout)["authority"]["fingerprint"]
    command = [motley, "group", "serve", "--folder", tmp_path / "lab", "--listen", "127.0.0.1:0", "--store", tmp_path / "log"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as coordinator:
        try:
            texts = run_ranks("collectives_script.py", 2, MOTLEY_COORDINATORS=coordinator.stdout.readline().strip(), MOTLEY_TOKEN=str(tmp_path / "lab/token"),
                             MOTLEY_AUTHORITY=fingerprint, MOTLEY_GROUP="lab")  # fmt: skip
        finally:
            coordinator.terminate()
        log = coordinator.communicate(timeout=30)[1]
    assert all(f"rank {rank} done" in text.splitlines() for rank, text in enumerate(texts)), texts
    assert log.count("certified member=") >= 2
