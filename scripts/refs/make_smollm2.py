# SPDX-License-Identifier: MIT OR Apache-2.0
"""Make tests/goldens/smollm2_greedy.json: greedy continuations of SmolLM2-135M-Instruct (GGUF Q4_1) by two engines.

  python make_smollm2.py REPO_ROOT MODEL.gguf LLAMA_REF_BUILD

Per prompt: the text, its ids, and under `llama_cpp` and `transformers` 48 greedy ids, the top-2 logit margin at each
step and the five largest logits behind the last prompt token. They differ in kind: llama.cpp rounds activations to 8
bits before each quantized product; Transformers computes in f32 from the dequantized weights, so it is the one to
compare numbers with. For that it also has 64 sampled logits (every 768th id) behind the last prompt token and
`logits_f64_diff`, the largest difference of its logits over the prompt to the same forward in f64. `agree` counts the
leading ids the two have in common. Generation does not stop at an end token: `end_at` is the first place of one.
"""
import hashlib, json, os, sys
import jinja2, numpy as np, torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from llama_ref import LlamaRef
from make_tiny_refs import logits_f64
from tiny_gguf import dequantized

STEPS = 48
RAW = ["The capital of France is", "Once upon a time, in a small village by the sea,", "def fibonacci(n):\n    ",
       "1, 1, 2, 3, 5, 8, 13,", "Water boils at", "Die Hauptstadt von Deutschland ist", "# Shopping list\n\n- apples\n- bread\n-"]
CHATS = [[dict(role="user", content="What is the capital of France?")],
         [dict(role="user", content="Write a haiku about autumn.")],
         [dict(role="system", content="You are a terse assistant."), dict(role="user", content="Name three primary colors."),
          dict(role="assistant", content="Red, yellow, blue."), dict(role="user", content="And which one do you get from yellow and blue?")]]


def num(x): return float(f"{float(x):.9g}")


def side(rows):
    """rows [STEPS, V]: ids and margins of a greedy run, and the top five of its first row."""
    top = np.sort(rows, -1)[:, -2:]; ids = rows.argmax(-1).tolist(); five = np.argsort(-rows[0], kind="stable")[:5]
    return dict(ids=ids, margins=[num(m) for m in top[:, 1] - top[:, 0]], end_at=ids.index(2) if 2 in ids else None,
                top5=[[int(i), num(rows[0, i])] for i in five])


def model_of(path):
    f = GGUFReader(path).fields; get = lambda k: f[k].contents(); a = "llama."
    cfg = dict(model_type="llama", vocab_size=get(a + "vocab_size"), hidden_size=get(a + "embedding_length"), intermediate_size=get(a + "feed_forward_length"),
               num_hidden_layers=get(a + "block_count"), num_attention_heads=get(a + "attention.head_count"), num_key_value_heads=get(a + "attention.head_count_kv"),
               max_position_embeddings=get(a + "context_length"), rms_norm_eps=get(a + "attention.layer_norm_rms_epsilon"), tie_word_embeddings=True,
               rope_parameters=dict(rope_type="default", rope_theta=get(a + "rope.freq_base")))
    weights = {k: torch.from_numpy(v) for k, v in dequantized(path, cfg).items()}
    config = LlamaConfig(**cfg); config._attn_implementation = "eager"
    m = LlamaForCausalLM(config).eval()
    left = m.load_state_dict(weights, strict=False)
    assert not left.unexpected_keys and left.missing_keys == ["lm_head.weight"], left
    m.tie_weights()
    return m, config, get("tokenizer.chat_template")


def main(root, path, build):
    torch.set_grad_enabled(False)
    m, config, template = model_of(path); ref = LlamaRef(build, path, config.vocab_size)
    chat = jinja2.Environment().from_string(template)
    prompts = [dict(kind="raw", text=t) for t in RAW] + [dict(kind="chat", messages=c, text=chat.render(messages=c, add_generation_prompt=True)) for c in CHATS]
    for p in prompts:
        p["ids"] = ids = ref.tokenize(p["text"].encode(), p["kind"] == "chat")
        p["llama_cpp"] = side(ref.greedy(ids, STEPS))
        x = torch.tensor([ids]); full = m(x, use_cache=False).logits
        wide, leaks = logits_f64(m, config, AutoModelForCausalLM, dict(input_ids=x)); assert not leaks, leaks
        out, rows = m(x, use_cache=True), []
        for _ in range(STEPS):
            rows.append(out.logits[0, -1].numpy()); out = m(torch.tensor([[int(rows[-1].argmax())]]), past_key_values=out.past_key_values, use_cache=True)
        p["transformers"] = hf = side(np.stack(rows))
        hf["logits_every_768"] = [num(v) for v in full[0, -1, ::768]]; hf["logits_f64_diff"] = num((wide - full.double()).abs().max())
        a, b = p["llama_cpp"]["ids"], hf["ids"]; p["agree"] = next((i for i in range(STEPS) if a[i] != b[i]), STEPS)
        d = np.abs(rows[0] - ref.logits(ids)[-1]).max()
        print(f"{p['kind']:5}{len(ids):4} ids, agree {p['agree']:2}, llama.cpp - f32 {d:.2f}, f64 diff {hf['logits_f64_diff']:.1e}, least margin {min(hf['margins']):.3f} {p['text'][-40:]!r}", flush=True)
    ref.close()
    with open(path, "rb") as f: digest = hashlib.file_digest(f, "sha256").hexdigest()
    made = "llama.cpp v0.5.0 (npm @node-llama-cpp/linux-x64 3.22.1; CPU, f32 KV cache, no flash attention, no repacking) and Transformers 5.24.0 (f32, eager attention)"
    os.makedirs(f"{root}/tests/goldens", exist_ok=True)
    with open(f"{root}/tests/goldens/smollm2_greedy.json", "w") as f:
        f.write('{\n "made_with": %s,\n "model": "SmolLM2-135M-Instruct.Q4_1.gguf",\n "sha256": "%s",\n "steps": %d,\n "prompts": [\n' % (json.dumps(made), digest, STEPS))
        f.write(",\n".join("  {\n" + ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in p.items()) + "\n  }" for p in prompts) + "\n ]\n}\n")


if __name__ == "__main__": main(*sys.argv[1:4])
