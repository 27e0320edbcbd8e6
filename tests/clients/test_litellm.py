"""litellm, unmodified, against a live server over TLS: as an OpenAI server and as an Anthropic one."""
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
from server import Server, run

try:
    import litellm
except ImportError as e:
    print(f"SKIP litellm: {e}\n0 passed, 0 failed")
    sys.exit(0)

CHAIN = "abcdefghijklmnopqrstuvwxyz0123456789"
ASK = [{"role": "system", "content": "You are a test."}, {"role": "user", "content": "Say it."}]
server = Server(os.path.join(os.environ["TINY_MODELS"], "tiny-chain.gguf"), "--alias", "tiny")
base, key = server.env["OPENAI_BASE_URL"], server.env["OPENAI_API_KEY"]
os.environ["SSL_CERT_FILE"] = server.env["SSL_CERT_FILE"]
litellm.num_retries = 0
litellm.suppress_debug_info = True
openai = dict(model="openai/tiny", api_base=base, api_key=key)
anthropic = dict(model="anthropic/tiny", api_base=base.removesuffix("/v1"), api_key=key)


def whole():
    r = litellm.completion(messages=ASK, temperature=0, **openai)
    assert r.choices[0].message.content == CHAIN and r.choices[0].finish_reason == "stop", r


def streamed():
    text, usage = "", None
    for c in litellm.completion(messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}, **openai):
        text += (c.choices[0].delta.content or "") if c.choices else ""
        usage = getattr(c, "usage", None) or usage
    assert text == CHAIN and usage.completion_tokens >= len(CHAIN), (text, usage)


def text_completion():
    r = litellm.text_completion(model="text-completion-openai/tiny", prompt="xyz", temperature=0, max_tokens=5, api_base=base, api_key=key)
    assert r.choices[0].text == "01234", r


def messages():
    r = litellm.completion(messages=ASK, temperature=0, max_tokens=100, **anthropic)
    assert r.choices[0].message.content == CHAIN, r
    text = "".join(c.choices[0].delta.content or "" for c in litellm.completion(messages=ASK, temperature=0, max_tokens=100, stream=True, **anthropic))
    assert text == CHAIN, text


def errors():
    for kind, call in [(litellm.NotFoundError, lambda: litellm.completion(model="openai/other", api_base=base, api_key=key, messages=ASK)),
                       (litellm.AuthenticationError, lambda: litellm.completion(model="openai/tiny", api_base=base, api_key="sk-wrong-key", messages=ASK)),
                       (litellm.ContextWindowExceededError, lambda: litellm.completion(messages=[{"role": "user", "content": "x " * 5000}], **openai))]:
        try:
            call()
        except kind:
            continue
        raise AssertionError(kind.__name__)


def stops():
    assert server.stop() == 0


sys.exit(run([("a whole answer", whole), ("a stream", streamed), ("text completion", text_completion), ("as Anthropic", messages), ("errors", errors), ("SIGTERM", stops)]))
