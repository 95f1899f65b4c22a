"""Rank 1 ends without a word in the middle of its collectives; the others must be told."""

import datetime
import os

import torch
import torch.distributed as dist

from motley.torch import CollectiveError


def main():
    dist.init_process_group("motley", timeout=datetime.timedelta(minutes=10))
    rank = dist.get_rank()
    for step in range(1000):
        if rank == 1 and step == 5:
            os._exit(0)
        try:
            dist.all_reduce(torch.ones(100_000))
        except CollectiveError as error:
            print(f"was told: {error}")
            return
    raise AssertionError("no member was told")


if __name__ == "__main__":
    main()
