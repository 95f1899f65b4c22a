"""The collectives of motley by ctypes: the C functions of motley/comm/c_api.h as methods of a Group. Needs no PyTorch.

Memory is given as an address and a number of bytes. A call ends with its outcome, or raises CollectiveError.
"""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path

ABI = 1
STATUSES = ("ok", "aborted", "revoked", "timed_out", "invalid")
ELEMENTS = ("fp32", "fp64", "fp16", "bf16", "int8", "uint8", "int16", "int32", "int64")
REDUCTIONS = ("sum", "max", "min", "mean")


class CollectiveError(RuntimeError):
    """An operation that did not end in ok. `status` says how, `suspects` are the ranks that did not deliver."""

    def __init__(self, operation, status, cause, suspects=()):
        super().__init__(f"{operation} {status.replace('_', ' ')}: {cause}")
        self.status, self.cause, self.suspects = status, cause, tuple(suspects)


class _Member(ctypes.Structure):
    _fields_ = [("id", c_char_p), ("host", c_char_p), ("address", c_char_p), ("incarnation", c_uint64)]


class _OpenOptions(ctypes.Structure):
    _fields_ = [
        ("listen", c_char_p), ("key", c_char_p), ("encryption", c_int32),
        ("certificate", c_char_p), ("private_key", c_char_p), ("authority", c_char_p),
    ]  # fmt: skip


class _ConnectOptions(ctypes.Structure):
    _fields_ = [
        ("group", c_char_p), ("epoch", c_uint64), ("members", POINTER(_Member)), ("size", c_int32), ("rank", c_int32),
        ("timeout_s", c_double),
    ]  # fmt: skip


class _Call(ctypes.Structure):
    _fields_ = [("reduction", c_int32), ("on_abort", c_int32), ("timeout_s", c_double)]


class _Outcome(ctypes.Structure):
    _fields_ = [
        ("status", c_int32), ("suspect_count", c_int32), ("suspects", c_int32 * 16), ("time_s", c_double),
        ("sent_bytes", c_int64), ("received_bytes", c_int64), ("cause", ctypes.c_char * 512),
    ]  # fmt: skip


# Arguments between the group and the call's options.
_OPERATIONS = {
    "all_reduce": [c_void_p, c_int64, c_int32],
    "reduce_scatter": [c_void_p, c_int64, c_int32],
    "all_gather": [c_void_p, c_int64],
    "broadcast": [c_void_p, c_int64, c_int32],
    "reduce": [c_void_p, c_int64, c_int32, c_int32],
    "all_to_all": [c_void_p, POINTER(c_int64), c_void_p, POINTER(c_int64)],
    "send": [c_void_p, c_int64, c_int32],
    "recv": [c_void_p, c_int64, c_int32],
    "barrier": [],
}


def _library_path():
    """MOTLEY_COMM_LIBRARY, the package's own, or that of the tree's build."""
    name = "libmotley_comm.so"
    here = Path(__file__).resolve().parent
    places = [here / name, here.parents[1] / "build" / "release" / name]
    if chosen := os.environ.get("MOTLEY_COMM_LIBRARY"):
        places = [Path(chosen)]
    for place in places:
        if place.exists():
            return place
    raise ImportError(f"{name} is not in {' or '.join(str(place.parent) for place in places)}: build it (./dev build motley_comm_shared), "
                      "or name it in MOTLEY_COMM_LIBRARY")


def _load():
    library = ctypes.CDLL(str(_library_path()))
    if (found := library.motley_comm_abi()) != ABI:
        raise ImportError(f"{library._name} has ABI {found}, and this package needs {ABI}")
    library.motley_open.restype = c_void_p
    library.motley_open.argtypes = [POINTER(_OpenOptions), c_char_p, c_size_t]
    library.motley_address.restype = c_char_p
    library.motley_address.argtypes = [c_void_p]
    library.motley_close.restype = None
    library.motley_close.argtypes = [c_void_p]
    library.motley_connect.restype = c_void_p
    library.motley_connect.argtypes = [c_void_p, POINTER(_ConnectOptions), c_char_p, c_size_t]
    library.motley_disconnect.restype = None
    library.motley_disconnect.argtypes = [c_void_p]
    library.motley_revoke.restype = None
    library.motley_revoke.argtypes = [c_void_p, c_char_p]
    for name, arguments in _OPERATIONS.items():
        function = getattr(library, f"motley_{name}")
        function.restype = None
        function.argtypes = [c_void_p, *arguments, POINTER(_Call), POINTER(_Outcome)]
    return library


