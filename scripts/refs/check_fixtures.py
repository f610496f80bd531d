# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hold the tiny GGUF fixtures and the dequantization goldens against a second source: llama.cpp for the same input.

  python check_fixtures.py REPO_ROOT LLAMA_REF_BUILD

Prints the largest logit difference per file. Files in f32 must agree with Transformers to f32 rounding (a wrong
Q/K permutation or rope table differs by whole units); for quantized ones llama.cpp also rounds the activations
to 8 bits, so only closeness is printed. Dequantized values must be equal.
"""
import ctypes, glob, json, os, sys
import numpy as np
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file
from llama_ref import LlamaRef

root, build = sys.argv[1], sys.argv[2]
cases = json.load(open(f"{root}/tests/goldens/tiny_tokenizer.json"))
bad = 0
for g in sorted(glob.glob(f"{root}/tests/fixtures/tiny/*/model.gguf")):
    folder = os.path.dirname(g)
    own = f"{folder}/ref.safetensors" if os.path.exists(f"{folder}/ref.safetensors") else f"{folder.removesuffix('-gguf')}/ref.safetensors"
    ref = load_file(own); V = ref["logits"].shape[1]
    r = LlamaRef(build, g, V)
    d = float(np.abs(r.logits(ref["input_ids"]) - ref["logits"]).max()); bound = 8 * float(ref["logits_f64_diff"][0])
    same = int((r.greedy(ref["input_ids"], len(ref["greedy_ids"])).argmax(-1) == ref["greedy_ids"]).sum())
    tok = sum(r.tokenize(c["text"].encode(), True) != c["ids"] or r.tokenize(c["text"].encode(), False) != c["ids_plain"] for c in cases["cases"])
    tok += sum(r.tokenize(c["text"].encode(), True) != c["ids"] for c in cases["chats"])
    r.close()
    exact = "-q" not in os.path.basename(os.path.dirname(g)); ok = not exact or d <= bound; bad += (not ok) + (tok > 0)
    print(f"{os.path.basename(os.path.dirname(g)):22} max|dlogit| {d:.2e} (bound {bound:.2e}{'' if exact else ', not applied'}) greedy {same}/{len(ref['greedy_ids'])} tokenizer differences {tok}")


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
