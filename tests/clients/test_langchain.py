"""langchain-openai, unmodified, against a live server over TLS."""
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
from server import Server, run

try:
    from langchain_openai import ChatOpenAI, OpenAI
except ImportError as e:
    print(f"SKIP langchain-openai: {e}\n0 passed, 0 failed")
    sys.exit(0)

CHAIN = "abcdefghijklmnopqrstuvwxyz0123456789"
ASK = [("system", "You are a test."), ("human", "Say it.")]
server = Server(os.path.join(os.environ["TINY_MODELS"], "tiny-chain.gguf"), "--alias", "tiny,gpt-test")
os.environ.update(server.env)


def whole():
    r = ChatOpenAI(model="tiny", temperature=0).invoke(ASK)
    assert r.content == CHAIN and r.response_metadata["finish_reason"] == "stop" and r.usage_metadata["output_tokens"] >= len(CHAIN), r


def streamed():
    chunks = list(ChatOpenAI(model="gpt-test", temperature=0, stream_usage=True).stream(ASK))
    assert "".join(c.content for c in chunks) == CHAIN
    assert sum(c.usage_metadata["output_tokens"] for c in chunks if c.usage_metadata) >= len(CHAIN)


def logprobs():
    r = ChatOpenAI(model="tiny", temperature=0, logprobs=True, top_logprobs=2, max_tokens=4).invoke(ASK)
    assert "".join(t["token"] for t in r.response_metadata["logprobs"]["content"]) == r.content == CHAIN[:4], r


def batch():
    r = ChatOpenAI(model="tiny", temperature=0).batch([ASK] * 4)
    assert [x.content for x in r] == [CHAIN] * 4


def completion():
    assert OpenAI(model="tiny", temperature=0, max_tokens=5).invoke("xyz") == "01234"


def stops():
    assert server.stop() == 0


sys.exit(run([("a whole answer", whole), ("a stream", streamed), ("logprobs", logprobs), ("a batch", batch), ("completions", completion), ("SIGTERM", stops)]))
