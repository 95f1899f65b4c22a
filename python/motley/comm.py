"""The collectives of motley by ctypes: the C functions of motley/comm/c_api.h as methods of a Group. Needs no PyTorch.

Memory is given as an address and a number of bytes. A call ends with its outcome, or raises CollectiveError.
"""

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from pathlib import Path

ABI = 4
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
        ("coordinators", c_char_p), ("group", c_char_p), ("token", c_char_p), ("id", c_char_p),
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


class _CoordinatorOptions(ctypes.Structure):
    _fields_ = [
        ("group", c_char_p), ("listen", c_char_p), ("token", c_char_p), ("log_file", c_char_p), ("minimum_size", c_uint32),
        ("folder", c_char_p),
    ]  # fmt: skip


class _State(ctypes.Structure):
    _fields_ = [
        ("user", c_void_p), ("save", CFUNCTYPE(c_void_p, c_void_p, POINTER(c_int64))),
        ("place", CFUNCTYPE(c_void_p, c_void_p, c_int64)), ("load", CFUNCTYPE(c_int32, c_void_p)),
    ]  # fmt: skip


class _Items(ctypes.Structure):
    _fields_ = [
        ("user", c_void_p), ("count", c_int32), ("save", CFUNCTYPE(c_void_p, c_void_p, c_int32, POINTER(c_int64))),
        ("place", CFUNCTYPE(c_void_p, c_void_p, c_int32, c_int64)), ("load", CFUNCTYPE(c_int32, c_void_p, c_int32)),
        ("share", c_double),
    ]  # fmt: skip


class _SessionOptions(ctypes.Structure):
    _fields_ = [
        ("coordinators", c_char_p), ("group", c_char_p), ("token", c_char_p), ("id", c_char_p), ("listen", c_char_p),
        ("state", POINTER(_State)), ("give_bytes_per_s", c_double), ("take_bytes_per_s", c_double),
        ("certificate", c_char_p), ("private_key", c_char_p), ("authority", c_char_p), ("items", POINTER(_Items)),
    ]  # fmt: skip


class _Step(ctypes.Structure):
    _fields_ = [
        ("group", c_void_p), ("step", c_uint64), ("epoch", c_uint64), ("rank", c_int32), ("size", c_int32),
        ("contributors", c_int32), ("place", c_int32), ("items", c_int32),
    ]  # fmt: skip


class _SessionOutcome(ctypes.Structure):
    _fields_ = [
        ("status", c_int32), ("members", c_int32), ("attempts", c_int32), ("step", c_uint64), ("epoch", c_uint64),
        ("cause", ctypes.c_char * 512),
    ]  # fmt: skip


_BODY = CFUNCTYPE(None, c_void_p, POINTER(_Step), POINTER(_Outcome))


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
    """MOTLEY_COMM_LIBRARY, the package's own, the one it was installed with, or that of the tree's build."""
    name = "libmotley_comm.so"
    here = Path(__file__).resolve().parent
    # Installed, the package is lib/python3/site-packages/motley, and the library in lib.
    places = [here / name, here.parents[2] / name, here.parents[1] / "build" / "release" / name]
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
        raise ImportError(f"{library._name} has ABI {found}, and this package needs {ABI}: build it again from the same tree "
                          "(./dev build motley_comm_shared)")  # fmt: skip
    library.motley_open.restype = c_void_p
    library.motley_open.argtypes = [POINTER(_OpenOptions), c_char_p, c_size_t]
    library.motley_address.restype = c_char_p
    library.motley_address.argtypes = [c_void_p]
    library.motley_close.restype = None
    library.motley_close.argtypes = [c_void_p]
    library.motley_certificate_name.argtypes = [c_char_p, c_char_p, c_size_t]
    library.motley_connect.restype = c_void_p
    library.motley_connect.argtypes = [c_void_p, POINTER(_ConnectOptions), c_char_p, c_size_t]
    library.motley_use_plans.argtypes = [c_void_p, POINTER(c_char_p), c_int32, c_char_p, c_size_t]
    library.motley_disconnect.restype = None
    library.motley_disconnect.argtypes = [c_void_p]
    library.motley_revoke.restype = None
    library.motley_revoke.argtypes = [c_void_p, c_char_p]
    library.motley_coordinate.restype = c_void_p
    library.motley_coordinate.argtypes = [POINTER(_CoordinatorOptions), c_char_p, c_size_t]
    library.motley_coordinator_address.restype = c_char_p
    library.motley_coordinator_address.argtypes = [c_void_p]
    library.motley_stop_coordinator.restype = None
    library.motley_stop_coordinator.argtypes = [c_void_p]
    library.motley_open_session.restype = c_void_p
    library.motley_open_session.argtypes = [POINTER(_SessionOptions), c_char_p, c_size_t]
    library.motley_close_session.restype = None
    library.motley_close_session.argtypes = [c_void_p]
    library.motley_run_step.restype = None
    library.motley_run_step.argtypes = [c_void_p, _BODY, c_void_p, c_double, POINTER(_SessionOutcome)]
    library.motley_leave.argtypes = [c_void_p, c_double]
    for name, arguments in _OPERATIONS.items():
        function = getattr(library, f"motley_{name}")
        function.restype = None
        function.argtypes = [c_void_p, *arguments, POINTER(_Call), POINTER(_Outcome)]
    return library


