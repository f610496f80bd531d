#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The numbers of `met` on class cpu: start, memory, size, decode, concurrency, prefill; beside llama.cpp if it is there.

    python3 bench/cpu/measure.py                       # target/release/met serving the default recipe
    python3 bench/cpu/measure.py --peer LLAMA_BUILD    # and llama.cpp, in alternating pairs

Each number is the median of at least five runs after one warm-up. A run during which others took more than --quiet of
the machine is done again, at most three times; the raw rows show the share for every run that was kept.
"""

import argparse
import os
import statistics

from machine import CORES, Others, sheet
from peer import Peer
from served import Served

MEGA = 1e6
STREAMS, TOKENS, PREFILL = 8, 128, 512


class Table:
    """Rows of what was measured, and the raw values behind them."""

    def __init__(self, runs, quiet):
        self.runs, self.quiet, self.raw = runs, quiet, []

    def measure(self, name, unit, pids, run):
        """Median of `runs` values of `run(i)` after a warm-up (i = 0)."""
        run(0)
        return self.keep(name, unit, [self.once(pids, run, i + 1) for i in range(self.runs)])

    def once(self, pids, run, i):
        """The value of one run, and the share of the machine that others took."""
        for attempt in range(4):
            others = Others(pids())
            value = run(i + 1000 * attempt)
            share = others.share()
            if share <= self.quiet:
                break
        return value, share

    def keep(self, name, unit, rows):
        values = [value for value, _ in rows]
        self.raw.append((name, unit, rows))
        return statistics.median(values)

    def print_raw(self):
        print("\n| raw rows | unit | values, each with the share of the machine that others took |\n|---|---|---|")
        for name, unit, rows in self.raw:
            print(f"| {name} | {unit} | {', '.join(f'{value:.4g} ({share:.0%})' for value, share in rows)} |")


def start(table, met, model, arguments):
    """Seconds to listening and to the first token; a server each run, its files in the page cache."""

    def run(_):
        served = Served(met, model, arguments)
        first = served.first_token()
        served.end()
        return served.listening, first

    run(0)
    rows = [table.once(list, run, i) for i in range(table.runs)]
    return [
        table.keep(name, "s", [(value[i], share) for value, share in rows])
        for i, name in enumerate(["listening", "first token"])
    ]


def speeds(table, served, peer):
    """Decode, concurrent streams and prefill: (name, ours, peer's, median of the ratios of the pairs)."""
    work = [
        ("decode, 1 stream", lambda side, i: side.decode(TOKENS, 10 * i)),
        (f"decode, {STREAMS} streams together", lambda side, i: side.streams(STREAMS, TOKENS, 100 * i + 7)),
        (f"prefill, {PREFILL} tokens", lambda side, i: side.prefill(PREFILL, 10 * i + 3)),
    ]
    for name, run in work:
        pids = lambda: [served.process.pid] + ([peer.process.pid] if peer else [])
        if not peer:
            yield name, table.measure(name, "tokens/s", pids, lambda i: run(served, i)), None, None
            continue
        run(served, 0), run(peer, 0)
        pairs = [(table.once(pids, lambda i: run(served, i), i), table.once(pids, lambda i: run(peer, i), i))
                 for i in range(1, table.runs + 1)]
        ours = table.keep(name, "tokens/s", [a for a, _ in pairs])
        theirs = table.keep(f"{name}, llama.cpp", "tokens/s", [b for _, b in pairs])
        yield name, ours, theirs, statistics.median(a[0] / b[0] for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--met", default="target/release/met", help="the binary (default: %(default)s)")
    parser.add_argument("--model", default="smollm2-135m", help="what `met serve` is given (default: %(default)s)")
    parser.add_argument("--kv-cache-bytes", type=int, default=1 << 30, help="KV pool of the served model (default: 1 GiB)")
    parser.add_argument("--threads", type=int, default=CORES, help="threads of both sides (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="runs after the warm-up (default: %(default)s)")
    parser.add_argument("--quiet", type=float, default=0.05, help="share of the machine that others may take")
    parser.add_argument("--peer", metavar="BUILD", help="folder made by scripts/refs/build_llama_ref.sh")
    parser.add_argument("--peer-model", metavar="GGUF", help="the same weights for llama.cpp, if --model is no file")
    parser.add_argument("--peer-variant", help="its processor library (haswell = AVX2); default: its own choice")
    arguments = parser.parse_args()
    met, model = os.path.abspath(arguments.met), arguments.model
    flags = ["--kv-cache-bytes", str(arguments.kv_cache_bytes), "--threads", str(arguments.threads)]
    table = Table(arguments.runs, arguments.quiet)

    # The start is that of `met serve` as anyone types it, with the pool that it chooses.
    listening, first = start(table, met, model, flags[2:])
    served = Served(met, model, flags)
    served.first_token()
    resident, planned, config = served.resident(), served.planned(), served.settings()
    peer_model = arguments.peer_model or model
    peer = Peer(arguments.peer, peer_model, arguments.threads, arguments.peer_variant) if arguments.peer else None
    rows = list(speeds(table, served, peer))
    served.end()
    if peer:
        peer.end()

    bound = planned["weights"] + planned["kv"] + 100 * MEGA
    print(f"{sheet()}; {arguments.threads} threads")
    print(f"{config['models'][0]}, digest {config['system_fingerprint']}, KV pool {planned['kv'] / MEGA:.0f} MB "
          f"({config['settings']['kv-cache-dtype']['value']})\n")
    print("| | met | bound |\n|---|---|---|")
    print(f"| listening | {listening:.3f} s | 0.3 s |")
    print(f"| first token after start, files in the page cache | {first:.3f} s | 1.0 s |")
    print(f"| idle memory, resident | {resident / MEGA:.0f} MB | weights {planned['weights'] / MEGA:.0f} + "
          f"KV {planned['kv'] / MEGA:.0f} + 100 = {bound / MEGA:.0f} MB |")
    print(f"| binary | {os.stat(met).st_size / MEGA:.1f} MB | 30 MB |")
    beside = f" | llama.cpp ({peer.variant()}) | ratio, median of pairs |" if peer else " |"
    print(f"\n| tokens/s | met{beside}\n|---|---|{'---|---|' if peer else ''}")
    for name, ours, theirs, ratio in rows:
        print(f"| {name} | {ours:.1f} |" + (f" {theirs:.1f} | {ratio:.2f} |" if peer else ""))
    print(f"\n{STREAMS} streams together are {rows[1][1] / rows[0][1]:.2f} times one stream"
          + (f"; llama.cpp's {rows[1][2] / rows[0][2]:.2f} times." if peer else "."))
    table.print_raw()


if __name__ == "__main__":
    main()
