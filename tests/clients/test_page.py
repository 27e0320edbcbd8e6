"""The chat page and the dashboard in headless Chromium, over TLS, against `sluice serve` with tiny models. Answers that a tiny model cannot
give (Markdown, hostile text, errors of a loaded server) are put in by the browser itself; page, headers and policy are always the server's."""
import json
import os
import sys
import time
import urllib.parse

sys.path.insert(0, os.path.dirname(__file__))
import browser
from server import Server, run

MODELS = os.environ["TINY_MODELS"]
CHAIN = "abcdefghijklmnopqrstuvwxyz0123456789"
ANSWER = "document.querySelector('.answer:last-child .md')"

path, why = browser.find()
if not path:
    print("SKIP pages: " + why)
    print("0 passed, 0 failed")
    sys.exit(0)

chain = Server(os.path.join(MODELS, "tiny-chain.gguf"))
SLOW = "Water rises in the lock. "  # of the mock engine, over and over, until max_tokens or a stop
slow = Server(None, "--mock", SLOW * 40, "--mock-rate", "40")


def place(server):
    return server.env["OPENAI_BASE_URL"].removesuffix("/v1")


ports = [(urllib.parse.urlsplit(place(s)).hostname, urllib.parse.urlsplit(place(s)).port) for s in (chain, slow)]
chromium = browser.Browser(path, ",".join(browser.pin(*p) for p in ports))


def opened(server=chain, **how):
    """A chat page, its key entered as a person enters it."""
    p = browser.Page(chromium, **how)
    p.go(place(server) + "/")
    p.wait("document.getElementById('keybox').open")
    p.type(server.env["OPENAI_API_KEY"])
    p.enter()
    p.wait("document.getElementById('state').className === 'dot up'")
    return p


def say(p, text):
    p.js("document.getElementById('text').focus()")
    p.type(text)
    p.enter()


def settled(p, seconds=30):
    p.wait("document.getElementById('stop').hidden && document.querySelector('.answer:last-child') && !document.querySelector('.live')", seconds)


def clean(p, but=()):
    """Nothing was refused by the policy, thrown, or fetched from elsewhere."""
    errors = [e for e in p.errors if not any(b in e for b in but)]
    assert not errors, errors
    assert not p.dialogs, p.dialogs
    home = [u for u in p.urls if not u.startswith(("data:", "about:")) and urllib.parse.urlsplit(u).hostname not in ("127.0.0.1", "localhost")]
    assert not home, home


def sse(text, size=7, finish="stop"):
    out = []
    for i in range(0, len(text), size):
        out.append({"choices": [{"index": 0, "delta": {"content": text[i:i + size]}, "finish_reason": None}]})
    out.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    out.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 40, "total_tokens": 45}})
    return "".join("data: " + json.dumps(o) + "\n\n" for o in out) + "data: [DONE]\n\n"


def answered(p, text, **how):
    p.fake("/v1/chat/completions", 200, "text/event-stream", sse(text, **how))
    say(p, "x")
    if p.touch:
        p.click("#send")  # there Enter is a new line
    settled(p)
    p.real()


def a_chat():
    p = opened()
    assert p.js("document.getElementById('model').value") not in ("", "no model yet")
    assert p.js("sessionStorage.getItem('sluice.key')") == chain.env["OPENAI_API_KEY"]
    assert p.js("localStorage.length + document.cookie.length") == 0
    p.shot("hello-light")
    say(p, "Say it.")
    settled(p)
    assert p.js(ANSWER + ".textContent") == CHAIN
    stats = p.js("document.querySelector('.answer:last-child .stats').textContent")
    assert "tok/s" in stats and "first token" in stats and ("36 tokens" in stats or "37 tokens" in stats), stats
    assert p.js("document.activeElement.id") == "text"
    p.type("one")  # Shift+Enter is a line, not the end
    p.enter(shift=True)
    p.type("two")
    assert p.js("document.querySelectorAll('.ask').length") == 1
    p.enter()
    settled(p)
    assert p.js("document.querySelectorAll('.ask')[1].textContent") == "one\ntwo"
    assert p.js("document.querySelectorAll('.answer').length") == 2 and p.js(ANSWER + ".textContent") == CHAIN
    p.js("[...document.querySelectorAll('.meta .tool')].find((b) => b.textContent === 'Again').click()")
    settled(p)
    assert p.js("turns.length") == 2 and p.js(ANSWER + ".textContent") == CHAIN
    p.click("#new")
    assert p.js("document.querySelectorAll('.ask').length === 0 && !document.getElementById('hello').hidden")
    clean(p)


