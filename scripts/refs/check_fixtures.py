# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hold the tiny GGUF fixtures against a second source: llama.cpp's logits and tokens for the same files.

  python check_fixtures.py REPO_ROOT LLAMA_REF_BUILD

Prints the largest logit difference per file. Files in f32 must agree with Transformers to f32 rounding (a wrong
Q/K permutation or rope table differs by whole units); for quantized ones llama.cpp also rounds the activations
to 8 bits, so only closeness is printed.
"""
import glob, json, os, sys
import numpy as np
from safetensors.numpy import load_file
from llama_ref import LlamaRef

root, build = sys.argv[1], sys.argv[2]
cases = json.load(open(f"{root}/tests/goldens/tiny_tokenizer.json"))
bad = 0
for g in sorted(glob.glob(f"{root}/tests/fixtures/tiny/*/model.gguf")):
    ref = load_file(os.path.join(os.path.dirname(g), "ref.safetensors")); V = ref["logits"].shape[1]
    r = LlamaRef(build, g, V)
    d = float(np.abs(r.logits(ref["input_ids"]) - ref["logits"]).max()); bound = 8 * float(ref["logits_f64_diff"][0])
    same = int((r.greedy(ref["input_ids"], len(ref["greedy_ids"])).argmax(-1) == ref["greedy_ids"]).sum())
    tok = sum(r.tokenize(c["text"].encode(), True) != c["ids"] or r.tokenize(c["text"].encode(), False) != c["ids_plain"] for c in cases["cases"])
    tok += sum(r.tokenize(c["text"].encode(), True) != c["ids"] for c in cases["chats"])
    r.close()
    exact = "-q" not in os.path.basename(os.path.dirname(g)); ok = not exact or d <= bound; bad += (not ok) + (tok > 0)
    print(f"{os.path.basename(os.path.dirname(g)):22} max|dlogit| {d:.2e} (bound {bound:.2e}{'' if exact else ', not applied'}) greedy {same}/{len(ref['greedy_ids'])} tokenizer differences {tok}")
sys.exit(1 if bad else 0)
