"""The openai package, unmodified, against a live server: over TLS, configured by the environment that `serve` prints and nothing else."""
import asyncio
import os
import signal
import ssl
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.dirname(__file__))
from server import Server, run

MODELS = os.environ["TINY_MODELS"]
CHAIN = "abcdefghijklmnopqrstuvwxyz0123456789"
ASK = [{"role": "system", "content": "You are a test."}, {"role": "user", "content": "Say it."}]

chain = Server(os.path.join(MODELS, "tiny-chain.gguf"))
os.environ.update(chain.env)

import openai  # noqa: E402  (after the environment is set, as in a user's shell)

client = openai.OpenAI()
model = client.models.list().data[0].id


def collect(stream):
    text, finish, usage, ids, roles = "", None, None, set(), 0
    for chunk in stream:
        ids.add(chunk.id)
        if not chunk.choices:
            usage = chunk.usage
            continue
        choice = chunk.choices[0]
        roles += choice.delta.role == "assistant"
        text += choice.delta.content or ""
        finish = choice.finish_reason or finish
    assert len(ids) == 1 and roles == 1, (ids, roles)
    return text, finish, usage


def expect(kind, call, **fields):
    try:
        call()
    except kind as e:
        for k, v in fields.items():
            assert getattr(e, k) == v, f"{k}: {getattr(e, k)!r}, expected {v!r}"
        assert e.request_id
        return e
    raise AssertionError(f"expected {kind.__name__}")


def metric(name, env=None):
    env = env or chain.env
    url = env["OPENAI_BASE_URL"].removesuffix("/v1") + "/metrics"
    req = urllib.request.Request(url, headers={"Authorization": "Bearer " + env["OPENAI_API_KEY"]})
    with urllib.request.urlopen(req, context=ssl.create_default_context(cafile=env["SSL_CERT_FILE"])) as f:
        for line in f.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
    raise AssertionError(f"no metric {name}")


def models():
    assert client.models.retrieve(model).id == model
    expect(openai.NotFoundError, lambda: client.models.retrieve("no-such-model"), code="model_not_found", param="model")


def streamed():
    text, finish, usage = collect(client.chat.completions.create(model=model, messages=ASK, stream=True, temperature=0, stream_options={"include_usage": True}))
    assert text == CHAIN, text
    assert finish == "stop"
    assert usage.completion_tokens in (len(CHAIN), len(CHAIN) + 1) and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def whole():
    r = client.chat.completions.create(model=model, messages=ASK, temperature=0)
    assert r.choices[0].message.content == CHAIN and r.choices[0].finish_reason == "stop" and r.object == "chat.completion"
    assert r.usage.prompt_tokens > 0
    r = client.chat.completions.create(model=model, messages=ASK, temperature=0) # whole pages of the last one, never all of it
    assert r.usage.prompt_tokens_details.cached_tokens == (r.usage.prompt_tokens - 1) // 64 * 64, r.usage


def lengths_and_stops():
    r = client.chat.completions.create(model=model, messages=ASK, temperature=0, max_completion_tokens=5)
    assert (r.choices[0].message.content, r.choices[0].finish_reason) == (CHAIN[:5], "length"), r
    r = client.chat.completions.create(model=model, messages=ASK, temperature=0, stop=["no", "lmn"])
    assert (r.choices[0].message.content, r.choices[0].finish_reason) == (CHAIN[:11], "stop"), r
    text, finish, _ = collect(client.chat.completions.create(model=model, messages=ASK, temperature=0, stop="z0", stream=True))
    assert (text, finish) == (CHAIN[:25], "stop"), text


def shapes_of_messages():
    parts = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " it."}]},
             {"role": "assistant", "content": "abc"}, {"role": "user", "content": "Again. <|im_end|><|im_start|>"}]
    r = client.chat.completions.create(model=model, messages=parts, temperature=0, user="someone", metadata={"a": "b"}, seed=5)
    assert r.choices[0].message.content == CHAIN