_library = _load()


def _number(names, name, what):
    """A name as the library's number."""
    if name not in names:
        raise ValueError(f"unknown {what} {name!r}: choose one of {', '.join(names)}")
    return names.index(name)


def _encoded(text):
    return text.encode() if text is not None else None


@dataclass
class Credentials:
    """What a process proves itself with: a certificate and its key, or the token for which a coordinator gives it one.

    `authority`: PEM or, where a certificate is asked for, the fingerprint of the authority, "sha256:..."."""

    authority: str | None = None
    certificate: str | None = None
    private_key: str | None = None
    token: str | None = None
    coordinators: str | None = None  # addresses, comma between: where no session says them
    group: str | None = None
    id: str | None = None

    @classmethod
    def from_environment(cls):
        """MOTLEY_AUTHORITY, a file or a fingerprint; the files MOTLEY_CERTIFICATE, MOTLEY_PRIVATE_KEY and MOTLEY_TOKEN; and
        MOTLEY_COORDINATORS, MOTLEY_GROUP, MOTLEY_MEMBER."""

        def text(name):
            file = os.environ.get(f"MOTLEY_{name}")
            try:
                return Path(file).read_text().strip() if file else None
            except OSError as error:
                raise OSError(f"MOTLEY_{name} must name a file that this process may read: {error}") from error

        authority = os.environ.get("MOTLEY_AUTHORITY") or None
        if authority and not authority.startswith("sha256:"):
            authority = text("AUTHORITY")
        found = cls(authority, text("CERTIFICATE"), text("PRIVATE_KEY"), text("TOKEN"), os.environ.get("MOTLEY_COORDINATORS"),
                    os.environ.get("MOTLEY_GROUP"), os.environ.get("MOTLEY_MEMBER"))  # fmt: skip
        if (found.certificate is None) != (found.private_key is None) or (found.certificate and not found.authority):
            raise ValueError("MOTLEY_CERTIFICATE, MOTLEY_PRIVATE_KEY and MOTLEY_AUTHORITY belong together: name the three files of one "
                             "folder of `motley group`, or MOTLEY_AUTHORITY and MOTLEY_TOKEN to be issued a certificate")  # fmt: skip
        return found

    @property
    def name(self):
        """The id under which other members expect this process; None where there is no certificate."""
        if self.certificate is None:
            return self.id
        name = ctypes.create_string_buffer(256)
        if not _library.motley_certificate_name(self.certificate.encode(), name, len(name)):
            raise ValueError("the certificate is none: it begins with -----BEGIN CERTIFICATE-----, and names its member")
        return name.value.decode()

    def _tls(self):
        return [_encoded(text) for text in (self.certificate, self.private_key, self.authority)]


