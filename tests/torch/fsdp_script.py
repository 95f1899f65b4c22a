"""Training with FullyShardedDataParallel, and with its successor `fully_shard`; the backend's name is the last argument."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

if sys.argv[-1] == "motley":
    import motley.torch  # noqa: F401


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def network():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(10, 16), Block(16), Block(16), nn.Linear(16, 2))


def first_kind():
    return FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=True)


def second_kind():
    model = network()
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model[1:3]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(name, model):
    torch.manual_seed(100 + dist.get_rank())
    inputs = torch.randn(64, 10)
    target = inputs[:, :2].sin()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(8):
        rows = slice(8 * step, 8 * step + 8)
        loss = nn.functional.mse_loss(model(inputs[rows]), target[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"{name} loss {total.item() / dist.get_world_size():.9g}")


def main():
    dist.init_process_group(sys.argv[-1])
    train("fsdp", first_kind())
    train("fully_shard", second_kind())
    dist.destroy_process_group()
    if sys.argv[-1] == "gloo":
        # Gloo's threads may still hold tensors of Python's when the interpreter ends, which aborts it (pytorch/pytorch#179291).
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
