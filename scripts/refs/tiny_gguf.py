# SPDX-License-Identifier: MIT OR Apache-2.0
"""A Llama or Qwen3 checkpoint (hub names, f32 arrays) as a GGUF file, written with the `gguf` library, and back.

Llama files hold the rows of attn_q and attn_k permuted inside each head: the hub layout pairs dimension i with
i + d/2 (half rotation), the file pairs 2i with 2i + 1. Qwen3 files keep the hub layout. Llama 3's rope scaling is a
tensor rope_freqs.weight [d/2] by which the base frequencies are divided.
"""
import math
import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, LlamaFileType, TokenType
from gguf.quants import dequantize, quantize

LAYER = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
FILE_TYPE = {None: LlamaFileType.ALL_F32, "BF16": LlamaFileType.MOSTLY_BF16, "Q8_0": LlamaFileType.MOSTLY_Q8_0, "Q4_0": LlamaFileType.MOSTLY_Q4_0}


def gguf_name(hub):
    stem, kind = hub.rsplit(".", 1)
    if stem in TOP: return f"{TOP[stem]}.{kind}"
    _, _, n, rest = stem.split(".", 3)
    return f"blk.{n}.{LAYER[rest]}.{kind}"


def permute(w, heads):
    """Half-rotation rows of each head to interleaved pairs."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def unpermute(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def heads_of(name, cfg):
    if cfg["model_type"] != "llama": return None
    return {"attn_q": cfg["num_attention_heads"], "attn_k": cfg["num_key_value_heads"]}.get(name.split(".")[-2])


def rope_factors(cfg):
    """Llama 3's divisors of the base frequencies, [head_dim / 2], or None. Source: the published Llama 3.1 rule."""
    r = cfg["rope_parameters"]
    if r["rope_type"] != "llama3": return None
    d, out = cfg["head_dim"], []
    for i in range(d // 2):
        wave = 2 * math.pi * r["rope_theta"] ** (2 * i / d); low, high = r["low_freq_factor"], r["high_freq_factor"]
        smooth = (r["original_max_position_embeddings"] / wave - low) / (high - low)
        out.append(1 / ((1 - min(max(smooth, 0), 1)) / r["factor"] + min(max(smooth, 0), 1)))
    return np.array(out, np.float32)


def write_gguf(path, cfg, weights, tok, quant=None):
    """Matrices whose rows are a multiple of 32 become `quant` (None: f32), norms stay f32. tok: parsed tokenizer.json."""
    w = GGUFWriter(path, cfg["model_type"]); head_dim = cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]
    w.add_name(f"tiny random {cfg['model_type']}"); w.add_file_type(FILE_TYPE[quant]); w.add_license("MIT OR Apache-2.0")
    w.add_block_count(cfg["num_hidden_layers"]); w.add_context_length(cfg["max_position_embeddings"])
    w.add_embedding_length(cfg["hidden_size"]); w.add_feed_forward_length(cfg["intermediate_size"])
    w.add_head_count(cfg["num_attention_heads"]); w.add_head_count_kv(cfg["num_key_value_heads"])
    w.add_key_length(head_dim); w.add_value_length(head_dim); w.add_rope_dimension_count(head_dim)
    w.add_rope_freq_base(cfg["rope_parameters"]["rope_theta"]); w.add_layer_norm_rms_eps(cfg["rms_norm_eps"])
    w.add_vocab_size(cfg["vocab_size"])
    vocab = sorted(tok["model"]["vocab"], key=tok["model"]["vocab"].get); special = {t["content"] for t in tok["added_tokens"]}
    w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("gpt-2"); w.add_token_list(vocab)
    w.add_token_types([TokenType.CONTROL if t in special else TokenType.NORMAL for t in vocab])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]])
    w.add_bos_token_id(cfg["bos_token_id"]); w.add_eos_token_id(cfg["eos_token_id"]); w.add_pad_token_id(cfg["pad_token_id"])
    w.add_add_bos_token(False); w.add_add_space_prefix(False)
    from tiny_tokenizer import TEMPLATE
    w.add_chat_template(TEMPLATE)
    f = rope_factors(cfg)
    if f is not None: w.add_tensor("rope_freqs.weight", f)
    for hub, x in sorted(weights.items()):
        name = gguf_name(hub); x = np.ascontiguousarray(x, np.float32)
        if (h := heads_of(name, cfg)): x = np.ascontiguousarray(permute(x, h))
        if quant and x.ndim == 2 and x.shape[-1] % 32 == 0:
            q = GGMLQuantizationType[quant]; w.add_tensor(name, quantize(x, q), raw_dtype=q)
        else: w.add_tensor(name, x)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def dequantized(path, cfg):
    """The tensors of a GGUF file as f32 arrays under their hub names (rope_freqs.weight is left out)."""
    hub = {gguf: k for k, gguf in TOP.items()}; layer = {v: k for k, v in LAYER.items()}; out = {}
    for t in GGUFReader(path).tensors:
        if t.name == "rope_freqs.weight": continue
        stem, kind = t.name.rsplit(".", 1)
        x = dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
        if (h := heads_of(t.name, cfg)): x = unpermute(x, h)
        if stem in hub: k = hub[stem]
        else: _, n, rest = stem.split("."); k = f"model.layers.{n}.{layer[rest]}"
        out[f"{k}.{kind}"] = np.ascontiguousarray(x)
    return out