def settings():
    p = opened()
    p.click("#open-settings")
    p.wait("document.getElementById('settings').open")
    p.js("document.getElementById('system').value = 'Be brief.'; document.getElementById('temperature').value = '0'; document.getElementById('tokens').value = '5'")
    p.shot("settings")
    p.click("#settings .main")
    p.wait("!document.getElementById('settings').open")
    sent = []
    p.on("Network.requestWillBeSent", lambda m: sent.append(m["request"].get("postData")))
    say(p, "Say it.")
    settled(p)
    assert p.js(ANSWER + ".textContent") == CHAIN[:5]
    assert "length limit" in p.js("document.querySelector('.answer:last-child .meta').textContent")
    body = json.loads([s for s in sent if s][-1])
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say it."}], body
    assert body["temperature"] == 0 and body["max_tokens"] == 5 and body["stream"] is True
    clean(p)


def streamed_and_stopped():
    """Text is there before the end; Stop ends the work of the engine, and what came stays."""
    p = opened(slow)
    say(p, "Go on.")
    p.wait(ANSWER + ".textContent.length > 20")
    assert p.js("!document.getElementById('stop').hidden && document.getElementById('send').hidden")
    assert p.js("document.querySelector('.answer:last-child').classList.contains('live')")
    p.click("#stop")
    settled(p, 5)
    text = p.js(ANSWER + ".textContent")
    assert "stopped" in p.js("document.querySelector('.answer:last-child .meta').textContent")
    p.wait("fetch('/metrics').then((r) => r.text()).then((t) => /sluice_inflight_requests 0\\n/.test(t) && /reason=\"cancelled\"} [1-9]/.test(t))")
    assert len(text) > 20 and p.js(ANSWER + ".textContent") == text
    say(p, "And on.")
    p.wait(ANSWER + ".textContent.length > 5")
    p.key("Escape", 27)
    settled(p, 5)
    p.click("#new")
    say(p, "Leave.")  # a new chat in mid-answer leaves it
    p.wait(ANSWER + ".textContent.length > 5")
    p.click("#new")
    p.wait("document.querySelectorAll('.answer').length === 0 && document.getElementById('stop').hidden")
    p.wait("fetch('/metrics').then((r) => r.text()).then((t) => /sluice_inflight_requests 0\\n/.test(t))")
    clean(p)


def keys():
    p = browser.Page(chromium)
    p.go(place(chain) + "/")
    p.wait("document.getElementById('keybox').open")
    p.shot("key")
    p.type("sk-wrong-key")
    p.enter()
    p.wait("document.getElementById('keybox').open && /not accepted/.test(document.getElementById('keywhy').textContent)")
    p.js("document.getElementById('keycancel').click()")
    say(p, "Say it.")  # a message that met 401 waits for the key, and is then sent
    p.wait("document.getElementById('keybox').open && document.querySelector('.fault')")
    p.js("document.getElementById('key').focus()")
    p.type(chain.env["OPENAI_API_KEY"])
    p.enter()
    settled(p)
    p.wait(ANSWER + ".textContent === " + json.dumps(CHAIN))
    assert not p.js("document.querySelector('.fault')")
    clean(p, ["401"])


RICH = """## Reversing a list

Walk along it once and turn each pointer around. Three pointers are enough: **previous**, *current* and `next`.

1. Remember what comes next.
2. Point `current->next` back at `previous`.
3. Step forward, until nothing is left:
   - one pass, so *O(n)* time
   - no memory of its own

```c
struct node *reverse(struct node *current)
{
    struct node *previous = NULL;
    while (current) {
        struct node *next = current->next;   /* 1 < 2 && "quoted" */
        current->next = previous;
        previous = current;
        current = next;
    }
    return previous;
}
```

| case | result |
|:-----|-------:|
| empty list | `NULL` |
| one node | itself |

> The list is changed in place: whoever holds the old head now holds the *tail*.

More on it [here](https://example.org/lists?a=1&b=2), or at <https://example.org/>."""


