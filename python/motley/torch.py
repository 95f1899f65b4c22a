"""The "motley" backend of torch.distributed, for tensors in main memory:

    import motley.torch
    torch.distributed.init_process_group("motley")

Collectives of a group run one after the other in a thread of their own, sends and receives in one per peer and direction;
every operation ends by its timeout, with CollectiveError where it is not done. Addresses, and a secret that keeps strangers
out, travel through torch's own store. From the environment: MOTLEY_ADDRESS, the interface by its address (by default the one
that leads to the store); MOTLEY_CERTIFICATE, MOTLEY_PRIVATE_KEY and MOTLEY_AUTHORITY, files for TLS between machines, or
MOTLEY_COORDINATORS, MOTLEY_TOKEN and MOTLEY_AUTHORITY, by which a coordinator gives a certificate; MOTLEY_PLAIN=1, no TLS
between machines.
"""

import datetime
import os
import queue
import secrets
import socket
import threading
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from motley.comm import CollectiveError, Credentials, Fabric, Group

__all__ = ["CollectiveError", "ProcessGroupMotley"]

_ELEMENTS = {
    torch.float32: "fp32", torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int8: "int8",
    torch.uint8: "uint8", torch.bool: "uint8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64",
    torch.complex64: "fp32", torch.complex128: "fp64",
}  # fmt: skip
_REDUCTIONS = {dist.ReduceOp.SUM: "sum", dist.ReduceOp.AVG: "mean", dist.ReduceOp.MAX: "max", dist.ReduceOp.MIN: "min"}
# What the library does not reduce is gathered, and folded by rank on every rank alike.
_FOLDS = {
    dist.ReduceOp.PRODUCT: torch.mul, dist.ReduceOp.BAND: torch.bitwise_and, dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}  # fmt: skip


class _Work(dist.Work):
    """One operation: done when its future is."""

    def __init__(self, tensors):
        super().__init__()
        self._tensors = tensors
        self._future = torch.futures.Future()
        self._ended = threading.Event()
        self._error = None

    def end(self, error=None):
        self._error = error
        self._ended.set()
        if error is None:
            self._future.set_result(self._tensors)
        else:
            self._future.set_exception(error)

    def wait(self, timeout=datetime.timedelta(0)):
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self):
        return self._ended.is_set()

    def is_success(self):
        return self._ended.is_set() and self._error is None

    def exception(self):
        return self._error

    def result(self):
        return self._tensors

    def synchronize(self):
        self.wait()

    def get_future(self):
        return self._future


class _Lane:
    """A communicator and the thread that alone uses it, in the order of submission."""

    def __init__(self, connect):
        self._connect = connect
        self._group = None
        self._jobs = queue.SimpleQueue()
        self._left = 0  # jobs that have not ended
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="motley", daemon=True)
        self._thread.start()

    def submit(self, operation, tensors):
        """Runs operation(group) later."""
        work = _Work(tensors)
        with self._lock:
            self._left += 1
        self._jobs.put((operation, work))
        return work

    def _run(self):
        while (job := self._jobs.get()) is not None:
            operation, work = job
            failure = None
            try:
                if self._group is None:
                    self._group = self._connect()
                operation(self._group)
            except Exception as error:  # noqa: BLE001 - whatever it was, those that wait are told
                failure = error
            with self._lock:
                self._left -= 1
            work.end(failure)
            del job, operation, work
        if self._group is not None:
            self._group.close()

    def revoke(self, cause):
        if self._group is not None:
            self._group.revoke(cause)

    def close(self):
        """Ends the thread; true where it has ended. What is under way ends as revoked, here and on the other ranks."""
        if self._left:
            self.revoke("a rank has left")
        self._jobs.put(None)
        self._thread.join(10)  # longer only while it connects
        return not self._thread.is_alive()


def _own_address(store):
    """Of the interface that leads to the store."""
    if address := os.environ.get("MOTLEY_ADDRESS"):
        return address
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host = getattr(store, "host", None)
    if not host:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        return probe.getsockname()[0]


