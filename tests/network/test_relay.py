"""Members behind routers that let no call in: a relay that both can dial joins them, and nothing else does."""

import json
import shutil
import subprocess
from pathlib import Path

from test_networks import needs_namespaces

HERE = Path(__file__).parent


@needs_namespaces
def test_members_that_cannot_reach_each_other_meet_at_the_relay(motley, tmp_path):
    for arguments in (["create", "lab"], ["issue", "lab", "anna"], ["issue", "lab", "ben"]):
        subprocess.run([motley, "group", *arguments], cwd=tmp_path, check=True, capture_output=True)
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    shell = [shutil.which("sh"), HERE / "hidden.sh", motley, tmp_path]
    result = subprocess.run([*unshare, *shell], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    said = "".join(file.read_text() for file in sorted(tmp_path.glob("*.log")))
    # The direct way ends by the time that it was given.
    assert result.stdout == "direct 124 relayed 0\n", said
    (row,) = json.loads((tmp_path / "anna.json").read_text())["sizes"]
    assert row["bytes"] == 1 << 20
    log = (tmp_path / "relay.log").read_text()
    assert 'listens mailbox="anna" member="anna"' in log and "joined a=" in log
