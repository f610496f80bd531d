# SPDX-License-Identifier: MIT OR Apache-2.0
"""A running `met serve` and what is measured of it, over HTTP as any client sees it."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


class Served:
    """`met serve`, from the start of its process on."""

    def __init__(self, met, model, arguments):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = tempfile.TemporaryFile("w+")
        command = [met, "serve", model, "--port", str(self.port), *arguments]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("METRALE_") or k == "METRALE_HOME"}
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log, env=environment
        )
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
                break
            except ConnectionRefusedError:
                self.alive()
                time.sleep(0.0005)

    def alive(self):
        if self.process.poll() is not None:
            raise SystemExit(f"met ended with {self.process.returncode}:\n{self.text()}")

    def text(self):
        """Its log so far."""
        self.log.seek(0)
        return self.log.read()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def events(self, path, body):
        """Yields (seconds since the request, event); None while the model is loading."""
        begun = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        body = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            text = response.read().decode()
            connection.close()
            if response.status == 503:
                return
            raise SystemExit(f"{path}: {response.status} {text}")
        for line in response:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise SystemExit(f"{path}: {event}")
                yield time.monotonic() - begun, event
        connection.close()

    def first_token(self):
        """Seconds from the start of the process to the first byte of a greedy answer of one token."""
        ask = {"prompt": "Hello, my name is", "max_tokens": 1, "temperature": 0}
        while True:
            for _, event in self.events("/v1/completions", ask):
                if any(choice.get("text") for choice in event["choices"]):
                    return time.monotonic() - self.begun
            self.alive()
            time.sleep(0.001)

    def resident(self):
        """Resident bytes, once they have stopped to grow: the KV pool is populated in the background."""
        sizes = [0]
        while len(sizes) < 4 or sizes[-1] > sizes[-4] + 2**20:
            time.sleep(0.5)
            with open(f"/proc/{self.process.pid}/statm") as f:
                sizes.append(int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        return sizes[-1]

    def planned(self):
        """Bytes of each arena of the memory plan that it printed."""
        rows = re.findall(r"^(\w+) +([\d.]+) (B|kB|MB|GB|TB) ", self.text(), re.M)
        return {name: float(number) * UNITS[unit] for name, number, unit in rows}

    def settings(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/serve-config")
        config = json.loads(connection.getresponse().read())
        connection.close()
        return config
