"""Training with DistributedDataParallel in PyTorch's own manner; the backend's name is the last argument. Run by torchrun."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

if sys.argv[-1] == "motley":
    import motley.torch  # noqa: F401


def main():
    dist.init_process_group(sys.argv[-1])
    torch.manual_seed(0)
    inputs = torch.randn(96, 20)
    data = TensorDataset(inputs, inputs @ torch.randn(20, 3) + 0.1 * torch.randn(96, 3))
    sampler = DistributedSampler(data, shuffle=True, seed=1)
    torch.manual_seed(dist.get_rank())  # DDP starts all ranks from rank 0's parameters
    layers = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.002)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch, target in DataLoader(data, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch), target)
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            if dist.get_rank() == 0:
                print(f"loss {total.item() / dist.get_world_size():.9g}")
    dist.destroy_process_group()
    if sys.argv[-1] == "gloo":
        # Gloo's threads may still hold tensors of Python's when the interpreter ends, which aborts it (pytorch/pytorch#179291).
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
