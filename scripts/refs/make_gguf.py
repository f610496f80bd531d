# SPDX-License-Identifier: MIT OR Apache-2.0
"""Make tests/fixtures/tiny/*-gguf of the families beyond Llama and Qwen3: one small GGUF file each, with its reference.

  python make_gguf.py REPO_ROOT [NAME ...]

Tensor names come from the `gguf` library's own map of hub names, metadata from its writer. What such files change in the
values is written down here, a line each in VALUES. Files are small on purpose (hidden 32, 128 tokens, no tokenizer), and the
reference is what Transformers computes from the checkpoint that the file was made from. Matrices are BF16, the experts of
gpt-oss MXFP4, all other tensors F32. check_fixtures.py holds the files against llama.cpp.
"""
import json, os, re, shutil, sys
import make_tiny_refs as tiny
import numpy as np, torch
from gguf import GGMLQuantizationType as Q, GGUFWriter, MODEL_ARCH, RopeScalingType, get_tensor_name_map
from gguf.constants import ExpertGatingFuncType as Gating
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file
from tiny_gguf import permute

TOKENS, GEN = 16, 8
SMALL = dict(hidden_size=32, intermediate_size=32, num_hidden_layers=2, vocab_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
             num_experts=4, num_local_experts=4, n_routed_experts=4)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0)
WINDOWS = ["sliding_attention", "full_attention"]
# directory -> (recipe, changes, architecture)
FAMILIES = {
    "qwen2-gguf": ("qwen2", {}, "QWEN2"),
    "phi3-gguf": ("phi3", {"hidden_size": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}}, "PHI3"),
    "granite-gguf": ("granite", {"attention_multiplier": 0.2}, "GRANITE"),
    "olmo2-gguf": ("olmo2", {}, "OLMO2"),
    "gemma2-gguf": ("gemma2", {"layer_types": WINDOWS, "query_pre_attn_scalar": 8}, "GEMMA2"),
    "gemma3-gguf": ("gemma3_text", {"layer_types": ["sliding_attention"] * 5 + ["full_attention"], "num_hidden_layers": 6, "query_pre_attn_scalar": 8}, "GEMMA3"),
    "mixtral-gguf": ("mixtral", {}, "LLAMA"),
    "qwen3-moe-gguf": ("qwen3_moe", {"norm_topk_prob": True}, "QWEN3MOE"),
    "gpt-oss-gguf": ("gpt_oss", {"layer_types": WINDOWS}, "GPT_OSS"),
    "deepseek-v3-gguf": ("deepseek_v3", {"num_key_value_heads": 4, "rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 0.5}}, "DEEPSEEK2"),
    "mamba2-gguf": ("mamba2", {"num_heads": 4, "head_dim": 16}, "MAMBA2"),
}


def metadata(w, c, tensors):
    """What config.json says, in the words of the file."""
    kind, get = c["model_type"], c.get
    w.add_block_count(c["num_hidden_layers"]); w.add_context_length(get("max_position_embeddings") or 512)
    w.add_embedding_length(c["hidden_size"]); w.add_vocab_size(c["vocab_size"]); w.add_tokenizer_model("none")
    if kind == "mamba2":
        w.add_feed_forward_length(0); w.add_head_count(0); w.add_layer_norm_rms_eps(c["layer_norm_epsilon"])
        w.add_ssm_conv_kernel(c["conv_kernel"]); w.add_ssm_inner_size(c["num_heads"] * c["head_dim"]); w.add_ssm_state_size(c["state_size"])
        w.add_ssm_time_step_rank(c["num_heads"]); w.add_ssm_group_count(c["n_groups"])
        return
    heads = c["num_attention_heads"]; dim = get("head_dim") or c["hidden_size"] // heads
    w.add_feed_forward_length(c["intermediate_size"]); w.add_head_count(heads); w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    rope = c["rope_parameters"]; rope = rope.get("full_attention", rope); w.add_rope_freq_base(rope["rope_theta"])
    if kind == "deepseek_v3":
        nope, rot, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        w.add_head_count_kv(1); w.add_key_length(rank + rot); w.add_value_length(rank); w.add_rope_dimension_count(rot)
        w.add_key_length_mla(nope + rot); w.add_value_length_mla(c["v_head_dim"]); w.add_q_lora_rank(c["q_lora_rank"]); w.add_kv_lora_rank(rank)
        w.add_leading_dense_block_count(c["first_k_dense_replace"]); w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_weights_scale(c["routed_scaling_factor"]); w.add_expert_weights_norm(c["norm_topk_prob"]); w.add_expert_gating_func(Gating.SIGMOID)
        w.add_expert_group_count(c["n_group"]); w.add_expert_group_used_count(c["topk_group"])
        w.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    else:
        w.add_head_count_kv(c["num_key_value_heads"]); w.add_key_length(dim); w.add_value_length(dim)
        w.add_rope_dimension_count(int(dim * (rope.get("partial_rotary_factor") or 1)))
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_type(RopeScalingType.YARN); w.add_rope_scaling_factor(rope["factor"]); w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    experts = get("n_routed_experts") or get("num_local_experts") or get("num_experts")
    if experts:
        w.add_expert_count(experts); w.add_expert_used_count(c["num_experts_per_tok"])
        if kind != "mixtral": w.add_expert_feed_forward_length(get("moe_intermediate_size") or c["intermediate_size"])
    if kind in ("gemma2", "gemma3_text", "gpt_oss"): w.add_sliding_window(c["sliding_window"])
    if kind == "phi3": w.add_sliding_window(get("sliding_window") or 0)
    if kind == "gemma3_text": w.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    if kind == "gemma2": w.add_attn_logit_softcapping(c["attn_logit_softcapping"]); w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if kind == "granite":
        w.add_attention_scale(c["attention_multiplier"]); w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"]); w.add_logit_scale(c["logits_scaling"])
    if kind == "qwen3_next":
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"]); w.add_full_attention_interval(4)
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"]); w.add_ssm_state_size(c["linear_key_head_dim"]); w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"]); w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])