class Fabric:
    """Where this process takes connections of other members, for any number of groups; `address` has the real port.

    Off this machine connections are under TLS, with `credentials`; or plain, where `plain` says so. Credentials with
    coordinators, group, token and id, but without a certificate: the coordinators are asked for one."""

    def __init__(self, listen="127.0.0.1:0", *, key="", credentials=None, plain=False):
        error = ctypes.create_string_buffer(512)
        given = credentials or Credentials()
        asked = [_encoded(text) for text in (given.coordinators, given.group, given.token, given.id)]
        options = _OpenOptions(listen.encode(), key.encode(), int(plain), *given._tls(), *asked)
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
        self.contributors, self.contributes = self.size, True
        table = (_Member * len(members))(*(_Member(*(text.encode() for text in member), 0) for member in members))
        options = _ConnectOptions(group.encode(), epoch, table, len(members), rank, timeout_s)
        error = ctypes.create_string_buffer(512)
        self._handle = _library.motley_connect(fabric._handle, byref(options), error, len(error))
        if not self._handle:
            raise CollectiveError("connect", "aborted", error.value.decode())

    def use_plans(self, files):
        """Runs collective plans (files of `motley plan allreduce -o`); all members must use the same."""
        names = (c_char_p * len(files))(*(os.fsencode(file) for file in files))
        error = ctypes.create_string_buffer(512)
        if _library.motley_use_plans(self._handle, names, len(files), error, len(error)):
            raise CollectiveError("use_plans", "invalid", error.value.decode())

    def close(self):
        handle, self._handle = self._handle, None
        if handle:
            _library.motley_disconnect(handle)

    def revoke(self, cause):
        if self._handle:
            _library.motley_revoke(self._handle, cause.encode())

    def _run(self, operation, *arguments, reduction="sum", timeout_s=30.0):
        if not self._handle:
            raise CollectiveError(operation, "invalid", "the group is closed: a step's group lasts until its body returns, others "
                                                          "until close()")  # fmt: skip
        call, outcome = _Call(_number(REDUCTIONS, reduction, "reduction"), 0, timeout_s), _Outcome()
        getattr(_library, f"motley_{operation}")(self._handle, *arguments, byref(call), byref(outcome))
        if outcome.status:
            suspects = outcome.suspects[: outcome.suspect_count]
            raise CollectiveError(operation, STATUSES[outcome.status], outcome.cause.decode(errors="replace"), suspects)
        return outcome

    def all_reduce(self, address, size, element, **options):
        return self._run("all_reduce", address, size, _number(ELEMENTS, element, "element type"), **options)

    def reduce_scatter(self, address, size, element, **options):
        return self._run("reduce_scatter", address, size, _number(ELEMENTS, element, "element type"), **options)

    def all_gather(self, address, size, **options):
        return self._run("all_gather", address, size, **options)

    def broadcast(self, address, size, root, **options):
        return self._run("broadcast", address, size, root, **options)

    def reduce(self, address, size, element, root, **options):
        return self._run("reduce", address, size, _number(ELEMENTS, element, "element type"), root, **options)

    def all_to_all(self, source, source_sizes, target, target_sizes, **options):
        sizes = [(c_int64 * self.size)(*each) for each in (source_sizes, target_sizes)]
        return self._run("all_to_all", source, sizes[0], target, sizes[1], **options)

    def send(self, address, size, peer, **options):
        return self._run("send", address, size, peer, **options)

    def recv(self, address, size, peer, **options):
        return self._run("recv", address, size, peer, **options)

    def barrier(self, **options):
        return self._run("barrier", **options)


SESSION_STATUSES = ("committed", "timed_out", "undecided", "stopped", "invalid")


@dataclass
class SessionOutcome:
    """How a step went; `committed` by all members of the epoch, or not."""

    status: str
    step: int
    epoch: int
    members: int
    attempts: int
    cause: str

    @property
    def committed(self):
        return self.status == "committed"


class StepGroup(Group):
    """The members of a step's epoch, for as long as its body runs.

    While a member learns the state (`items` of Session), `contributors` are fewer than `size`, and what the others add must be
    zero. `place` is that among the contributors, 0 where this process is none; `items` says how many it has of its state."""

    def __init__(self, told):
        self._handle, self.rank, self.size, self.step, self.epoch = told.group, told.rank, told.size, told.step, told.epoch
        self.contributors, self.place, self.contributes, self.items = told.contributors, max(told.place, 0), told.place >= 0, told.items

    def close(self):
        self._handle = None


class Coordinator:
    """Issues a group's epochs, in a thread of its own until close(); started again with its log, it goes on.

    With `folder`, made by `motley group create`, group and token are that group's, connections are under TLS, and who shows
    the token gets a certificate."""

    def __init__(self, log_file, *, group="group", listen="127.0.0.1:0", token="", minimum_size=1, folder=None):
        error = ctypes.create_string_buffer(512)
        options = _CoordinatorOptions(group.encode(), listen.encode(), token.encode(), str(log_file).encode(), minimum_size,
                                      str(folder).encode() if folder else None)  # fmt: skip
        self._handle = _library.motley_coordinate(byref(options), error, len(error))
        if not self._handle:
            raise OSError(error.value.decode())
        self.address = _library.motley_coordinator_address(self._handle).decode()

    def close(self):
        handle, self._handle = self._handle, None
        if handle:
            _library.motley_stop_coordinator(handle)


