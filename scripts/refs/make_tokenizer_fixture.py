# SPDX-License-Identifier: MIT OR Apache-2.0
"""Cuts a GGUF file down to its metadata: python make_tokenizer_fixture.py MODEL.gguf OUT.zip

The result is a GGUF of no tensors with every key of the original, in the original's bytes, inside a zip archive. Tests
build the tokenizer and the chat template from it where the weights are not at hand. Needs nothing but Python.
"""
import struct
import sys
import zipfile

SCALAR = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def skip_value(data, at, kind):
    """The offset behind the value of type `kind` that begins at `at`."""
    if kind in SCALAR:
        return at + SCALAR[kind]
    if kind == 8:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    element, count = struct.unpack_from("<IQ", data, at)
    at += 12
    for _ in range(count):
        at = skip_value(data, at, element)
    return at


def main(source, out):
    with open(source, "rb") as f:
        data = f.read(64 << 20)
    magic, version, _tensors, keys = struct.unpack_from("<4sIQQ", data, 0)
    assert magic == b"GGUF" and version == 3, (magic, version)
    at = 24
    for _ in range(keys):
        at += 8 + struct.unpack_from("<Q", data, at)[0]
        at = skip_value(data, at + 4, struct.unpack_from("<I", data, at)[0])
    body = struct.pack("<4sIQQ", magic, version, 0, keys) + data[24:at]
    body += b"\0" * (-len(body) % 32)
    entry = zipfile.ZipInfo("metadata.gguf", date_time=(1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        z.writestr(entry, body, zipfile.ZIP_DEFLATED, 9)


if __name__ == "__main__":
    main(*sys.argv[1:])
