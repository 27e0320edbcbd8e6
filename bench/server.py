"""Sluice beside llama-server as servers: aggregate decode, a long prompt beside running streams, time to ready, memory. See server.sh."""
import argparse, json, mmap, os, re, selectors, signal, socket, statistics, subprocess, time

WORDS = "amber river stone cloud ember forest signal harbor meadow copper lantern winter garden marble violet anchor".split()
STUCK_S = 60  # a stream without a byte for so long has failed


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
        t0 = time.monotonic()
        self.process = subprocess.Popen([a.replace("{port}", str(self.port)) for a in command], stdout=log, stderr=log, start_new_session=True)
        while self.get(ready)[0] != 200:
            if self.process.poll() is not None:
                raise SystemExit(f"{name} ended with {self.process.returncode} before it was ready: {' '.join(command)}")
            if time.monotonic() - t0 > 300:
                self.close()
                raise SystemExit(f"{name} is not ready after 300 s: {' '.join(command)}")
            time.sleep(0.005)
        self.ready = time.monotonic() - t0

    def get(self, path):
        """Status and body; (0, "") while nobody listens."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as s:
                s.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer bench-key\r\nConnection: close\r\n\r\n".encode())
                got = b"".join(iter(lambda: s.recv(65536), b""))
            return int(got.split(b" ")[1]), got.split(b"\r\n\r\n", 1)[1].decode()
        except (OSError, IndexError, ValueError):
            return 0, ""

    def metrics(self):
        return {k: float(v) for k, v in re.findall(r"^sluice_(\w+) ([0-9.e+]+)$", self.get("/metrics")[1], re.M)}

    def memory(self):
        """RssAnon + RssShmem of the engine, in bytes."""
        for pid in subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split():
            with open(f"/proc/{pid}/cmdline") as f:
                if f.read().split("\0")[1] == "engine":
                    with open(f"/proc/{pid}/status") as f:
                        return 1024 * sum(int(n) for n in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", f.read()))
        raise SystemExit(f"{self.name}: no engine process found")

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


def touch(n):
    """Touches and frees n bytes. A virtual machine's host may take free memory away, and then whoever uses it next waits for the host: seconds a
    gigabyte, which say nothing of the program."""
    with mmap.mmap(-1, n) as m:
        m.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, n, 1 << 20):
            m[at] = 1
            m[at:min(at + (1 << 20), n):4096] = bytes(len(range(at, min(at + (1 << 20), n), 4096)))


class Stream:
    """One streamed chat. While it runs, bytes and their times are kept and nothing else is done: the servers use the same cores."""

    def __init__(self, loop, server, prompt, n):
        self.server, self.raw, self.done = server, [], False
        body = json.dumps({"model": "bench", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": n, "ignore_eos": True,
                           "messages": [{"role": "user", "content": prompt}]}).encode()
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=STUCK_S)
        self.begun = time.monotonic()
        self.socket.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nAuthorization: Bearer bench-key\r\n"
                            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.socket.setblocking(False)
        loop.register(self.socket, selectors.EVENT_READ, self)

    def read(self, loop):
        block = self.socket.recv(65536)
        self.raw.append((time.monotonic(), block))
        if not block:
            loop.unregister(self.socket)
            self.socket.close()
            self.done = True

    def parse(self):
        """pieces: (time, characters of text) of each event that has text; tokens: as the server counts them."""
        self.pieces, self.tokens, line = [], 0, b""
        for at, block in self.raw:
            *lines, line = (line + block).split(b"\n")
            for event in (json.loads(x[6:]) for x in lines if x.startswith(b"data: {")):
                n = sum(len(c.get("delta", {}).get("content") or "") for c in event.get("choices", []))
                if n:
                    self.pieces.append((at, n))
                if event.get("usage"):
                    self.tokens = event["usage"]["completion_tokens"]
        if not self.pieces or not self.tokens:
            raise SystemExit(f"{self.server.name}: a request failed: {b''.join(b for _, b in self.raw)[:400]!r}")


def pump(loop, until):
    while not until():
        got = loop.select(STUCK_S)
        if not got:
            raise SystemExit(f"no byte from any stream in {STUCK_S} s")
        for key, _ in got:
            key.data.read(loop)


def run(streams, loop):
    pump(loop, lambda: all(s.done for s in streams))
    for s in streams:
        s.parse()


def together(server, streams, n):
    """Tokens a second of all streams while all of them decode: from the last first token to the first end. Characters stand for tokens in between."""
    loop = selectors.DefaultSelector()
    all_ = [Stream(loop, server, f"{i}: tell a story about {text(i, 12)}", n) for i in range(streams)]
    run(all_, loop)
    begin, end = max(s.pieces[0][0] for s in all_), min(s.pieces[-1][0] for s in all_)
    rate = lambda s: s.tokens / sum(k for _, k in s.pieces) * sum(k for t, k in s.pieces if begin < t <= end) / (end - begin)
    if begin >= end or sum(len([t for t, _ in s.pieces if begin < t <= end]) for s in all_) < sum(len(s.pieces) for s in all_) / 3:
        raise SystemExit(f"{server.name}: the {streams} streams hardly ran at the same time: more tokens are needed (--n8, --n32)")
    return sum(rate(s) for s in all_)


def beside(server, streams, words, n):
    """Time to first token of a long prompt that meets running streams, and the worst gap between tokens of those meanwhile."""
    loop = selectors.DefaultSelector()
    running = [Stream(loop, server, f"{i}: go on and on about {text(100 + i, 12)}", n) for i in range(streams)]
    pump(loop, lambda: all(len(s.raw) > 8 for s in running))
    late = Stream(loop, server, text(7, words), 8)
    run(running + [late], loop)
    ttft, gap = late.pieces[0][0] - late.begun, 0
    for s in running:
        times = [t for t, _ in s.pieces]
        if times[-1] < late.pieces[0][0]:
            raise SystemExit(f"{server.name}: a stream ended before the long prompt's first token: more tokens (--long-n) are needed")
        gap = max([gap] + [b - a for a, b in zip(times, times[1:]) if b > late.begun and a < late.pieces[0][0]])
    return ttft, gap


def counters(server):
    """Of Sluice's scheduler, as of now: the engine tells them once a second."""
    if server.name == "sluice":
        time.sleep(1.5)
        return server.metrics()


