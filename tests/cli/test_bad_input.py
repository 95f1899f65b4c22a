"""What cannot work is named, with the nearest thing that would; what is probably a wrong unit draws a warning."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BOX = ROOT / "examples/clusters/motivating-box.toml"
MODEL = "llama-2-70b"


@pytest.fixture
def run(motley, tmp_path):
    def run(words, *arguments):
        command = [str(motley), *words.split(), *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return run


def workload(folder, deadline="", rate="0.1 /s", prompt="512", arrival="", name="workload.toml"):
    (folder / name).write_text(
        f"""format = "motley.workload/1"
[[class]]
name = "chat"
{f'rate = "{rate}"' if rate else ""}
prompt_tokens = {prompt}
output_tokens = 64
{f"deadline = {{ {deadline} }}" if deadline else ""}
{arrival}
"""
    )
    return folder / name


def warnings_of(result):
    return [line for line in result.stderr.splitlines() if line.startswith("warning: ")]


# In a type that is served: the model's own is not, of which every plan warns.
def serve(run, file, *arguments):
    return run("plan serve --weight-type bf16 --deadline", "4 s", "--cluster", BOX, "--model", MODEL, "--workload", file, *arguments)


# ---- deadlines ----


@pytest.mark.parametrize("rate", ["0.1 /s", None])
def test_a_deadline_out_of_reach_names_the_nearest_that_would_work(run, tmp_path, rate):
    deadlines = {"first_token": "2 ms", "per_token": "1 ms"}
    text = ", ".join(f'{key} = "{value}"' for key, value in deadlines.items())
    result = serve(run, workload(tmp_path, text, rate))
    assert result.returncode == 0, result.stderr
    assert len(warnings_of(result)) == 2, result.stderr
    nearest = dict(re.findall(r'keeps the deadline (\w+) = .* that works is "(.*)"', result.stderr))
    assert set(nearest) == set(deadlines)
    assert 'class "chat"' in result.stderr
    # And each of them would.
    for key, value in nearest.items():
        again = serve(run, workload(tmp_path, f'{key} = "{value}"', rate), "--json")
        assert warnings_of(again) == [], again.stderr
        predicted = json.loads(again.stdout)["predicted"]
        assert rate is None or predicted["slo_attainment"] > 0.95


def test_a_deadline_that_is_kept_draws_no_warning(run, tmp_path):
    assert warnings_of(serve(run, workload(tmp_path, 'total = "1 h"'))) == []


# ---- classes that cannot be hosted ----


def test_a_class_beyond_the_models_context_is_named(run, tmp_path):
    file = workload(tmp_path, prompt="9000")
    for result in (serve(run, file), run("plan rent --model llama-2-70b --budget", "50 $/h", "--workload", file)):
        assert result.returncode == 2
        assert 'class "chat"' in result.stderr and "4096" in result.stderr
        assert "hint: " in result.stderr


def test_a_class_that_no_offer_can_host_is_named(run, tmp_path):
    (tmp_path / "market.toml").write_text(
        'format = "motley.offers/1"\n[types."RTX 4090"]\nprice = "0.5 $/h"\navailable = 2\n'
    )
    result = run("plan rent --model llama-2-70b --cheapest --offers market.toml --workload", workload(tmp_path))
    assert result.returncode == 1
    assert 'class "chat"' in result.stdout and "more memory, or more devices" in result.stdout


def test_a_budget_below_the_cheapest_useful_fleet_names_that(run, tmp_path):
    file = workload(tmp_path)
    result = run("plan rent --model llama-2-70b --workload", file, "--budget", "0.5 $/h")
    assert result.returncode == 1
    enough = re.search(r'give at least --budget "(.*)"', result.stdout).group(1)
    assert run("plan rent --model llama-2-70b --workload", file, "--budget", enough).returncode == 0


# ---- an isolated machine ----


def test_an_isolated_machine_is_named_with_the_link_that_is_missing(run, tmp_path):
    (tmp_path / "cluster.toml").write_text(
        'format = "motley.cluster/1"\n[[machine]]\nname = "a"\nsite = "home"\ndevices = ["A6000*4"]\n'
        '[[machine]]\nname = "b"\nsite = "away"\ndevices = ["A6000*4"]\n'
    )
    for result in (
        run("cluster check cluster.toml"),
        run("plan serve --cluster cluster.toml --model llama-2-70b"),
    ):
        assert result.returncode == 2
        assert '"home"' in result.stderr and '"away"' in result.stderr
        assert 'add [[link]] between = ["home", "away"]' in result.stderr


# ---- traces ----


@pytest.mark.parametrize(
    "lines, words",
    [
        (["arrival_s,prompt_tokens", "0,10"], ["`output_tokens` is missing", "the file has"]),
        (["prompt_tokens,output_tokens", "1,10"], ["`arrival_s` is missing"]),
        (
            ["arrival_s,prompt_tokens,output_tokens", "0,10,10", "5,10,10", "4,10,10"],
            ["trace.csv:4", "4 comes before the line above, 5", "sort the lines"],
        ),
        (["arrival_s,prompt_token,output_tokens", "0,10,10"], ["did you mean `prompt_tokens`?"]),
    ],
)
def test_a_wrong_trace_is_refused_with_its_place(run, tmp_path, lines, words):
    (tmp_path / "trace.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "traced.toml").write_text(
        'format = "motley.workload/1"\n[arrival]\nprocess = "trace"\nfile = "trace.csv"\n'
    )
    result = serve(run, tmp_path / "traced.toml")
    assert result.returncode == 2
    for word in [*words, "trace.csv", "hint: "]:
        assert word in result.stderr


# ---- units ----

PLAIN = """format = "motley.cluster/1"
[[machine]]
name = "box"
devices = ["fast*2", "A4000"]
link = { latency = "5 us", bandwidth = "24 GB/s" }
[[machine]]
name = "other"
devices = ["fast"]
[[device_type]]
name = "fast"
vendor = "nvidia"
memory = "80 GiB"
memory_bandwidth = "2 TB/s"
flops = { fp16 = "300 TFLOP/s" }
price = "2 $/h"
[[device_type]]
name = "A4000"
memory_bandwidth = "448 GB/s"
[network]
within_site = { latency = "0.2 ms", bandwidth = "10 Gbit/s" }
"""


@pytest.mark.parametrize(
    "right, wrong, words",
    [
        ("448 GB/s", "448 MB/s", ['memory_bandwidth of "A4000"', "448 MB/s", "catalogue has 448 GB/s"]),
        ("2 TB/s", "2 GB/s", ['memory_bandwidth of "fast"', "2 GB/s"]),
        ("2 TB/s", "2000 TB/s", ['memory_bandwidth of "fast"', "2000 TB/s"]),
        ("300 TFLOP/s", "300 GFLOP/s", ['flops.fp16 of "fast"', "0.3 TFLOP/s"]),
        ("80 GiB", "80 TiB", ['memory of "fast"', "80 TiB"]),
        ("2 $/h", "2000 $/h", ['price of "fast"', "2000 $/h"]),
        ("24 GB/s", "24 TB/s", ['inside machine "box"', "24 TB/s"]),
        ("24 GB/s", "24 MB/s", ['inside machine "box"', "24 MB/s"]),
        ("5 us", "5000 us", ['inside machine "box"', "5 ms"]),
        ("0.2 ms", "0.2 s", ["within_site", "0.2 s"]),
        ("10 Gbit/s", "10 kbit/s", ["within_site", "1250 B/s"]),
    ],
)
def test_a_figure_off_by_a_thousand_draws_a_warning_with_the_value_read(run, tmp_path, right, wrong, words):
    assert right in PLAIN
    (tmp_path / "cluster.toml").write_text(PLAIN.replace(right, wrong))
    result = run("cluster check cluster.toml")
    assert result.returncode == 0
    assert len(warnings_of(result)) == 1, result.stderr
    for word in words:
        assert word in result.stderr
    assert warnings_of(run("cluster check -q cluster.toml")) == []


def test_right_figures_draw_none(run, tmp_path):
    (tmp_path / "cluster.toml").write_text(PLAIN)
    assert warnings_of(run("cluster check cluster.toml")) == []
    for file in sorted(ROOT.glob("examples/*/*.toml")):
        if "[[machine]]" in file.read_text():
            drawn = warnings_of(run("cluster check", file))
            assert [line for line in drawn if "compute capability" not in line] == [], file  # of cards that are old indeed


def test_the_table_for_an_unknown_card_can_be_copied(run, tmp_path):
    text = 'format = "motley.cluster/1"\n[[machine]]\nname = "box"\ndevices = ["GTX 1070"]\n'
    (tmp_path / "cluster.toml").write_text(text)
    result = run("cluster check cluster.toml")
    assert result.returncode == 2
    hint, table = result.stderr.split("\n\n[[device_type]]\n")
    assert 'device type "GTX 1070" is unknown' in hint
    (tmp_path / "cluster.toml").write_text(text + "[[device_type]]\n" + table)
    assert run("cluster check cluster.toml").returncode == 0


def test_a_workload_in_wrong_units_draws_warnings(run, tmp_path):
    result = serve(run, workload(tmp_path, 'first_token = "2 us", per_token = "100 h"'))
    assert result.returncode == 0
    assert 'deadline.first_token of class "chat" is read as 2 us' in result.stderr
    assert 'deadline.per_token of class "chat" is read as 360000 s' in result.stderr


def test_what_a_terminal_would_obey_is_written_out(run, tmp_path):
    """Text of a file, in tables and errors alike; JSON has it as it is."""
    evil = "\\u001B]0;owned\\u0007\\u001B[2J\\nforged\\u202E"
    machine = '[[machine]]\nname = "box"\ndevices = ["A6000"]\n'
    (tmp_path / "named.toml").write_text(f'format = "motley.cluster/1"\nname = "{evil}"\n{machine}')
    (tmp_path / "broken.toml").write_text(f'format = "motley.cluster/1"\n{machine.replace("A6000", evil)}')
    shown, broken = run("cluster show named.toml"), run("cluster show broken.toml")
    assert (shown.returncode, broken.returncode) == (0, 2), shown.stderr + broken.stderr
    for text in (shown.stdout, broken.stderr):
        assert not set(text) & set("\x1b\x07\u202e") and "\nforged" not in text, text
    assert r"\x1b]0;owned\x07\x1b[2J\x0aforged\u202e" in shown.stdout
    assert json.loads(run("cluster show named.toml --json").stdout)["name"] == "\x1b]0;owned\x07\x1b[2J\nforged\u202e"
