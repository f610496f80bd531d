# SPDX-License-Identifier: MIT OR Apache-2.0
"""A `met serve` of our own, for as long as the tests run."""

import os
import re
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

LISTENING = re.compile(r"http://(127\.0\.0\.1:\d+)/v1")


class Server:
    """Starts MET with MODEL on a free port and waits until it is ready."""

    def __init__(self, *flags, seconds=300):
        self.log = tempfile.TemporaryFile(mode="w+", encoding="utf-8")
        model = os.environ.get("MODEL")
        command = [os.environ["MET"], "serve", *([model] if model else []), "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.until = time.monotonic() + seconds
        try:
            self.address = self._poll(self._listening)
            self._poll(self._ready)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self):
        return f"http://{self.address}/v1"

    def _poll(self, what):
        while time.monotonic() < self.until:
            if self.process.poll() is not None:
                raise RuntimeError(f"met ended with {self.process.returncode}:\n{self._text()}")
            if found := what():
                return found
            time.sleep(0.05)
        raise RuntimeError(f"met was not ready in time:\n{self._text()}")

    def _text(self):
        self.log.seek(0)
        return self.log.read()

    def _listening(self):
        found = LISTENING.search(self._text())
        return found and found[1]

    def _ready(self):
        try:
            with urllib.request.urlopen(f"http://{self.address}/ready", timeout=5) as reply:
                return reply.status == 200
        except urllib.error.HTTPError:
            return False

    def stop(self):
        """SIGTERM, and the exit status, which a clean drain makes 0."""
        self.process.terminate()
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            self.log.close()
