"""One worker of an elastic group: elastic_script.py COORDINATOR STOP_FILE [SHARE]. Trains until the file is there, in step with the
others. SHARE: of the steps' time, for the state of joiners; without it they get the state at once.

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


def main(coordinator, stop_file, share=None):
    from motley.elastic import Elastic

    net = network()
    optimizer = optimizer_of(net)
    elastic = Elastic([coordinator], {"model": net, "optimizer": optimizer}, group="train", token="secret",
                      share=float(share) if share else None)  # fmt: skip
    model = elastic.wrap(net, bucket_cap_mb=0.0005)
    seen = {}

    def compute(group):
        optimizer.zero_grad()
        inputs, target = batch(group.step)
        rows = slice(group.place, None, group.contributors)
        loss = nn.functional.mse_loss(model(inputs[rows]), target[rows])
        loss.backward()
        part = loss.item() / group.contributors if group.contributes else 0.0
        facts = torch.tensor([part, float(Path(stop_file).exists())], dtype=torch.float64)
        group.all_reduce(facts.data_ptr(), 16, "fp64")
        seen["loss"], seen["stop"] = facts.tolist()
        seen["contributors"] = group.contributors

    while not seen.get("stop"):
        outcome = elastic.run(compute)
        if outcome.committed:
            optimizer.step()
            members = f"members {outcome.members} contributors {seen['contributors']}"
            print(f"step {outcome.step} epoch {outcome.epoch} {members} loss {seen['loss']:.9g}", flush=True)
            time.sleep(0.01)  # so that a test has time to see it
        elif outcome.status != "undecided":
            raise SystemExit(f"{outcome.status}: {outcome.cause}")
    parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters())
    print("parameters", hashlib.sha256(parameters).hexdigest(), flush=True)
    elastic.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