def markdown():
    p = opened()
    answered(p, RICH)
    q = lambda css: p.js(f"[...{ANSWER}.querySelectorAll({json.dumps(css)})].map((e) => e.textContent)")
    assert q("h2") == ["Reversing a list"] and q("p strong") == ["previous"] and "current" in q("p em")
    assert len(q("ol > li")) == 3 and len(q("ol > li > ul > li")) == 2
    assert q("pre code")[0] == RICH.split("```c\n")[1].split("\n```")[0] and q(".bar > span") == ["c"]
    assert q("th") == ["case", "result"] and q("td") == ["empty list", "NULL", "one node", "itself"]
    assert len(q("blockquote em")) == 1
    links = p.js(f"[...{ANSWER}.querySelectorAll('a')].map((a) => [a.href, a.rel, a.target])")
    assert links == [["https://example.org/lists?a=1&b=2", "noopener noreferrer nofollow", "_blank"], ["https://example.org/", "noopener noreferrer nofollow", "_blank"]], links
    # grown piece by piece it is the same as made at once, and what was done stays the same node
    p.js(f"window.whole = document.createElement('div'); markdown({json.dumps(RICH)}, whole)")
    assert p.js(f"whole.innerHTML === {ANSWER}.innerHTML")
    p.js("window.grown = document.createElement('div'); window.first = null; for (let i = 1; i <= %d; i++) { markdown(%s.slice(0, i), grown); if (i === 400) first = grown.children[1]; }"
         % (len(RICH), json.dumps(RICH)))
    assert p.js("grown.innerHTML === whole.innerHTML && grown.children[1] === first")
    p.js("navigator.clipboard.writeText = (t) => { window.copied = t; return Promise.resolve(); }")
    p.click(".answer:last-child .bar .tool")
    p.wait("window.copied")
    assert p.js("copied") == q("pre code")[0]
    clean(p)
    p.shot("markdown-light")


HOSTILE = [
    "<img src=x onerror=alert(1)>", "<script>alert(1)</script>", "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))", "[x](java\nscript:alert(1))", "[x](\x01javascript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)", "[x](vbscript:x)", "[x](//evil.example/)", "[x](file:///etc/passwd)", "<javascript:alert(1)>", "![x](https://evil.example/pixel.png)",
    "![x](javascript:alert(1))", "<svg/onload=alert(1)>", "<iframe src=https://evil.example/></iframe>", "<a href='javascript:alert(1)'>x</a>", "[<img src=x onerror=alert(1)>](https://example.org/)",
    "[x](https://example.org/\" onmouseover=\"alert(1))", "```\"><img src=x onerror=alert(1)>\n</code></pre><script>alert(1)</script>\n```", "`<b>`", "# <img src=x onerror=alert(1)>",
    "| <img src=x onerror=alert(1)> | b |\n|---|---|\n| <script>alert(1)</script> | [x](javascript:alert(1)) |", "> <img src=x onerror=alert(1)>", "- <style>*{display:none}</style>",
    "[a](https://user:pw@example.org/)", "&lt;img src=x onerror=alert(1)&gt;", "<form action=https://evil.example/><button>x", "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
]


def inert():
    """Whatever a model writes stays text: no element but the renderer's own, no address but http and https, no request, no script."""
    p = opened()
    for text in ["\n\n".join(HOSTILE)] + HOSTILE:
        answered(p, text, size=3)
        kinds = set(p.js(f"[...{ANSWER}.querySelectorAll('*')].map((e) => e.localName)"))
        assert kinds <= {"p", "h1", "em", "strong", "code", "pre", "div", "span", "button", "svg", "path", "a", "ul", "li", "table", "tr", "th", "td", "blockquote", "br", "hr"}, kinds
        bad = p.js(f"[...{ANSWER}.querySelectorAll('a')].map((a) => a.getAttribute('href')).filter((h) => !/^https?:\\/\\//.test(h))")
        assert bad == [], (text, bad)
        names = set(p.js(f"[...{ANSWER}.querySelectorAll('*')].flatMap((e) => e.getAttributeNames())"))
        assert names <= {"class", "href", "rel", "target", "title", "type", "viewBox", "aria-hidden", "d", "tabindex"}, (text, names)
        p.click("#new")
    say(p, HOSTILE[0])  # nor does what the user writes
    settled(p)
    assert p.js("document.querySelector('.ask').children.length === 0") and p.js("document.querySelector('.ask').textContent") == HOSTILE[0]
    # and were there a hole, the policy would hold: markup by script is refused, so is foreign script
    assert p.js("(() => { try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch (e) { return e.name; } })()") == "TypeError"
    assert p.js("(() => { const s = document.createElement('script'); try { s.textContent = 'window.hole = 1'; document.head.append(s); } catch (e) { } return window.hole || 0; })()") == 0
    assert p.js("fetch('https://example.org/').then(() => 'went', () => 'refused')") == "refused"
    assert not p.dialogs and not [u for u in p.urls if "evil.example" in u], p.urls


