# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hold the f32 side of tests/goldens/smollm2_greedy.json against llama.cpp on the same weights stored as f32.

  python check_smollm2.py REPO_ROOT MODEL.gguf LLAMA_REF_BUILD

Writes an F32 copy of the model (540 MB) to a temporary folder. The greedy ids must be those of Transformers and the
sampled logits must lie within 8 x logits_f64_diff.
"""
import json, os, sys, tempfile
import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import dequantize
from llama_ref import LlamaRef


def f32_copy(src, dst):
    r = GGUFReader(src); w = GGUFWriter(dst, r.fields["general.architecture"].contents())
    for k, f in r.fields.items():
        if k.startswith("GGUF.") or k == "general.architecture": continue
        v = 0 if k == "general.file_type" else f.contents()
        w.add_key_value(k, v, f.types[0], sub_type=f.types[-1] if f.types[0] == GGUFValueType.ARRAY else None)
    for t in r.tensors:
        w.add_tensor(t.name, np.ascontiguousarray(dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


root, model, build = sys.argv[1:4]
goldens = json.load(open(f"{root}/tests/goldens/smollm2_greedy.json")); bad = 0
with tempfile.TemporaryDirectory() as d:
    f32_copy(model, f"{d}/f32.gguf")
    ref = LlamaRef(build, f"{d}/f32.gguf", 49152)
    for p in goldens["prompts"]:
        rows, hf = ref.greedy(p["ids"], goldens["steps"]), p["transformers"]
        same = rows.argmax(-1).tolist() == hf["ids"]
        diff = float(np.abs(rows[0, ::768] - np.array(hf["logits_every_768"], np.float32)).max())
        bad += not same or diff > 8 * hf["logits_f64_diff"]
        print(f"greedy ids {'equal' if same else 'DIFFER'}, logits within {diff:.1e} (bound {8 * hf['logits_f64_diff']:.1e}) {p['text'][-40:]!r}")
    ref.close()
sys.exit(1 if bad else 0)
