"""One worker of an elastic group: elastic_script.py COORDINATOR STOP_FILE. Trains until the file is there, in step with the others.

Prints a line per committed step, and at the end the digest of its parameters."""

import hashlib
import sys
import time
from pathlib import Path

import torch
from torch import nn

ROWS = 24  # of a step, shared among its members: 1, 2, 3 or 4 of them alike


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 2))


def batch(step):
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(ROWS, 12, generator=generator)
    return inputs, inputs[:, :2].sin()


def optimizer_of(net):
    return torch.optim.Adam(net.parameters(), lr=0.003)


def main(coordinator, stop_file):
    from motley.elastic import Elastic

    net = network()
    optimizer = optimizer_of(net)
    elastic = Elastic([coordinator], {"model": net, "optimizer": optimizer}, group="train", token="secret")
    model = elastic.wrap(net, bucket_cap_mb=0.0005)
    seen = {}

    def compute(group):
        optimizer.zero_grad()
        inputs, target = batch(group.step)
        share = slice(group.rank, None, group.size)
        loss = nn.functional.mse_loss(model(inputs[share]), target[share])
        loss.backward()
        facts = torch.tensor([loss.item(), float(Path(stop_file).exists())], dtype=torch.float64)
        group.all_reduce(facts.data_ptr(), 16, "fp64", reduction="mean")
        seen["loss"], seen["stop"] = facts.tolist()

    while not seen.get("stop"):
        outcome = elastic.run(compute)
        if outcome.committed:
            optimizer.step()
            print(f"step {outcome.step} epoch {outcome.epoch} members {outcome.members} loss {seen['loss']:.9g}", flush=True)
            time.sleep(0.01)  # so that a test has time to see it
        elif outcome.status != "undecided":
            raise SystemExit(f"{outcome.status}: {outcome.cause}")
    parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters())
    print("parameters", hashlib.sha256(parameters).hexdigest(), flush=True)
    elastic.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2])