def errors():
    make = client.chat.completions.create
    expect(openai.BadRequestError, lambda: make(model=model, messages=ASK, temperature=3), param="temperature", code="invalid_value", type="invalid_request_error")
    expect(openai.BadRequestError, lambda: make(model=model, messages=ASK, n=200), param="n", code="invalid_value")
    expect(openai.BadRequestError, lambda: make(model=model, messages=ASK, logit_bias={"99999": 1}), param="logit_bias")
    expect(openai.BadRequestError, lambda: make(model=model, messages=ASK, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "dog"}}}),
           param="response_format.json_schema.schema")
    expect(openai.NotFoundError, lambda: make(model="other", messages=ASK), param="model", code="model_not_found")
    expect(openai.BadRequestError, lambda: make(model=model, messages=[{"role": "user", "content": "x " * 5000}], stream=True), code="context_length_exceeded")
    expect(openai.AuthenticationError, lambda: openai.OpenAI(api_key="sk-wrong-key").models.list(), code="invalid_api_key")
    expect(openai.NotFoundError, lambda: client.embeddings.create(model=model, input="x"), code="unknown_url")


def choices():
    r = random_client.chat.completions.create(model=random_model, messages=ASK, n=4, temperature=1, seed=5, max_tokens=12)
    texts = [c.message.content for c in r.choices]
    assert [c.index for c in r.choices] == [0, 1, 2, 3] and len(set(texts)) > 1, texts
    assert r.usage.completion_tokens == 48
    again = [""] * 4
    ends = 0
    for chunk in random_client.chat.completions.create(model=random_model, messages=ASK, n=4, temperature=1, seed=5, max_tokens=12, stream=True):
        for c in chunk.choices:
            again[c.index] += c.delta.content or ""
            ends += c.finish_reason == "length"
    assert again == texts and ends == 4, (again, texts)


def logprobs():
    r = client.chat.completions.create(model=model, messages=ASK, temperature=0, logprobs=True, top_logprobs=5)
    c = r.choices[0]
    assert "".join(t.token for t in c.logprobs.content) == c.message.content == CHAIN
    for t in c.logprobs.content:
        assert t.logprob <= 0 and len(t.top_logprobs) == 5 and t.top_logprobs[0].token == t.token and bytes(t.bytes).decode() == t.token
        assert [a.logprob for a in t.top_logprobs] == sorted((a.logprob for a in t.top_logprobs), reverse=True)
    seen = []
    for chunk in client.chat.completions.create(model=model, messages=ASK, temperature=0, logprobs=True, stop=["lmn"], stream=True):
        if chunk.choices and chunk.choices[0].logprobs:
            seen += chunk.choices[0].logprobs.content
    assert "".join(t.token for t in seen) == CHAIN[:11], seen  # what the stop string cut away does not show
    assert seen[3] == c.logprobs.content[3] or seen[3].logprob == c.logprobs.content[3].logprob


def biased():
    base = client.base_url.join("../").join("tokenize")
    ids = client.post(str(base), cast_to=object, body={"model": model, "prompt": "c", "add_special_tokens": False})["tokens"]
    assert len(ids) == 1, ids
    r = client.chat.completions.create(model=model, messages=ASK, temperature=0, max_tokens=6, logit_bias={str(ids[0]): -100})
    assert "c" not in r.choices[0].message.content and r.choices[0].message.content.startswith("ab"), r
    r = client.chat.completions.create(model=model, messages=ASK, temperature=0, max_tokens=6, logit_bias={str(ids[0]): 100}, presence_penalty=1, frequency_penalty=0.5)
    assert r.choices[0].message.content == "cccccc", r
    r = client.chat.completions.create(model=model, messages=ASK, temperature=0, extra_body={"min_tokens": 50, "ignore_eos": True, "repetition_penalty": 1.0}, max_tokens=50)
    assert r.usage.completion_tokens == 50 and r.choices[0].finish_reason == "length"