def long_and_odd():
    """Nothing that a model repeats makes the page slow, and no text is lost."""
    p = opened()
    for text in ["*a " * 20000, "[" * 20000, "`" * 9999 + "x", "> " * 5000 + "x", "- " * 5000 + "x", "**_`[" * 8000, "|" * 20000 + "\n|" + "-|" * 20000, "_" * 30001, "x" * 200000, "a\n" * 20000, "\\" * 30000,
                 "  " * 3000 + "- x", "1. x\n" * 5000, "![" * 10000, "https://a " * 5000]:
        took = p.js(f"(() => {{ const t = performance.now(); const e = document.createElement('div'); markdown({json.dumps(text)}, e); return performance.now() - t; }})()")
        assert took < 4000, (text[:20], took)
    for text, want in [("a * b * c", "a * b * c"), ("snake_case_name", "snake_case_name"), ("2**3 and 4**5", None), ("**bold *both* bold**", "bold both bold"), ("***x***", "x"), ("a `` ` `` b", "a ` b"),
                       ("**not closed", "**not closed"), ("`not closed", "`not closed"), ("\\*star\\*", "*star*"), ("[text] (no)", "[text] (no)"), ("5 < 6 & 7 > 3", "5 < 6 & 7 > 3"), ("```\nopen", None)]:
        got = p.js(f"(() => {{ const e = document.createElement('div'); markdown({json.dumps(text)}, e); return e.textContent; }})()")
        assert want is None or got == want, (text, got)
    clean(p)


def errors():
    p = opened()
    fault = "document.querySelector('.fault').textContent"
    error = lambda m, c: json.dumps({"error": {"message": m, "type": "x", "param": None, "code": c}})
    p.fake("/v1/chat/completions", 429, "application/json", error("The queue is full: 64 requests are waiting.", "queue_full"), **{"Retry-After": "7"})
    say(p, "x")
    p.wait("document.querySelector('.fault')")
    assert "busy" in p.js(fault) and "The queue is full" in p.js(fault) and "7 s" in p.js(fault)
    p.shot("error-light")
    p.real()
    p.click(".fault .btn")  # and the same again, in peace
    settled(p)
    assert p.js(ANSWER + ".textContent") == CHAIN and not p.js("document.querySelector('.fault')")
    broken = "".join(sse("half an answer").split("\n\n")[i] + "\n\n" for i in range(2))
    for body, words in [(broken + "data: " + error("The engine failed.", "engine_error") + "\n\ndata: [DONE]\n\n", "The engine failed."), (broken, "ended in mid-answer"),
                        (broken + "data: {\n\n", "ended in mid-answer")]:
        p.click("#new")
        p.fake("/v1/chat/completions", 200, "text/event-stream", body)
        say(p, "x")
        p.wait("document.querySelector('.fault')")
        assert words in p.js(fault), p.js(fault)
        assert p.js(ANSWER + ".textContent") == "half an answer"
        p.real()
    p.click("#new")
    say(p, "y " * 5000)
    p.wait("document.querySelector('.fault')")
    assert "maximum context length" in p.js(fault)
    say(p, "Say it.")  # a question that failed is not sent along
    settled(p)
    assert p.js(ANSWER + ".textContent") == CHAIN
    clean(p, ["429", "400"])


def dashboard():
    p = opened(slow)
    say(p, "Go on.")  # something to draw
    p.wait(ANSWER + ".textContent.length > 20")
    d = browser.Page(chromium)
    d.go(place(slow) + "/dashboard")
    d.wait("!document.getElementById('board').hidden")
    d.wait("samples.length >= 5 && total(samples.at(-1), 'generation_tokens_total') > 0", 20)
    settled(p, 60)
    d.wait("document.getElementById('state').textContent === 'Engine ready'")
    assert d.js("document.querySelectorAll('.chart').length") == 10
    d.wait("document.querySelectorAll('.chart')[0].querySelector('path.l').getAttribute('d').split('L').length > 3")
    tiles = d.js("document.getElementById('tiles').innerText")
    assert "Engine restarts" in tiles and "Output" in tiles, tiles
    for _ in range(6):
        say(p, "Again.")
        time.sleep(0.2)
        p.key("Escape", 27)
        settled(p)
    d.wait("/p50\\d/.test(document.querySelectorAll('.chart')[1].innerText.replace(/\\s/g, ''))", 20)
    clean(d)
    d.shot("dashboard-light")
    # where /metrics wants a key, the page asks for one
    k = browser.Page(chromium)
    k.fake("/metrics", 401, "application/json", '{"error":{"message":"no key"}}')
    k.go(place(slow) + "/dashboard")
    k.wait("!document.getElementById('door').hidden && document.getElementById('board').hidden")
    k.real()
    k.type(slow.env["OPENAI_API_KEY"])
    k.enter()
    k.wait("!document.getElementById('board').hidden && document.getElementById('door').hidden")
    clean(k, ["401"])


