# SPDX-License-Identifier: MIT OR Apache-2.0
"""What `met bench` measures: the engine without HTTP, as the peer is measured without its server."""

import json
import os
import subprocess


class Offline:
    """`met bench` on one model, a process for each measurement."""

    def __init__(self, met, model, arguments, clock="wall"):
        """`clock`: seconds of `wall`, or processor seconds of all threads (`cpu`)."""
        self.met, self.model, self.arguments, self.clock = met, model, arguments, clock

    def run(self, *arguments):
        """The report of one run."""
        command = [self.met, "bench", *arguments, "--repeats", "1", "--format", "json", *self.arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("METRALE_") or k == "METRALE_HOME"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"met bench ended with {done.returncode}:\n{done.stderr}")
        return json.loads(done.stdout)

    def rung(self, count, tokens, length, seed):
        report = self.run(
            self.model, "--only", "decode", "--concurrency", str(count), "--input", str(length),
            "--output", str(tokens), "--prompts", "1", "--seed", str(seed),
        )
        return report["decode"][0]

    def decode(self, tokens, length, seed):
        """Tokens per second of one stream after its first token; a prompt of `length` tokens."""
        rung = self.rung(1, tokens, length, seed)
        return rung["tokens_per_second"] if self.clock == "wall" else 1 / rung["decode_processor_seconds_per_token"]

    def streams(self, count, tokens, length, seed):
        """Tokens per second of `count` streams together; prompts of `length` tokens, whose time is included."""
        rung = self.rung(count, tokens, length, seed)
        wall = self.clock == "wall"
        return rung["end_to_end_tokens_per_second"] if wall else 1 / rung["processor_seconds_per_token"]

    def prefill(self, length, seed):
        """Prompt tokens per second, up to and with the first token of the answer."""
        ladder = ["--input", "1", "--output", "2", "--concurrency", "1", "--prompts", str(length)]
        report = self.run(self.model, "--only", "prefill", *ladder, "--seed", str(seed))
        row = report["prefill"][0]
        return row["tokens_per_second"] if self.clock == "wall" else 1 / row["processor_seconds_per_token"]

    def start(self):
        """Seconds from the start of a server's process until it listens, and until the first token has come."""
        row = self.run("start", self.model)
        return row["listening_ms"] / 1e3, row["first_token_ms"] / 1e3
