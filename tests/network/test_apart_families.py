"""Models over two machines on the stand-in of a GPU: all families with `./dev test standins`, else one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import test_networks as networks

ROOT = Path(__file__).resolve().parents[2]
ALL = os.environ.get("MOTLEY_STANDINS") == "all"
if ALL:
    sys.path.append(str(ROOT / "tests/parity"))
    import models
FAMILIES = list(models.MODELS) if ALL else ["llama-gqa-llama3"]


@networks.needs_namespaces
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_over_two_machines_says_what_the_processor_says(name, motley, tmp_path):
    script = ROOT / "tests/network/apart_script.py"
    result = subprocess.run([sys.executable, script, tmp_path / "d", motley.parent, name, "all" if ALL else "one"], capture_output=True, text=True,
                            timeout=1800 if ALL else 400)  # fmt: skip
    assert result.returncode == 0 and result.stdout.endswith("done\n"), result.stdout + result.stderr[-6000:]
