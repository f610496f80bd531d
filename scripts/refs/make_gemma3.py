# SPDX-License-Identifier: MIT OR Apache-2.0
"""Make tests/goldens/gemma3_greedy.json: greedy continuations of Gemma 3 270M (GGUF Q4_K_M) by Transformers in f32 on the
dequantized weights, and llama.cpp's ids of the same prompts.

  python make_gemma3.py REPO_ROOT MODEL.gguf LLAMA_REF_BUILD

Per prompt: the text, its ids (BOS first), 32 greedy ids, the top-2 logit margin at each step and 64 sampled logits (every
4096th id) behind the last prompt token. One prompt is longer than the sliding window of 512.
"""
import hashlib, json, sys
import numpy as np, torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig
from llama_ref import LlamaRef

STEPS = 32
TEXTS = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n    ",
         "1, 1, 2, 3, 5, 8, 13,", "Die Hauptstadt von Deutschland ist",
         "".join(f"Line {i}: the number {i * 7919 % 1000} is written here.\n" for i in range(1, 51)) + "Line 51: the number"]
LAYER = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_norm": "input_layernorm",
         "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def num(x): return float(f"{float(x):.9g}")


def hub_name(name):
    stem = name.removesuffix(".weight")
    if stem in TOP: return TOP[stem] + ".weight"
    _, n, rest = stem.split(".")
    return f"model.layers.{n}.{LAYER[rest]}.weight"


def model_of(path):
    r = GGUFReader(path); get = lambda k: r.fields["gemma3." + k].contents()
    layers, window = get("block_count"), get("attention.sliding_window")
    config = Gemma3TextConfig(
        vocab_size=262144, hidden_size=get("embedding_length"), intermediate_size=get("feed_forward_length"), num_hidden_layers=layers,
        num_attention_heads=get("attention.head_count"), num_key_value_heads=get("attention.head_count_kv"), head_dim=get("attention.key_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"), max_position_embeddings=get("context_length"), sliding_window=window,
        query_pre_attn_scalar=get("attention.key_length"),
        # Not in the file: every sixth layer sees all keys, the others use the local base.
        layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)],
        rope_parameters=dict(full_attention=dict(rope_type="default", rope_theta=get("rope.freq_base")),
                             sliding_attention=dict(rope_type="default", rope_theta=10000.0)))
    config._attn_implementation = "eager"
    weights = {}
    for t in r.tensors:
        w = dequantize(t.data, t.tensor_type).reshape(t.shape.tolist()[::-1]).astype(np.float32)
        # Files hold 1 + w of norms; the hub's models add the 1.
        weights[hub_name(t.name)] = torch.from_numpy(w - 1 if "norm" in t.name else w)
    m = Gemma3ForCausalLM(config).eval(); left = m.load_state_dict(weights, strict=False)
    assert not left.unexpected_keys and left.missing_keys == ["lm_head.weight"], left
    m.tie_weights()
    return m


def main(root, path, build):
    torch.set_grad_enabled(False)
    m = model_of(path); ref = LlamaRef(build, path, 262144, 1024); prompts = []
    for text in TEXTS:
        ids = [2] + ref.tokenize(text.encode(), False); ids = ids[1:] if ids[1] == 2 else ids
        out, rows = m(torch.tensor([ids]), use_cache=True), []
        for _ in range(STEPS):
            rows.append(out.logits[0, -1].numpy()); out = m(torch.tensor([[int(rows[-1].argmax())]]), past_key_values=out.past_key_values, use_cache=True)
        rows = np.stack(rows); top = np.sort(rows, -1)[:, -2:]; theirs = ref.greedy(ids, STEPS)
        p = dict(text=text, ids=ids, transformers=dict(ids=rows.argmax(-1).tolist(), margins=[num(v) for v in top[:, 1] - top[:, 0]],
                 logits_every_4096=[num(v) for v in rows[0, ::4096]]), llama_cpp=dict(ids=theirs.argmax(-1).tolist()))
        a, b = p["llama_cpp"]["ids"], p["transformers"]["ids"]; agree = next((i for i in range(STEPS) if a[i] != b[i]), STEPS)
        print(f"{len(ids):4} ids, agree {agree:2}, llama.cpp - f32 {np.abs(rows[0] - theirs[0]).max():.2f}, least margin {min(p['transformers']['margins']):.3f} {text[-30:]!r}", flush=True)
        prompts.append(p)
    ref.close()
    with open(path, "rb") as f: digest = hashlib.file_digest(f, "sha256").hexdigest()
    with open(f"{root}/tests/goldens/gemma3_greedy.json", "w") as f:
        f.write('{\n "made_with": "Transformers 5.24.0 (f32, eager attention); llama.cpp v0.5.0 (f32 KV cache)",\n "model": "gemma-3-270m-q4_k_m.gguf",\n "sha256": "%s",\n "steps": %d,\n "prompts": [\n' % (digest, STEPS))
        f.write(",\n".join("  {\n" + ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in p.items()) + "\n  }" for p in prompts) + "\n ]\n}\n")


if __name__ == "__main__": main(*sys.argv[1:4])