EXPERT = {"w1": "gate", "w3": "up", "w2": "down", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


def gguf_tensors(c, w, arch):
    """Tensors of the file by name, from those of the hub."""
    names = get_tensor_name_map(MODEL_ARCH[arch], c["num_hidden_layers"]); out, stacks, kind = {}, {}, c["model_type"]
    def name(hub):
        found = names.get_name(hub, try_suffixes=(".weight", ".bias")); assert found, hub
        return found
    for hub, x in w.items():
        x = x.float().numpy(); layer = (re.search(r"layers\.(\d+)\.", hub) or [None, None])[1]
        if (m := re.search(r"experts\.(\d+)\.(\w+)\.weight$", hub)): stacks.setdefault(f"blk.{layer}.ffn_{EXPERT[m[2]]}_exps.weight", {})[int(m[1])] = x; continue
        if hub.endswith("e_score_correction_bias"): out[f"blk.{layer}.exp_probs_b.bias"] = x; continue
        if hub.endswith("dt_bias"): out[f"blk.{layer}.ssm_dt.bias"] = x; continue
        # Families with norms of 1 + w have the sum in the file.
        if kind in ("gemma2", "gemma3_text", "qwen3_next") and hub.endswith("norm.weight") and "linear_attn.norm" not in hub: x = x + 1
        # Rows of q and k of this convention rotate in neighbouring pairs.
        if kind in ("mixtral", "granite") and re.search(r"[qk]_proj", hub): x = permute(x, c["num_attention_heads" if "q_proj" in hub else "num_key_value_heads"])
        if hub.endswith("A_log"): x = -np.exp(x)
        if hub.endswith((".A_log", ".D")) and kind == "mamba2": x = x.reshape(-1, 1)
        if hub.endswith("conv1d.weight"): x = x.squeeze(1)
        if kind == "mamba2" and hub.endswith("mixer.norm.weight"): x = x.reshape(c["n_groups"], -1)
        if hub.endswith("kv_b_proj.weight"):
            heads, nope = c["num_attention_heads"], c["qk_nope_head_dim"]; x = x.reshape(heads, -1, x.shape[1])
            out[f"blk.{layer}.attn_k_b.weight"] = x[:, :nope].transpose(0, 2, 1); out[f"blk.{layer}.attn_v_b.weight"] = x[:, nope:]
            continue
        if kind == "gpt_oss" and "experts." in hub:
            bias = hub.endswith("_bias"); end = "bias" if bias else "weight"
            if not bias: x = x.transpose(0, 2, 1)
            if "gate_up" in hub: out[f"blk.{layer}.ffn_gate_exps.{end}"], out[f"blk.{layer}.ffn_up_exps.{end}"] = x[:, 0::2], x[:, 1::2]
            else: out[f"blk.{layer}.ffn_down_exps.{end}"] = x
            continue
        n = name(hub)
        out[f"{n}.weight" if n.endswith("attn_sinks") else n] = x
    out.update({n: np.stack([by[e] for e in sorted(by)]) for n, by in stacks.items()})
    return out


def write(path, c, tensors, arch, name, plain=False):
    """plain: all in F32, for a reader that would round activations to the format of the weights."""
    w = GGUFWriter(path, arch); w.add_name(f"tiny random {c['model_type']}"); w.add_license("MIT OR Apache-2.0")
    metadata(w, c, tensors)
    for n, x in sorted(tensors.items()):
        x = np.ascontiguousarray(x, np.float32)
        if plain or x.ndim < 2 or n.endswith(".bias") or re.search(r"ssm_(a|d|norm|conv1d)", n) or "gate_inp" in n: w.add_tensor(n, x)
        else:
            q = Q.MXFP4 if "exps" in n and c["model_type"] == "gpt_oss" else Q.BF16
            w.add_tensor(n, quantize(x, q), raw_dtype=q)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def make(base, directory, plain=None):
    recipe, sets, arch = FAMILIES[directory]
    dst = f"{base}/{directory}"; src = f"{dst}/src"; shutil.rmtree(dst, ignore_errors=True)
    default = tiny.CONFIG_MAPPING[recipe]().to_dict()
    small = {k: v for k, v in SMALL.items() if k in default and k not in tiny.RECIPES[recipe] or k in ("hidden_size", "num_hidden_layers", "vocab_size")}
    meta = tiny.make(recipe, src, 0, {k: v for k, v in {**small, **sets}.items() if v is not None}, False, TOKENS, GEN)
    c = json.load(open(f"{src}/config.json")); w = load_file(f"{src}/model.safetensors")
    if recipe == "gpt_oss":  # the experts' values are those of MXFP4
        for k in [k for k in w if re.search(r"experts\.\w+_proj$", k)]:
            x = np.ascontiguousarray(w[k].float().transpose(1, 2).numpy())
            x = dequantize(quantize(x, Q.MXFP4), Q.MXFP4).reshape(x.shape); w[k] = torch.from_numpy(x).transpose(1, 2).contiguous().to(torch.bfloat16)
        save_file(w, f"{src}/model.safetensors", {"format": "pt"})
        meta = tiny.reference(src, src, TOKENS, GEN, dict(family=recipe, seed=0, sets=sets))
    bad = [k for k in ("f64_failed", "f64_leaks", "generate_failed", "greedy_masked", "missing_keys", "unexpected_keys") if k in meta]
    assert not bad, (directory, meta)
    from gguf.constants import MODEL_ARCH_NAMES
    tensors = gguf_tensors(c, w, arch); named = MODEL_ARCH_NAMES[MODEL_ARCH[arch]]
    if plain: write(plain, c, tensors, named, directory, True)
    write(f"{dst}/model.gguf", c, tensors, named, directory)
    shutil.copyfile(f"{src}/ref.safetensors", f"{dst}/ref.safetensors"); meta.pop("seconds", None)
    with open(f"{dst}/meta.json", "w") as h: json.dump(meta, h, indent=1); h.write("\n")
    shutil.rmtree(src); print(json.dumps(meta), flush=True)
    for f in os.listdir(dst): os.chmod(f"{dst}/{f}", 0o644)


def main(root, only=()):
    for name in only or FAMILIES: make(f"{root}/tests/fixtures/tiny", name)


if __name__ == "__main__": main(sys.argv[1], sys.argv[2:])
