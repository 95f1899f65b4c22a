"""`motley plan serve --objective flow` with measured rates, as docs/concepts/planner-placement.md gives it."""

import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HELIX = "examples/helix"


def run(motley, words):
    return subprocess.run([str(motley), *words.split()], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_the_published_instance_by_command(motley, tmp_path):
    plan = tmp_path / "plan.json"
    done = run(
        motley,
        f"plan serve --cluster {HELIX}/cluster.toml --model llama-2-70b --workload {HELIX}/workload.toml "
        f"--profile {HELIX}/profile.json --objective flow -o {plan}",
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(plan.read_text())
    assert written["search"]["status"] == "optimal"
    assert abs(written["predicted"]["tokens_per_s"] - 2045.6 * 240 / 989) < 1e-3
    assert len(written["profile"]["layer_rate"]) == 3
    assert run(motley, f"verify {plan}").returncode == 0


def test_a_profile_that_cannot_be_read_is_named(motley, tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text('{"format": "motley.profile/1", "layer_rate": [{"device_type": "L4", "tokens_per_s": []}]}')
    done = run(motley, f"plan serve --cluster {HELIX}/cluster.toml --model llama-2-70b --profile {profile}")
    assert done.returncode == 2
    assert "layer_rate[0] has no rates" in done.stderr