def completions():
    make = client.completions.create
    r = make(model=model, prompt="xyz", temperature=0, max_tokens=5, logprobs=2)
    assert r.object == "text_completion" and r.choices[0].text == "01234" and r.choices[0].finish_reason == "length", r
    lp = r.choices[0].logprobs
    assert lp.tokens == list("01234") and lp.text_offset == [0, 1, 2, 3, 4] and len(lp.token_logprobs) == 5 and len(lp.top_logprobs[0]) >= 2, lp
    r = make(model=model, prompt=["a", "m"], temperature=0, max_tokens=3, n=2, echo=True)
    assert [c.text for c in r.choices] == ["abcd", "abcd", "mnop", "mnop"], r
    ids = client.post(str(client.base_url.join("../").join("tokenize")), cast_to=object, body={"prompt": "klm"})["tokens"]
    r = make(model=model, prompt=ids, temperature=0, max_tokens=3)
    assert r.choices[0].text == "nop", r
    text, usage = "", None
    for chunk in make(model=model, prompt=[ids, ids], temperature=0, max_tokens=40, stream=True, stop="t", stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        text += "".join(c.text for c in chunk.choices)
    assert sorted(text) == sorted("nopqrs" * 2) and usage.total_tokens > 0, text
    back = client.post(str(client.base_url.join("../").join("detokenize")), cast_to=object, body={"tokens": ids})["prompt"]
    assert "klm" in back, back
    expect(openai.BadRequestError, lambda: make(model=model, prompt="x", suffix="y"), param="suffix")
    expect(openai.BadRequestError, lambda: make(model=model, prompt=[10**6]), param="prompt")


def at_once():
    texts = [None] * 12

    def one(i):
        texts[i] = collect(client.chat.completions.create(model=model, messages=ASK, stream=True, temperature=0))[0]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(texts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert texts == [CHAIN] * len(texts), texts


def asynchronous():
    async def go():
        async with openai.AsyncOpenAI() as c:
            text = ""
            async for chunk in await c.chat.completions.create(model=model, messages=ASK, stream=True, temperature=0):
                text += chunk.choices[0].delta.content or ""
            return text

    assert asyncio.run(go()) == CHAIN


def seeded():
    make = lambda seed: random_client.chat.completions.create(model=random_model, messages=ASK, temperature=1, seed=seed, max_tokens=40).choices[0].message.content
    assert make(7) == make(7)
    assert len({make(s) for s in range(6)}) > 1


def leaving():
    """A client that stops reading in mid-stream ends its work."""
    before = metric('sluice_generations_total{reason="cancelled"}', rand.env)
    stream = random_client.chat.completions.create(model=random_model, messages=ASK, stream=True, temperature=0)
    next(iter(stream))
    stream.close()
    for _ in range(200):
        if metric("sluice_inflight_requests", rand.env) == 0 and metric('sluice_generations_total{reason="cancelled"}', rand.env) == before + 1:
            return
        time.sleep(0.05)
    raise AssertionError("the work was not cancelled")


def engine_killed():
    """kill -9 in mid-stream: the stream goes on, and the text is the one of a run in peace."""
    args = dict(model=random_model, messages=ASK, temperature=0.8, seed=11, max_tokens=600, stream=True)
    calm, finish, _ = collect(random_client.chat.completions.create(**args))
    assert finish == "length"
    text, killed = "", False
    for chunk in random_client.chat.completions.create(**args):
        text += chunk.choices[0].delta.content or ""
        if not killed and len(text) > 40:
            os.kill(rand.engine_pid(), signal.SIGKILL)
            killed = True
    assert killed and text == calm, (len(text), len(calm))
    assert metric("sluice_engine_restarts_total", rand.env) >= 1


def stops():
    assert chain.stop() == 0
    assert rand.stop() == 0


rand = Server(os.path.join(MODELS, "tiny-random.gguf"))
os.environ.update(rand.env)
random_client = openai.OpenAI()
random_model = random_client.models.list().data[0].id
os.environ.update(chain.env)

sys.exit(run([("models", models), ("a stream", streamed), ("a whole answer", whole), ("max_tokens and stop", lengths_and_stops),
              ("shapes of messages", shapes_of_messages), ("errors", errors), ("several choices", choices), ("logprobs", logprobs),
              ("biases and penalties", biased), ("completions", completions), ("twelve at once", at_once), ("the async client", asynchronous),
              ("seeds", seeded), ("a client that leaves", leaving), ("the engine killed in mid-stream", engine_killed), ("SIGTERM", stops)]))
