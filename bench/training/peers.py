"""What torch itself makes of a training job over processes of this machine: DistributedDataParallel, and the 1F1B schedule of
torch.distributed.pipelining, both over gloo. One process for each rank; run.py starts them.

    peers.py ddp|pipeline MODEL TOKENS.npy --rank R --ranks N --port P --length L --batch B --micro-batches M --steps S

Rank 0 prints one JSON line: {"seconds": [...], "losses": [...]} by step.
"""

import argparse
import json
import os
import time

import numpy
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM


def batches(options):
    """(inputs, targets) of every step: sequences in the order of the file."""
    ids = torch.from_numpy(numpy.load(options.tokens).astype(numpy.int64))
    for step in range(options.steps):
        rows = range(step * options.batch, (step + 1) * options.batch)
        yield (torch.stack([ids[r * options.length:(r + 1) * options.length] for r in rows]),
               torch.stack([ids[r * options.length + 1:(r + 1) * options.length + 1] for r in rows]))


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)


def ddp(options, model):
    wrapped = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = adamw(model)
    share = options.batch // options.ranks
    for inputs, targets in batches(options):
        own = slice(options.rank * share, (options.rank + 1) * share)
        start = time.perf_counter()
        pieces = list(zip(inputs[own].chunk(options.micro_batches), targets[own].chunk(options.micro_batches)))
        total = 0.0
        for i, (x, y) in enumerate(pieces):
            wrapped.require_backward_grad_sync = i + 1 == len(pieces)
            loss = loss_of(wrapped(x).logits, y) / len(pieces)
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        sum_of_losses = torch.tensor(total)
        dist.all_reduce(sum_of_losses)
        yield time.perf_counter() - start, sum_of_losses.item() / options.ranks


class Part(torch.nn.Module):
    """Consecutive layers of a Llama, with the embedding in front of the first and the head behind the last."""

    def __init__(self, model, first, end):
        super().__init__()
        inner = model.model
        self.embedding = inner.embed_tokens if first == 0 else None
        self.layers = torch.nn.ModuleList(inner.layers[first:end])
        self.rotary = inner.rotary_emb
        last = end == len(inner.layers)
        self.norm, self.head = (inner.norm, model.lm_head) if last else (None, None)

    def forward(self, x):
        hidden = self.embedding(x) if self.embedding is not None else x
        positions = torch.arange(hidden.shape[1]).unsqueeze(0)
        turns = self.rotary(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=turns, position_ids=positions, attention_mask=None)
        return self.head(self.norm(hidden)) if self.head is not None else hidden


def pipeline(options, model):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    layers = model.config.num_hidden_layers
    bounds = [layers * r // options.ranks for r in range(options.ranks + 1)]
    part = Part(model, bounds[options.rank], bounds[options.rank + 1])
    stage = PipelineStage(part, options.rank, options.ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, options.micro_batches, loss_fn=loss_of)
    optimizer = adamw(part)
    for inputs, targets in batches(options):
        start = time.perf_counter()
        losses = []
        if options.rank == 0:
            schedule.step(inputs)
        elif options.rank + 1 == options.ranks:
            schedule.step(target=targets, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        loss = torch.stack(losses).mean() if losses else torch.zeros(())
        dist.all_reduce(loss)
        yield time.perf_counter() - start, loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["ddp", "pipeline"])
    parser.add_argument("model")
    parser.add_argument("tokens")
    for name in ["rank", "ranks", "port", "length", "batch", "micro-batches", "steps"]:
        parser.add_argument("--" + name, type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=options.rank, world_size=options.ranks)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    model.train()
    figures = list({"ddp": ddp, "pipeline": pipeline}[options.kind](options, model))
    if options.rank == 0:
        print(json.dumps({"seconds": [s for s, _ in figures], "losses": [loss for _, loss in figures]}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
