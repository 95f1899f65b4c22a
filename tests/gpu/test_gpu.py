"""The checks on a GPU, as far as they go without one: the list, the refusal, and that a failed check ends nothing."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench/gpu"))
import checks  # noqa: E402
import run  # noqa: E402


def call(*arguments, program=sys.executable):
    return subprocess.run([program, ROOT / "bench/gpu/run.py", *arguments], capture_output=True, text=True, timeout=60)


def test_a_dry_run_lists_every_check():
    result = subprocess.run([ROOT / "dev", "gpu", "--dry-run"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == len(checks.ALL)
    for line, check in zip(lines, checks.ALL):
        assert line.split()[0] == check.name and check.shows in line
    assert {"parity", "pipeline", "8b", "1b", "memory", "nccl", "serve", "probe"} <= {check.name for check in checks.ALL}


def test_without_a_gpu_it_says_what_is_missing(tmp_path):
    result = call("--out", tmp_path)
    assert result.returncode == 3
    assert "error: " in result.stderr and "hint: " in result.stderr
    assert not list(tmp_path.iterdir())
    assert call("--only", "nothing").returncode == 2


def test_a_failed_check_is_noted_and_the_next_one_runs(tmp_path):
    def fails(context, rows):
        rows.append(("before it failed", "1", ""))
        raise RuntimeError("a cause\nof two lines")

    def passes(context, rows):
        rows.append(("speed", "2 tokens/s", "3"))

    context = checks.Context(ROOT, tmp_path, "cpu")
    context.machine = "a card, a date"
    selected = [checks.Check("one", "", 5, fails), checks.Check("two", "", 5, passes), checks.Check("three", "", 500, passes)]
    results = run.run(selected, context, minutes=1)
    context.close()
    assert [(name, error and error[:11]) for name, _, error, _ in results] == [("one", "a cause\nof "), ("two", None), ("three", "not started")]
    table = (tmp_path / "table.md").read_text().splitlines()
    assert table[0] == "a card, a date"
    assert "| one | before it failed | 1 |  |" in table
    assert "| one | **failed** | a cause of two lines | |" in table
    assert "| two | speed | 2 tokens/s | 3 |" in table


LLAMA_CPP = """#!/bin/sh
[ "$1 $3 $5 $7" = "-m -ngl -npp -ntg" ] || exit 1
echo "main: n_kv_max = 1"
for batch in $(echo "${10}" | tr , ' '); do echo "{\\"pp\\": $6, \\"tg\\": 32, \\"pl\\": $batch, \\"speed_pp\\": $6.5, \\"speed_tg\\": $batch.5}"; done
"""


def test_figures_of_llama_cpp_are_read(tmp_path):
    context = checks.Context(ROOT, tmp_path, "cpu", tmp_path)
    program = tmp_path / "llama-batched-bench"
    program.write_text(LLAMA_CPP)
    program.chmod(0o755)
    loads = [(16, 128), (64, 128), (1, 512)]
    assert checks.with_llama_cpp(context, tmp_path / "x.gguf", loads) == {(16, 128): (16.5, 128.5), (64, 128): (64.5, 128.5), (1, 512): (1.5, 512.5)}
    program.write_text("#!/bin/sh\necho no memory >&2; exit 3")
    try:
        checks.with_llama_cpp(context, tmp_path / "x.gguf", loads)
        raise AssertionError("no error")
    except RuntimeError as error:
        assert "ended with 3: no memory" in str(error)
    context.llama_cpp = None
    assert checks.with_llama_cpp(context, tmp_path / "x.gguf", loads) == {}
    context.close()


def test_llama_cpp_is_built_for_a_card(tmp_path):
    """By a compiler that only says what it was asked."""
    (tmp_path / "cache/llama_cpp_python-0/vendor/llama.cpp").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    cmake = tmp_path / "bin/cmake"
    command = [sys.executable, ROOT / "bench/decode/llama_cpp_build.py", "--cuda", tmp_path, "--architecture", "90", "--out", tmp_path / "out",
               "--cache", tmp_path / "cache"]  # fmt: skip

    def build(script):
        cmake.write_text(f"#!/bin/sh\n{script}")
        cmake.chmod(0o755)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})

    refused = build("echo no compiler >&2; exit 1")
    assert refused.returncode == 1 and "no compiler" in refused.stderr and not (tmp_path / "out").exists()
    made = tmp_path / "cache/llama.cpp-build-cuda-90/bin"
    result = build(f'echo "$@" >> {tmp_path}/asked; mkdir -p {made}; touch {made}/llama-batched-bench')
    assert result.returncode == 0, result.stderr
    asked = (tmp_path / "asked").read_text()
    assert "-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90 " in asked and "--target llama-batched-bench" in asked
    assert (tmp_path / "out/llama-batched-bench").exists()


def test_models_of_random_weights_have_the_names_that_are_read(motley, tmp_path):
    sys.path.append(str(ROOT / "bench/decode"))
    context = checks.Context(ROOT, tmp_path, "cpu")
    words = ["model", "quantize", checks.make_model(context, "small"), "--type", "q8_0", "-q", "-o", tmp_path / "small.gguf"]
    result = subprocess.run([motley, *words], capture_output=True, text=True, timeout=60)
    context.close()
    assert result.returncode == 0, result.stderr


def test_prefill_counts_the_operations_of_a_published_shape():
    config = checks.SHAPES["8b"]
    # 6.98 billion parameters in the blocks, two operations each, and half of all pairs of tokens.
    assert abs(checks.prefill_flops(config, 1) / (2 * 6.98e9) - 1) < 0.01
    assert checks.prefill_flops(config, 2048) > 2 * 6.97e9 * 2048
    assert checks.read_weights(config, 16_060_522_496) == 16_060_522_496 - 2 * 128256 * 4096