_library = _load()


class Fabric:
    """Where this process takes connections of other members, for any number of groups; `address` has the real port.

    Off this machine connections are under TLS, with `identity` (certificate, private key, authority; PEM); or plain, where
    `plain` says so."""

    def __init__(self, listen="127.0.0.1:0", *, key="", identity=None, plain=False):
        error = ctypes.create_string_buffer(512)
        texts = [text.encode() for text in identity] if identity else [None] * 3
        options = _OpenOptions(listen.encode(), key.encode(), int(plain), *texts)
        self._handle = _library.motley_open(byref(options), error, len(error))
        if not self._handle:
            raise OSError(error.value.decode())
        self.address = _library.motley_address(self._handle).decode()

    def close(self):
        """After the groups."""
        handle, self._handle = self._handle, None
        if handle:
            _library.motley_close(handle)


class Group:
    """The members of one epoch. `members`: (id, host, address) by rank. One thread at a time; revoke() from any."""

    def __init__(self, fabric, group, members, rank, *, epoch=1, timeout_s=30.0):
        self.rank, self.size = rank, len(members)
        table = (_Member * len(members))(*(_Member(*(text.encode() for text in member), 0) for member in members))
        options = _ConnectOptions(group.encode(), epoch, table, len(members), rank, timeout_s)
        error = ctypes.create_string_buffer(512)
        self._handle = _library.motley_connect(fabric._handle, byref(options), error, len(error))
        if not self._handle:
            raise CollectiveError("connect", "aborted", error.value.decode())

    def close(self):
        handle, self._handle = self._handle, None
        if handle:
            _library.motley_disconnect(handle)

    def revoke(self, cause):
        if self._handle:
            _library.motley_revoke(self._handle, cause.encode())

    def _run(self, operation, *arguments, reduction="sum", timeout_s=30.0):
        if not self._handle:
            raise CollectiveError(operation, "invalid", "the group is closed")
        call, outcome = _Call(REDUCTIONS.index(reduction), 0, timeout_s), _Outcome()
        getattr(_library, f"motley_{operation}")(self._handle, *arguments, byref(call), byref(outcome))
        if outcome.status:
            suspects = outcome.suspects[: outcome.suspect_count]
            raise CollectiveError(operation, STATUSES[outcome.status], outcome.cause.decode(errors="replace"), suspects)
        return outcome

    def all_reduce(self, address, size, element, **options):
        return self._run("all_reduce", address, size, ELEMENTS.index(element), **options)

    def reduce_scatter(self, address, size, element, **options):
        return self._run("reduce_scatter", address, size, ELEMENTS.index(element), **options)

    def all_gather(self, address, size, **options):
        return self._run("all_gather", address, size, **options)

    def broadcast(self, address, size, root, **options):
        return self._run("broadcast", address, size, root, **options)

    def reduce(self, address, size, element, root, **options):
        return self._run("reduce", address, size, ELEMENTS.index(element), root, **options)

    def all_to_all(self, source, source_sizes, target, target_sizes, **options):
        sizes = [(c_int64 * self.size)(*each) for each in (source_sizes, target_sizes)]
        return self._run("all_to_all", source, sizes[0], target, sizes[1], **options)

    def send(self, address, size, peer, **options):
        return self._run("send", address, size, peer, **options)

    def recv(self, address, size, peer, **options):
        return self._run("recv", address, size, peer, **options)

    def barrier(self, **options):
        return self._run("barrier", **options)
