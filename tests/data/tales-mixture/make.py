"""Makes the mixture of this folder: `motley train` on talks about tales, from random weights.

    python tests/data/tales-mixture/make.py --motley build/release/motley --work WORK

WORK keeps the talks and the run; where a run is there, it goes on.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TALES = ROOT / "data/models/tales"
TALKS, STEPS, SEQUENCES, LENGTH = 3000, 450, 8, 256

# With weights as large as this, scores differ from the start: with 0.02 fewer experts of a layer were taken in the end.
CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 2048, "hidden_size": 128,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "num_local_experts": 32, "num_experts_per_tok": 4, "intermediate_size": 48, "hidden_act": "silu",
    "max_position_embeddings": 512, "sliding_window": None, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": True, "initializer_range": 0.08, "router_aux_loss_coef": 0.0, "output_router_logits": False,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 5, "torch_dtype": "bfloat16",
}
CLUSTER = """format = "motley.cluster/1"
[[machine]]
name = "desk"
devices = ["core"]
[[device_type]]
name = "core"
vendor = "cpu"
memory = "4 GiB"
memory_bandwidth = "10 GB/s"
flops = { fp32 = "50 GFLOP/s" }
reserve = "0 B"
"""
WORKLOAD = f"""format = "motley.workload/1"
[training]
sequence_length = {LENGTH}
global_batch = {SEQUENCES}
micro_batch = {SEQUENCES}
precision = "fp32"
learning_rate = 0.003
schedule = "cosine"
warmup_steps = 40
betas = [0.9, 0.98]
weight_decay = 0.05
clip_norm = 1.0
"""


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def train(motley, work):
    """The folder of the last checkpoint, in fp32."""
    run = work / "run"
    last = run / f"step-{STEPS}"
    if last.exists():
        return last
    if run.exists():
        subprocess.run([motley, "train", "--resume", run], check=True)
        return last
    start = work / "start"
    start.mkdir(parents=True)
    write_json(start / "config.json", CONFIG)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALES / name, start)
    (work / "cluster.toml").write_text(CLUSTER)
    (work / "workload.toml").write_text(WORKLOAD)
    talks = [sys.executable, ROOT / "examples/tales/talks.py"]
    subprocess.run([*talks, "--count", str(TALKS), "--seed", "7", "-o", work / "talks.jsonl"], check=True)
    subprocess.run([*talks, "--count", "64", "--seed", "8", "-o", work / "held-out.jsonl"], check=True)
    subprocess.run([motley, "model", "init", start, "-o", work / "fresh", "--seed", "1", "--type", "fp32"], check=True)
    subprocess.run([motley, "plan", "train", "--cluster", work / "cluster.toml", "--model", work / "fresh", "--workload",
                    work / "workload.toml", "-o", work / "plan.json"], check=True)
    subprocess.run([motley, "train", work / "plan.json", "--model", work / "fresh", "--data", work / "talks.jsonl", "--eval-data",
                    work / "held-out.jsonl", "--eval-every", "100", "--save-every", "100", "--output", run, "--steps", str(STEPS),
                    "--local"], check=True)
    return last


def keep(trained):
    tensors = {name: tensor.to(torch.bfloat16) for file in trained.glob("model-*.safetensors") for name, tensor in load_file(file).items()}
    save_file(tensors, HERE / "model.safetensors", metadata={"format": "pt"})
    write_json(HERE / "config.json", CONFIG)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TALES / name, HERE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--motley", type=Path, required=True, help="the program")
    parser.add_argument("--work", type=Path, required=True, help="a folder for what is made on the way")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    keep(train(options.motley, options.work))


if __name__ == "__main__":
    main()
