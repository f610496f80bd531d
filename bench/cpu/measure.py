#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""The numbers of `met` on class cpu: start, memory, size, decode, concurrency, prefill; beside llama.cpp if it is there.

    python3 bench/cpu/measure.py                       # target/release/met serving the default recipe
    python3 bench/cpu/measure.py --model FILE.gguf --peer LLAMA_BUILD    # and llama.cpp, in alternating pairs

The engine is measured by `met bench`, without HTTP, as llama.cpp is measured through its library; start by `met bench start`.
Each number is the median of at least five runs after one warm-up; with llama.cpp, of pairs that run one after the other.
A run or pair during which others took more than --quiet of the machine is done again, up to ten times; the raw rows
show that share for every run that was kept.
"""

import argparse
import os
import statistics

from machine import CORES, Others, sheet, wait_for_quiet
from offline import Offline
from peer import Peer
from served import Served

MEGA = 1e6
STREAMS, TOKENS, PREFILL = 8, 128, 512
SHORT, LONG, LONGEST = 16, 1024, 4096  # tokens of a prompt
TRIES = 10


class Table:
    """Rows of what was measured, and the raw values behind them."""

    def __init__(self, runs, quiet):
        self.runs, self.quiet, self.raw = runs, quiet, []

    def rounds(self, sides):
        """`runs` rounds after a warm-up. A side is (process ids, run); a round runs each side once, one after the
        other, and is done again if others disturbed one of them. Per round: per side, (value, share of others)."""
        seed, rounds = 1, []
        for _, run in sides:
            run(0)
        while len(rounds) < self.runs:
            for _ in range(TRIES):
                row = []
                for pids, run in sides:
                    others = Others(pids)
                    row.append((run(seed), others.share()))
                seed += 1
                if max(share for _, share in row) <= self.quiet:
                    break
                wait_for_quiet(self.quiet)
            rounds.append(row)
        return rounds

    def keep(self, name, unit, rows):
        """Notes raw rows of (value, share); gives the median value."""
        self.raw.append((name, unit, rows))
        return statistics.median(value for value, _ in rows)

    def print_raw(self):
        print("\n| raw rows | unit | values, each with the share of the machine that others took |\n|---|---|---|")
        for name, unit, rows in self.raw:
            print(f"| {name} | {unit} | {', '.join(f'{value:.4g} ({share:.0%})' for value, share in rows)} |")


def start(table, offline):
    """Seconds to listening and to the first token; a server each run, its files in the page cache."""
    rounds = [row[0] for row in table.rounds([([], lambda _: offline.start())])]
    return [
        table.keep(name, "s", [(both[i], share) for both, share in rounds])
        for i, name in enumerate(["listening", "first token"])
    ]


def speeds(table, offline, peer, only):
    """Decode, concurrent streams and prefill: (name, ours, peer's, median of the ratios of the pairs)."""
    work = [
        ("decode, 1 stream", lambda side, i: side.decode(TOKENS, SHORT, 10 * i)),
        (f"decode, 1 stream, after {LONG} tokens", lambda side, i: side.decode(TOKENS, LONG, 10 * i + 1)),
        (f"decode, 1 stream, after {LONGEST} tokens", lambda side, i: side.decode(32, LONGEST, 10 * i + 2)),
        (f"decode, {STREAMS} streams together", lambda side, i: side.streams(STREAMS, TOKENS, SHORT, 100 * i + 7)),
        (f"prefill, {PREFILL} tokens", lambda side, i: side.prefill(PREFILL, 10 * i + 3)),
    ]
    for name, run in work:
        if only not in name:
            continue
        sides = [([], lambda i: run(offline, i))]
        if peer:
            sides.append(([peer.process.pid], lambda i: run(peer, i)))
        columns = list(zip(*table.rounds(sides)))
        ours = table.keep(name, "tokens/s", columns[0])
        if not peer:
            yield name, ours, None, None
            continue
        theirs = table.keep(f"{name}, llama.cpp", "tokens/s", columns[1])
        yield name, ours, theirs, statistics.median(a[0] / b[0] for a, b in zip(*columns))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--met", default="target/release/met", help="the binary (default: %(default)s)")
    parser.add_argument("--model", default="smollm2-135m", help="what `met serve` is given (default: %(default)s)")
    parser.add_argument("--kv-cache-bytes", type=int, default=1 << 30, help="KV pool of the served model (default: 1 GiB)")
    parser.add_argument("--threads", type=int, default=CORES, help="threads of both sides (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="runs after the warm-up (default: %(default)s)")
    parser.add_argument("--quiet", type=float, default=0.05, help="share of the machine that others may take")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: tokens per second of processor time, for a machine that others use (give --threads 1 and "
                             "--quiet 1: threads that wait by spinning count)")
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    parser.add_argument("--peer", metavar="BUILD", help="folder made by scripts/refs/build_llama_ref.sh")
    parser.add_argument("--peer-model", metavar="GGUF", help="the same weights for llama.cpp, if --model is no file")
    parser.add_argument("--peer-variant", help="its processor library (haswell = AVX2); default: its own choice")
    arguments = parser.parse_args()
    met, model = os.path.abspath(arguments.met), arguments.model
    flags = ["--kv-cache-bytes", str(arguments.kv_cache_bytes), "--threads", str(arguments.threads)]
    table = Table(arguments.runs, arguments.quiet)
    peer_model = arguments.peer_model or model
    if arguments.peer and not os.path.isfile(peer_model):
        parser.error(f"--peer needs the weights as a file: {peer_model} is none; give --peer-model GGUF")

    # The start is that of `met serve` as anyone types it, with the pool that it chooses.
    listening, first = start(table, Offline(met, model, flags[2:]))
    served = Served(met, model, flags)
    served.first_token()
    resident, planned, config = served.resident(), served.planned(), served.settings()
    served.end()
    peer = Peer(arguments.peer, peer_model, arguments.threads, arguments.peer_variant, arguments.clock) if arguments.peer else None
    rows = list(speeds(table, Offline(met, model, flags, arguments.clock), peer, arguments.only))
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
    unit = "tokens/s" if arguments.clock == "wall" else "tokens per second of processor time"
    print(f"\n| {unit} | met{beside}\n|---|---|{'---|---|' if peer else ''}")
    for name, ours, theirs, ratio in rows:
        print(f"| {name} | {ours:.1f} |" + (f" {theirs:.1f} | {ratio:.2f} |" if peer else ""))
    by_name = {name: (ours, theirs) for name, ours, theirs, _ in rows}
    for text, part, whole in [
        (f"{STREAMS} streams together are {{:.2f}} times one stream", f"decode, {STREAMS} streams together", "decode, 1 stream"),
        (f"after {LONGEST} tokens decoding has {{:.2f}} of its speed", f"decode, 1 stream, after {LONGEST} tokens",
         "decode, 1 stream"),
    ]:
        if part in by_name and whole in by_name:
            shares = [a / b for a, b in zip(by_name[part], by_name[whole]) if a and b]
            print("\n" + text.format(shares[0]) + (f"; llama.cpp's {shares[1]:.2f}." if peer else "."))
    table.print_raw()


if __name__ == "__main__":
    main()
