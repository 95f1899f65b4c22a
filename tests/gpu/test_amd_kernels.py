"""The kernels' source compiles for AMD's devices, by clang alone, and some of them take no more registers than were
recorded. None was ever run."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLANG = shutil.which("clang++")
DEVICES = ["gfx90a", "gfx1030"]  # waves of 64 lanes and of 32
RECORDED = Path(__file__).with_name("amd_registers.json")  # by device and kernel: the most vector registers, and the most of them spilled
GROWTH = 1.25  # which another compiler may cause; of none spilled it leaves none
KERNELS = ["attention", "draw", "experts", "int8_rows", "products", "rows"]

pytestmark = pytest.mark.skipif(CLANG is None, reason="needs clang++, as fuzzing does")


def compile_for(device, source, *options):
    command = [CLANG, "-x", "hip", "--cuda-device-only", "-nogpuinc", "-nogpulib", f"--offload-arch={device}", "-std=c++20", "-I", ROOT, *options, "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stderr[:6000]
    return result.stdout


def kernels_of(assembly):
    """(vector registers, of them spilled) of each kernel, by name."""
    found = {}
    for entry in assembly[assembly.index(".amdgpu_metadata"):].split("\n  - .args")[1:]:
        name, used, spilled = (re.search(rf"^ +\.{key}: +(\S+)", entry, re.M)[1] for key in ("symbol", "vgpr_count", "vgpr_spill_count"))
        found[name] = int(used), int(spilled)
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_all_kernels_compile(device):
    compile_for(device, "".join(f'#include "motley/engine/cuda/{name}.cuh"\n' for name in KERNELS), "-fsyntax-only")


# Products with weights of one type: those of all take most of a minute.
OF_ONE_TYPE = """
#include "motley/engine/cuda/quantised_groups.cuh"
template <class Run>
int with_one_kind(motley::cuda::WeightKind, const Run& run) {
  return run(std::integral_constant<motley::cuda::WeightKind, motley::cuda::WeightKind::q4_k>{});
}
#define with_quantised_kind with_one_kind
"""


# The kernels of `norm` and `attend`, and those of `product` that need no tensor cores.
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("header, kernel", [("rows", "norm_kernel"), ("attention", "attend_kernel"), ("quantised_dots", "multiply_quantised")])
def test_registers_are_no_more_than_recorded(device, header, kernel):
    before = OF_ONE_TYPE if header == "quantised_dots" else ""
    assembly = compile_for(device, f'{before}#include "motley/engine/cuda/{header}.cuh"\n', "-O1", "-Wno-pass-failed", "-S", "-o", "-")
    found = {name: counts for name, counts in kernels_of(assembly).items() if kernel in name}
    assert found and all(0 < used <= 512 for used, _ in found.values())
    most = dict(zip(("registers", "spilled"), map(max, zip(*found.values()))))
    recorded, name = json.loads(RECORDED.read_text()), f"{device} {kernel}"
    if os.environ.get("MOTLEY_UPDATE_REGISTERS"):
        lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted((recorded | {name: most}).items()))
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    hint = f"where that is meant, MOTLEY_UPDATE_REGISTERS=1 pytest {Path(__file__).relative_to(ROOT)} records these"
    assert all(most[what] <= GROWTH * recorded[name][what] for what in most), f"{name} takes {most}, more than the recorded {recorded[name]}: {hint}"


def test_a_worker_opens_the_library_of_amds_devices_where_there_is_no_other(motley, tmp_path):
    def listed(**environment):
        return subprocess.run([motley.parent / "motley-worker", "--devices"], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}).stdout

    missing = listed()
    if "cannot open LibTorch's library for GPUs" not in missing:
        pytest.skip("LibTorch has a library for NVIDIA's devices here")
    assert "libtorch_hip.so" in missing
    subprocess.run([CLANG, "-shared", "-x", "c", "/dev/null", "-o", tmp_path / "libtorch_hip.so"], check=True)
    assert "cannot open LibTorch" not in listed(LD_LIBRARY_PATH=str(tmp_path))
