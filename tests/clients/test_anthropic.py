"""The anthropic package, unmodified, against a live server over TLS."""
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
from server import Server, run

try:
    import anthropic
except ImportError:
    print("SKIP the anthropic package is not installed\n0 passed, 0 failed")
    sys.exit(0)

CHAIN = "abcdefghijklmnopqrstuvwxyz0123456789"
COLD = {"temperature": 0}  # the package has no argument for it any more
ASK = [{"role": "user", "content": "Say it."}]
server = Server(os.path.join(os.environ["TINY_MODELS"], "tiny-chain.gguf"))
os.environ["SSL_CERT_FILE"] = server.env["SSL_CERT_FILE"]
base = server.env["OPENAI_BASE_URL"].removesuffix("/v1")
client = anthropic.Anthropic(base_url=base, api_key=server.env["OPENAI_API_KEY"])
model = client.models.list().data[0].id


def expect(kind, call, word):
    try:
        call()
    except kind as e:
        assert e.body["type"] == "error" and e.body["error"]["type"] == word, e.body
        assert e.request_id
        return
    raise AssertionError(f"expected {kind.__name__}")


def whole():
    r = client.messages.create(model=model, max_tokens=100, messages=ASK, extra_body=COLD, system="You are a test.")
    assert r.type == "message" and r.role == "assistant" and r.content[0].text == CHAIN and r.stop_reason == "end_turn" and r.stop_sequence is None, r
    assert r.usage.input_tokens > 0 and r.usage.output_tokens >= len(CHAIN) and r._request_id
    r = client.messages.create(model=model, max_tokens=5, messages=ASK, extra_body=COLD)
    assert r.content[0].text == CHAIN[:5] and r.stop_reason == "max_tokens"
    r = client.messages.create(model=model, max_tokens=100, messages=ASK, extra_body=COLD, stop_sequences=["nope", "lmn"])
    assert r.content[0].text == CHAIN[:11] and r.stop_reason == "stop_sequence" and r.stop_sequence == "lmn"


def streamed():
    with client.messages.stream(model=model, max_tokens=100, messages=ASK, extra_body=COLD) as s:
        text = "".join(s.text_stream)
        last = s.get_final_message()
    assert text == CHAIN and last.content[0].text == CHAIN and last.stop_reason == "end_turn" and last.usage.output_tokens >= len(CHAIN)
    kinds = [e.type for e in client.messages.create(model=model, max_tokens=9, messages=ASK, extra_body=COLD, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds
    assert kinds.count("content_block_delta") >= 2


def blocks():
    r = client.messages.create(
        model=model, max_tokens=100, extra_body={"temperature": 0, "top_k": 5, "top_p": 0.9}, metadata={"user_id": "u"},
        system=[{"type": "text", "text": "You are a test.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " it."}]}, {"role": "assistant", "content": "abc"},
                  {"role": "user", "content": "Again. <|im_end|>"}])
    assert r.content[0].text == CHAIN


def counted():
    n = client.messages.count_tokens(model=model, messages=ASK, system="You are a test.").input_tokens
    r = client.messages.create(model=model, max_tokens=1, messages=ASK, system="You are a test.")
    assert n == r.usage.input_tokens + (r.usage.cache_read_input_tokens or 0) > 0


def errors():
    make = client.messages.create
    expect(anthropic.BadRequestError, lambda: make(model=model, max_tokens=5, messages=[]), "invalid_request_error")
    expect(anthropic.BadRequestError, lambda: make(model=model, max_tokens=0, messages=ASK), "invalid_request_error")
    expect(anthropic.BadRequestError, lambda: make(model=model, max_tokens=5, messages=ASK, extra_body={"temperature": 1.5}), "invalid_request_error")
    expect(anthropic.BadRequestError, lambda: make(model=model, max_tokens=5, messages=[{"role": "user", "content": "x " * 5000}]), "invalid_request_error")
    expect(anthropic.NotFoundError, lambda: make(model="other", max_tokens=5, messages=ASK), "not_found_error")
    expect(anthropic.AuthenticationError, lambda: anthropic.Anthropic(base_url=base, api_key="sk-wrong").messages.create(model=model, max_tokens=5, messages=ASK), "authentication_error")


def stops():
    assert server.stop() == 0


sys.exit(run([("a whole answer", whole), ("a stream", streamed), ("blocks", blocks), ("count_tokens", counted), ("errors", errors), ("SIGTERM", stops)]))
