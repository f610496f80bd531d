# SPDX-License-Identifier: MIT OR Apache-2.0
"""Make a tiny random checkpoint of one transformers model family and its reference logits.

  make_tiny_refs.py FAMILY OUT_DIR [SEED] [--vl] [--set key=json ...] [--f32] [--tokens N] [--gen N]
  make_tiny_refs.py --list                 every family in RECIPES
  make_tiny_refs.py --all OUT_DIR [SEED]   every family, one JSON line each (a failed one does not stop it)

Writes OUT_DIR/config.json, OUT_DIR/model.safetensors (the names a hub checkpoint has),
OUT_DIR/ref.safetensors and OUT_DIR/meta.json. ref.safetensors has
  input_ids  [T] int64     the prompt (made from the seed-free rule in prompt())
  logits     [T,V] f32     full forward, no cache, eager attention, f32 arithmetic
  greedy_ids [G] int64     greedy continuation with the family's own cache
  greedy_gap [G] f32       top-1 minus top-2 logit at each greedy step: compare ids only while it is not tiny
  logits_f64_diff [1] f32  largest |logits - the same forward in f64|: the rounding of one f32 evaluation.
             Another f32 evaluation order is held to 8 times that (derived, not fitted). See F64 below.
  logits_bf16_diff [1] f32 (routers, recurrences)  largest |logits - the same forward with what linear layers take and give,
             rounded as bf16 does|, over eight draws of such roundings. The prompt is such that none of them comes near to
             another choice of experts: a token whose row is not clear of that is replaced. See Rounded below.
  greedy_clear [1] int64 (the same)  greedy steps before the first whose row is not clear
  (--vl) pixel_values and the other image inputs, image_logits: the same with one image in the prompt
Weights are rounded to bf16 and stored so (unless --f32); the reference is computed in f32 from the
rounded weights, so an engine that upcasts must agree to f32 rounding.
Every constant parameter (norm weights, sinks, biases, A_log, D, correction biases) gets seeded noise,
so that an engine which drops one is caught.
"""
import argparse, json, os, sys, time, traceback
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("USE_HUB_KERNELS", "0")
import torch
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as LM, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as VL,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as S2S)

# attribute -> tiny value; used only where the family's default config has the attribute
TINY = dict(
    vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, max_position_embeddings=512, model_max_length=512,
    initializer_range=0.1,
    # experts
    num_experts=8, n_routed_experts=8, num_local_experts=8, num_experts_per_tok=2, num_experts_per_token=2,
    moe_intermediate_size=32, shared_expert_intermediate_size=32, shared_intermediate_size=32,
    n_shared_experts=1, num_shared_experts=1, first_k_dense_replace=1, num_dense_layers=1,
    share_expert_dim=32, moe_shared_expert_intermediate_size=32, expert_ffn_hidden_size=32,
    ffn_hidden_size=96, moe_topk=2, zero_expert_num=4,
    # MLA and sparse indexer
    q_lora_rank=32, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16,
    index_n_heads=4, index_head_dim=16, index_topk=8, o_groups=2, o_lora_rank=16,
    # windows, linear attention, state space
    sliding_window=8, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=16, linear_head_dim=16, linear_num_heads=4,
    mamba_n_heads=4, mamba_d_head=32, mamba_d_state=16, mamba_expand=2, mamba_chunk_size=8, mamba_d_ssm=128,
    mamba_num_heads=4, mamba_head_dim=32, ssm_state_size=16, state_size=16, chunk_size=8,
    n_groups=2, mamba_n_groups=2,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
# of a vision tower
TINY_V = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, depth=2, num_attention_heads=2, num_heads=2,
              head_dim=16, out_hidden_size=64, image_size=56, patch_size=14, num_position_embeddings=16,
              initializer_range=0.1, deepstack_visual_indexes=[0, 1], projection_intermediate_size=64)
