#!/usr/bin/env python3
"""Writes a safetensors file with the tensors of a small transformer, filled with random bytes.

usage: make_model.py FILE [megabytes]
"""
import json
import os
import random
import struct
import sys

BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "U8": 1}


def shapes(width, layers):
    """Names, types and shapes, as a language model of this size has them."""
    yield "wte.weight", "F32", [4 * width, width]
    yield "wpe.weight", "F32", [1024, width]
    for i in range(layers):
        yield f"h.{i}.ln_1.weight", "F32", [width]
        yield f"h.{i}.ln_1.bias", "F32", [width]
        yield f"h.{i}.attn.c_attn.weight", "BF16", [width, 3 * width]
        yield f"h.{i}.attn.c_proj.weight", "F16", [width, width]
        yield f"h.{i}.mlp.c_fc.weight", "F32", [width, 4 * width]
        yield f"h.{i}.mlp.c_proj.weight", "F32", [4 * width, width]
    yield "step", "I64", []
    yield "vocabulary", "U8", [12345]
    yield "empty", "F32", [0, width]


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    megabytes = float(sys.argv[2]) if len(sys.argv) == 3 else 64
    layers = 8
    width = max(16, int((megabytes * 1e6 / (layers * 40 + 16)) ** 0.5) // 16 * 16)
    header, offset, plan = {"__metadata__": {"format": "pt"}}, 0, []
    for name, dtype, shape in shapes(width, layers):
        size = BYTES[dtype]
        for dim in shape:
            size *= dim
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
        plan.append(size)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    chunk = random.Random(1).randbytes(1 << 20)
    with open(sys.argv[1], "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for number, size in enumerate(plan):
            block = struct.pack("<Q", number) + chunk[8:]
            for start in range(0, size, len(block)):
                out.write(block[: min(len(block), size - start)])
    print(f"{sys.argv[1]}: {len(plan)} tensors, {os.path.getsize(sys.argv[1]) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
