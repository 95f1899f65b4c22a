"""Writes small folders of gpt-oss's tensors, as one file each, for the fuzz targets to start from.

    tests/fuzz/packed_seeds.py FOLDER
"""

import json
import math
import struct
import sys
from pathlib import Path

SIZES = {"F32": 4, "BF16": 2, "U8": 1}
LAYER = "model.layers.0.mlp.experts."
SEEDS = {
    "blocks": {"gate_up_proj_blocks": ("U8", [2, 8, 1, 16]), "gate_up_proj_scales": ("U8", [2, 8, 1]), "gate_up_proj_bias": ("BF16", [2, 8]),
               "down_proj_blocks": ("U8", [2, 32, 1, 16]), "down_proj_scales": ("U8", [2, 32, 1]), "down_proj_bias": ("BF16", [2, 32])},
    "whole": {"gate_up_proj": ("F32", [2, 4, 6]), "gate_up_proj_bias": ("F32", [2, 6]), "down_proj": ("F32", [2, 3, 4]),
              "down_proj_bias": ("F32", [2, 4])},
}


def safetensors(tensors):
    header, data = {}, b""
    for name, (kind, shape) in tensors.items():
        size = SIZES[kind] * math.prod(shape)
        header[LAYER + name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + size]}
        data += bytes(place * 5 % 120 for place in range(size))
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensors in SEEDS.items():
        (folder / f"{name}.safetensors").write_bytes(safetensors(tensors))
