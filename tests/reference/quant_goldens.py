"""Writes tests/data/quants.gguf: blocks of each quantised type with the values that the pip package `gguf` makes of them.

    python tests/reference/quant_goldens.py tests/data/quants.gguf      (needs gguf and numpy)

Per type T: tensor T with random blocks, T.values with their values; and, where the package quantises, T.made: what it
makes of the tensor `input`.
"""

import sys

import gguf
import numpy as np

QUANTISED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4", "BF16"]
TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "F16", "BF16", "MXFP4", "IQ4_NL", "IQ4_XS"]
VALUES = 1024
# Scales as fp16: ordinary ones, the smallest and largest numbers, subnormal ones, zeros.
SCALES = [0x1234, 0x2E66, 0xAE66, 0x3C00, 0x0001, 0x03FF, 0x8400, 0x0400, 0x7BFF, 0xFBFF, 0x0000, 0x8000]
SCALE_PLACES = {"Q6_K": [208]}  # elsewhere at the start: one, or two
TWO_SCALES = {"Q4_1", "Q5_1", "Q4_K", "Q5_K"}


def random_blocks(random, name):
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = random.integers(0, 256, (VALUES // values, size), dtype=np.uint8)
    if name == "MXFP4":  # a block for each exponent
        blocks = random.integers(0, 256, (256, size), dtype=np.uint8)
        blocks[:, 0] = np.arange(256)
        return blocks.reshape(1, -1)
    if name in ("F16", "BF16"):  # finite ones
        bits = blocks.view(np.uint16)
        bits[(bits & 0x7C00) == 0x7C00] = 0x3C01
        return bits.view(np.uint8).reshape(1, -1)
    for place in SCALE_PLACES.get(name, [0, 2] if name in TWO_SCALES else [0]):
        blocks[:, place : place + 2] = random.choice(np.array(SCALES, np.uint16), (len(blocks), 1)).view(np.uint8)
    return blocks.reshape(1, -1)


def inputs(random):
    rows = random.standard_normal((8, 256), dtype=np.float32)
    rows[1] *= 1e-4
    rows[2] *= 300
    rows[3, ::7] = 0
    rows[4, :64] = 0
    rows[5] = np.abs(rows[5]) + 1
    rows[6] = np.round(rows[6])  # ties
    rows[7] = np.float32(0.5)
    return rows


def main(path):
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "goldens")
    given = inputs(random)
    writer.add_tensor("input", given)
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        blocks = random_blocks(random, name)
        writer.add_tensor(name, blocks, raw_shape=blocks.shape, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", gguf.quants.dequantize(blocks, kind))
        if name in QUANTISED:
            writer.add_tensor(f"{name}.made", gguf.quants.quantize(given, kind), raw_dtype=kind)
    writer.add_tensor("F16.made", given.astype(np.float16).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.F16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
