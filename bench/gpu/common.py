"""What the checks have in common: the machine, models and servers. Nothing here is imported that a machine without a GPU lacks, until a
check runs."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

STEPS = 32
CONTEXT = 128
PROMPT = 2048
LLAMA = dict(architectures=["LlamaForCausalLM"], model_type="llama", rms_norm_eps=1e-5, max_position_embeddings=8192, bos_token_id=1,
             eos_token_id=2, attention_bias=False, mlp_bias=False, rope_theta=5e5, hidden_act="silu", tie_word_embeddings=False,
             torch_dtype="bfloat16", head_dim=128, vocab_size=128256)
SHAPES = {
    "8b": LLAMA | dict(num_hidden_layers=32, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336),
    "1b": LLAMA | dict(num_hidden_layers=16, hidden_size=2048, num_attention_heads=32, num_key_value_heads=8, head_dim=64,
                       intermediate_size=8192, tie_word_embeddings=True),
    "8b-two-layers": LLAMA | dict(num_hidden_layers=2, hidden_size=4096, num_attention_heads=32, num_key_value_heads=8,
                                  intermediate_size=14336),
    "small": LLAMA | dict(num_hidden_layers=2, hidden_size=256, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                          intermediate_size=512, vocab_size=4096),
}


@dataclass
class Check:
    name: str
    shows: str
    limit_s: int
    run: Callable


class Context:
    def __init__(self, pack, out, backend, llama_cpp=None):
        self.pack, self.out, self.backend, self.llama_cpp = pack, out, backend, llama_cpp
        self.on_gpu = backend.startswith("cuda")
        self.deadline = time.monotonic() + 600
        # Weights are read much more often than a disk could give them.
        self.scratch = Path(tempfile.mkdtemp(prefix="motley-gpu-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        self.read_rate = self.matrix_rate = None

    def close(self):
        shutil.rmtree(self.scratch, ignore_errors=True)

    def know_rates(self):
        if self.read_rate is None:
            probe(self, [])

    def card(self):
        if not self.on_gpu:
            return "the processor"
        import torch
        names = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        return f"{names.stdout.splitlines()[0] if names.stdout else torch.cuda.get_device_name()}, torch {torch.__version__}"

    def environment(self, **changes):
        import torch
        libraries = f"{Path(torch.__file__).parent / 'lib'}:{self.pack / 'lib'}"
        own = {"LD_LIBRARY_PATH": libraries, "TMPDIR": str(self.scratch), "MOTLEY_VENV": str(self.pack / "python")}
        return os.environ | own | changes

    def program(self, name, *arguments, **changes):
        """Its output. Fails with the end of what it said."""
        command = [str(self.pack / "bin" / name), *map(str, arguments)]
        left = max(5, self.deadline - time.monotonic())
        result = subprocess.run(command, capture_output=True, text=True, env=self.environment(**changes), timeout=left)
        with open(self.out / "programs.log", "a") as log:
            log.write(f"$ {' '.join(command)} {changes}\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}\n")
        if result.returncode != 0:
            raise RuntimeError(f"{name} ended with {result.returncode}: {result.stderr[-400:]}")
        return result.stdout


def seconds_of(work, rounds=5):
    """The median, by the GPU's own clock."""
    import torch
    work()
    times = []
    for _ in range(rounds):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def probe(context, rows):
    if not context.on_gpu:
        context.read_rate, context.matrix_rate = 1e10, 1e11
        return
    import torch
    values = torch.randn(1 << 30, device="cuda")  # 4 GiB
    other = torch.empty_like(values)
    reading = values.nbytes / seconds_of(lambda: values.sum())
    copying = 2 * values.nbytes / seconds_of(lambda: other.copy_(values))
    del values, other
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    context.read_rate = max(reading, copying)
    context.matrix_rate = 2 * 8192**3 / seconds_of(lambda: a @ b, 10)
    del a, b
    torch.cuda.empty_cache()
    rows.append(("reading and copying memory", f"{reading / 1e12:.2f} and {copying / 1e12:.2f} TB/s", ""))
    rows.append(("bf16 matrix product of 8,192", f"{context.matrix_rate / 1e12:.0f} TFLOP/s", ""))


