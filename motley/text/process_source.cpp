#include "motley/text/codec_source.hpp"

namespace motley {

// What a process of Python runs from its start on. A message is a head and parts, as text_processes.cpp has it.
const char* const process_source = R"py(
import os
import resource
import signal
import socket
import struct

HEAD = struct.Struct("=IIdQ")  # parts, their bytes with their lengths; limits: seconds, bytes of memory

# Ctrl-C and service managers mean motley, with which this process ends.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)


class InputError(Exception):
    def __init__(self, message, hint):
        super().__init__(message)
        self.hint = hint


def load(*sources):
    for source in sources:
        exec(source, globals())
    return []


METHODS = {b"load": load}


def receive(connection):
    head, passed, _, _ = socket.recv_fds(connection, HEAD.size, 1, socket.MSG_WAITALL)
    if len(head) < HEAD.size:
        os._exit(0)
    count, size, seconds, memory = HEAD.unpack(head)
    body = connection.recv(size, socket.MSG_WAITALL)
    if len(body) < size:
        os._exit(0)
    parts, at = [], 4 * count
    for length in struct.unpack_from(f"={count}I", body):
        parts.append(body[at:at + length])
        at += length
    return parts, passed, seconds, memory


def send(connection, parts):
    lengths = [len(part) for part in parts]
    head = HEAD.pack(len(parts), 4 * len(parts) + sum(lengths), 0, 0)
    connection.sendall(b"".join([head, struct.pack(f"={len(parts)}I", *lengths), *parts]))


def answer(method, *arguments):
    """Of a failure the kind, the message and the hint; otherwise an empty kind and what the method gives."""
    try:
        return [b"", *METHODS[method](*arguments)]
    except InputError as error:
        failure = "input", error, error.hint
    except UnicodeError as error:
        failure = "input", f"the text is not valid UTF-8: {error}", "encode it as UTF-8 before it is sent"
    except ImportError as error:
        failure = "packages", error, ""
    except MemoryError:
        failure = "memory", "", ""
    except Exception as error:
        failure = "internal", f"text codec: {method.decode()}: {type(error).__name__}: {error}", ""
    except BaseException as error:  # a panic of the library, such as of a regular expression that gives up
        failure = "input", f"the tokenizer fails: {error}", "copy it again from where the model came from"
    return [str(part).encode(errors="replace") for part in failure]


def memory_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def serve(connection):
    at_start = 0
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    while True:
        parts, passed, seconds, memory = receive(connection)
        if passed:  # the connection of a copy
            if os.fork() == 0:
                os.dup2(1, 2)  # from here on strangers' texts are at work, which are not to be heard
                connection.close()
                connection = socket.socket(fileno=passed[0])
                at_start = memory_bytes()
            else:
                os.close(passed[0])
            continue
        if seconds > 0:
            limit = at_start + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit if most < 0 else min(limit, most), most))
            signal.setitimer(signal.ITIMER_REAL, seconds)  # its signal is not handled, which ends the process
        reply = answer(*parts)
        signal.setitimer(signal.ITIMER_REAL, 0)
        send(connection, reply)


try:
    serve(connection)
except OSError:  # motley has gone
    pass
)py";

}  // namespace motley
