"""Writes small files of tokens to a folder, as numpy and Megatron do, for the fuzzer to start from."""

import struct
import sys
from pathlib import Path

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for kind, width in (("<u2", 2), ("<u4", 4), ("<i8", 8)):
    for version, length in ((1, "<H"), (2, "<I")):
        header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': (3,), }}".ljust(117) + "\n"
        start = b"\x93NUMPY" + bytes([version, 0]) + struct.pack(length, len(header))
        (folder / f"{kind[1:]}-{version}.npy").write_bytes(start + header.encode() + bytes(3 * width))
for code, width in ((8, 2), (4, 4)):
    sizes = [10, 64 // width - 10]  # of a .bin file of 64 bytes
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 2, 3) + struct.pack("<2i", *sizes)
    (folder / f"{code}.idx").write_bytes(index + struct.pack("<2q3q", 0, 10 * width, 0, 1, 2))
