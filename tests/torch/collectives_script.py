"""Every collective of torch.distributed over the motley backend, held against what it must give. Run by torchrun."""

import datetime

import torch
import torch.distributed as dist

import motley.torch
from motley.torch import CollectiveError

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


def of_rank(rank, dtype=torch.float32, shape=(5, 7)):
    """Small whole numbers, so that sums are exact in every type."""
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * (rank + 2)) % 9).reshape(shape).to(dtype)


def check(result, expected):
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def reductions(rank, ranks):
    every = [of_rank(other, torch.float64) for other in range(ranks)]
    stacked = torch.stack(every)
    folds = {dist.ReduceOp.SUM: stacked.sum(0), dist.ReduceOp.MAX: stacked.amax(0), dist.ReduceOp.MIN: stacked.amin(0)}
    for dtype in TYPES:
        for op, expected in (folds | {dist.ReduceOp.PRODUCT: stacked.prod(0)}).items():
            if op == dist.ReduceOp.PRODUCT and dtype in (torch.int8, torch.uint8, torch.bfloat16, torch.float16):
                continue  # does not fit
            mine = of_rank(rank, dtype)
            dist.all_reduce(mine, op)
            check(mine, expected.to(dtype))
    for op, fold in [(dist.ReduceOp.BAND, torch.bitwise_and), (dist.ReduceOp.BOR, torch.bitwise_or), (dist.ReduceOp.BXOR, torch.bitwise_xor)]:
        mine, expected = of_rank(rank, torch.int32), of_rank(0, torch.int32)
        for other in range(1, ranks):
            expected = fold(expected, of_rank(other, torch.int32))
        dist.all_reduce(mine, op)
        check(mine, expected)
    mean = of_rank(rank) * ranks
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    check(mean, stacked.sum(0).float())
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags)
    check(flags, torch.tensor([True, False, True]))
    complex_numbers = torch.complex(of_rank(rank), -of_rank(rank))
    dist.all_reduce(complex_numbers)
    check(complex_numbers, torch.complex(stacked.sum(0).float(), -stacked.sum(0).float()))
    whole = torch.zeros(5, 14)
    whole[:, ::2] = of_rank(rank)
    dist.all_reduce(whole[:, ::2])  # not contiguous
    check(whole[:, ::2], stacked.sum(0).float())
    check(whole[:, 1::2], torch.zeros(5, 7))
    empty = torch.empty(0)
    dist.all_reduce(empty)
    with dist._coalescing_manager():
        several = [of_rank(rank), of_rank(rank, torch.int64)]
        for tensor in several:
            dist.all_reduce(tensor)
    for tensor in several:
        check(tensor, stacked.sum(0).to(tensor.dtype))
    rooted = of_rank(rank)
    dist.reduce(rooted, dst=1)
    check(rooted, stacked.sum(0).float() if rank == 1 else of_rank(rank))


def gathers(rank, ranks):
    every = [of_rank(other) for other in range(ranks)]
    into = [torch.empty(5, 7) for _ in every]
    dist.all_gather(into, of_rank(rank))
    check(torch.stack(into), torch.stack(every))
    flat = torch.empty(5 * ranks, 7)
    dist.all_gather_into_tensor(flat, of_rank(rank))
    check(flat, torch.cat(every))
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
    assert objects == [{"rank": other, "text": "x" * other} for other in range(ranks)]
    mine = torch.empty(5, 7)
    dist.reduce_scatter(mine, [of_rank(rank) + block for block in range(ranks)])
    check(mine, torch.stack(every).sum(0) + ranks * rank)
    source = torch.cat([of_rank(rank) + block for block in range(ranks)])
    before = source.clone()
    dist.reduce_scatter_tensor(mine, source, op=dist.ReduceOp.MAX)
    check(mine, torch.stack(every).amax(0) + rank)
    check(source, before)
    gathered = [torch.empty(5, 7) for _ in every] if rank == 1 else None
    dist.gather(of_rank(rank), gathered, dst=1)
    if rank == 1:
        check(torch.stack(gathered), torch.stack(every))
    dist.scatter(mine, every if rank == 0 else None, src=0)
    check(mine, of_rank(rank))
    spread = of_rank(rank)
    dist.broadcast(spread, src=ranks - 1)
    check(spread, of_rank(ranks - 1))
    words = [f"from {rank}", rank]
    dist.broadcast_object_list(words, src=1)
    assert words == ["from 1", 1]