def safely(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return error


def make_model(context, shape):
    """Random weights of a shape in bf16, made on the GPU. make_model.py says how they are scaled."""
    import torch
    from safetensors.torch import save_file
    sys.path.append(str(context.pack))
    from make_model import block_shapes
    folder, config = context.scratch / shape, SHAPES[shape]
    if (folder / "config.json").exists():
        return folder
    folder.mkdir()
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], config["hidden_size"]), "model.norm.weight": (config["hidden_size"],)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    for layer in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{layer}.{name}": size for name, size in block_shapes(config).items()}
    device = "cuda" if context.on_gpu else "cpu"
    torch.manual_seed(1)
    tensors = {}
    for name, size in shapes.items():
        if len(size) == 1:
            values = torch.rand(size, device=device) + 0.5
        else:
            values = torch.randn(size, device=device) * (0.02 if name == "model.embed_tokens.weight" else size[1] ** -0.5)
        tensors[name] = values.to(torch.bfloat16).cpu()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    if context.on_gpu:
        torch.cuda.empty_cache()
    return folder
CLUSTER = """
format = "motley.cluster/1"
name = "one GPU"

[[machine]]
name = "here"
devices = ["card"]

[[device_type]]
name = "card"
vendor = "nvidia"
memory = "8 GiB"
memory_bandwidth = "2 TB/s"
flops = { fp32 = "40 TFLOP/s", bf16 = "400 TFLOP/s" }
"""


def link_torch(context):
    """The program looks for LibTorch among the packages of its own Python."""
    import torch
    installed = context.pack / "python/lib/python3.11/site-packages/torch"
    if not installed.exists():
        installed.unlink(missing_ok=True)  # one of another machine
        installed.symlink_to(Path(torch.__file__).parent)


@contextmanager
def serving(context, plan, model, **changes):
    """A server of its own, all devices of the plan on the one GPU: (its address, a function that tells what it has said)."""
    said = context.scratch / f"said-{plan.stem}.txt"
    command = [context.pack / "bin/motley", "serve", plan, "--model", model, "--backend", context.backend, "--local", "--port", 0]
    with open(said, "w") as errors:
        server = subprocess.Popen(list(map(str, command)), stderr=errors, env=context.environment(**changes))
    try:
        while not (found := re.search(r"http://[\d.]+:\d+(?=/v1)", said.read_text())):
            if server.poll() is not None or time.monotonic() > context.deadline:
                raise RuntimeError(f"motley serve did not listen: {said.read_text()[-400:]}")
            time.sleep(0.1)
        yield found[0], said.read_text
    finally:
        server.terminate()
        server.wait(timeout=30)
        shutil.copy(said, context.out)


def complete(address, source, tokens_in, tokens_out, tell=lambda answer: answer["usage"]["completion_tokens"]):
    """How many tokens came, or what else is to be told of the answer."""
    body = dict(prompt=[source.randrange(3, 1000) for _ in range(tokens_in)], max_tokens=tokens_out, temperature=0, ignore_eos=True)
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return tell(json.load(answer))


def give_tokenizer(context, model):
    import make_model as shapes
    shapes.TALES = context.pack / "share/motley/models/tales"
    shapes.write_tokenizer(model)


def serve_plan(context, model, name, cluster_text):
    """A plan for this cluster, and a tokenizer for a model that has none."""
    give_tokenizer(context, model)
    cluster, plan = context.scratch / f"{name}.toml", context.scratch / f"{name}.json"
    cluster.write_text(cluster_text)
    link_torch(context)
    context.program("motley", "plan", "serve", "--cluster", cluster, "--model", model, "--weight-type", "bf16", "--max-tokens",
                    2048 if context.on_gpu else 64, "--max-sequences", 64 if context.on_gpu else 4, "-o", plan)
    return plan
