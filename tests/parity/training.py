"""Training plans at random, and the plain loop that their losses are held against."""

import json
import random
import subprocess

import numpy as np
import torch

import models

LENGTH = 24
# Adam divides an element's gradient by its own size: with torch's 1e-8 one of some 1e-9, the last bits of a sum, moves its weight by
# a whole learning rate, in a direction that the order of the sum decides.
EPSILON = 1e-6
# Where a sum's last bits decide on which side of a kink a value lies, losses part for good. ReLU's is smoothed. A mixture's lies where
# two experts score alike, for one token of 35,000 that are routed: smaller weights, by which sums in another order move a score by less
# than 4e-6, and tokens whose second and third expert are never closer than 6e-5.
SMOOTH = {"opt": dict(activation_function="gelu"), "opt-projected-post-norm": dict(activation_function="gelu"),
          **{name: dict(deviation=0.05) for name in ("mixtral", "qwen3-moe", "qwen3-moe-shares-of-all", "glm4-moe")}}
TOKENS_SEED = {"mixtral": 100, "qwen3-moe": 104, "qwen3-moe-shares-of-all": 104, "glm4-moe": 102}
REFUSED = {"minimax-m2": "layer 0: its norms of queries and keys are over all heads together",
           "gpt-oss": "layer 0: its attention has sinks",
           "gemma4": "layer 0: its experts and the FFN at their side have norms of their own",
           "gemma4-dense": "layer 0: its attention has norms of values",
           "qwen3-next": "layer 0: it is a gated delta net", "qwen3.5": "layer 1: it is a gated delta net",
           "qwen3.5-moe": "layer 0: it is a gated delta net"}


def parts(rng, total, count):
    """`total` cut into `count` whole parts, none empty."""
    cuts = sorted(rng.sample(range(1, total), count - 1))
    return [b - a for a, b in zip([0] + cuts, cuts + [total])]


def random_strategy(rng, first, end, devices):
    tp = rng.choice([d for d in range(1, devices + 1) if devices % d == 0 and d <= 4])
    dp = devices // tp
    strategy = {"layers": [first, end], "tp": tp, "dp": dp, "recompute": rng.random() < 0.3}
    strategy["shard"] = rng.choice(["none", "zero1", "zero2", "zero3"]) if dp > 1 else "none"
    if strategy["shard"] == "zero3":
        strategy["split"] = rng.choice([1, 2, 3, 4, 7])
    return strategy


def random_stage(rng, first, end, devices):
    bounds = [first, end]
    if end - first > 1 and rng.random() < 0.4:
        bounds = [first, rng.randrange(first + 1, end), end]
    strategies = [random_strategy(rng, a, b, len(devices)) for a, b in zip(bounds, bounds[1:])]
    stage = {"layers": [first, end], "devices": devices, "strategies": strategies}
    if len(devices) > 1 and rng.random() < 0.5 and all(s["tp"] == 1 or s["dp"] == 1 for s in strategies):
        weights = [rng.randrange(2, 5) for _ in devices]
        stage["shares"] = [w / sum(weights) for w in weights]
    return stage


def random_replicas(rng, layers, batch, workers):
    devices = [f"box/{i}" for i in range(workers)]
    count = rng.randrange(1, min(3, workers) + 1)
    replicas = []
    for own, sequences in zip(parts(rng, workers, count), parts(rng, batch, count)):
        mine, devices = devices[:own], devices[own:]
        stages, first = [], 0
        depth = rng.randrange(1, min(3, own) + 1)
        for n, size in zip(parts(rng, own, depth), parts(rng, layers, depth)):
            stages.append(random_stage(rng, first, first + size, mine[:n]))
            mine, first = mine[n:], first + size
        most = max(s["dp"] for stage in stages for s in stage["strategies"])
        if most > sequences:  # not all ranks would have a sequence
            return random_replicas(rng, layers, batch, workers)
        replicas.append({"share": sequences / batch, "micro_batches": rng.randrange(1, sequences // most + 1), "stages": stages})
    return replicas


def stage(first, end, devices, tp=1, dp=1, shard="none", recompute=False, split=1, **rest):
    """Layers [first, end) with one strategy."""
    strategy = {"layers": [first, end], "tp": tp, "dp": dp, "shard": shard, "recompute": recompute, "split": split}
    return {"layers": [first, end], "devices": devices, "strategies": [strategy], **rest}


def boxes(*numbers):
    return [f"box/{i}" for i in numbers]


def plan_of(config, replicas, batch, schedule="1f1b", overlap=True, training=None, devices=6, memory="1 GiB"):
    return {
        "format": "motley.plan/1", "kind": "train",
        "model": {"name": "tiny", "config": config},
        "cluster": {"format": "motley.cluster/1",
                    "machine": [{"name": "box", "devices": [f"cpu*{devices}"]}],
                    "device_type": [{"name": "cpu", "vendor": "cpu", "memory": memory, "memory_bandwidth": "10 GB/s",
                                     "flops": {"fp32": "50 GFLOP/s", "bf16": "50 GFLOP/s"}, "reserve": "0 B"}]},
        "workload": {"format": "motley.workload/1",
                     "training": {"sequence_length": LENGTH, "global_batch": batch, "precision": "fp32", "eps": EPSILON, **(training or {})}},
        "replicas": replicas, "schedule": schedule, "sync": {"algorithm": "direct", "overlap": overlap},
    }


def random_tokens(path, count, seed, padding=None):
    """Every ninth is the padding token, where there is one."""
    tokens = np.random.default_rng(seed).integers(3, models.VOCABULARY, count).astype(np.uint16)
    if padding is not None:
        tokens[4::9] = padding
    np.save(path, tokens)
    return tokens


def run(motley, plan, folder, data, output, steps, *more):
    (output.parent / "plan.json").write_text(json.dumps(plan))
    return subprocess.run([motley, "train", output.parent / "plan.json", "--model", folder, "--data", data, "--output", output,
                           "--steps", str(steps), "--no-shuffle", "--local", *more], capture_output=True, text=True, timeout=240)


def losses(output):
    return [json.loads(line)["loss"] for line in (output / "metrics.jsonl").read_text().splitlines()]


def adamw(groups, learning_rate):
    return torch.optim.AdamW(groups, lr=learning_rate, eps=EPSILON)


def reference(model, tokens, batch, steps, learning_rate=1e-3, weight_decay=0.01, clip=0.0, rates=None, optimizer_of=adamw):
    """Losses of one process, and norms of the gradients; the model is trained in place."""
    model.train()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    optimizer = optimizer_of([{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}], learning_rate)
    ids = torch.from_numpy(tokens.astype(np.int64))
    count = (len(ids) - 1) // LENGTH
    found, norms = [], []
    for step in range(steps):
        rows = [(step * batch + j) % count for j in range(batch)]
        inputs = torch.stack([ids[r * LENGTH:(r + 1) * LENGTH] for r in rows])
        targets = torch.stack([ids[r * LENGTH + 1:(r + 1) * LENGTH + 1] for r in rows])
        logits = model(inputs).logits.float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip or 1e30).item())
        if rates:
            for group in optimizer.param_groups:
                group["lr"] = rates[step]
        optimizer.step()
        found.append(loss.item())
    return found, norms


def resume(motley, output, *more):
    return subprocess.run([motley, "train", "--resume", output, *more], capture_output=True, text=True, timeout=240)
