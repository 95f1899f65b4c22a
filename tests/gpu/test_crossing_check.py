"""The measurement of a hop runs on the stand-in of a GPU. What it measures is not looked at."""

import json
import os
import subprocess


def test_a_hop_is_measured_between_two_stand_ins(motley):
    def measured(rates):
        environment = os.environ | {"MOTLEY_TEST_DEVICES": str(motley.parent / "libapart_device.so"), "MOTLEY_APART_LATE_US": "0", "MOTLEY_APART_RATES": rates}
        command = [motley.parent / "crossing_check", "apart:0", "apart:1", "1e8", "200"]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)

    found = json.loads(measured("d2h=1e8,h2d=2e8").stdout)
    assert found.pop("bytes") == 200 * 8192
    assert set(found) == {"down_s", "wire_s", "up_s", "serial_s", "hop_s", "step_s", "post_s", "hop_to_slowest", "serial_to_slowest"}
    assert all(seconds > 0 for seconds in found.values())
    refused = measured("d2h=fast")
    assert refused.returncode == 1 and 'MOTLEY_APART_RATES has "d2h=fast"' in refused.stderr
