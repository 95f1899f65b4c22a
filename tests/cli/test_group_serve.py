"""`motley group serve` explains itself, says what is wrong with its arguments, and ends in order."""

import signal
import subprocess


def run(motley, folder, *arguments):
    return subprocess.run([str(motley), "group", "serve", *arguments], cwd=folder, capture_output=True, text=True, timeout=60)


def test_help_teaches(motley, tmp_path):
    shown = run(motley, tmp_path, "--help").stdout
    for word in ("--store", "--minimum-size", "--token-file", "etcd://", "examples:"):
        assert word in shown


def test_what_cannot_work_is_named(motley, tmp_path):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "text").write_text("x" * 5000)
    for arguments, code, words in (
        (["--listen", "0.0.0.0:0"], 2, "has no certificate"),
        (["--listen", "nowhere"], 2, "is not an address"),
        (["--token-file", "absent"], 2, "absent: cannot be read"),
        (["--token-file", "empty"], 2, "is empty"),
        (["--store", "text"], 2, "is not a log of a coordinator"),
        (["--store", "absent/log"], 3, "cannot be opened"),
        (["--store", "etcd://127.0.0.1:1/x"], 3, "does not answer"),
        (["--quorum", "some"], 2, "some"),
    ):
        result = run(motley, tmp_path, "--store", "log", *arguments) if "--store" not in arguments else run(motley, tmp_path, *arguments)
        assert result.returncode == code, result.stderr
        assert words in result.stderr


def test_it_serves_alone_on_its_log_and_ends_in_order(motley, tmp_path):
    command = [str(motley), "group", "serve", "--listen", "127.0.0.1:0", "--store", "log"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        address = first.stdout.readline().strip()
        assert address.startswith("127.0.0.1:")
        second = run(motley, tmp_path, "--listen", "127.0.0.1:0", "--store", "log")
        assert second.returncode == 5
        assert "another coordinator holds the log" in second.stderr
        taken = run(motley, tmp_path, "--listen", address, "--store", "another")
        assert taken.returncode == 3
        first.send_signal(signal.SIGTERM)
        assert first.wait(timeout=30) == 0
        assert "serving group=" in first.stderr.read()
