# SPDX-License-Identifier: MIT OR Apache-2.0
"""Make tests/goldens/dequant/gguf_blocks.safetensors: random GGUF blocks and their values.

  python make_dequant.py REPO_ROOT

For each type T of the `gguf` library: `T.raw` u8 [blocks, bytes per block] and `T.f32` f32 [blocks, values per block],
what gguf.quants.dequantize makes of it. Codes are random bytes. Scales are finite f16 numbers: the first blocks have
the edges (zero, negative zero, least and largest subnormal, least normal, negative, +-1, large), the rest are of ordinary size.

Every product here has at most 24 significant bits, so it is exact in f32, and the only rounding is the subtraction or
addition of the minimum (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K). Any order of evaluation, fused or not, must therefore give
these numbers exactly (compare with ==; the sign of zero is not fixed). check_fixtures.py holds them against libggml so.
"""
import os, sys
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize
from safetensors.numpy import save_file

# type -> byte offsets of its f16 fields in a block
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
EDGES = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x3C00, 0xBC00, 0x5BFF, 0xDBFF], np.uint16)


def blocks(rng, name, n):
    values, size = GGML_QUANT_SIZES[T[name]]
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for k, off in enumerate(SCALES.get(name, [])):
        s = (rng.standard_normal(n) * 0.05).astype(np.float16).view(np.uint16)
        s[:len(EDGES)] = np.roll(EDGES, 5 * k)  # the scale and the minimum meet different edges
        raw[:, off:off + 2] = s[:, None].view(np.uint8).reshape(n, 2)
    if name == "MXFP4":  # a power of two, e - 127; 255 is NaN and 252 upwards overflows with code 6
        raw[:, 0] = np.concatenate([np.array([0, 1, 2, 3, 126, 127, 128, 251]), rng.integers(110, 140, n - 8)])
    return raw


def floats(rng, name):
    """F16, BF16: 512 finite numbers of every exponent, as blocks of one value; zeros and subnormals included."""
    bits = rng.integers(0, 1 << 16, 512, dtype=np.uint16)
    exponent = 0x7C00 if name == "F16" else 0x7F80
    bits[(bits & exponent) == exponent] ^= 0x4000  # infinities and NaN become finite
    bits[:8] = [0, 0x8000, 1, 0x8001, exponent - 1, (exponent - 1) | 0x8000, exponent & -exponent, 0x3C00]
    return bits[:, None].view(np.uint8).reshape(512, 2)


def main(root):
    rng = np.random.default_rng(20240517); out = {}
    for name in ["F16", "BF16"]:
        raw = floats(rng, name); out[f"{name}.raw"] = raw
        out[f"{name}.f32"] = dequantize(raw.reshape(1, -1), T[name]).astype(np.float32).reshape(512, 1)
    for name in [*SCALES, "MXFP4"]:
        values = GGML_QUANT_SIZES[T[name]][0]; n = 16 if values == 256 else 32
        raw = blocks(rng, name, n); out[f"{name}.raw"] = raw
        with np.errstate(all="raise", under="ignore"): v = dequantize(raw, T[name])
        assert v.dtype == np.float32 and v.shape == (n, values) and np.isfinite(v).all(), name
        out[f"{name}.f32"] = v
    d = f"{root}/tests/goldens/dequant"; os.makedirs(d, exist_ok=True)
    path = f"{d}/gguf_blocks.safetensors"
    save_file(out, path, {"made_with": "gguf 0.19.0 (PyPI), scripts/refs/make_dequant.py"})
    os.chmod(path, 0o644); print(path, os.path.getsize(path))


if __name__ == "__main__": main(sys.argv[1])
