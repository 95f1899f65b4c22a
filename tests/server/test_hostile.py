"""Clients that harm: silent, slow, flooding, malformed, many. What they may cost in memory, descriptors, threads and the wait of others."""

import contextlib
import http.client
import json
import os
import random
import resource
import socket
import threading
import time
from pathlib import Path

import pytest
from processes import children, kill

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "data" / "models" / "tales"
MIB = 1 << 20
PER_ADDRESS = 512  # connections without a whole request: the server's default
BODIES = 128 * MIB  # of requests that are being read
LONGEST_WAIT_S = 20  # of others; they take milliseconds, and more than this only if they hang


@pytest.fixture(scope="module")
def server(start_server):
    running = start_server("--cluster", ROOT / "tests" / "server" / "cluster.toml", "--model", MODEL, "--api-key", "sesame")
    ask(running)
    return running


def ask(server):
    """An honest client's request, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LONGEST_WAIT_S)
    with contextlib.closing(connection):
        body = json.dumps({"prompt": "Once", "max_tokens": 4, "ignore_eos": True})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "Authorization": "Bearer sesame"})
        answer = connection.getresponse()
        assert answer.status == 200 and json.load(answer)["usage"]["completion_tokens"] == 4


def vitals(server):
    """Bytes of memory, descriptors, threads."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) * 1024, len(os.listdir(f"/proc/{server.process.pid}/fd")), int(status["Threads"])


@contextlib.contextmanager
def bounded(server, memory, descriptors):
    """So much more while it lasts, and no thread; afterwards the descriptors are given back."""
    before = vitals(server)

    def check():
        now = vitals(server)
        assert now[0] - before[0] < memory and now[1] - before[1] <= descriptors and now[2] <= before[2], (before, now)

    yield check
    check()
    ask(server)
    until = time.monotonic() + LONGEST_WAIT_S
    while vitals(server)[1] > before[1] + 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert vitals(server)[1] <= before[1] + 2


@contextlib.contextmanager
def connections(server, count, first=b""):
    """This many, each of which sends this and no more; those that the server has closed are not opened again."""
    opened = []
    try:
        for _ in range(count):
            opened.append(socket.create_connection(("127.0.0.1", server.port), LONGEST_WAIT_S))
            with contextlib.suppress(OSError):
                opened[-1].sendall(first)
        yield opened
    finally:
        for each in opened:
            each.close()


@pytest.mark.parametrize("first", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: loc"], ids=["silent", "slow header"])
def test_those_that_do_not_finish_make_room(server, first):
    with bounded(server, 64 * MIB, PER_ADDRESS + 8) as check, connections(server, PER_ADDRESS + 200, first) as opened:
        for _ in range(5):
            ask(server)
            check()
        opened[0].settimeout(LONGEST_WAIT_S)
        with contextlib.suppress(ConnectionError):
            assert opened[0].recv(1) == b""  # the oldest was closed
        with connections(server, 4, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as others:
            assert all(other.recv(12) == b"HTTP/1.1 200" for other in others)


def test_bodies_that_do_not_end_are_bounded(server):
    """Each of 48 sends most of the 8 MiB that it may: three times of what all may have together."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 8000000\r\n\r\n"
    with bounded(server, BODIES + 64 * MIB, 60) as check, connections(server, 48, head) as opened:
        piece = b"x" * MIB
        for _ in range(7):
            for each in opened:
                with contextlib.suppress(OSError):
                    each.sendall(piece)
            check()
        for _ in range(3):
            ask(server)
            check()


def test_answers_that_nobody_reads_are_bounded(server):
    requests = b"GET /plan HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sesame\r\n\r\n" * 200
    with bounded(server, 64 * MIB, 40) as check, connections(server, 32, requests):
        for _ in range(5):
            ask(server)
            check()


def test_a_flood_of_connections_holds_nobody_up(server):
    stop = threading.Event()

    def flood(number):
        draw = random.Random(number)
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), LONGEST_WAIT_S) as each:
                each.sendall(draw.choice([b"", b"GET", draw.randbytes(300), b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n"]))

    with bounded(server, 64 * MIB, PER_ADDRESS + 40) as check:
        floods = [threading.Thread(target=flood, args=(number,)) for number in range(4)]
        for each in floods:
            each.start()
        try:
            for _ in range(10):
                ask(server)
                check()
        finally:
            stop.set()
            for each in floods:
                each.join()


def test_malformed_requests_are_refused(server):
    draw = random.Random(5)
    good = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
    inputs = [bytes(draw.choice((byte, draw.randrange(256))) if draw.random() < 0.1 else byte for byte in good) for _ in range(150)]
    inputs += [draw.randbytes(draw.randrange(1, 400)) for _ in range(150)]
    inputs += [b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
               b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10000, b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n"]
    with bounded(server, 32 * MIB, 40):
        for each in inputs:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), LONGEST_WAIT_S) as client:
                client.sendall(each)
                client.shutdown(socket.SHUT_WR)
                answer = b""
                while received := client.recv(65536):
                    answer += received
                assert answer == b"" or b"HTTP/1.1 4" in answer[:12] or answer.startswith(b"HTTP/1.1 2"), (each, answer)
                assert b"HTTP/1.1 5" not in answer, (each, answer)


def test_many_leave_descriptors_for_workers(server):
    """Of 200 descriptors a quarter is left: a worker that dies is started again while connections would take all."""
    pid = server.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        with bounded(server, 64 * MIB, 150) as check, connections(server, 400):
            assert vitals(server)[1] <= 150
            check()
            worker = children(pid)[0]
            kill(worker)
            ask(server)
            assert vitals(server)[1] <= 170
        server.workers = children(pid)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
