# SPDX-License-Identifier: MIT OR Apache-2.0
"""Distributions after each sampling parameter, computed by Transformers, as goldens for the host reference.

    python3 -m pip install torch transformers numpy
    python3 make_sampling_goldens.py > transformers.json

Repetition penalty, temperature, top-k, top-p and min-p are Transformers' own processors in its own order; presence and
frequency penalties and logit bias, which it does not have, are the formulas of OpenAI's documentation in float64.
"""

import json

import numpy as np
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

VOCAB = 50
CASES = [
    dict(name="plain"),
    dict(name="hot", temperature=1.7),
    dict(name="cold", temperature=0.35),
    dict(name="top_k", top_k=7),
    dict(name="top_k_beyond_vocabulary", top_k=1000),
    dict(name="top_p", top_p=0.8),
    dict(name="top_p_tiny", top_p=1e-6),
    dict(name="min_p", min_p=0.05),
    dict(name="all_filters", temperature=1.3, top_k=20, top_p=0.9, min_p=0.04),
    dict(name="repetition", repetition=1.3),
    dict(name="repetition_reward", repetition=0.8, temperature=0.9),
    dict(name="presence", presence=1.5),
    dict(name="frequency", frequency=0.7),
    dict(name="all_penalties", repetition=1.2, presence=-0.8, frequency=0.4, top_p=0.95),
    dict(name="bias", bias=[[3, 4.5], [7, -100.0], [11, 0.25]]),
    dict(name="everything", bias=[[3, 2.5]], repetition=1.1, presence=0.5, frequency=0.3,
         temperature=0.8, top_k=30, top_p=0.95, min_p=0.01),
]


def run(case, rng):
    logits = (rng.standard_normal(VOCAB) * 2.5).astype(np.float32)
    prompt = rng.integers(0, VOCAB, 12).tolist()
    output = rng.integers(0, VOCAB // 3, 15).tolist()
    raw = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1)

    y = torch.tensor(logits, dtype=torch.float64)
    for token, add in case.get("bias", []):
        y[token] += add
    y = y[None]
    if "repetition" in case:
        seen = torch.tensor([prompt + output])
        y = RepetitionPenaltyLogitsProcessor(case["repetition"])(seen, y)
    counts = torch.bincount(torch.tensor(output), minlength=VOCAB).to(torch.float64)
    y = y - case.get("presence", 0.0) * (counts > 0) - case.get("frequency", 0.0) * counts
    if "temperature" in case:
        y = TemperatureLogitsWarper(case["temperature"])(None, y)
    if "top_k" in case:
        y = TopKLogitsWarper(min(case["top_k"], VOCAB))(None, y)
    if "top_p" in case:
        y = TopPLogitsWarper(case["top_p"])(None, y)
    if "min_p" in case:
        y = MinPLogitsWarper(case["min_p"])(None, y)
    return dict(
        **case,
        logits=[float(v) for v in logits],
        prompt=prompt,
        output=output,
        logprobs=raw.tolist(),
        probs=torch.softmax(y[0], -1).tolist(),
    )


def main():
    rng = np.random.default_rng(20260101)
    print("[")
    print(",\n".join(json.dumps(run(case, rng)) for case in CASES))
    print("]")


main()
