"""`motley cluster probe --members`: links measured between processes of one machine, and on a network with known rates."""

import json
import socket
import subprocess
import sys

import pytest

import test_networks as networks


def addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    members = ",".join(f"127.0.0.1:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    return members


def probe(motley, members, count, *options, per_rank=None, seconds="0.5"):
    """(exit code, stdout, stderr) of every member."""
    per_rank = per_rank or {}
    command = [motley, "cluster", "probe", "--members", members, "--wait", "30"]
    processes = [
        subprocess.Popen([*command, "--rank", str(rank), *per_rank.get(rank, ["--seconds", seconds]), *options],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(count)
    ]  # fmt: skip
    try:
        return [(*process.communicate(timeout=60), process.returncode)[::-1] for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_planner_reads_what_three_members_measured(motley, tmp_path, transport):
    file = tmp_path / "probed.toml"
    results = probe(motley, addresses(3), 3, "--transport", transport, "--names", "a,b,c", "-o", file, "--json")
    assert [code for code, *_ in results] == [0, 0, 0], results
    assert [out for _, _, out in results[1:]] == ["", ""]  # rank 0 alone reports
    assert "bandwidth of every pair" in results[0][1] and f"wrote {file}" in results[0][1]
    measured = json.loads(results[0][2])["measured"]
    assert measured["machines"] == ["a", "b", "c"] and measured["date"].endswith("UTC")
    assert {(link["from"], link["to"]) for link in measured["links"]} == {(a, b) for a in range(3) for b in range(3) if a != b}
    for link in measured["links"]:
        assert 0 < link["latency_s"] < 1 and link["bytes_per_s"] > 1e5
    assert [total["phase"] for total in measured["totals"]] == ["spread"] * 3 + ["incast"] * 3 + ["pairs"] * 3 + ["all"]
    for sample in measured["samples"]:
        assert all(flow["bytes"] > 0 and flow["seconds"] > 0 for flow in sample["flows"])

    subprocess.run([motley, "cluster", "check", file], check=True, capture_output=True, timeout=60)
    planned = subprocess.run([motley, "plan", "allreduce", "--cluster", file, "--bytes", "4 MB", "-q", "--json"], check=True,
                             capture_output=True, text=True, timeout=60)  # fmt: skip
    plan = json.loads(planned.stdout)
    assert plan["ranks"] == 3 and plan["predicted"]["pipelined_s"] > 0
    if not measured["tree"]["fits"] or measured["tree"]["uplinks"]:
        return
    # On a switch with these ports the limit is known (gentree's closed form).
    ports = measured["tree"]["ports"]
    for way in ("up_bytes_per_s", "down_bytes_per_s"):
        assert plan["predicted"]["limit_s"] >= 0.95 * 4e6 * max(4 / sum(p[way] for p in ports), 1 / min(p[way] for p in ports))


def test_only_measured_links_change(motley, tmp_path):
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(
        'format = "motley.cluster/1"\n[[machine]]\nname = "x"\ncount = 2\ndevices = ["RTX 3090*2"]\n'
        'link = { latency = "3 us", bandwidth = "11 GB/s" }\n[[link]]\nbetween = ["x-1", "x-0"]\nlatency = "9 s"\nbandwidth = "1 B/s"\n'
    )
    file = tmp_path / "probed.json"
    results = probe(motley, addresses(2), 2, "--cluster", cluster, "-o", file, "-q")
    assert [code for code, *_ in results] == [0, 0], results
    probed = json.loads(file.read_text())
    assert probed["machine"][0]["devices"] == ["RTX 3090*2"] and probed["machine"][0]["link"]["bandwidth"] == "11 GB/s"
    assert len(probed["link"]) == 1 and probed["link"][0]["latency"] != "9 s"
    subprocess.run([motley, "plan", "allreduce", "--cluster", file, "--bytes", "4 MB", "-q"], check=True, capture_output=True, timeout=60)


def test_members_with_other_options_are_named(motley):
    results = probe(motley, addresses(2), 2, per_rank={0: ["--seconds", "1"], 1: ["--seconds", "2"]})
    assert all(code == 5 and "member 1 wants to measure for 2 s, member 0 for 1 s" in err for code, err, _ in results), results
    results = probe(motley, addresses(2), 2, "--seconds", "1", per_rank={0: ["--transport", "tcp"], 1: []})
    assert all(code == 5 and "member 1 has other options" in err for code, err, _ in results), results


def test_a_member_that_does_not_come_is_named(motley):
    members = addresses(2)
    result = subprocess.run([motley, "cluster", "probe", "--members", members, "--rank", "0", "--wait", "0.5"], capture_output=True, text=True,
                            timeout=30)  # fmt: skip
    assert result.returncode == 4 and f'rank 1 ("1" at {members.split(",")[1]}) did not connect' in result.stderr
    assert "hint: start the same command on every member" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--rank", "0"], "--rank needs --members"),
        (["--members", "127.0.0.1:1,127.0.0.1:2"], "needs --rank"),
        (["--members", "127.0.0.1:1,127.0.0.1:2", "--rank", "2"], "--rank must be less than the number of members, found 2 of 2"),
        (["--members", "127.0.0.1:1", "--rank", "0"], "names 1 addresses"),
        (["--members", "127.0.0.1:1,127.0.0.1:1", "--rank", "0"], "twice"),
        (["--members", "127.0.0.1,127.0.0.1:1", "--rank", "0"], "127.0.0.1"),
        (["--members", "127.0.0.1:1,127.0.0.1:2", "--rank", "0", "--names", "a"], "1 names for 2 members"),
        (["--members", "127.0.0.1:1,127.0.0.1:2", "--rank", "0", "--model", "llama-3-8b"], "measure workers"),
        (["--members", "127.0.0.1:1,127.0.0.1:2", "--rank", "0", "--seconds", "0"], "--seconds"),
        (["--members", "127.0.0.1:1,127.0.0.1:2", "--rank", "0", "--cluster", "examples/collectives/star.toml"], "2 members for 8 machines"),
        (["--members", "127.0.0.1:1,127.0.0.1:2", "--rank", "0", "-o", "/no/folder/x.toml"], "/no/folder"),
    ],
)
def test_bad_input_is_named(motley, arguments, cause):
    result = subprocess.run([motley, "cluster", "probe", *arguments], capture_output=True, text=True, timeout=30, cwd=networks.ROOT)
    assert result.returncode in (2, 3) and cause in result.stderr, result.stderr


@networks.needs_namespaces
def test_a_long_link_is_measured_at_its_rate(motley, tmp_path):
    """500 Mbit/s over 25 ms each way: streams take eight round trips to fill it."""
    members = ",".join(f"10.9.0.{rank + 1}:4600" for rank in range(2))
    command = [motley, "cluster", "probe", "--plain", "--seconds", "0.5", "--rank", "{rank}", "--members", members, "--json", "-q"]
    network = ["wan", "--ranks", "2", "--rate", "500mbit", "--delay", "25ms", "--loss", "0"]
    result = subprocess.run([sys.executable, networks.NETWORK / "networks.py", *network, "--", *map(str, command)],
                            capture_output=True, text=True, timeout=120)  # fmt: skip
    assert result.returncode == 0, result.stderr
    for link in json.loads(networks.of_rank(0, result.stdout))["measured"]["links"]:
        assert 0.024 < link["latency_s"] < 0.04, link
        assert 0.5 * 62.5e6 < link["bytes_per_s"] < 1.3 * 62.5e6, link


@networks.needs_namespaces
def test_a_star_is_found(motley, tmp_path):
    """Faster than asked is impossible beyond what a bucket lets through at once; much slower, a busy machine."""
    file = tmp_path / "star.toml"
    script = tmp_path / "probe.sh"
    script.write_text(
        f'[ $1 = 0 ] && set -- "$@" --json -q\nrank=$1 all=$2; shift 2\n'
        f'exec {motley} cluster probe --plain --seconds 6 -o {file} --rank $rank --members "$(echo $all | sed "s/,/:4600,/g"):4600" "$@"\n'
    )
    command = [sys.executable, networks.NETWORK / "networks.py", "star", "40mbit", "40mbit", "10mbit", "--", "sh", script, "{rank}", "{addresses}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    measured = json.loads(networks.of_rank(0, result.stdout))["measured"]
    for link in measured["links"]:
        asked = 1.25e6 if 2 in (link["from"], link["to"]) else 5e6
        assert 0.5 * asked < link["bytes_per_s"] < 1.15 * asked, link
    subprocess.run([motley, "plan", "allreduce", "--cluster", file, "--bytes", "4 MB", "-q"], check=True, capture_output=True, timeout=60)
