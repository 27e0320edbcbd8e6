"""Sluice beside llama-server as servers: aggregate decode, a long prompt beside running streams, time to ready. See server.sh."""
import argparse, json, os, signal, socket, statistics, subprocess, threading, time

WORDS = "amber river stone cloud ember forest signal harbor meadow copper lantern winter garden marble violet anchor".split()


def text(seed, n):
    """n words that no other seed begins with."""
    out, x = [], seed * 7919 + 17
    for _ in range(n):
        x = (x * 1103515245 + 12345) % (1 << 31)
        out.append(WORDS[x >> 16 & 15] + str(x >> 20 & 7))
    return " ".join(out)


class Server:
    def __init__(self, name, command, ready, log):
        self.name, self.port = name, free_port()
        self.t0 = time.monotonic()
        self.process = subprocess.Popen([a.replace("{port}", str(self.port)) for a in command], stdout=log, stderr=log, start_new_session=True)
        while not self.answers(ready):
            if self.process.poll() is not None:
                raise SystemExit(f"{name} ended with {self.process.returncode} before it was ready: {' '.join(command)}")
            time.sleep(0.005)
        self.ready = time.monotonic() - self.t0

    def answers(self, path):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as s:
                s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return s.recv(64).split(b" ")[1:2] == [b"200"]
        except OSError:
            return False

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Stream(threading.Thread):
    """One streamed chat; when each piece of text came."""

    def __init__(self, server, prompt, n):
        super().__init__(daemon=True)
        self.server, self.times, self.tokens, self.error = server, [], 0, None
        self.body = json.dumps({"model": "bench", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": n, "ignore_eos": True,
                                "messages": [{"role": "user", "content": prompt}]}).encode()
        self.begun = time.monotonic()
        self.start()

    def run(self):
        try:
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=300) as s:
                s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer bench-key\r\n"
                          b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(self.body) + self.body)
                for line in s.makefile("rb"):
                    if not line.startswith(b"data: {"):
                        if line.startswith(b"{"):
                            self.error = ValueError(line[:200])
                        continue
                    event = json.loads(line[6:])
                    if any(c.get("delta", {}).get("content") for c in event.get("choices", [])):
                        self.times.append(time.monotonic())
                    if event.get("usage"):
                        self.tokens = event["usage"]["completion_tokens"]
        except (OSError, ValueError) as e:
            self.error = e

    def wait(self):
        self.join()
        if self.error or not self.tokens or not self.times:
            raise SystemExit(f"{self.server.name}: a request failed: {self.error or 'no tokens'}")


def together(server, streams, n):
    """Tokens a second of all streams, from the first token of any to the end of all."""
    all_ = [Stream(server, f"{i}: tell a story about {text(i, 12)}", n) for i in range(streams)]
    for s in all_:
        s.wait()
    return sum(s.tokens for s in all_) / (max(s.times[-1] for s in all_) - min(s.times[0] for s in all_))


def beside(server, streams, words, n):
    """Time to first token of a long prompt that meets running streams, and the worst gap between tokens of those meanwhile."""
    running = [Stream(server, f"{i}: go on and on about {text(100 + i, 12)}", n) for i in range(streams)]
    while any(len(s.times) < 4 for s in running if s.is_alive()):
        time.sleep(0.01)
    late = Stream(server, text(7, words), 8)
    late.wait()
    ttft, gap = late.times[0] - late.begun, 0
    for s in running:
        s.wait()
        if s.times[-1] < late.times[0]:
            raise SystemExit(f"{server.name}: a stream ended before the long prompt's first token: more tokens (--long-n) are needed")
        during = [t for t in s.times if late.begun - 0.5 < t < late.times[0] + 0.5]
        gap = max([gap] + [b - a for a, b in zip(during, during[1:])])
    return ttft, gap


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("peer")
    p.add_argument("--ready-model")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--n8", type=int, default=96)
    p.add_argument("--n32", type=int, default=32)
    p.add_argument("--long-n", type=int, default=160)
    p.add_argument("--words", type=int, default=560)
    p.add_argument("--only", default="ready,8,32,beside")
    p.add_argument("--flags", default="", help="further flags of sluice serve")
    a = p.parse_args()
    only, state, log = a.only.split(","), os.environ["BENCH_STATE"], open(os.environ["BENCH_LOG"], "ab")

    def sluice(model, seqs, ctx):
        return Server("sluice", ["build/sluice", "serve", "-m", model, "--alias", "bench", "--no-tls", "--port", "{port}", "--state", state, "--api-key", "bench-key", "-t", str(a.threads), "-np", str(seqs), "-c", str(ctx),
                                 "--drain", "1s"] + a.flags.split(), "/ready", log)

    def peer(model, seqs, ctx):
        return Server("llama-server", [a.peer, "-m", model, "--port", "{port}", "-t", str(a.threads), "-np", str(seqs), "-c", str(seqs * ctx)], "/health", log)

    got = {}

    def note(what, server, value, smaller):
        got.setdefault((what, smaller), {}).setdefault(server, []).append(value)

    for r in range(a.rounds):
        for start in (sluice, peer) if r % 2 == 0 else (peer, sluice):
            if "ready" in only:
                s = start(a.ready_model or a.model, 1, 4096)
                note("ready, s", s.name, s.ready, True)
                s.close()
            if "8" in only or "beside" in only:
                s = start(a.model, 9, 4096)
                together(s, 1, 4)
                if "8" in only:
                    note("8 streams, tok/s", s.name, together(s, 8, a.n8), False)
                if "beside" in only:
                    ttft, gap = beside(s, 8, a.words, a.long_n)
                    note("first token of a long prompt beside 8, s", s.name, ttft, True)
                    note("worst gap of the 8, s", s.name, gap, True)
                s.close()
            if "32" in only:
                s = start(a.model, 32, 1024)
                together(s, 1, 4)
                note("32 streams, tok/s", s.name, together(s, 32, a.n32), False)
                s.close()
        print(f"server: round {r + 1} of {a.rounds}", flush=True)
    three = lambda v: f"{min(v):9.3f} {statistics.median(v):9.3f} {max(v):9.3f}"
    print(f"{'':42}{'':14}{'min':>9} {'median':>9} {'max':>9}")
    for (what, smaller), by in got.items():
        for name, v in by.items():
            print(f"{what:42}{name:14}{three(v)}")
        ratio = [x / y for x, y in zip(by["sluice"], by["llama-server"])]
        print(f"{what:42}{'ratio':14}{three(ratio)}   ({'smaller' if smaller else 'larger'} is better)")


main()
