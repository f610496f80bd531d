# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes inv_freq.txt: inverse frequencies of rotary embedding as Hugging Face Transformers computes them.

    python3 make_inv_freq.py > inv_freq.txt

A line is a case: kind, head_dim, theta, factor, low, high, original, then the bits of each f32 in hex.
"""

import struct

from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = [
    ("default", 64, 10000.0, 0, 0, 0, 0),
    ("default", 64, 100000.0, 0, 0, 0, 0),
    ("default", 128, 1000000.0, 0, 0, 0, 0),
    ("linear", 128, 10000.0, 4.0, 0, 0, 0),
    ("llama3", 128, 500000.0, 8.0, 1.0, 4.0, 8192),
    ("llama3", 64, 500000.0, 32.0, 1.0, 4.0, 8192),
    ("llama3", 16, 10000.0, 8.0, 1.0, 4.0, 64),
]

print("# SPDX-License-Identifier: MIT OR Apache-2.0")
for kind, dim, theta, factor, low, high, original in CASES:
    rope = {"rope_type": kind, "rope_theta": theta}
    if kind != "default":
        rope["factor"] = factor
    if kind == "llama3":
        rope.update(low_freq_factor=low, high_freq_factor=high, original_max_position_embeddings=original)
    config = LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, head_dim=dim, max_position_embeddings=131072, rope_parameters=rope)
    values = LlamaRotaryEmbedding(config).inv_freq.tolist()
    bits = " ".join(struct.pack(">f", v).hex() for v in values)
    print(kind, dim, theta, factor, low, high, original, bits)