def _own_host():
    """The same for processes that can share memory: one machine, one network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"


def _plans():
    """The files that MOTLEY_PLANS names, as PATH does."""
    return [name for name in os.environ.get("MOTLEY_PLANS", "").split(os.pathsep) if name]


def _credentials():
    """From the environment; a process that asks for its certificate has a name that no other has."""
    found = Credentials.from_environment()
    if found.certificate is None and found.coordinators:
        found.group = found.group or "group"
        found.id = f"{found.id or socket.gethostname()[:40]}-{secrets.token_hex(8)}"
    return found


def _plain(tensor):
    """Real, contiguous, in main memory: the tensor itself or a copy."""
    if tensor.device.type != "cpu":
        raise ValueError(f"the motley backend takes tensors in main memory, and this one is on {tensor.device}: hand it tensor.cpu()")
    if tensor.dtype not in _ELEMENTS:
        raise ValueError(f"the motley backend does not take {tensor.dtype}: convert it with tensor.to(), it takes "
                         + ", ".join(str(known).removeprefix("torch.") for known in _ELEMENTS))  # fmt: skip
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.contiguous()


def _put(tensor, plain):
    """The result into the caller's tensor, where it is not there already."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    if real.data_ptr() != plain.data_ptr():
        real.copy_(plain.view(real.shape))


def _size(tensor):
    return tensor.numel() * tensor.element_size()


