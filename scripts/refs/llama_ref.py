# SPDX-License-Identifier: MIT OR Apache-2.0
"""LlamaRef: libllama through the pipe of llama_ref.c (built by build_llama_ref.sh), as numpy arrays."""
import os, subprocess
import numpy as np


class LlamaRef:
    """build: the folder build_llama_ref.sh made (llama_ref and lib/). vocab: tokens of the model."""

    def __init__(self, build, model, vocab, n_ctx=512):
        lib = os.path.join(build, "lib")
        env = {**os.environ, "LD_LIBRARY_PATH": lib}
        self.vocab = vocab
        self.p = subprocess.Popen([os.path.join(build, "llama_ref"), model, lib, str(n_ctx)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def _ask(self, line):
        self.p.stdin.write(line.encode() + b"\n"); self.p.stdin.flush()

    def _read(self, n, dtype):
        b = self.p.stdout.read(4 * n)
        if len(b) != 4 * n: raise RuntimeError(f"llama_ref ended early (status {self.p.poll()})")
        return np.frombuffer(b, dtype)

    def tokenize(self, data, special):
        self._ask(f"T {int(special)} {data.hex()}")
        return self._read(int(self._read(1, "<i4")[0]), "<i4").tolist()

    def logits(self, ids):
        """[len(ids), V] f32."""
        self._ask("A " + " ".join(map(str, ids)))
        n = int(self._read(1, "<i4")[0])
        return self._read(n * self.vocab, "<f4").reshape(n, self.vocab)

    def greedy(self, ids, steps):
        """[steps, V] f32: the row behind each greedily chosen id."""
        self._ask(f"G {steps} " + " ".join(map(str, ids)))
        return self._read(steps * self.vocab, "<f4").reshape(steps, self.vocab)

    def close(self):
        self.p.stdin.close()
        if self.p.wait() != 0: raise RuntimeError(f"llama_ref: status {self.p.returncode}")
