# SPDX-License-Identifier: MIT OR Apache-2.0
"""Make the fp8 directories of tests/fixtures/tiny: what public fp8 checkpoints look like, with references.

  python make_fp8.py REPO_ROOT [SCRATCH]

A tiny random checkpoint (make_tiny_refs.py) has the matrices of its linear layers quantized to e4m3 by amax / 448, a scale per
128 x 128 block, per output channel or per tensor; config.json says so in the words of the tool that writes such files. The
reference is computed from the dequantized weights, in f32 with activations as they are. Beside it lies
  logits_f8_diff [1] f32   largest |logits - the same forward with the input of each quantized matrix rounded to e4m3|, by a scale
             a token (a token and 128 columns for blocks), amax / 448: what the scheme's dynamic activations do
  make_fp8.py REPO_ROOT --diffs   adds that to the references that are there
"""
import json, os, shutil, sys
import make_tiny_refs as tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS, GEN = 40, 16
GROUP = dict(
    input_activations=dict(actorder=None, block_structure=None, dynamic=True, group_size=None, num_bits=8, observer=None,
                           observer_kwargs={}, strategy="token", symmetric=True, type="float"),
    output_activations=None, targets=["Linear"],
    weights=dict(actorder=None, block_structure=None, dynamic=False, group_size=None, num_bits=8, observer="minmax",
                 observer_kwargs={}, strategy="channel", symmetric=True, type="float"))
# name -> family, settings, granularity, name of the scales and their type, quantization_config
FP8 = {
    "qwen3-fp8-block": ("qwen3", {"hidden_size": 256, "intermediate_size": 192, "num_hidden_layers": 1, "head_dim": 64, "num_attention_heads": 3, "num_key_value_heads": 1},
                        "block", "weight_scale_inv", torch.float32,
                        dict(activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=[128, 128], modules_to_not_convert=["lm_head"])),
    "llama-fp8-channel": ("llama", {"hidden_size": 80, "intermediate_size": 144, "num_hidden_layers": 2},
                          "channel", "weight_scale", torch.bfloat16,
                          dict(config_groups={"group_0": GROUP}, format="float-quantized", global_compression_ratio=None, ignore=["lm_head"],
                               kv_cache_scheme=None, quant_method="compressed-tensors", quantization_status="compressed",
                               sparsity_config={}, transform_config={}, version="0.12.2")),
    "llama-fp8-tensor": ("llama", {"tie_word_embeddings": True, "num_hidden_layers": 2},
                         "tensor", "weight_scale", torch.float32,
                         dict(activation_scheme="dynamic", quant_method="fp8", ignored_layers=["lm_head"])),
}


def scales(w, how):
    """amax / 448 of what shares a scale, in the shape that it is stored in, and spread over w."""
    n, k = w.shape
    if how == "tensor": s = w.abs().max() / 448; return s, s.expand(n, k)
    if how == "channel": s = w.abs().amax(1, keepdim=True) / 448; return s, s.expand(n, k)
    rows, cols = -(-n // 128), -(-k // 128)
    padded = torch.zeros(rows * 128, cols * 128); padded[:n, :k] = w.abs()
    s = padded.reshape(rows, 128, cols, 128).amax((1, 3)) / 448
    return s, s.repeat_interleave(128, 0).repeat_interleave(128, 1)[:n, :k]


def rounded(x, how):
    """x as dynamic e4m3 activations have it."""
    width = 128 if how == "block" else x.shape[-1]
    parts = torch.nn.functional.pad(x, (0, -x.shape[-1] % width)).unflatten(-1, (-1, width))
    s = parts.abs().amax(-1, keepdim=True) / 448
    q = (parts / s.where(s > 0, 1)).clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype) * s
    return q.flatten(-2)[..., :x.shape[-1]]


