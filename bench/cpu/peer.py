# SPDX-License-Identifier: MIT OR Apache-2.0
"""llama.cpp beside `met`: llama_bench.c, built against the libraries and headers that scripts/refs/build_llama_ref.sh
lays out (npm @node-llama-cpp/linux-x64 3.22.1, libllama v0.5.0; headers of the llama-cpp-python 0.3.36 sdist)."""

import os
import re
import shutil
import subprocess
import tempfile

LIBRARIES = ["-l:libllama.v0.5.0.so", "-l:libggml.v0.5.0.so", "-l:libggml-base.so"]


class Peer:
    """A process of llama_bench that holds the model."""

    def __init__(self, build, model, threads, variant=None, clock="wall"):
        """`build`: the folder that build_llama_ref.sh made. `variant`: one of its processor libraries (`haswell` is
        AVX2); None lets llama.cpp choose the best for this machine. `clock`: seconds of `wall` or of `cpu`."""
        self.folder = tempfile.TemporaryDirectory()
        libraries = os.path.join(build, "lib")
        program = os.path.join(self.folder.name, "llama_bench")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llama_bench.c")
        subprocess.run(
            ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-I", os.path.join(build, "include"), "-o", program, source,
             "-L", libraries, *LIBRARIES, f"-Wl,-rpath-link,{libraries}"],
            check=True,
        )
        backends = libraries
        if variant:
            backends = os.path.join(self.folder.name, "backends")
            os.mkdir(backends)
            shutil.copy(os.path.join(libraries, f"libggml-cpu-{variant}.so"), backends)
        self.messages = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [program, model, backends, str(threads), clock],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.messages, text=True,
            env={**os.environ, "LD_LIBRARY_PATH": libraries},
        )

    def ask(self, request):
        """Seconds of one piece of work."""
        self.process.stdin.write(request + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.messages.seek(0)
            raise SystemExit(f"llama_bench ended: {self.messages.read()}")
        return float(answer)

    def decode(self, tokens, length, seed):
        return (tokens - 1) / self.ask(f"decode {tokens} {length} {seed}")

    def streams(self, count, tokens, length, seed):
        return count * tokens / self.ask(f"streams {count} {tokens} {length} {seed}")

    def prefill(self, length, seed):
        return length / self.ask(f"prefill {length} {seed}")

    def variant(self):
        """The processor library that it loaded."""
        self.messages.seek(0)
        found = re.findall(r"libggml-cpu-(\w+)\.so", self.messages.read())
        return found[-1] if found else "unknown"

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
