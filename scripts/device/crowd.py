#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""A real server under a crowd, on any device: crowd.py MET MODEL [SECONDS [CLIENTS]] [-- FLAGS OF met serve ...]

Answers of fixed seeds are asked for alone, whole and streamed. Then CLIENTS clients ask at once for SECONDS, chats and
completions, a third of them hanging up in the middle; whoever asked one of the first requests must get the same answer. In the end
no block of the KV cache may be held, and SIGTERM ends the server with exit code 0. With `--same-as FILE` the answers alone
must be those that an earlier run wrote with `--write FILE`: another server of the same numerics (drafts, for one).
Python's standard library alone. Lines of a table; exit code 1 if one says FAILED.
"""
import argparse, http.client, json, os, random, re, signal, subprocess, sys, tempfile, threading, time

WATCHED = 12
failed = False


def row(what, result):
    global failed
    failed |= result.startswith("FAILED")
    print(f"{what:<58} {result}", flush=True)


class Server:
    def __init__(self, met, model, flags):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", dir=os.environ.get("OUT"))
        command = [met, "serve", model, "--port", "0", "--log-level", "info", *flags]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=subprocess.DEVNULL)
        self.port, began = None, time.time()
        while time.time() < began + 60 and self.process.poll() is None:
            found = re.search(r" at http://[^ ]*:(\d+)/v1", open(self.log.name).read())
            self.port = int(found[1]) if found else None
            if self.port and self.status("/ready") == 200: break
            time.sleep(0.02)
        else:
            print(open(self.log.name).read()[-2000:])
            sys.exit("the server did not start")
        self.name = json.loads(self.get("/v1/models"))["data"][0]["id"]

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def get(self, path):
        connection = self.connect(); connection.request("GET", path)
        body = connection.getresponse().read(); connection.close()
        return body

    def status(self, path):
        try:
            connection = self.connect(); connection.request("GET", path)
            status = connection.getresponse().status; connection.close()
            return status
        except OSError: return 0

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)}(?:{{.*}})? ([0-9.e+-]+)$", self.get("/metrics").decode(), re.M)
        return float(found[1])

    def ask(self, path, body, stream=False, hang_up=None):
        """(text, reason) of an answer; None where `hang_up` events of the stream were read and the connection closed."""
        connection = self.connect()
        body = {"model": self.name, **body, **({"stream": True} if stream else {})}
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        try:
            if response.status != 200: raise RuntimeError(f"{response.status}: {response.read(300)!r}")
            if not stream: return answer(json.loads(response.read())["choices"][0])
            text, reason, events = "", None, 0
            for line in response:
                if not line.startswith(b"data: "): continue
                if line.strip() == b"data: [DONE]": return text, reason
                event = json.loads(line[6:])
                if "error" in event: raise RuntimeError(str(event))
                for choice in event["choices"]:
                    piece, end = answer(choice)
                    text, reason = text + piece, end or reason
                events += 1
                if hang_up is not None and events > hang_up: return None
            raise RuntimeError("the stream ended without [DONE]")
        finally: connection.close()


def answer(choice):
    part = choice.get("message") or choice.get("delta") or choice
    return part.get("text") or part.get("content") or "", choice.get("finish_reason")


def request(seed):
    """(path, body) of a seed: every kind of request and of sampling."""
    r = random.Random(seed)
    words = " ".join(r.choice("the capital of France is a tale told by an old sea where".split()) for _ in range(r.randint(1, 30)))
    body = {"max_tokens": r.randint(8, 64), "seed": seed, "temperature": r.choice([0, 0.7, 1.3]), "top_p": r.choice([1, 0.9])}
    if r.random() < 0.3: body["frequency_penalty"] = 0.5
    if r.random() < 0.5: return "/v1/completions", {**body, "prompt": words}
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": words}]}


def crowd(server, want, seconds, clients):
    counts, faults, lock, end = {"answered": 0, "hung up": 0, "compared": 0}, [], threading.Lock(), time.time() + seconds

    def client(number):
        r = random.Random(1000 + number)
        while time.time() < end and not faults:
            seed = r.randrange(WATCHED) if r.random() < 0.3 else r.randrange(1000, 10**6)
            hang_up = r.randint(0, 12) if r.random() < 0.33 else None
            stream = hang_up is not None or r.random() < 0.5
            try:
                got = server.ask(*request(seed), stream=stream, hang_up=hang_up)
            except Exception as error:
                faults.append(f"seed {seed}: {error!r}"); return
            with lock:
                counts["hung up" if got is None else "answered"] += 1
                if got is not None and seed < WATCHED:
                    counts["compared"] += 1
                    if got != want[seed]: faults.append(f"seed {seed}: {got!r} and alone {want[seed]!r}")

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for t in threads: t.start()
    for t in threads: t.join()
    return counts, faults


def main():
    own, flags = sys.argv[1:], []
    if "--" in own: own, flags = own[:own.index("--")], own[own.index("--") + 1:]
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("met"); p.add_argument("model")
    p.add_argument("seconds", nargs="?", type=float, default=10); p.add_argument("clients", nargs="?", type=int, default=64)
    p.add_argument("--write"); p.add_argument("--same-as")
    a = p.parse_args(own)
    began = time.time()
    server = Server(a.met, a.model, flags)
    what = " ".join([os.path.basename(a.model), *flags])
    row(f"serve {what}", f"ready after {time.time() - began:.1f} s")
    try:
        want = [server.ask(*request(seed)) for seed in range(WATCHED)]
        streams = [server.ask(*request(seed), stream=True) for seed in range(WATCHED)]
        row("alone: streamed = whole", f"{WATCHED} equal" if streams == want else f"FAILED: {list(zip(want, streams))}"[:600])
        if a.write: json.dump(want, open(a.write, "w"))
        if a.same_as:
            other = [tuple(x) for x in json.load(open(a.same_as))]
            differ = [s for s in range(WATCHED) if other[s] != want[s]]
            row("alone: as the other server", f"FAILED: seeds {differ}" if differ else f"{WATCHED} equal")
        counts, faults = crowd(server, want, a.seconds, a.clients)
        text = ", ".join(f"{n} {k}" for k, n in counts.items())
        enough = min(counts.values()) > 0
        row(f"{a.clients} clients, {a.seconds:g} s", text if enough and not faults else f"FAILED: {text}; {faults[:2]}")
        names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"]
        for _ in range(200):
            held = [server.metric(n) for n in names]
            if not any(held): break
            time.sleep(0.02)
        failures, restarts = server.metric("metrale:request_failure_total"), server.metric("metrale:engine_restarts_total")
        text = f"running, waiting, KV held: {held}; {failures:g} failures, {restarts:g} restarts"
        row("at rest", f"FAILED: {text}" if any(held) or restarts else text)
        drafted, taken = (server.metric(f"vllm:spec_decode_num_{w}_tokens_total") for w in ("draft", "accepted"))
        tokens, steps = server.metric("vllm:generation_tokens_total"), server.metric("metrale:steps_total")
        row("tokens, steps, drafts, right", f"{tokens:g}, {steps:g}, {drafted:g}, {taken:g}")
        again = [server.ask(*request(seed)) for seed in range(WATCHED)]
        row("alone, afterwards", f"{WATCHED} equal" if again == want else "FAILED: differ")
    finally:
        server.process.send_signal(signal.SIGTERM)
        try: code = server.process.wait(30)
        except subprocess.TimeoutExpired: server.process.kill(); code = "none: killed after 30 s"
    row("SIGTERM", f"exit {code}" if code == 0 else f"FAILED: exit {code}")
    sys.exit(failed)


if __name__ == "__main__": main()