def add_diff(dst, how, suffix):
    """Add logits_f8_diff to the reference of the checkpoint in dst."""
    torch.set_grad_enabled(False)
    cfg = AutoConfig.from_pretrained(dst); del cfg.quantization_config
    model = AutoModelForCausalLM.from_config(cfg, dtype=torch.float32, attn_implementation="eager").eval()
    stored = load_file(f"{dst}/model.safetensors"); plain = {}
    for key, w in stored.items():
        s = stored.get(key.removesuffix("weight") + suffix)
        if key.endswith("_proj.weight"):
            w = w.float() * (s.float().repeat_interleave(128, 0).repeat_interleave(128, 1)[:w.shape[0], :w.shape[1]] if how == "block" else s.float())
        if not key.endswith(suffix): plain[key] = w.float()
    missing, unexpected = model.load_state_dict(plain, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    ref = load_file(f"{dst}/ref.safetensors"); ids = ref["input_ids"][None]
    assert torch.equal(model(input_ids=ids, use_cache=False).logits[0], ref["logits"]), "not the model of this reference"
    for name, module in model.named_modules():
        if name.endswith("_proj"): module.register_forward_pre_hook(lambda _, args: (rounded(args[0], how),))
    diff = (model(input_ids=ids, use_cache=False).logits[0] - ref["logits"]).abs().max()
    save_file({**ref, "logits_f8_diff": diff.reshape(1)}, f"{dst}/ref.safetensors")
    print(dst, "logits_f8_diff", float(diff), flush=True)


def make(base, scratch, name, family, sets, how, suffix, dtype, config):
    src, dst, tmp = f"{scratch}/{name}-src", f"{base}/{name}", f"{scratch}/{name}-tmp"
    for d in (src, dst, tmp): shutil.rmtree(d, ignore_errors=True)
    for d in (dst, tmp): os.makedirs(d)
    meta = tiny.make(family, src, 0, sets, False, TOKENS, GEN)
    bad = [k for k in ("f64_failed", "f64_leaks", "generate_failed", "greedy_masked", "missing_keys", "unexpected_keys") if k in meta]
    assert not bad, (name, meta)
    out, plain = {}, {}
    for key, w in load_file(f"{src}/model.safetensors").items():
        out[key], plain[key] = w, w.float()
        if not key.endswith("_proj.weight"): continue
        s, _ = scales(w.float(), how); s = s.to(dtype)  # the stored scale is what counts
        spread = s.float().repeat_interleave(128, 0).repeat_interleave(128, 1)[:w.shape[0], :w.shape[1]] if how == "block" else s.float().expand(*w.shape)
        q = (w.float() / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        out[key], out[key.removesuffix("weight") + suffix] = q, s
        plain[key] = q.float() * spread
    save_file(out, f"{dst}/model.safetensors", {"format": "pt"})
    save_file(plain, f"{tmp}/model.safetensors", {"format": "pt"})
    cfg = json.load(open(f"{src}/config.json"))
    json.dump({**cfg, "dtype": "float32"}, open(f"{tmp}/config.json", "w"))
    tiny.reference(tmp, dst, TOKENS, GEN, dict(family=family, sets=sets, quant=f"fp8 {how}"))
    json.dump({**cfg, "quantization_config": config}, open(f"{dst}/config.json", "w"), indent=2, sort_keys=True)
    shutil.copyfile(f"{src}/generation_config.json", f"{dst}/generation_config.json")
    add_diff(dst, how, suffix)
    for f in ("tokenizer.json", "tokenizer_config.json"): shutil.copyfile(f"{base}/tokenizer/{f}", f"{dst}/{f}")
    facts = json.load(open(f"{dst}/meta.json")); facts.pop("seconds", None)
    with open(f"{dst}/meta.json", "w") as h: json.dump(facts, h, indent=1); h.write("\n")
    for f in os.listdir(dst): os.chmod(f"{dst}/{f}", 0o644)
    print(json.dumps(facts), flush=True)
    for d in (src, tmp): shutil.rmtree(d)


def main(root, scratch=None):
    base = f"{root}/tests/fixtures/tiny"
    if scratch == "--diffs":
        for name, (_, _, how, suffix, _, _) in FP8.items(): add_diff(f"{base}/{name}", how, suffix)
        return
    scratch = scratch or f"{base}/.fp8"
    for name, spec in FP8.items(): make(base, scratch, name, *spec)
    if scratch == f"{base}/.fp8": shutil.rmtree(scratch)


if __name__ == "__main__": main(*sys.argv[1:])
