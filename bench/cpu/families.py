#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Processor time that a token costs per active parameter, of each family beside the dense one (llama).

  families.py MET [NAME ...] [--output TABLE.md]

Made weights (`--load-format dummy`), bf16, one thread, one sequence. A token's cost is the difference of two runs' user
time (TOKENS[0] and TOKENS[1] generated tokens), so that loading and prefill leave it, and processor time is what other work
on the machine takes least part in. Each family is measured between two measurements of llama, whose mean it is divided by.
"""
import argparse, json, os, resource, statistics, subprocess, sys, tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TINY = os.path.join(HERE, "../../tests/fixtures/tiny")
TOKENS = (8, 72)
H, LAYERS, VOCAB, FFN, HEADS, KV, DIM = 768, 6, 4096, 2048, 12, 4, 64
EXPERTS, TOP, WIDE = 16, 4, 512
DENSE = dict(hidden_size=H, num_hidden_layers=LAYERS, vocab_size=VOCAB, intermediate_size=FFN, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM,
             max_position_embeddings=2048)
ATTENTION = H * DIM * (2 * HEADS + 2 * KV)
MOE = 3 * H * WIDE * TOP + H * EXPERTS
DELTA = dict(linear_num_key_heads=6, linear_num_value_heads=12, linear_key_head_dim=64, linear_value_head_dim=64)
DELTA_LAYER = H * (2 * 6 * 64 + 2 * 12 * 64 + 24) + 12 * 64 * H
GATED = ATTENTION + H * HEADS * DIM
SSM = dict(num_heads=24, head_dim=64, state_size=64, n_groups=1)
SSM_LAYER = H * (2 * 24 * 64 + 2 * 64 + 24) + 24 * 64 * H
KINDS = ["sliding_attention", "full_attention"] * (LAYERS // 2)
MIX = ["linear_attention", "linear_attention", "full_attention"] * (LAYERS // 3)
ALL = LAYERS * (ATTENTION + 3 * H * FFN)
# name -> (fixture whose config is the base, changes, active parameters of the layers' matrices)
FAMILIES = {
    "llama": ("llama", {}, ALL), "qwen2": ("qwen2", {"layer_types": ["full_attention"] * LAYERS}, ALL), "qwen3": ("qwen3", {"layer_types": ["full_attention"] * LAYERS}, ALL),
    "mistral": ("mistral", {"sliding_window": 64}, ALL), "phi3": ("phi3", {}, ALL), "granite": ("granite", {}, ALL), "olmo2": ("olmo2", {}, ALL),
    "gemma2": ("gemma2", {"layer_types": KINDS, "sliding_window": 64}, ALL), "gemma3": ("gemma3", {"layer_types": KINDS, "sliding_window": 64}, ALL),
    "qwen3_moe": ("qwen3-moe", {"num_experts": EXPERTS, "num_local_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_intermediate_size": WIDE}, LAYERS * (ATTENTION + MOE)),
    "mixtral": ("mixtral", {"num_local_experts": EXPERTS, "num_experts_per_tok": TOP, "intermediate_size": WIDE}, LAYERS * (ATTENTION + MOE)),
    "gpt_oss": ("gpt-oss", {"num_local_experts": EXPERTS, "num_experts_per_tok": TOP, "experts_per_token": TOP, "intermediate_size": WIDE, "layer_types": KINDS, "sliding_window": 64},
                LAYERS * (ATTENTION + MOE)),
    "deepseek_v3": ("deepseek-v3", {"n_routed_experts": EXPERTS, "num_local_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_intermediate_size": WIDE, "q_lora_rank": 384, "kv_lora_rank": 256,
                                    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "qk_head_dim": 96, "v_head_dim": 64, "head_dim": 32, "num_key_value_heads": HEADS, "n_group": 4, "topk_group": 2},
                    LAYERS * (H * 384 + 384 * HEADS * 96 + H * 288 + 2 * HEADS * 64 * 256 + HEADS * 64 * H) + 3 * H * FFN + (LAYERS - 1) * (MOE + 3 * H * WIDE)),
    "qwen3_next": ("qwen3-next", {**DELTA, "layer_types": MIX, "num_experts": EXPERTS, "num_local_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_intermediate_size": WIDE,
                                  "shared_expert_intermediate_size": WIDE}, LAYERS // 3 * (2 * DELTA_LAYER + GATED) + LAYERS * (MOE + 3 * H * WIDE)),
    "qwen3_5_text": ("qwen3-5", {**DELTA, "layer_types": MIX}, LAYERS // 3 * (2 * DELTA_LAYER + GATED) + LAYERS * 3 * H * FFN),
    "mamba2": ("mamba2", {**SSM}, LAYERS * SSM_LAYER),
    "nemotron_h": ("nemotron-h", {"mamba_num_heads": 24, "mamba_head_dim": 64, "ssm_state_size": 64, "n_groups": 1, "n_routed_experts": EXPERTS, "num_local_experts": EXPERTS,
                                  "num_experts_per_tok": TOP, "moe_intermediate_size": WIDE, "moe_shared_expert_intermediate_size": WIDE,
                                  "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention", "moe"]},
                   2 * SSM_LAYER + 2 * (2 * H * WIDE * TOP + H * EXPERTS + 2 * H * WIDE) + ATTENTION + 2 * H * FFN),
}


def config(folder, name):
    base, changes, _ = FAMILIES[name]
    old = json.load(open(f"{TINY}/{base}/config.json")); had = set(old)
    new = {**old, **{k: v for k, v in DENSE.items() if k in had}, **{k: v for k, v in changes.items() if k in had or k == "sliding_window"}}
    if "intermediate_size" in changes: new["intermediate_size"] = changes["intermediate_size"]
    with open(f"{folder}/config.json", "w") as f: json.dump(new, f)


def user_seconds(met, folder, tokens):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([met, "bench", folder, "--load-format", "dummy", "--device", "cpu", "--threads", "1", "--only", "decode", "--concurrency", "1", "--input", "16", "--output", str(tokens),
                           "--repeats", "1", "--kv-cache-dtype", "f16"], capture_output=True, text=True)
    if done.returncode: sys.exit(f"{folder}: {done.stderr[-600:]}")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def cost(met, name):
    """User nanoseconds of a token per active parameter, the head among them."""
    with tempfile.TemporaryDirectory() as folder:
        config(folder, name)
        few, many = (user_seconds(met, folder, t) for t in TOKENS)
    # A rung runs once for warmth and once to be measured.
    return (many - few) / (2 * (TOKENS[1] - TOKENS[0])) / (FAMILIES[name][2] + H * VOCAB) * 1e9


def main():
    a = argparse.ArgumentParser(); a.add_argument("met"); a.add_argument("names", nargs="*"); a.add_argument("--output"); n = a.parse_args()
    lines = ["| Family | Active parameters, M | User ns of a token per active parameter | Beside llama |", "|---|---|---|---|"]
    for name in n.names or FAMILIES:
        before = cost(n.met, "llama"); own = cost(n.met, name); after = cost(n.met, "llama")
        lines.append(f"| {name} | {(FAMILIES[name][2] + H * VOCAB) / 1e6:.1f} | {own:.3f} | {own / statistics.mean([before, after]):.2f} |"); print(lines[-1], flush=True)
    if n.output:
        with open(n.output, "w") as f: f.write("\n".join(lines) + "\n")


if __name__ == "__main__": main()
