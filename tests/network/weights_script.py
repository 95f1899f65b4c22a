"""Weights from other machines than the driver's, whose uplink is slow; run by test_machines.py in namespaces of its own."""

import re
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path += [str(BENCH / folder) for folder in ("machines", "decode", "network")]
from deployment import Bridge, Deployment, inside  # noqa: E402
from make_model import make, write_tokenizer  # noqa: E402
from networks import limit_rate  # noqa: E402

folder, build, scenario = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
inside()
UPLINK_BYTES_PER_S = 8e6


class SlowUplink(Bridge):
    """What the first machine sends is slow, and what the second sends is where that is asked."""

    def __init__(self, second_bytes_per_s=None):
        self.second_bytes_per_s = second_bytes_per_s

    def complete(self, machines):
        limit_rate("", "bridge", UPLINK_BYTES_PER_S)
        if self.second_bytes_per_s:
            limit_rate("ip netns exec m2", "eth0", self.second_bytes_per_s)


def made_model():
    """80 MB."""
    model = folder.parent / "model"
    make("small256", model, num_hidden_layers=6, hidden_size=768, num_attention_heads=12, num_key_value_heads=4, intermediate_size=2304)
    write_tokenizer(model)
    return model


def begin(links):
    """The third machine alone has room for the model, of which the second has a copy."""
    model = made_model()
    machines = [{"memory": "1 MiB", "options": ["--model", str(model)]}, {"memory": "400 MiB"}]
    return Deployment(folder, "1 MiB", machines, motley=build / "motley", links=links, model=model, serves=False,
                      options=["--max-tokens", "64", "--max-sequences", "2", "--device-threads", "1"])  # fmt: skip


def origins(deployment):
    """MiB by source, of the one worker that fetches."""
    deployment.wait(deployment.serves.is_set, "it does not serve")
    assert deployment.used() == {"m3"}
    (line,) = [line for line in deployment.log if " fetched " in line]
    print(line, end="")
    return {source: float(number) for number, source in re.findall(r"([0-9.]+) MiB from (the driver|m\d)", line)}


def fetched():
    """The part of the chunks that the third machine has."""
    chunks = b"".join(file.read_bytes() for file in (folder / "m3").rglob(".*.chunks"))
    return chunks.count(1) / max(len(chunks), 1)


def peers():
    """Most comes from the machine that has the faster link."""
    deployment = begin(SlowUplink())
    mib_from = origins(deployment)
    assert mib_from["m2"] > 2 * mib_from.get("the driver", 0), mib_from
    return deployment


def lost_peer():
    """The rest comes from the driver when the other source is gone half-way."""
    deployment = begin(SlowUplink(second_bytes_per_s=2 * UPLINK_BYTES_PER_S))
    deployment.wait(lambda: fetched() > 0.5, "it does not fetch")
    deployment.machines[1].remove()
    mib_from = origins(deployment)
    assert mib_from["m2"] > 0 and mib_from["the driver"] > 0, mib_from
    return deployment


deployment = {"peers": peers, "lost_peer": lost_peer}[scenario]()
left = deployment.end()
assert not left and deployment.process.returncode == 0, left
if "-v" in sys.argv:
    print(deployment.text())
print("done")
