# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes the kept seeds under fuzz/seeds. Run again only to add some: `python3 fuzz/make_seeds.py`."""

import json
import pathlib
import struct

HERE = pathlib.Path(__file__).parent
TINY = HERE.parent / "tests/fixtures/tiny"


def put(target, name, data):
    folder = HERE / "seeds" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def string(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def entry(key, ty, value):
    return string(key) + struct.pack("<I", ty) + value


def array(ty, count, body):
    return struct.pack("<IQ", ty, count) + body


def tensor(name, dims, ty, offset):
    dims_bytes = b"".join(struct.pack("<Q", d) for d in dims)
    return string(name) + struct.pack("<I", len(dims)) + dims_bytes + struct.pack("<IQ", ty, offset)


def gguf(entries, tensors=(), data=b"", version=3, align=32):
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries))
    head += b"".join(entries) + b"".join(tensors)
    return head + b"\0" * (-len(head) % align) + data


def gguf_seeds():
    arch = entry("general.architecture", 8, string("llama"))
    scalars = [
        entry(f"k{ty}", ty, b"\1" + b"\0" * (size - 1))
        for ty, size in [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8)]
    ]
    tokens = entry("tokenizer.ggml.tokens", 9, array(8, 3, string("a") + string("") + string("é")))
    bos = entry("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 2))
    put("gguf", "empty", gguf([]))
    put("gguf", "scalars", gguf([arch] + scalars))
    put("gguf", "tokenizer", gguf([arch, tokens, bos, entry("tokenizer.chat_template", 8, string("{{ x }}"))]))
    put("gguf", "nested", gguf([entry("n", 9, array(9, 1, array(9, 1, array(4, 2, b"\0" * 8))))]))
    put("gguf", "version2", gguf([arch], version=2))
    put(
        "gguf",
        "tensors",
        gguf(
            [arch, entry("general.alignment", 4, struct.pack("<I", 64))],
            [tensor("a", [32, 2], 2, 0), tensor("b", [3], 0, 64), tensor("c", [256], 14, 128)],
            b"\1" * 338,
            align=64,
        ),
    )
    whole = (TINY / "llama-gguf-q8_0/model.gguf").read_bytes()
    first = whole.index(b"blk.0.attn_k.weight")
    put("gguf", "fixture_header", whole[: first + 4096])


def safetensors(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors_seeds():
    def t(dtype, shape, begin, end):
        return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}

    put("safetensors", "empty", safetensors({}, b""))
    put("safetensors", "one", safetensors({"a": t("BF16", [2, 2], 0, 8)}, b"\0" * 8))
    two = {"__metadata__": {"format": "pt"}, "b": t("U8", [3], 4, 7), "a": t("F32", [], 0, 4)}
    put("safetensors", "two", safetensors(two, b"\0" * 7))
    put("safetensors", "none", safetensors({"z": t("F16", [0, 5], 0, 0)}, b""))


def config_seeds():
    for name in ["llama3-rope", "qwen3"]:
        for kind in ["config", "config.legacy"]:
            text = (TINY / name / f"{kind}.json").read_bytes()
            put("config_json", f"{name}.{kind}", text)
    generation = json.dumps({"temperature": 0.7, "top_k": 40, "top_p": 0.9, "eos_token_id": [1, 2], "do_sample": True,
                             "min_p": 0.1, "repetition_penalty": 1.1, "max_new_tokens": 10})
    put("config_json", "generation", b'{"model_type":"x","vocab_size":9,"eos_token_id":[1,-1]}\0' + generation.encode())
    put("config_json", "infinity", b'{"model_type":"mamba2","time_step_limit":[0.0,Infinity],"a":{"b":[{"c":NaN},null]}}')
    put("config_json", "text_config", b'{"model_type":"gemma3","text_config":{"vocab_size":9,"bos_token_id":3,"dtype":"bfloat16"}}')


gguf_seeds()
safetensors_seeds()
config_seeds()
