"""`motley group` and what stands on it: the commands of docs/guides/across-sites.md, run where both sites are the loopback."""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEMBER = """
import ctypes, sys
from motley.comm import Session

session = Session([sys.argv[1]])
for _ in range(3):
    total = (ctypes.c_float * 4)(1, 2, 3, 4)
    outcome = session.run(lambda group: group.all_reduce(ctypes.addressof(total), 16, "fp32"), float(sys.argv[2]))
    print(outcome.status, outcome.members, list(total), outcome.cause, flush=True)
    if not outcome.committed:
        sys.exit(3)
session.leave(10)
"""


def run(motley, folder, *arguments, code=0):
    result = subprocess.run([motley, *arguments], cwd=folder, capture_output=True, text=True, timeout=60)
    assert result.returncode == code, result.stdout + result.stderr
    return result


@pytest.fixture
def lab(motley, tmp_path):
    return json.loads(run(motley, tmp_path, "group", "create", "lab", "--group", "lab", "--json").stdout)


@pytest.fixture
def coordinate(motley, tmp_path):
    """coordinate(arguments...) -> address; the coordinators' logs, as one text, after stop()."""

    class Coordinators:
        def __init__(self):
            self.processes = []

        def start(self, *arguments):
            command = [motley, "group", "serve", "--listen", "127.0.0.1:0", "--store", f"log{len(self.processes)}", *arguments]
            self.processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
            return self.processes[-1].stdout.readline().strip()

        def stop(self):
            log = ""
            while self.processes:
                process = self.processes.pop()
                process.send_signal(signal.SIGTERM)
                log += process.communicate(timeout=30)[1]
                assert process.returncode == 0
            return log

    coordinators = Coordinators()
    yield coordinators
    coordinators.stop()


@pytest.fixture
def member(motley, tmp_path):
    """member(address, timeout_s, variables) starts a process of two in all; ended with the test."""
    library = motley.parent / "libmotley_comm.so"
    assert library.exists(), f"{library} is not built"
    processes = []

    def start(address, timeout_s=30, **variables):
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MOTLEY_")}
        environment |= {"PYTHONPATH": str(ROOT / "python"), "MOTLEY_COMM_LIBRARY": str(library), "MOTLEY_GROUP": "lab", **variables}
        command = [sys.executable, "-c", MEMBER, address, str(timeout_s)]
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def ended(process):
    out, errors = process.communicate(timeout=60)
    return process.returncode, out + errors


def test_help_teaches(motley, tmp_path):
    for verb in ([], ["create"], ["issue"], ["show"]):
        assert "examples:" in run(motley, tmp_path, "group", *verb, "--help").stdout
    for word in ("--folder", "--certificate-life"):
        assert word in run(motley, tmp_path, "group", "serve", "--help").stdout


def test_a_folder_holds_what_a_group_needs_and_keeps_its_secrets(motley, tmp_path, lab):
    assert (lab["group"], lab["issues"], lab["certificate"]["name"]) == ("lab", True, "coordinator")
    secrets = {"token", "key.pem", "authority-key.pem"}
    assert {file.name for file in (tmp_path / "lab").iterdir()} == secrets | {"authority.pem", "certificate.pem"}
    for name in secrets:
        assert (tmp_path / "lab" / name).stat().st_mode & 0o777 == 0o600
    shown = run(motley, tmp_path, "group", "show", "lab").stdout
    assert lab["authority"]["fingerprint"] in shown
    assert (tmp_path / "lab/token").read_text().strip() not in shown

    anna = json.loads(run(motley, tmp_path, "group", "issue", "lab", "anna", "--days", "7", "--json").stdout)
    assert (anna["folder"], anna["issues"], anna["certificate"]["name"]) == ("lab/members/anna", False, "anna")
    assert (tmp_path / "lab/members/anna/key.pem").stat().st_mode & 0o777 == 0o600
    assert anna["authority"] == lab["authority"]
    # Another implementation believes them, too.
    ssl.create_default_context(cafile=tmp_path / "lab/authority.pem").load_cert_chain(
        tmp_path / "lab/members/anna/certificate.pem", tmp_path / "lab/members/anna/key.pem")  # fmt: skip


def test_what_cannot_be_is_refused_and_leaves_everything_as_it_was(motley, tmp_path, lab):
    before = {file.name: file.read_bytes() for file in (tmp_path / "lab").iterdir()}
    for arguments, words in (
        (["create", "lab"], "already exists"),
        (["create", "new", "--group", "x" * 65], "a certificate cannot name"),
        (["issue", "lab", "../anna"], "a folder cannot be named"),
        (["issue", "lab", "anna", "--days", "0"], "--days"),
        (["issue", "lab", "anna", "-o", "lab"], "already exists"),
        (["issue", "absent", "anna"], "is not a group's folder"),
        (["show", "."], "is not a group's folder"),
    ):
        assert words in run(motley, tmp_path, "group", *arguments, code=2).stderr
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "lab").iterdir()}
    run(motley, tmp_path, "group", "issue", "lab", "anna")
    assert "does not have the authority's key" in run(motley, tmp_path, "group", "issue", "lab/members/anna", "ben", code=2).stderr
    assert 'names "anna", not "coordinator"' in run(motley, tmp_path, "group", "serve", "--folder", "lab/members/anna", code=2).stderr
    assert "excludes" in run(motley, tmp_path, "group", "serve", "--folder", "lab", "--token-file", "lab/token", code=2).stderr


