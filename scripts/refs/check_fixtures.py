# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hold the tiny GGUF fixtures and the dequantization goldens against a second source: llama.cpp for the same input.

  python check_fixtures.py REPO_ROOT LLAMA_REF_BUILD

Prints the largest logit difference per file. Files in f32 must agree with Transformers to f32 rounding (a wrong
Q/K permutation or rope table differs by whole units); for quantized ones llama.cpp also rounds the activations
to 8 bits, so only closeness is printed. Dequantized values must be equal.
"""
import ctypes, glob, json, os, sys, tempfile
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from safetensors.numpy import load_file
from llama_ref import LlamaRef

root, build = sys.argv[1], sys.argv[2]
cases = json.load(open(f"{root}/tests/goldens/tiny_tokenizer.json"))
bad = 0
# llama.cpp's GELU is a table in f16, and its YaRN ramp ends on whole dimensions, where gpt-oss says it does not.
APART = ("gemma2-gguf", "gemma3-gguf", "gpt-oss-gguf")


def plain(src, dst):
    """The same file with all tensors in F32: llama.cpp rounds activations to the format of the weights."""
    r = GGUFReader(src); text = lambda f: bytes(f.parts[f.data[0]]).decode()
    w = GGUFWriter(dst, text(r.fields["general.architecture"]))
    for f in r.fields.values():
        if f.name.startswith("GGUF.") or f.name == "general.architecture": continue
        kind = f.types[0]; value = f.contents()
        w.add_array(f.name, value) if kind == GGUFValueType.ARRAY else w.add_key_value(f.name, value, kind)
    for t in r.tensors: w.add_tensor(t.name, np.ascontiguousarray(dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


for g in sorted(glob.glob(f"{root}/tests/fixtures/tiny/*-gguf*/model.gguf")):
    folder = os.path.dirname(g); name = os.path.basename(folder)
    own = f"{folder}/ref.safetensors" if os.path.exists(f"{folder}/ref.safetensors") else f"{folder.removesuffix('-gguf')}/ref.safetensors"
    ref = load_file(own); V = ref["logits"].shape[1]
    with tempfile.TemporaryDirectory() as tmp:
        if name.endswith("-gguf"): plain(g, f"{tmp}/model.gguf"); g = f"{tmp}/model.gguf"
        try: r = LlamaRef(build, g, V); got = r.logits(ref["input_ids"])
        except Exception as e: print(f"{name:22} not read by llama.cpp: {type(e).__name__} {e}"); bad += 1; continue
        d = float(np.abs(got - ref["logits"]).max()); bound = 8 * float(ref["logits_f64_diff"][0])
        same = int((r.greedy(ref["input_ids"], len(ref["greedy_ids"])).argmax(-1) == ref["greedy_ids"]).sum()); tok = 0
        if V == 320:
            tok = sum(r.tokenize(c["text"].encode(), True) != c["ids"] or r.tokenize(c["text"].encode(), False) != c["ids_plain"] for c in cases["cases"])
            tok += sum(r.tokenize(c["text"].encode(), True) != c["ids"] for c in cases["chats"])
        r.close()
    exact = "-q" not in name and name not in APART; ok = not exact or d <= bound; bad += (not ok) + (tok > 0)
    print(f"{name:22} max|dlogit| {d:.2e} (bound {bound:.2e}{'' if exact else ', not applied'}) greedy {same}/{len(ref['greedy_ids'])} tokenizer differences {tok}")


class TypeTraits(ctypes.Structure):  # struct ggml_type_traits of ggml.h
    _fields_ = [("name", ctypes.c_char_p), ("block", ctypes.c_int64), ("interleave", ctypes.c_int64), ("size", ctypes.c_size_t),
                ("quantized", ctypes.c_bool), ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64))]


lib = ctypes.CDLL(f"{build}/lib/libggml-base.so"); lib.ggml_get_type_traits.restype = ctypes.POINTER(TypeTraits)
blocks = load_file(f"{root}/tests/goldens/dequant/gguf_blocks.safetensors")
for name in sorted(k[:-4] for k in blocks if k.endswith(".raw")):
    raw, want = blocks[f"{name}.raw"], blocks[f"{name}.f32"]
    traits = lib.ggml_get_type_traits(int(GGMLQuantizationType[name])).contents
    assert traits.size == raw.shape[1] and traits.block == want.shape[1], name
    got = np.empty_like(want); traits.to_float(raw.ctypes.data, got.ctypes.data, want.size)
    bad += not np.array_equal(got, want)
    print(f"{name:8} {want.size} values, different from libggml: {int((got != want).sum())}")
sys.exit(1 if bad else 0)
