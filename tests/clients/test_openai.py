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
    assert r.usage.prompt_tokens > 0 and r.usage.prompt_tokens_details.cached_tokens == 0


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
    expect(openai.BadRequestError, lambda: make(model=model, messages=ASK, n=2), param="n", code="unsupported_value")
    expect(openai.BadRequestError, lambda: make(model=model, messages=ASK, response_format={"type": "json_object"}), param="response_format")
    expect(openai.NotFoundError, lambda: make(model="other", messages=ASK), param="model", code="model_not_found")
    expect(openai.BadRequestError, lambda: make(model=model, messages=[{"role": "user", "content": "x " * 5000}], stream=True), code="context_length_exceeded")
    expect(openai.AuthenticationError, lambda: openai.OpenAI(api_key="sk-wrong-key").models.list(), code="invalid_api_key")
    expect(openai.NotFoundError, lambda: client.embeddings.create(model=model, input="x"), code="unknown_url")


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
              ("shapes of messages", shapes_of_messages), ("errors", errors), ("twelve at once", at_once), ("the async client", asynchronous),
              ("seeds", seeded), ("a client that leaves", leaving), ("the engine killed in mid-stream", engine_killed), ("SIGTERM", stops)]))