def test_two_sites_meet_by_token_and_fingerprint(lab, coordinate, member):
    address = coordinate.start("--folder", "lab", "--minimum-size", "2")
    # What is carried to the other site: the token in a file, the fingerprint in a line of text.
    variables = {"MOTLEY_TOKEN": "lab/token", "MOTLEY_AUTHORITY": lab["authority"]["fingerprint"]}
    for process in [member(address, **variables), member(address, **variables)]:
        code, text = ended(process)
        assert code == 0, text
        assert text.splitlines() == ["committed 2 [2.0, 4.0, 6.0, 8.0] "] * 3
    assert coordinate.stop().count("certified member=") == 2


def test_members_that_only_dial_out_meet_at_the_relay(lab, coordinate, member):
    address = coordinate.start("--folder", "lab", "--minimum-size", "2", "--relay", "127.0.0.1:0")
    relay = coordinate.processes[-1].stdout.readline().strip()
    assert relay.startswith("relay:127.0.0.1:")
    # Their certificates come when they have met the coordinator; the relay is asked again until then.
    variables = {"MOTLEY_TOKEN": "lab/token", "MOTLEY_AUTHORITY": lab["authority"]["fingerprint"], "MOTLEY_LISTEN": relay}
    for process in [member(address, **variables), member(address, **variables)]:
        code, text = ended(process)
        assert code == 0, text
        assert text.splitlines() == ["committed 2 [2.0, 4.0, 6.0, 8.0] "] * 3
    # Here they share memory; tests/network/test_relay.py joins two that share nothing.
    assert coordinate.stop().count("listens mailbox=") >= 2


def test_certificates_made_by_hand_are_enough_where_none_are_issued(motley, tmp_path, lab, coordinate, member):
    for name in ("anna", "ben"):
        run(motley, tmp_path, "group", "issue", "lab", name)
    (tmp_path / "lab/authority-key.pem").rename(tmp_path / "kept-elsewhere.pem")
    address = coordinate.start("--folder", "lab", "--minimum-size", "2")
    processes = []
    for name in ("anna", "ben"):
        files = {"CERTIFICATE": "certificate.pem", "PRIVATE_KEY": "key.pem", "AUTHORITY": "authority.pem", "TOKEN": "token"}
        processes.append(member(address, **{f"MOTLEY_{key}": f"lab/members/{name}/{file}" for key, file in files.items()}))
    for process in processes:
        assert ended(process)[0] == 0
    stranger = member(address, 2, MOTLEY_TOKEN="lab/token", MOTLEY_AUTHORITY="lab/authority.pem")
    assert "certificate required" in ended(stranger)[1]


def test_strangers_are_told_why_and_named_in_the_log(motley, tmp_path, lab, coordinate, member):
    run(motley, tmp_path, "group", "create", "other", "--group", "lab")
    (tmp_path / "wrong").write_text("0" * 64 + "\n")
    address = coordinate.start("--folder", "lab")
    authority = lab["authority"]["fingerprint"]
    for variables, words in (
        ({"MOTLEY_TOKEN": "wrong", "MOTLEY_AUTHORITY": authority}, "the token is not this group's"),
        ({"MOTLEY_TOKEN": "lab/token", "MOTLEY_AUTHORITY": "other/authority.pem"}, "not from this group's authority"),
        ({"MOTLEY_TOKEN": "lab/token", "MOTLEY_AUTHORITY": authority, "MOTLEY_GROUP": "lob"}, 'serves group "lab", not "lob"'),
        ({"MOTLEY_TOKEN": "lab/token", "MOTLEY_AUTHORITY": authority[:-1]}, "is not a fingerprint"),
        ({"MOTLEY_TOKEN": "lab/token"}, "closed"),  # speaks without TLS to a coordinator that does not
    ):
        code, text = ended(member(address, 1.5, **variables))
        assert code != 0
        assert words in text
    honest = member(address, MOTLEY_TOKEN="lab/token", MOTLEY_AUTHORITY=authority)
    assert ended(honest)[0] == 0
    assert re.search(r'refused peer="127\.0\.0\.1:\d+" cause="the token is not this group\'s"', coordinate.stop())


def test_the_way_is_measured_under_tls(motley, tmp_path, lab):
    ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    members = ",".join(f"{name}=127.0.0.1:{port.getsockname()[1]}" for name, port in zip(("anna", "ben"), ports, strict=True))
    for port in ports:
        port.close()
    for name in ("anna", "ben"):
        run(motley, tmp_path, "group", "issue", "lab", name)

    def bench(name, rank):
        return [motley, "group", "bench", "--transport", "tcp", "--folder", f"lab/members/{name}", "--members", members, "--rank", str(rank),
                "--from", "64 KiB", "--to", "1 MiB", "--seconds", "0.01", "--json"]  # fmt: skip

    with subprocess.Popen(bench("ben", 1), cwd=tmp_path) as other:
        result = json.loads(run(motley, tmp_path, *bench("anna", 0)[1:]).stdout)
        assert other.wait(60) == 0
    assert result["tls"] is True
    assert all(size["wrong"] == 0 for size in result["sizes"])
    assert "--ranks starts several" in run(motley, tmp_path, "group", "bench", "--folder", "lab/members/anna", code=2).stderr
