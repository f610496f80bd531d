#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Reports of `met bench --format json` beside peers.toml, as a short table.

    bench/h200/compare.py REPORT.json ...
"""

import json
import sys
import tomllib
from pathlib import Path

PEERS = tomllib.loads((Path(__file__).parent / "peers.toml").read_text())


def peer(report):
    """The peer's column for a report: the model by name, and the format of its weights."""
    about = report["about"]
    form = about.get("format", "bf16").replace("f8_row", "fp8")
    return PEERS.get(about["model"].replace(".", "_"), {}).get(form, {})


def share(value):
    return "-" if value is None else f"{100 * value:.0f}%"


def against(ours, theirs):
    return f"{theirs:>9} {ours / theirs:>6.2f}x" if theirs else f"{'-':>9} {'-':>7}"


def show(report):
    about, gauges, other = report["about"], report["gauges"], peer(report)
    print(
        f"\n{about['model']} ({about['weights']}, {about.get('format', 'bf16')}) on {about['device']}, class {about['class']}: "
        f"{about['weight_bytes'] / 1e9:.2f} GB in {about['load_seconds']:.2f} s, "
        f"reads {gauges['read'] / 1e9:.0f} GB/s (peer's card {PEERS['read_gb_per_s']})"
    )
    if report["decode"]:
        d = report["decode"][0]
        print(f"decode, {d['output']} after {d['input']}: tok/s, peer, ratio | step ms, of read, TTFT ms, J/token")
    for d in report["decode"]:
        theirs = other.get("decode", {}).get(str(d["concurrency"]))
        joules = d["joules_per_token"]["value"]
        print(
            f"{d['concurrency']:>5} {d['tokens_per_second']:>9.0f} {against(d['tokens_per_second'], theirs)} | "
            f"{d['step_ms']:8.3f} {share(d['share_of_read']):>5} {d['ttft_ms']:8.1f} "
            f"{'-' if joules is None else f'{joules:.3f}':>7}"
        )
    if report["prefill"]:
        print("prefill: TTFT ms, peer, theirs over ours | tok/s, of read, of operations")
    for p in report["prefill"]:
        theirs = other.get("ttft_ms", {}).get(str(p["input"]))
        ratio = f"{theirs:>9} {theirs / p['ttft_ms']:>6.2f}x" if theirs else f"{'-':>9} {'-':>7}"
        print(
            f"{p['input']:>5} {p['ttft_ms']:>9.1f} {ratio} | {p['tokens_per_second']:8.0f} "
            f"{share(p['share_of_read']):>5} {share(p['share_of_operations']):>5}"
        )
    shape = None
    for g in report["groups"]:
        if (g["sequences"], g["rows_each"], g["context"]) != shape:
            shape = (g["sequences"], g["rows_each"], g["context"])
            print(f"launches of a step, {shape[0]} x {shape[1]} rows after {shape[2]}: count, ms, share, of read")
        if g["share_of_step"] >= 0.005:
            print(
                f"  {g['name']:<22} {g['launches']:>4} {g['ms']:>9.3f} {share(g['share_of_step']):>5} "
                f"{share(g['share_of_read']):>5}"
            )


for path in sys.argv[1:]:
    show(json.loads(Path(path).read_text()))