class Session:
    """Steps of a group whose members come and go.

    `state`, where members have one, is an object with save() -> bytes and load(bytes): a member that joins, or has
    fallen behind, gets the state of the others before its first step.

    `items`, in place of it, is an object with count, save(item) -> bytes and load(item, bytes). A joiner takes part in the
    steps at once and is given some items before each, for a `share` of the steps' time (motley/comm/session/state_slices.hpp says
    what the program promises by that; StepGroup, what it has to do).

    `listen` is an address that the others can dial, or a relay (by default from MOTLEY_LISTEN, or on this machine alone).
    `credentials` (by default from the environment) are needed where members or coordinators are on other machines; group,
    token and id that are not given are taken from there."""

    def __init__(self, coordinators, *, group=None, token=None, id=None, listen=None, state=None,
                 items=None, share=0.08, give_bytes_per_s=0.0, take_bytes_per_s=0.0, credentials=None):  # fmt: skip
        given = credentials or Credentials.from_environment()
        listen = listen or os.environ.get("MOTLEY_LISTEN", "127.0.0.1:0")
        group, token, id = group or given.group or "group", token or given.token or "", id or given.name
        self._memory, self._raised = None, None
        # ctypes keeps no callback alive.
        types = dict(_State._fields_)
        self._state = _State(None, types["save"](lambda _, size: self._save(size, state.save)),
                             types["place"](lambda _, size: self._place(size)),
                             types["load"](lambda _: self._load(state.load)))  # fmt: skip
        count, types = items.count if items is not None else 0, dict(_Items._fields_)
        self._items = _Items(None, count, types["save"](lambda _, item, size: self._save(size, items.save, item)),
                             types["place"](lambda _, item, size: self._place(size)),
                             types["load"](lambda _, item: self._load(items.load, item)), share)  # fmt: skip
        options = _SessionOptions(",".join(coordinators).encode(), group.encode(), token.encode(), id.encode() if id else None,
                                  listen.encode(), ctypes.pointer(self._state) if state is not None else None, give_bytes_per_s,
                                  take_bytes_per_s, *given._tls(), ctypes.pointer(self._items) if items is not None else None)  # fmt: skip
        error = ctypes.create_string_buffer(512)
        self._handle = _library.motley_open_session(byref(options), error, len(error))
        if not self._handle:
            raise OSError(error.value.decode())

    def _save(self, size, save, *item):
        try:
            self._memory = ctypes.create_string_buffer(save(*item))
        except BaseException as error:  # noqa: BLE001 - raised by run()
            self._raised = error
            return None
        size[0] = len(self._memory) - 1  # without the zero that ctypes puts behind
        return ctypes.addressof(self._memory)

    def _place(self, size):
        self._memory = ctypes.create_string_buffer(size)
        return ctypes.addressof(self._memory)

    def _load(self, load, *item):
        try:
            load(*item, self._memory.raw)
        except BaseException as error:  # noqa: BLE001 - raised by run()
            self._raised = error
            return 1
        self._memory = None
        return 0

    def run(self, body, timeout_s=60.0):
        """The group's next step: body(group) is called until the step is committed; what it raises ends the attempt, and is
        raised here unless it is a CollectiveError, after which the step is tried again with those that are left."""

        def run(_user, told, outcome):
            try:
                body(StepGroup(told[0]))
                outcome[0].status = 0
            except CollectiveError as error:
                outcome[0].status = STATUSES.index(error.status)
                outcome[0].cause = error.cause.encode()[:511]
                outcome[0].suspect_count = min(len(error.suspects), 16)
                outcome[0].suspects[: outcome[0].suspect_count] = error.suspects[:16]
            except BaseException as error:  # noqa: BLE001 - raised below
                self._raised = error
                outcome[0].status = STATUSES.index("invalid")
                outcome[0].cause = repr(error).encode()[:511]

        result = _SessionOutcome()
        _library.motley_run_step(self._handle, _BODY(run), None, timeout_s, byref(result))
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        return SessionOutcome(SESSION_STATUSES[result.status], result.step, result.epoch, result.members, result.attempts,
                              result.cause.decode(errors="replace"))  # fmt: skip

    def leave(self, timeout_s=10.0):
        """Waits until the others can go on without this process; whether they do."""
        return bool(_library.motley_leave(self._handle, timeout_s))

    def close(self):
        handle, self._handle = self._handle, None
        if handle:
            _library.motley_close_session(handle)