L4 = lambda *a: list(a)
GDN = L4("linear_attention", "linear_attention", "linear_attention", "full_attention")
SWA = L4("sliding_attention", "full_attention", "sliding_attention", "full_attention")
# family -> overrides; "_type" another model_type, "_cls" lm|vl|s2s, text./vision. prefixes reach nested configs
RECIPES = {
    "llama": {}, "mistral": {}, "ministral": {"layer_types": SWA}, "ministral3": {}, "smollm3": {}, "seed_oss": {},
    "qwen2": {}, "qwen3": {}, "granite": {"logits_scaling": 2.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0},
    "olmo": {}, "olmo2": {}, "olmo3": {"layer_types": SWA}, "phi": {"num_key_value_heads": 4}, "phi3": {"sliding_window": None},
    "gemma2": {"layer_types": SWA, "query_pre_attn_scalar": 16}, "gemma3_text": {"layer_types": SWA, "query_pre_attn_scalar": 16},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 512}, "gpt_neox": {}, "bitnet": {},
    "mixtral": {"sliding_window": None}, "qwen2_moe": {"sliding_window": None}, "qwen3_moe": {}, "olmoe": {}, "phimoe": {"sliding_window": None},
    "granitemoe": {}, "granitemoeshared": {}, "minimax_m2": {}, "glm4_moe": {"n_group": 2, "topk_group": 1}, "gpt_oss": {"layer_types": SWA},
    "laguna": {"layer_types": SWA, "num_attention_heads_per_layer": [4, 4, 4, 4], "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "mimo_v2_flash": {"layer_types": L4("full_attention", "sliding_attention", "sliding_attention", "full_attention"), "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "granite_swa": {}, "granitemoe_swa": {},
    "deepseek_v2": {"num_key_value_heads": 4, "n_group": 2, "topk_group": 1}, "deepseek_v3": {"num_key_value_heads": 4, "head_dim": 8, "n_group": 2, "topk_group": 1, "num_nextn_predict_layers": 0},
    "deepseek_v32": {"num_key_value_heads": 4, "n_group": 2, "topk_group": 1, "layer_types": ["indexed_attention"] * 4, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "deepseek_v4": {"num_key_value_heads": 1, "head_dim": 32, "qk_rope_head_dim": 8, "partial_rotary_factor": 0.25, "num_nextn_predict_layers": 0,
                    "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention", "compressed_sparse_attention"],
                    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 8},
                    "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"], "index_topk": 4, "hc_mult": 4, "hc_sinkhorn_iters": 4, "rope_parameters": None},
    "glm_moe_dsa": {"num_key_value_heads": 4, "layer_types": ["indexed_attention"] * 4, "indexer_types": ["full", "shared", "full", "shared"], "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "glm4_moe_lite": {"num_key_value_heads": 4, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "mistral4": {"num_key_value_heads": 4, "head_dim": 24}, "minicpm3": {"num_key_value_heads": 4},
    "longcat_flash": {"num_key_value_heads": 4, "head_dim": 8, "num_layers": 2, "num_hidden_layers": None},
    "hy_v4": {"num_key_value_heads": 4, "layer_types": ["indexed_attention"] * 4, "indexer_types": ["full", "shared", "full", "shared"], "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "qwen3_next": {"layer_types": GDN}, "qwen3_5_text": {"layer_types": GDN}, "qwen3_5_moe_text": {"layer_types": GDN},
    "olmo_hybrid": {"layer_types": GDN, "linear_num_key_heads": 4, "linear_num_value_heads": 4},
    "kimi_linear": {"num_key_value_heads": 4, "q_lora_rank": None, "layer_types": GDN, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    "bailing_hybrid": {"num_key_value_heads": 4, "q_lora_rank": None, "num_expert_group": 2, "topk_group": 1, "num_nextn_predict_layers": 0,
                       "layer_types": GDN, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "layer_group_size": 4},
    "minimax": {"layer_types": L4("linear_attention", "full_attention", "linear_attention", "full_attention"), "block_size": 8},
    "nemotron_h": {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "num_hidden_layers": None, "chunk_size": 8, "initializer_range": 0.1},
    "mamba": {"hidden_size": 64, "state_size": 8, "time_step_rank": 4, "intermediate_size": 128}, "mamba2": {"num_heads": 4, "head_dim": 32},
    "bamba": {"attn_layer_indices": [1, 3]}, "falcon_h1": {},
    "granitemoehybrid": {"layer_types": L4("linear_attention", "full_attention", "linear_attention", "full_attention"), "position_embedding_type": "rope"},
    "rwkv": {"attention_hidden_size": 64, "intermediate_size": 128, "context_length": 512},
    "lfm2": {"layer_types": L4("conv", "conv", "full_attention", "conv"), "block_ff_dim": 96, "block_multiple_of": 16, "conv_L_cache": 3},
    "lfm2_moe": {"layer_types": L4("conv", "conv", "full_attention", "conv")},
    "lfm3": {"layer_types": L4("conv", "sliding_attention", "conv", "full_attention")},
    "gemma4_text": {"layer_types": SWA, "hidden_size_per_layer_input": 0, "global_head_dim": 16, "vocab_size_per_layer_input": 320, "num_kv_shared_layers": 0},
    "m2m_100": {"_cls": "s2s", "d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
                "encoder_attention_heads": 4, "decoder_attention_heads": 4, "init_std": 0.1, "pad_token_id": 1, "bos_token_id": 0, "decoder_start_token_id": 2},
    "nllb_moe": {"_type": "nllb-moe", "_cls": "s2s", "d_model": 64, "encoder_layers": 4, "decoder_layers": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
                 "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2, "init_std": 0.1,
                 "pad_token_id": 1, "bos_token_id": 0, "decoder_start_token_id": 2, "expert_capacity": 64, "moe_eval_capacity_token_fraction": 1.0},
    # with a vision tower
    "gemma3": {"_cls": "vl", "text.layer_types": SWA, "text.query_pre_attn_scalar": 16, "mm_tokens_per_image": 4, "image_token_index": 310, "image_token_id": 310, "boi_token_index": 311, "eoi_token_index": 312, "boi_token_id": 311, "eoi_token_id": 312},
    "gemma4": {"_cls": "vl", "text.layer_types": SWA, "text.hidden_size_per_layer_input": 0, "text.global_head_dim": 16, "text.vocab_size_per_layer_input": 320, "text.num_kv_shared_layers": 0,
               "audio_config": None, "image_token_id": 310, "boi_token_id": 311, "eoi_token_id": 312, "audio_token_id": 313, "video_token_id": 314, "vision.num_key_value_heads": 2, "vision.position_embedding_size": 64, "vision.global_head_dim": 16, "vision.pooling_kernel_size": 2},
    "mistral3": {"_cls": "vl", "image_token_index": 310, "image_token_id": 310, "text.sliding_window": None, "vision.head_dim": 16},
    "qwen2_5_vl": {"_cls": "vl", "vision.fullatt_block_indexes": [1], "vision.window_size": 56, "text.rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}},
    "qwen3_vl": {"_cls": "vl", "text.rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}},
    "qwen3_vl_moe": {"_cls": "vl", "text.rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}},
    "qwen3_5": {"_cls": "vl", "text.layer_types": GDN, "text.rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": True}},
    "qwen3_5_moe": {"_cls": "vl", "text.layer_types": GDN, "text.rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1], "mrope_interleaved": True}},
    "qwen4_exp": {"_cls": "vl", "text.layer_types": L4("linear_attention", "linear_attention", "linear_attention", "indexed_attention"), "text.indexer_n_heads": 4, "text.indexer_kv_heads": 1, "text.indexer_head_dim": 16, "text.indexer_budget": 16, "text.indexer_compress_ratio": 4, "text.hc_lowrank": 16, "text.ple_embed_dim": 64, "text.ngram_vocab_size_base": 512, "text.split_ngram_parts": 1},
    "kimi_k25": {"_cls": "vl", "text.num_key_value_heads": 4, "text.head_dim": 8, "text.n_group": 2, "text.topk_group": 1, "text.num_nextn_predict_layers": 0, "projection_hidden_size": 32, "vision.pos_emb_height": 8, "vision.pos_emb_width": 8},
    "step3p7": {"_cls": "vl", "text.sliding_window": 8, "text.layer_types": L4("full_attention", "sliding_attention", "sliding_attention", "full_attention"), "text.mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "text.num_sliding_attention_heads": 4, "text.query_pre_attn_scalar": 16},
    "glm5_next": {"_cls": "vl", "text.num_key_value_heads": 4, "text.qk_rope_head_dim": 0, "text.layer_types": L4("linear_attention", "indexed_attention", "linear_attention", "indexed_attention"), "text.indexer_types": ["full"] * 4, "text.mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "text.index_kpool": 2, "text.hc_sinkhorn_iters": 4},
    "mistral_large4": {"_cls": "vl", "text.num_key_value_heads": 4, "image_token_index": 310, "vision.head_dim": 16, "text.layer_types": ["indexed_attention"] * 4, "text.indexer_types": ["full", "shared", "full", "shared"], "text.mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "text.no_rope_layers": [1, 1, 1, 0], "text.kv_source_layers": [0, 1, 2, 3]},
}
IDS = dict(image_token_id=310, video_token_id=311, vision_start_token_id=312, vision_end_token_id=313,
           image_start_token_id=312, image_end_token_id=313, video_start_token_id=314, video_end_token_id=315)
AUTO = {"lm": AutoModelForCausalLM, "vl": AutoModelForImageTextToText, "s2s": AutoModelForSeq2SeqLM}


def tokens_of(vocab):
    x = 12345
    while True:
        x = (x * 1103515245 + 12345) % 2**31
        yield 3 + (x >> 8) % (min(vocab, 300) - 3)


def prompt(n, vocab):
    return torch.tensor([[t for t, _ in zip(tokens_of(vocab), range(n))]])


def shrink(default, table, extra):
    out = {}
    for k, v in table.items():
        if k in default and not isinstance(default[k], dict):
            out[k] = v
    # a default of None means 'not used' for some switches: leave those alone
    for k in ("q_lora_rank", "sliding_window", "moe_latent_size"):
        if k in out and default.get(k) is None and k not in extra:
            out[k] = None
    # per-layer lists follow num_hidden_layers: let the config make them again, or take the recipe's
    out.update(extra)
    return out


def build_config(family, sets):
    r = dict(RECIPES.get(family, {}))
    mtype, cls = r.pop("_type", family), r.pop("_cls", None)
    r.update(sets)
    if mtype not in CONFIG_MAPPING_NAMES:
        raise KeyError(f"no model_type {mtype!r} in this transformers")
    C = CONFIG_MAPPING[mtype]
    d = C().to_dict()
    if cls is None:
        cls = "lm" if mtype in LM and not isinstance(d.get("text_config"), dict) else "vl" if mtype in VL else "s2s" if mtype in S2S else "lm"
    if isinstance(d.get("text_config"), dict):
        t = shrink(d["text_config"], TINY, {k[5:]: v for k, v in r.items() if k.startswith("text.")})
        t["model_type"] = d["text_config"].get("model_type")
        top = shrink(d, {**IDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}, {k: v for k, v in r.items() if "." not in k})
        kw = {**top, "text_config": t}
        if isinstance(d.get("vision_config"), dict):
            v = shrink(d["vision_config"], TINY_V, {k[7:]: x for k, x in r.items() if k.startswith("vision.")})
            v["model_type"] = d["vision_config"].get("model_type")
            kw["vision_config"] = v
        cfg = C(**kw)
    else:
        kw = shrink(d, TINY, r)
        for k in [k for k, v in r.items() if v is None and k in ("num_hidden_layers", "rope_parameters")]:
            kw.pop(k)
        cfg = C(**kw)
    return cfg, cls


def salt(model, seed):
    g = torch.Generator().manual_seed(seed + 1)
    named = list(model.named_parameters()) + [(n, b) for n, b in model.named_buffers() if n in model.state_dict()]
    n = 0
    for name, p in named:
        if p.is_floating_point() and p.numel() and not torch.isfinite(p).all():
            p.data.copy_(torch.randn(p.shape, generator=g) * 0.1); n += 1
        elif p.is_floating_point() and p.numel() > 1 and float(p.float().std()) == 0.0:
            p.data.add_(torch.randn(p.shape, generator=g) * 0.1); n += 1
        elif name.endswith("dt_bias"):  # steps near 1: with those of training, hardly a logit shows the state
            p.data.copy_(torch.randn(p.shape, generator=g)); n += 1
    return n


class F64(TorchFunctionMode):
    """Runs a model in f64 throughout. model.double() alone is not enough: norms, softmax and the rotary
    tables ask for float32 by name, so every such request is answered with float64 here.
    `leaks` names the functions whose result was float32 all the same (empty for a true f64 run)."""
    def __init__(self):
        super().__init__(); self.leaks = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        up = lambda x: torch.float64 if x is torch.float32 else x
        if func is torch.Tensor.float: func = torch.Tensor.double
        out = func(*map(up, args), **{k: up(v) for k, v in (kwargs or {}).items()})
        if isinstance(out, torch.Tensor) and out.dtype is torch.float32: self.leaks.add(getattr(func, "__name__", str(func)))
        return out


# Grouped matrix products exist for f32 and narrower only; one expert after another is the same mathematics.
EAGER_EXPERTS = dict(experts_implementation="eager")


def logits_f64(model, cfg, Auto, fw):
    """The logits of `model` (f32) evaluated in f64: the same weights, rotary frequencies made in f64 too."""
    state = model.state_dict()
    old = torch.get_default_dtype(); torch.set_default_dtype(torch.float64)
    try:
        with F64() as mode:
            wide = Auto.from_config(cfg, dtype=torch.float64, attn_implementation="eager", **EAGER_EXPERTS).eval()
            missing = wide.load_state_dict({k: v.double() for k, v in state.items()}, strict=True)
            wide.double()
            mode.leaks.clear()
            out = wide(**fw, use_cache=False).logits
    finally:
        torch.set_default_dtype(old)
    assert out.dtype is torch.float64 and not missing.missing_keys
    return out, sorted(mode.leaks)


def router(m): return type(m).__name__.lower().endswith("router")


def rough(model):
    """Whether roundings are amplified: a choice of experts, or a state that is carried from token to token."""
    return any(router(m) or isinstance(m, torch.nn.Conv1d) for m in model.modules())


class Rounded:
    """The model with relative errors of up to 2^-9, half a unit in the last place of bf16, in the inputs and outputs of its
    linear layers and the inputs of its routers: draw 1, 2, ... of such errors; draw 0 has none. A call gives the logits, and of
    each router the scores that the choice is made from."""
    DRAWS = 8

    def __init__(self, model, cfg):
        self.model, self.cfg, self.draw, self.scores = model, cfg, 0, []
        self.g = torch.Generator()
        for name, m in model.named_modules():
            if router(m) or isinstance(m, torch.nn.Linear): m.register_forward_pre_hook(lambda _, a: (self.off(a[0]), *a[1:]))
            if router(m): m.register_forward_pre_hook(lambda m, a: self.scores.append(self.score(m, a[0])))
            elif isinstance(m, torch.nn.Linear) and name != "lm_head": m.register_forward_hook(lambda m, a, y: self.off(y))

    def off(self, x):
        return x * (1 + (2 * torch.rand(x.shape, generator=self.g) - 1) * 2.0 ** -9) if self.draw else x

    def score(self, m, x):
        s = torch.nn.functional.linear(x.reshape(-1, x.shape[-1]), m.weight, getattr(m, "bias", None))
        bias = getattr(m, "e_score_correction_bias", None)
        return s if bias is None else s.sigmoid() + bias

    def __call__(self, ids, draw):
        self.draw, self.scores = draw, []; self.g.manual_seed(draw)
        logits = self.model(input_ids=ids, use_cache=False).logits[0]
        self.draw = 0
        return logits, self.scores

    def margins(self, scores):
        """Of each row, how far the least of the chosen is above the best of the others; half of that for groups, whose score is a sum of two."""
        t = self.cfg.get_text_config(); k = t.num_experts_per_tok
        groups, kept = getattr(t, "n_group", None) or 1, getattr(t, "topk_group", None) or 1
        gap = torch.full(scores.shape[:1], torch.inf)
        if kept < groups:
            parts = scores.unflatten(-1, (groups, -1)); of = parts.topk(2, -1).values.sum(-1); best = of.topk(kept + 1, -1)
            gap = (best.values[:, kept - 1] - best.values[:, kept]) / 2
            mask = torch.zeros_like(of).scatter(-1, best.indices[:, :kept], 1).bool()
            scores = parts.masked_fill(~mask.unsqueeze(-1), -torch.inf).flatten(-2)
        if k == scores.shape[-1]: return gap
        best = scores.topk(k + 1, -1).values
        return torch.minimum(gap, best[:, k - 1] - best[:, k])

    def evaluate(self, ids):
        """(largest difference of the logits over all draws, rows that are clear: a score may be off by twice what any draw
        shows of that row's, either way)."""
        base, chosen = self(ids, 0)
        clear, diff = torch.ones(ids.shape[1], dtype=torch.bool), 0.0
        off = [torch.zeros(ids.shape[1]) for _ in chosen]
        for draw in range(1, self.DRAWS + 1):
            logits, scores = self(ids, draw)
            diff = max(diff, float((logits - base).abs().max()))
            off = [torch.maximum(o, (a - b).abs().amax(-1)) for o, a, b in zip(off, scores, chosen)]
        for o, s in zip(off, chosen): clear &= self.margins(s) > 4 * o
        return diff, clear

    def prompt(self, n, vocab):
        """The first tokens whose rows are all clear, and the difference that roundings make to their logits."""
        more = tokens_of(vocab); ids = torch.tensor([[next(more) for _ in range(n)]])
        while True:
            diff, clear = self.evaluate(ids)
            if clear.all(): return ids, diff
            ids[0, int(clear.long().argmin())] = next(more)


def image_inputs(family, cfg, ids):
    """One image for the families whose processors are known here; None otherwise."""
    v = getattr(cfg, "vision_config", None)
    if v is None: return None
    g = torch.Generator().manual_seed(7)
    if family.startswith("qwen") and hasattr(v, "spatial_merge_size"):
        m, (t, h, w) = v.spatial_merge_size, (1, 4, 4)
        dim = getattr(v, "in_channels", 3) * v.temporal_patch_size * v.patch_size ** 2
        n = t * h * w // (m * m)
        seq = torch.cat([ids[:, :4], torch.tensor([[cfg.vision_start_token_id] + [cfg.image_token_id] * n + [cfg.vision_end_token_id]]), ids[:, 4:]], 1)
        out = dict(input_ids=seq, pixel_values=torch.randn(t * h * w, dim, generator=g), image_grid_thw=torch.tensor([[t, h, w]]))
        out["mm_token_type_ids"] = (seq == cfg.image_token_id).int()
        return out
    if family == "gemma3":
        n = cfg.mm_tokens_per_image
        tok = getattr(cfg, "image_token_index", None) or cfg.image_token_id
        seq = torch.cat([ids[:, :4], torch.tensor([[tok] * n]), ids[:, 4:]], 1)
        return dict(input_ids=seq, pixel_values=torch.randn(1, 3, v.image_size, v.image_size, generator=g), token_type_ids=(seq == tok).long())
    if family == "mistral3":
        s = v.patch_size * 4
        n = (4 // cfg.spatial_merge_size) ** 2
        seq = torch.cat([ids[:, :4], torch.tensor([[cfg.image_token_index] * n]), ids[:, 4:]], 1)
        return dict(input_ids=seq, pixel_values=torch.randn(1, 3, s, s, generator=g), image_sizes=torch.tensor([[s, s]]))
    return None


def make(family, out, seed=0, sets=None, f32=False, tokens=24, gen=16, image=False):
    t0 = time.time()
    torch.manual_seed(seed); torch.set_grad_enabled(False); torch.use_deterministic_algorithms(True, warn_only=True)
    cfg, cls = build_config(family, sets or {})
    Auto = AUTO[cls]
    kw = dict(attn_implementation="eager")
    model = Auto.from_config(cfg, dtype=torch.float32, **kw).eval()
    salted = salt(model, seed)
    if not f32:
        for p in list(model.parameters()) + list(model.buffers()):
            if p.is_floating_point(): p.data = p.data.to(torch.bfloat16).float() if p.dim() > 0 else p.data
        keep = getattr(model, "_keep_in_fp32_modules_strict", None) or []
        sd_model = model.to(torch.bfloat16)
        sd_model.save_pretrained(out, safe_serialization=True)
    else:
        model.save_pretrained(out)
    return reference(out, out, tokens, gen, dict(family=family, seed=seed, salted=salted, sets=sets or {}), cfg, cls, t0)


def reference(src, out, tokens, gen, facts, cfg=None, cls="lm", t0=None):
    """Write out/ref.safetensors and out/meta.json for the checkpoint in src; `facts` go into the meta data."""
    t0 = t0 or time.time(); family = facts["family"]; kw = dict(attn_implementation="eager")
    torch.set_grad_enabled(False); torch.use_deterministic_algorithms(True, warn_only=True)
    if cfg is None: cfg = AutoConfig.from_pretrained(src)
    Auto = AUTO[cls]
    info = {}
    loaded = Auto.from_pretrained(src, dtype=torch.float32, output_loading_info=True, **kw)
    model, li = loaded
    model.eval()
    for k in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if li.get(k): info[k] = sorted(map(str, li[k]))[:8]
    tc = cfg.get_text_config() if hasattr(cfg, "get_text_config") else cfg
    vocab = tc.vocab_size
    rounded = rough(model) and cls == "lm"
    if rounded:  # hooks stay with a model of their own
        probe = Rounded(Auto.from_pretrained(src, dtype=torch.float32, **kw).eval(), cfg)
        ids, diff = probe.prompt(tokens, vocab)
    else: ids = prompt(tokens, vocab)
    ref = {"input_ids": ids[0].clone()}
    if rounded: ref["logits_bf16_diff"] = torch.tensor([diff]); info["logits_bf16_diff"] = diff
    fw = dict(input_ids=ids)
    if cls == "s2s": fw["decoder_input_ids"] = torch.cat([torch.tensor([[2]]), ids[:, :11]], 1); ref["decoder_input_ids"] = fw["decoder_input_ids"][0].clone()
    logits = model(**fw, use_cache=False).logits
    ref["logits"] = logits[0].float().contiguous()
    assert torch.isfinite(ref["logits"]).all(), "non-finite logits"
    try:
        wide, leaks = logits_f64(model, cfg, Auto, fw)
        diff = (wide[0] - ref["logits"].double()).abs().max()
        ref["logits_f64_diff"] = diff.float().reshape(1)
        info["logits_f64_diff"] = float(diff)
        if leaks: info["f64_leaks"] = leaks
    except Exception as e:
        info["f64_failed"] = f"{type(e).__name__}: {str(e)[:160]}"
    # greedy with the family's own cache
    try:
        r = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=gen, min_new_tokens=gen, do_sample=False, num_beams=1,
                           output_logits=True, return_dict_in_generate=True, pad_token_id=0, eos_token_id=[vocab])  # a token that never comes
        st = torch.stack([x[0].float() for x in r.logits])
        ref["greedy_ids"] = r.sequences[0, -gen:].clone()
        # generate() masks end tokens: say so where that changed a choice
        if not torch.equal(st.argmax(-1), ref["greedy_ids"]): info["greedy_masked"] = True
        top = st.topk(2, -1).values
        ref["greedy_gap"] = (top[:, 0] - top[:, 1]).contiguous()
        if rounded:
            _, clear = probe.evaluate(r.sequences[:, :-1])
            ref["greedy_clear"] = torch.cat([clear[tokens - 1:], torch.tensor([False])]).long().argmin().reshape(1)
            info["greedy_clear"] = int(ref["greedy_clear"])
        if cls != "s2s":
            full = model(input_ids=r.sequences[:, :-1], use_cache=False).logits[0, tokens - 1:]
            info["cache_vs_full_maxdiff"] = float((full.float() - st).abs().max())
    except Exception as e:
        info["generate_failed"] = f"{type(e).__name__}: {str(e)[:160]}"
    if cls == "vl":
        try:
            im = image_inputs(family, cfg, ids)
            if im is not None:
                o = model(**im, use_cache=False).logits[0].float()
                assert torch.isfinite(o).all()
                ref.update({f"image_{k}" if k == "input_ids" else k: x.contiguous() for k, x in im.items()}); ref["image_logits"] = o.contiguous()
                info["image"] = True
        except Exception as e:
            info["image_failed"] = f"{type(e).__name__}: {str(e)[:160]}"
    save_file(ref, os.path.join(out, "ref.safetensors"))
    size = sum(os.path.getsize(os.path.join(src, f)) for f in os.listdir(src) if f.startswith("model") and f.endswith(".safetensors"))
    import transformers
    meta = dict(**facts, model_type=cfg.model_type, cls=type(model).__name__, ok=True, tokens=tokens, gen=gen, params=sum(p.numel() for p in model.parameters()),
                weights_bytes=size, ref_bytes=os.path.getsize(os.path.join(out, "ref.safetensors")), logits_std=round(float(ref["logits"].std()), 4),
                layer_types=getattr(tc, "layer_types", None) or getattr(tc, "layers_block_type", None),
                transformers=transformers.__version__, torch=torch.__version__, seconds=round(time.time() - t0, 1), **info)
    with open(os.path.join(out, "meta.json"), "w") as f: json.dump(meta, f, indent=1)
    return meta


def main():
    a = argparse.ArgumentParser()
    a.add_argument("family", nargs="?"); a.add_argument("out", nargs="?"); a.add_argument("seed", nargs="?", type=int, default=0)
    a.add_argument("--list", action="store_true"); a.add_argument("--all", metavar="DIR"); a.add_argument("--set", action="append", default=[])
    a.add_argument("--f32", action="store_true"); a.add_argument("--tokens", type=int, default=24); a.add_argument("--gen", type=int, default=16)
    a.add_argument("--trace", action="store_true"); a.add_argument("--only")
    n = a.parse_args()
    sets = {k: json.loads(v) for k, v in (s.split("=", 1) for s in n.set)}
    if n.list: print("\n".join(RECIPES)); return 0
    if n.all:
        bad = 0
        for f in (n.only.split(",") if n.only else RECIPES):
            try: m = make(f, os.path.join(n.all, f), n.seed, {}, n.f32, n.tokens, n.gen)
            except BaseException as e:
                if isinstance(e, KeyboardInterrupt): raise
                bad += 1; m = dict(family=f, ok=False, error=f"{type(e).__name__}: {str(e)[:300]}")
                if n.trace: traceback.print_exc()
            print(json.dumps(m), flush=True)
        return 1 if bad else 0
    print(json.dumps(make(n.family, n.out, n.seed, sets, n.f32, n.tokens, n.gen)))
    return 0

if __name__ == "__main__": sys.exit(main())
