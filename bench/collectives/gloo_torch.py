"""gloo_torch.py RANK RANKS MASTER SAMPLES ROUNDS [BACKEND]: the all-reduce of a torch.distributed backend, as in measure.hpp."""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main(rank, ranks, master, samples, rounds, backend="gloo"):
    if backend == "motley":
        import motley.torch  # noqa: F401
    dist.init_process_group(backend, init_method=f"tcp://{master}", rank=rank, world_size=ranks)
    for sample in samples.split(","):
        size, repeats = map(int, sample.split("x"))
        pattern = torch.arange(size // 4) % 7
        values = (rank + 1) * pattern.float()
        dist.all_reduce(values)
        assert torch.equal(values, ranks * (ranks + 1) // 2 * pattern.float()), "wrong sum"
        values.zero_()
        times_s = []
        for _ in range(rounds + 1):
            dist.all_reduce(torch.zeros(1))
            start_s = time.perf_counter()
            for _ in range(repeats):
                dist.all_reduce(values)
            times_s.append((time.perf_counter() - start_s) / repeats)
        if rank == 0:
            line = {"library": f"{backend}-torch", "ranks": ranks, "bytes": size}
            print(json.dumps(line | {"time_s": statistics.median(times_s[1:]), "best_s": min(times_s[1:])}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5]), *sys.argv[6:])