def overhead(before, now):
    """Per cent of the engine's time that went neither into the model nor into draws, and into draws."""
    step, model, draw = (now[k] - before[k] for k in ("engine_step_microseconds_total", "engine_model_microseconds_total", "engine_draw_microseconds_total"))
    return 100 * (step - model - draw) / step, 100 * draw / step


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("peer")
    p.add_argument("--ready-model")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--n8", type=int, default=96)
    p.add_argument("--n32", type=int, default=64)
    p.add_argument("--long-n", type=int, default=96)
    p.add_argument("--words", type=int, default=980)
    p.add_argument("--only", default="ready,fresh,8,32,beside,memory")
    p.add_argument("--flags", default="", help="further flags of sluice serve")
    a = p.parse_args()
    only, state, log = a.only.split(","), os.environ["BENCH_STATE"], open(os.environ["BENCH_LOG"], "ab")
    if not set(only) <= {"ready", "fresh", "8", "32", "beside", "memory"}:
        raise SystemExit(f"ONLY={a.only}: expected some of ready,fresh,8,32,beside,memory")

    def sluice(model, seqs, ctx):
        return Server("sluice", ["build/sluice", "serve", "-m", model, "--alias", "bench", "--no-tls", "--port", "{port}", "--state", state, "--api-key", "bench-key",
                                 "-t", str(a.threads), "-np", str(seqs), "-c", str(ctx), "--drain", "1s"] + a.flags.split(), "/ready", log)

    def peer(model, seqs, ctx):
        return Server("llama-server", [a.peer, "-m", model, "--port", "{port}", "-t", str(a.threads), "-np", str(seqs), "-c", str(seqs * ctx)], "/health", log)

    got = {}

    def note(what, server, value, smaller=True):
        got.setdefault((what, smaller), {}).setdefault(server.name, []).append(value)

    def part(name, start, model, seqs, ctx, measure):
        if name in only:
            s = start(model, seqs, ctx)
            try:
                measure(s)
            finally:
                s.close()

    def eight(s):
        together(s, 1, 4)
        note("8 streams, tok/s", s, together(s, 8, a.n8), False)

    def long_prompt(s):
        together(s, 1, 4)
        ttft, gap = beside(s, 8, a.words, a.long_n)
        note("first token of a long prompt beside 8, s", s, ttft)
        note("worst gap of the 8, s", s, gap)

    def many(s):
        together(s, 1, 4)
        before = counters(s)
        note("32 streams, tok/s", s, together(s, 32, a.n32), False)
        if before:
            own, draws = overhead(before, counters(s))
            note("scheduler's own share at 32, %", s, own)
            note("draws' share at 32, %", s, draws)

    def full(s):
        for i in range(8):
            together(s, 2, 8 + i)
            loop = selectors.DefaultSelector()
            run([Stream(loop, s, text(1000 + 2 * i + k, 250), 8) for k in range(2)], loop)
        m = s.metrics()
        planned = m["kv_bytes"] + m["weight_bytes"] + m["activation_bytes"]
        note("memory over what was planned", s, s.memory() / planned)

    for r in range(a.rounds):
        for start in (sluice, peer) if r % 2 == 0 else (peer, sluice):
            if "ready" in only:
                touch(2 * os.path.getsize(a.ready_model or a.model) + (512 << 20))
            part("ready", start, a.ready_model or a.model, 1, 4096, lambda s: note("ready, s", s, s.ready))
            if "fresh" in only:
                time.sleep(5)
            part("fresh", start, a.ready_model or a.model, 1, 4096, lambda s: note("ready, memory as the host gives it, s", s, s.ready))
            part("8", start, a.model, 8, 4096, eight)
            part("beside", start, a.model, 9, 4096, long_prompt)
            part("32", start, a.model, 32, 1024, many)
    part("memory", sluice, a.model, 2, 1024, full)
    three = lambda v: f"{min(v):9.3f} {statistics.median(v):9.3f} {max(v):9.3f}"
    print(f"{'':42}{'':14}{'min':>9} {'median':>9} {'max':>9}")
    for (what, smaller), by in got.items():
        for name, v in by.items():
            print(f"{what:42}{name:14}{three(v)}")
        if len(by) == 2:
            ratio = [x / y for x, y in zip(by["sluice"], by["llama-server"])]
            print(f"{what:42}{'ratio':14}{three(ratio)}   ({'smaller' if smaller else 'larger'} is better)")


main()