def dashboard_numbers():
    """Rates and quantiles from made-up metrics come out as they must; tiers get charts of their own."""
    d = browser.Page(chromium)
    d.go(place(chain) + "/dashboard")
    d.wait("samples.length")
    d.js("clearTimeout(timer); samples.length = 0;")
    text = lambda n: ("# TYPE sluice_generation_tokens_total counter\\nsluice_generation_tokens_total %d\\nsluice_connections_total 1\\nsluice_engine_up 1\\n"
                      "sluice_time_to_first_token_seconds_bucket{le=\\\"0.1\\\"} %d\\nsluice_time_to_first_token_seconds_bucket{le=\\\"0.2\\\"} %d\\n"
                      "sluice_time_to_first_token_seconds_bucket{le=\\\"+Inf\\\"} %d\\n# TYPE sluice_tier_bytes gauge\\nsluice_tier_bytes{tier=\\\"ram\\\"} 1048576\\n"
                      "sluice_tier_bytes{tier=\\\"nvme\\\"} 2097152\\n# TYPE sluice_tier_reads_total counter\\nsluice_tier_reads_total{tier=\\\"nvme\\\"} %d\\n") % (100 * n, n, 3 * n, 4 * n, 10 * n)
    d.js("window.clock = 1000; performance.now = () => clock;")
    for n in range(1, 6):
        d.js(f'clock += 1000; take(parse("{text(n)}"))')
    value = lambda chart, k: d.js(f"samples.at(-1).at.get(charts[{chart}].lines[{k}].get)")
    assert abs(value(0, 0) - 100) < 1e-6
    assert abs(value(1, 0) - 0.15) < 1e-9, value(1, 0)  # of 16 new ones 4 are below 0.1, 8 between 0.1 and 0.2
    assert abs(value(1, 1) - 0.2) < 1e-9
    titles = d.js("[...document.querySelectorAll('.chart h2')].map((e) => e.firstChild.textContent)")
    assert titles[-2:] == ["Tiers: bytes", "Tiers: reads"], titles
    assert value(10, 0) == 1048576 and abs(value(11, 0) - 10) < 1e-6
    d.js(f'clock += 1000; take(parse("{text(1)}".replace("connections_total 1", "connections_total 0")))')  # the gateway began anew
    assert value(0, 0) is None
    assert d.js('parse(\'a{b="c\\\\"d",e="f"} 1.5\\nbad line here\\n# x\\ng NaN\\n\').get("a").rows[0].labels.b') == 'c"d'
    clean(d)


def looks():
    """Dark, and on a phone: nothing is wider than the screen."""
    p = opened(dark=True)
    p.shot("hello-dark")
    answered(p, RICH)
    p.shot("markdown-dark")
    light = p.js("getComputedStyle(document.body).backgroundColor")
    assert sum(int(x) for x in light[4:-1].split(",")) < 150, light
    for dark in (False, True):
        m = opened(width=375, height=740, touch=True, dark=dark)
        m.shot("phone-hello-" + ("dark" if dark else "light"))
        answered(m, RICH)
        m.js("document.getElementById('scroll').scrollTop = 260")
        time.sleep(0.2)
        m.shot("phone-markdown-" + ("dark" if dark else "light"))
        assert m.js("document.documentElement.scrollWidth <= 375 && document.querySelector('#scroll').scrollWidth <= 375")
        assert m.js("[...document.querySelectorAll('header .tool, #send, #model')].every((e) => { const r = e.getBoundingClientRect(); return r.right <= 375 && r.left >= 0; })")
        m.click("#open-settings")
        m.wait("document.getElementById('settings').open")
        m.shot("phone-settings-" + ("dark" if dark else "light"))
        clean(m)
    d = browser.Page(chromium, width=375, height=740, touch=True, dark=True)
    d.go(place(slow) + "/dashboard")
    d.wait("samples.length > 3")
    d.shot("phone-dashboard-dark")
    assert d.js("document.documentElement.scrollWidth <= 375")
    d = browser.Page(chromium, height=900, dark=True)
    d.go(place(slow) + "/dashboard")
    d.wait("samples.length > 3")
    d.shot("dashboard-dark")
    clean(d)
    clean(p)


rc = run([("a chat", a_chat), ("settings", settings), ("streamed, stopped, left", streamed_and_stopped), ("keys", keys), ("Markdown", markdown), ("hostile text is inert", inert),
          ("long and odd text", long_and_odd), ("errors can be read", errors), ("the dashboard draws", dashboard), ("the dashboard's numbers", dashboard_numbers), ("dark, and a phone", looks)])
chromium.close()
chain.stop()
slow.stop()
sys.exit(rc)