def exchanges(rank, ranks):
    rows = [rank + other + 1 for other in range(ranks)]  # to and from each
    source = torch.cat([torch.full((count, 3), float(10 * rank + other)) for other, count in enumerate(rows)])
    target = torch.empty(sum(rows), 3)
    dist.all_to_all_single(target, source, rows, rows)
    check(target, torch.cat([torch.full((count, 3), float(10 * other + rank)) for other, count in enumerate(rows)]))
    into = [torch.empty(2, dtype=torch.int64) for _ in range(ranks)]
    dist.all_to_all(into, [torch.tensor([rank, other]) for other in range(ranks)])
    check(torch.stack(into), torch.tensor([[other, rank] for other in range(ranks)]))
    # Both send first, and more than any buffer takes.
    big = torch.full((2_000_000,), float(rank))
    heard = torch.empty_like(big)
    after, before = (rank + 1) % ranks, (rank - 1) % ranks
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, big, after), dist.P2POp(dist.irecv, heard, before)]):
        work.wait()
    check(heard, torch.full_like(heard, float(before)))
    if rank == 0:
        dist.send(torch.tensor([1.0]), 1)
        dist.send(torch.tensor([2.0]), 1)
    if rank == 1:
        first, second = torch.empty(1), torch.empty(1)
        dist.recv(first, 0)
        dist.recv(second, 0)
        assert (first.item(), second.item()) == (1.0, 2.0)


def futures_and_groups(rank, ranks):
    works = [dist.all_reduce(torch.full((1000,), float(rank)), async_op=True) for _ in range(5)]
    for work in works:
        assert work.wait() and work.is_completed() and work.is_success()
        check(work.result()[0], torch.full((1000,), float(sum(range(ranks)))))
    doubled = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    check(doubled.wait(), torch.full((3,), 2.0 * ranks))
    pair = dist.new_group([0, 1])
    if rank < 2:
        mine = of_rank(rank)
        dist.all_reduce(mine, group=pair)
        check(mine, of_rank(0) + of_rank(1))
    dist.barrier()


def refusals(rank):
    for wrong in (lambda: dist.all_reduce(torch.zeros(2, device="meta")), lambda: dist.send(torch.zeros(1), 1 - rank, tag=3)):
        try:
            wrong()
        except (ValueError, RuntimeError) as error:
            assert "motley" in str(error) or "meta" in str(error), error
        else:
            raise AssertionError("was not refused")


def disagreement(rank):
    """Ranks that call with other sizes are told so, all of them, and nothing hangs."""
    try:
        # Who is slow may hear of it while it still waits for the new group to stand.
        group = dist.new_group(timeout=datetime.timedelta(seconds=20))
        dist.all_reduce(torch.zeros(4 + rank), group=group)
    except CollectiveError as error:
        assert error.status in ("invalid", "aborted", "revoked"), error
        if rank == 0:
            print(f"disagreement: {error}")
    else:
        raise AssertionError("the sum of vectors of unequal lengths")


def main():
    dist.init_process_group("motley", timeout=datetime.timedelta(seconds=60))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "motley" and motley.torch.ProcessGroupMotley is type(dist.group.WORLD)
    reductions(rank, ranks)
    gathers(rank, ranks)
    exchanges(rank, ranks)
    futures_and_groups(rank, ranks)
    refusals(rank)
    disagreement(rank)
    dist.destroy_process_group()
    print(f"rank {rank} done")


if __name__ == "__main__":
    main()
