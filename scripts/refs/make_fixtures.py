# SPDX-License-Identifier: MIT OR Apache-2.0
"""Make every directory of tests/fixtures/tiny and tests/goldens/tiny_tokenizer.json.

  python make_fixtures.py REPO_ROOT [NAME ...]     all of them, or those of FAMILIES by name

The safetensors checkpoints come from make_tiny_refs.py (random weights, seed 0, prompt of 48 tokens, 16 greedy ones).
From them are derived: a sharded copy, GGUF copies (f32, and Q8_0 with its own reference), configs in the form that
older hub checkpoints have (config.legacy.json, checked here to give the same logits), and one tokenizer for all.
"""
import json, os, shutil, sys
import make_fp8, make_gguf
import make_tiny_refs as tiny
import numpy as np, torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from tiny_gguf import write_gguf, dequantized
from tiny_tokenizer import make_tokenizer, goldens

TOKENS, GEN = 40, 16
# Two layers, so that what one leaves pending meets the next; more only where a family has more kinds.
LAYERS = {"num_hidden_layers": 2}
# original_max_position_embeddings 64, factors 1 and 4: wavelengths over 64 are divided by 8, below 16 kept, between
# them blended. head_dim 16 at theta 10000 has wavelengths 6.3 | 19.9, 62.8 | 199, 628, ...: all three bands occur.
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
CHECKPOINTS = {
    "llama": ("llama", {}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-bias": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
    "llama-hd64": ("llama", {"hidden_size": 48, "head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-5}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128}),
}

# One of each family beyond these two: directory -> (recipe, changes). Small enough for a repository: experts of width 32.
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"]}
DELTA = {"layer_types": ["linear_attention", "linear_attention", "full_attention"], "num_hidden_layers": 3}
DELTA_EXPERTS = {"layer_types": ["linear_attention", "full_attention"]}
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0,
            mscale=1.0, mscale_all_dim=0.5)
FAMILIES = {
    "qwen2": ("qwen2", {}), "mistral": ("mistral", {}), "phi3": ("phi3", {}), "granite": ("granite", {"attention_multiplier": 0.2}),
    "olmo2": ("olmo2", {}),
    "gemma2": ("gemma2", WINDOWS), "gemma3": ("gemma3_text", WINDOWS),
    "qwen3-moe": ("qwen3_moe", {"norm_topk_prob": True}), "mixtral": ("mixtral", {"intermediate_size": 32}),
    "gpt-oss": ("gpt_oss", {"intermediate_size": 32, **WINDOWS}), "deepseek-v3": ("deepseek_v3", {"rope_parameters": YARN, "num_hidden_layers": 3}),
    "qwen3-next": ("qwen3_next", DELTA_EXPERTS), "qwen3-5": ("qwen3_5_text", DELTA), "mamba2": ("mamba2", {}),
    # Transformers' chunked form holds steps above time_step_min, its cached form does not, and neither do the kernels that
    # the model was trained with: a least step near 0 makes the forms one.
    "nemotron-h": ("nemotron_h", {"time_step_min": 1e-7, "routed_scaling_factor": 1.5, "num_hidden_layers": None}),
    # Width 512 and a head of 128: shapes that the fast points of GPU classes take. One layer, and fewer tokens than the
    # tokenizer has, to stay under 1 MB.
    "qwen3-wide": ("qwen3", {"tie_word_embeddings": True, "hidden_size": 512, "head_dim": 128, "num_attention_heads": 1, "num_key_value_heads": 1,
                             "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 192}),
}

# Written as GGUF too, with the same values: bf16, and f32 for one.
COPIES = ("llama", "qwen3", "llama3-rope", "llama-tied")


def legacy(d):
    """config.json as transformers before 5 wrote it: rope_theta and rope_scaling at the top, torch_dtype."""
    c = json.load(open(f"{d}/config.json"))
    r = c.pop("rope_parameters"); c["rope_theta"] = r.pop("rope_theta")
    c["rope_scaling"] = None if r["rope_type"] == "default" else r
    c["torch_dtype"] = c.pop("dtype"); c["transformers_version"] = "4.51.0"; c.pop("layer_types", None)
    json.dump(c, open(f"{d}/config.legacy.json", "w"), indent=2, sort_keys=True)
    cfg = AutoConfig.from_pretrained(d, _configuration_file="config.legacy.json")
    m = AutoModelForCausalLM.from_pretrained(d, config=cfg, dtype=torch.float32, attn_implementation="eager")
    ref = load_file(f"{d}/ref.safetensors")
    assert torch.equal(m(ref["input_ids"][None], use_cache=False).logits[0], ref["logits"]), f"{d}: legacy config differs"


def shard(src, dst, parts=2):
    """The weights of src in `parts` files (split by tensor name order) and model.safetensors.index.json."""
    os.makedirs(dst, exist_ok=True)
    w = load_file(f"{src}/model.safetensors"); names = sorted(w); per = -(-len(names) // parts); where = {}
    for i in range(parts):
        f = f"model-{i + 1:05}-of-{parts:05}.safetensors"; mine = names[i * per:(i + 1) * per]
        save_file({n: w[n] for n in mine}, f"{dst}/{f}", {"format": "pt"}); where.update({n: f for n in mine})
    total = sum(t.numel() * t.element_size() for t in w.values())
    json.dump({"metadata": {"total_size": total}, "weight_map": where}, open(f"{dst}/model.safetensors.index.json", "w"), indent=1)
    for f in ("config.json", "generation_config.json", "meta.json"): shutil.copyfile(f"{src}/{f}", f"{dst}/{f}")
    m = AutoModelForCausalLM.from_pretrained(dst, dtype=torch.float32, attn_implementation="eager")
    ref = load_file(f"{src}/ref.safetensors")
    assert torch.equal(m(ref["input_ids"][None], use_cache=False).logits[0], ref["logits"])


def gguf_copy(src, dst, tok, quant=None):
    """src as dst/model.gguf. Unquantized: the reference of src holds. Quantized: a reference from the dequantized weights."""
    os.makedirs(dst, exist_ok=True)
    cfg = json.load(open(f"{src}/config.json")); w = load_file(f"{src}/model.safetensors")
    write_gguf(f"{dst}/model.gguf", cfg, {k: v.float().numpy() for k, v in w.items()}, tok, quant)
    if quant in (None, "BF16"):  # the same values
        shutil.copyfile(f"{src}/meta.json", f"{dst}/meta.json")
        return
    tmp = f"{dst}/tmp"; shutil.rmtree(tmp, ignore_errors=True); os.makedirs(tmp)
    save_file({k: torch.from_numpy(v) for k, v in dequantized(f"{dst}/model.gguf", cfg).items()}, f"{tmp}/model.safetensors", {"format": "pt"})
    json.dump({**cfg, "dtype": "float32"}, open(f"{tmp}/config.json", "w"))
    tiny.reference(tmp, dst, TOKENS, GEN, dict(family=cfg["model_type"], quant=quant))
    shutil.rmtree(tmp)


def of_family(base, name):
    recipe, sets = FAMILIES[name]
    d = f"{base}/{name}"; shutil.rmtree(d, ignore_errors=True)
    meta = tiny.make(recipe, d, 0, {**LAYERS, **sets}, False, TOKENS, GEN)
    bad = [k for k in ("f64_failed", "f64_leaks", "generate_failed", "greedy_masked", "missing_keys", "unexpected_keys") if k in meta]
    print(json.dumps(meta), flush=True)
    assert not bad, (name, bad)
    if os.path.exists(f"{d}/chat_template.jinja"): os.remove(f"{d}/chat_template.jinja")


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def mxfp4(w):
    """[..., n] to blocks [..., n / 32, 16] and scales [..., n / 32] as gpt-oss stores them, and the values they stand for."""
    v = w.float().reshape(*w.shape[:-1], -1, 32)
    exponent = torch.floor(torch.log2(v.abs().amax(-1, keepdim=True).clamp(min=2.0 ** -100))) - 2
    scaled = v / 2.0 ** exponent
    code = (scaled.abs().unsqueeze(-1) - E2M1).abs().argmin(-1)
    values = (E2M1[code] * scaled.sign() * 2.0 ** exponent).reshape(w.shape)
    code = (code + 8 * (scaled < 0)).to(torch.uint8)
    return code[..., 0::2] | code[..., 1::2] << 4, (exponent.squeeze(-1) + 127).to(torch.uint8), values


def gpt_oss_mxfp4(base):
    """gpt-oss with experts as published; the reference is of the dequantized values, which bf16 holds exactly."""
    src, dst = f"{base}/gpt-oss", f"{base}/gpt-oss-mxfp4"; tmp = f"{dst}/tmp"
    shutil.rmtree(dst, ignore_errors=True); os.makedirs(tmp)
    cfg = json.load(open(f"{src}/config.json")); w = load_file(f"{src}/model.safetensors"); plain = dict(w)
    for name in [n for n in w if n.endswith("experts.gate_up_proj") or n.endswith("experts.down_proj")]:
        blocks, scales, values = mxfp4(w.pop(name).transpose(1, 2).contiguous())
        w[f"{name}_blocks"], w[f"{name}_scales"] = blocks.contiguous(), scales.contiguous()
        plain[name] = values.transpose(1, 2).contiguous().to(torch.bfloat16)
        assert torch.equal(plain[name].float().transpose(1, 2), values)
    save_file(plain, f"{tmp}/model.safetensors", {"format": "pt"}); json.dump(cfg, open(f"{tmp}/config.json", "w"))
    tiny.reference(tmp, dst, TOKENS, GEN, dict(family="gpt_oss", quant="MXFP4")); shutil.rmtree(tmp)
    save_file(w, f"{dst}/model.safetensors", {"format": "pt"})
    skip = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    cfg["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": skip}
    with open(f"{dst}/config.json", "w") as h: json.dump(cfg, h, indent=2, sort_keys=True); h.write("\n")


def tidy(base, d):
    for f in ("tokenizer.json", "tokenizer_config.json"):
        if "gguf" not in d and d not in ("tokenizer", "qwen3-wide"): shutil.copyfile(f"{base}/tokenizer/{f}", f"{base}/{d}/{f}")
    m = f"{base}/{d}/meta.json"
    if os.path.exists(m):  # so that a second run gives the same bytes
        facts = json.load(open(m)); facts.pop("seconds", None)
        with open(m, "w") as h: json.dump(facts, h, indent=1); h.write("\n")
    for f in os.listdir(f"{base}/{d}"): os.chmod(f"{base}/{d}/{f}", 0o644)


def main(root, only):
    base = f"{root}/tests/fixtures/tiny"
    if only:
        for name in only:
            if name == "gpt-oss-mxfp4": gpt_oss_mxfp4(base)
            else: of_family(base, name)
            tidy(base, name)
        return
    shutil.rmtree(base, ignore_errors=True)
    tok = make_tokenizer(f"{base}/tokenizer")
    for name, (family, sets) in CHECKPOINTS.items():
        d = f"{base}/{name}"
        meta = tiny.make(family, d, 0, {**LAYERS, **sets}, False, TOKENS, GEN)
        bad = [k for k in ("f64_failed", "f64_leaks", "generate_failed", "greedy_masked", "missing_keys", "unexpected_keys") if k in meta]
        assert not bad, (name, meta)
        legacy(d)
        print(json.dumps(meta), flush=True)
    shard(f"{base}/llama", f"{base}/llama-sharded")
    for name in COPIES: gguf_copy(f"{base}/{name}", f"{base}/{name}-gguf", tok, None if name == "llama-tied" else "BF16")
    gguf_copy(f"{base}/llama", f"{base}/llama-gguf-q8_0", tok, "Q8_0")
    gguf_copy(f"{base}/qwen3", f"{base}/qwen3-gguf-q4_0", tok, "Q4_0")
    for name in FAMILIES: of_family(base, name)
    gpt_oss_mxfp4(base)
    make_gguf.main(root)
    for d in sorted(os.listdir(base)): tidy(base, d)
    make_fp8.main(root)
    os.makedirs(f"{root}/tests/goldens", exist_ok=True)
    goldens(f"{base}/tokenizer", f"{root}/tests/goldens/tiny_tokenizer.json")


if __name__ == "__main__": main(sys.argv[1], sys.argv[2:])