class ProcessGroupMotley(dist.ProcessGroup):
    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._store, self._rank, self._size = store, rank, size
        self._timeout_s = timeout.total_seconds()
        self._name = self._description = ""
        if rank == 0:
            store.set("key", secrets.token_hex(16))
        credentials = _credentials()
        self._fabric = Fabric(f"{_own_address(store)}:0", key=store.get("key").decode(), credentials=credentials,
                              plain=os.environ.get("MOTLEY_PLAIN") == "1")  # fmt: skip
        # Under the name in its certificate the others expect this rank.
        store.set(f"member/{rank}", f"{credentials.name or rank}\n{_own_host()}\n{self._fabric.address}")
        self._lanes = {}
        everyone = list(range(size))
        self._lane("all", everyone)
        self.barrier().wait()  # a rank that is missing is missed now
        weakref.finalize(self, _close, self._lanes, self._fabric)

    def _lane(self, name, ranks):
        """The communicator of these ranks, which all of them ask for."""
        if name not in self._lanes:
            fabric, store, timeout_s, here = self._fabric, self._store, self._timeout_s, ranks.index(self._rank)

            def connect():
                members = [store.get(f"member/{rank}").decode().split("\n") for rank in ranks]
                group = Group(fabric, name, members, here, timeout_s=timeout_s)
                if len(ranks) == self._size:
                    group.use_plans(_plans())
                return group

            self._lanes[name] = _Lane(connect)
        return self._lanes[name]

    def _submit(self, operation, tensors, opts=None):
        timeout = getattr(opts, "timeout", None)
        timeout_s = timeout.total_seconds() if timeout is not None and timeout.total_seconds() > 0 else self._timeout_s
        return self._lanes["all"].submit(lambda group: operation(group, timeout_s), tensors)

    # ---- what torch.distributed asks for ----

    def getBackendName(self):
        return "motley"

    # The names under which functional collectives find a group.
    def setGroupName(self, name):
        self._name = name

    def getGroupName(self):
        return self._name

    def setGroupDesc(self, description):
        self._description = description

    def getGroupDesc(self):
        return self._description

    def getRank(self):
        return self._rank

    def getSize(self):
        return self._size

    def abort(self):
        for lane in self._lanes.values():
            lane.revoke("aborted by the program")

    def shutdown(self):
        _close(self._lanes, self._fabric)

    def _reduced(self, group, plain, dtype, op, timeout_s):
        """All-reduces in place."""
        if op in _FOLDS:
            blocks = plain.new_empty((self._size, plain.numel()))
            blocks[self._rank].copy_(plain.reshape(-1))
            group.all_gather(blocks.data_ptr(), _size(blocks), timeout_s=timeout_s)
            total = blocks[0]
            for block in blocks[1:]:
                total = _FOLDS[op](total, block)
            plain.copy_(total.view(plain.shape))
            return
        group.all_reduce(plain.data_ptr(), _size(plain), _ELEMENTS[dtype], reduction=_reduction(op, dtype), timeout_s=timeout_s)

    def allreduce(self, tensors, opts=c10d.AllreduceOptions()):
        op = _check_op(opts.reduceOp, tensors)

        def run(group, timeout_s):
            for tensor in tensors:
                plain = _plain(tensor)
                self._reduced(group, plain, tensor.dtype, op, timeout_s)
                _put(tensor, plain)

        return self._submit(run, tensors, opts)

    def allreduce_coalesced(self, tensors, opts=c10d.AllreduceCoalescedOptions()):
        op = _check_op(opts.reduceOp, tensors)

        def run(group, timeout_s):
            for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
                alike = [tensor for tensor in tensors if tensor.dtype == dtype]
                together = torch.cat([_plain(tensor).reshape(-1) for tensor in alike])
                self._reduced(group, together, dtype, op, timeout_s)
                sizes = [tensor.numel() * (2 if tensor.is_complex() else 1) for tensor in alike]
                for tensor, part in zip(alike, together.split(sizes), strict=True):
                    _put(tensor, part)

        return self._submit(run, tensors, opts)

    def broadcast(self, tensors, opts=c10d.BroadcastOptions()):
        root = opts.rootRank

        def run(group, timeout_s):
            for tensor in tensors:
                plain = _plain(tensor)
                group.broadcast(plain.data_ptr(), _size(plain), root, timeout_s=timeout_s)
                _put(tensor, plain)

        return self._submit(run, tensors, opts)

    def reduce(self, tensors, opts=c10d.ReduceOptions()):
        op, root = _check_op(opts.reduceOp, tensors), opts.rootRank

        def run(group, timeout_s):
            for tensor in tensors:
                plain = _plain(tensor).clone()  # the others' tensors stay what they are
                if op in _FOLDS:
                    self._reduced(group, plain, tensor.dtype, op, timeout_s)
                else:
                    group.reduce(plain.data_ptr(), _size(plain), _ELEMENTS[tensor.dtype], root,
                                 reduction=_reduction(op, tensor.dtype), timeout_s=timeout_s)  # fmt: skip
                if self._rank == root:
                    _put(tensor, plain)

        return self._submit(run, tensors, opts)

    def _gathered(self, group, tensor, timeout_s):
        """The plain tensors of all ranks, one after the other."""
        mine = _plain(tensor)
        blocks = mine.new_empty((self._size, *mine.shape))
        blocks[self._rank].copy_(mine)
        group.all_gather(blocks.data_ptr(), _size(blocks), timeout_s=timeout_s)
        return blocks

    def allgather(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        def run(group, timeout_s):
            for into, tensor in zip(outputs, inputs, strict=True):
                for place, block in zip(into, self._gathered(group, tensor, timeout_s), strict=True):
                    _put(place, block)

        return self._submit(run, outputs, opts)

    def _all_gather_into(self, group, output, tensor, timeout_s):
        blocks = _plain(output)
        if output.numel() != self._size * tensor.numel() or output.dtype != tensor.dtype:
            raise ValueError(f"all_gather of {tuple(tensor.shape)} by {self._size} ranks does not make {tuple(output.shape)}: "
                             f"the output needs {self._size * tensor.numel()} elements of {tensor.dtype}")  # fmt: skip
        blocks.view(self._size, -1)[self._rank].copy_(_plain(tensor).reshape(-1))
        group.all_gather(blocks.data_ptr(), _size(blocks), timeout_s=timeout_s)
        _put(output, blocks)

    def _allgather_base(self, output, tensor, opts=c10d.AllgatherOptions()):
        return self.allgather_into_tensor_coalesced([output], [tensor], opts)

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        def run(group, timeout_s):
            for output, tensor in zip(outputs, inputs, strict=True):
                self._all_gather_into(group, output, tensor, timeout_s)

        return self._submit(run, outputs, opts)

    def _reduce_scatter_into(self, group, output, blocks, op, timeout_s):
        """`blocks` is a plain tensor of this function's own, which the operation destroys."""
        if blocks.numel() != self._size * output.numel() * (2 if output.is_complex() else 1):
            raise ValueError(f"reduce_scatter of {blocks.numel()} elements by {self._size} ranks does not make {tuple(output.shape)}: "
                             f"the input needs {self._size} blocks of the output's size")  # fmt: skip
        if op in _FOLDS:
            self._reduced(group, blocks, output.dtype, op, timeout_s)
        else:
            group.reduce_scatter(blocks.data_ptr(), _size(blocks), _ELEMENTS[output.dtype],
                                 reduction=_reduction(op, output.dtype), timeout_s=timeout_s)  # fmt: skip
        _put(output, blocks.view(self._size, -1)[self._rank])

    def _reduce_scatter_base(self, output, tensor, opts=c10d.ReduceScatterOptions()):
        return self.reduce_scatter_tensor_coalesced([output], [tensor], opts)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        op = _check_op(opts.reduceOp, inputs)

        def run(group, timeout_s):
            for output, tensor in zip(outputs, inputs, strict=True):
                self._reduce_scatter_into(group, output, _plain(tensor).clone(), op, timeout_s)

        return self._submit(run, outputs, opts)

    def reduce_scatter(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        op = _check_op(opts.reduceOp, outputs)

        def run(group, timeout_s):
            for output, parts in zip(outputs, inputs, strict=True):
                blocks = torch.cat([_plain(part).reshape(-1) for part in parts])
                self._reduce_scatter_into(group, output, blocks, op, timeout_s)

        return self._submit(run, outputs, opts)

    def _exchange(self, group, source, source_counts, target, target_counts, timeout_s):
        """Flat plain tensors; elements for and from each rank."""
        width = source.element_size()
        group.all_to_all(source.data_ptr(), [count * width for count in source_counts], target.data_ptr(),
                         [count * width for count in target_counts], timeout_s=timeout_s)  # fmt: skip

    def alltoall_base(self, output, tensor, output_splits, input_splits, opts=c10d.AllToAllOptions()):
        def counts(whole, splits):
            rows = splits or [whole.shape[0] // self._size] * self._size
            if sum(rows) != whole.shape[0]:
                raise ValueError(f"all_to_all: {self._size} blocks of rows {rows} do not make {tuple(whole.shape)}: the splits, one per "
                                 f"rank, sum to the {whole.shape[0]} rows; without splits these are a multiple of {self._size}")  # fmt: skip
            width = _plain(whole).numel() // max(whole.shape[0], 1)
            return [row * width for row in rows]

        def run(group, timeout_s):
            source, target = _plain(tensor), _plain(output)
            self._exchange(group, source, counts(tensor, input_splits), target, counts(output, output_splits), timeout_s)
            _put(output, target)

        return self._submit(run, [output], opts)

    def alltoall(self, outputs, inputs, opts=c10d.AllToAllOptions()):
        def run(group, timeout_s):
            source = torch.cat([_plain(tensor).reshape(-1) for tensor in inputs])
            counts = [_plain(output).numel() for output in outputs]
            target = source.new_empty(sum(counts))
            self._exchange(group, source, [_plain(tensor).numel() for tensor in inputs], target, counts, timeout_s)
            for output, part in zip(outputs, target.split(counts), strict=True):
                _put(output, part)

        return self._submit(run, outputs, opts)

    def gather(self, outputs, inputs, opts=c10d.GatherOptions()):
        root = opts.rootRank

        def run(group, timeout_s):
            mine = _plain(inputs[0])
            blocks = mine.new_empty((self._size if self._rank == root else 0, *mine.shape))
            to_root = [mine.numel() if rank == root else 0 for rank in range(self._size)]
            self._exchange(group, mine, to_root, blocks, [mine.numel() * (self._rank == root)] * self._size, timeout_s)
            if self._rank == root:
                for place, block in zip(outputs[0], blocks, strict=True):
                    _put(place, block)

        return self._submit(run, outputs, opts)

    def scatter(self, outputs, inputs, opts=c10d.ScatterOptions()):
        root = opts.rootRank

        def run(group, timeout_s):
            mine = _plain(outputs[0])
            at_root = self._rank == root
            blocks = torch.stack([_plain(tensor) for tensor in inputs[0]]) if at_root else mine.new_empty(0)
            from_root = [mine.numel() if rank == root else 0 for rank in range(self._size)]
            self._exchange(group, blocks, [mine.numel() * at_root] * self._size, mine, from_root, timeout_s)
            _put(outputs[0], mine)

        return self._submit(run, outputs, opts)

    def barrier(self, opts=c10d.BarrierOptions()):
        return self._submit(lambda group, timeout_s: group.barrier(timeout_s=timeout_s), [], opts)

    def _message_lane(self, source, target, tag):
        if tag != 0:
            raise ValueError(f"the motley backend matches messages by their order, not by tags (tag {tag}): send and receive in one "
                             "order, with tag 0")  # fmt: skip
        return self._lane(f"{source} to {target}", [source, target])

    def send(self, tensors, target, tag=0):
        lane, timeout_s = self._message_lane(self._rank, target, tag), self._timeout_s

        def run(group):
            for tensor in tensors:
                plain = _plain(tensor)
                group.send(plain.data_ptr(), _size(plain), 1, timeout_s=timeout_s)

        return lane.submit(run, tensors)

    def recv(self, tensors, source, tag=0):
        lane, timeout_s = self._message_lane(source, self._rank, tag), self._timeout_s

        def run(group):
            for tensor in tensors:
                plain = _plain(tensor)
                group.recv(plain.data_ptr(), _size(plain), 0, timeout_s=timeout_s)
                _put(tensor, plain)

        return lane.submit(run, tensors)

    def recv_anysource(self, tensors, tag=0):
        raise NotImplementedError("the motley backend receives from a rank that is named: give recv() its `src`")


def _close(lanes, fabric):
    ended = [lanes.popitem()[1].close() for _ in range(len(lanes))]
    if all(ended):
        fabric.close()


def _check_op(op, tensors):
    """The operation as a member of ReduceOp that is known here; refused in the caller's thread."""
    for known in (*_REDUCTIONS, *_FOLDS):
        if op == known:
            if known in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT) and any(map(torch.is_complex, tensors)):
                raise ValueError(f"{known} is not defined on complex numbers: SUM and AVG are, or reduce torch.view_as_real()")
            return known
    raise ValueError(f"the motley backend does not reduce by {op}: it knows {', '.join(str(known) for known in (*_REDUCTIONS, *_FOLDS))}")


def _reduction(op, dtype):
    return "max" if dtype == torch.bool and op == dist.ReduceOp.SUM else _REDUCTIONS[op]


def all_reduce_mean(group, tensor, timeout_s=30.0):
    """In place, over a motley.comm.Group, without a process group: the mean of those that contribute."""
    plain = _plain(tensor)
    if not group.contributes:
        plain.zero_()
    reduction = "mean" if group.contributors == group.size else "sum"
    group.all_reduce(plain.data_ptr(), _size(plain), _ELEMENTS[tensor.dtype], reduction=reduction, timeout_s=timeout_s)
    if reduction == "sum":
        plain /= group.contributors
    _put(tensor, plain)


dist.Backend.register_backend("motley", ProcessGroupMotley, devices=["cpu"])
