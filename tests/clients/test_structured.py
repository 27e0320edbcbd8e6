"""Structured output by the openai and anthropic packages: whatever the seed, a model without sense answers in valid JSON; so does a real one that is there."""
import json
import os
import signal
import sys
from typing import List, Literal, Optional

sys.path.insert(0, os.path.dirname(__file__))
from server import Server, run

MODELS = os.environ["TINY_MODELS"]
REAL = os.path.join(os.environ.get("SLUICE_MODELS") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice", "models"),
                    "SmolLM2-135M-Instruct.Q4_1.gguf")  # where scripts/fetch.sh puts it
ASK = [{"role": "user", "content": "Invent a person, as JSON."}]

rand = Server(os.path.join(MODELS, "tiny-random.gguf"))
os.environ.update(rand.env)

import openai  # noqa: E402  (after the environment is set, as in a user's shell)
from pydantic import BaseModel, Field  # noqa: E402  (the openai package brings it)


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    age: int = Field(ge=0, le=30)


class Person(BaseModel):
    name: str = Field(max_length=12)
    score: float = Field(ge=0, le=1)
    email: Optional[str] = Field(pattern=r"^[a-z]{1,8}@[a-z]{1,8}\.org$")
    pets: List[Pet] = Field(min_length=1, max_length=2)


client = openai.OpenAI()
model = client.models.list().data[0].id


def parsed(c, name, n):
    for seed in range(n):
        r = c.chat.completions.parse(model=name, messages=ASK, response_format=Person, seed=seed, temperature=1, max_tokens=400)
        assert r.choices[0].finish_reason == "stop" and isinstance(r.choices[0].message.parsed, Person), r


def parse():
    parsed(client, model, 12)


def streamed():
    with client.chat.completions.stream(model=model, messages=ASK, response_format=Person, seed=3, temperature=1, max_tokens=400) as stream:
        for _ in stream:
            pass
        whole = stream.get_final_completion().choices[0].message
    assert isinstance(whole.parsed, Person)
    again = client.chat.completions.create(model=model, messages=ASK, seed=3, temperature=1, max_tokens=400,
                                           response_format={"type": "json_schema", "json_schema": {"name": "Person", "strict": True, "schema": openai.lib._pydantic.to_strict_json_schema(Person)}})
    assert again.choices[0].message.content == whole.content


def grammar():
    r = client.chat.completions.create(model=model, messages=ASK, n=3, seed=1, temperature=1, extra_body={"grammar": 'root ::= ("yes" | "no") "!"'})
    assert all(c.message.content in ("yes!", "no!") and c.finish_reason == "stop" for c in r.choices), r
    r = client.completions.create(model=model, prompt="x", seed=1, max_tokens=40, extra_body={"guided_choice": ["alpha", "beta"]})
    assert r.choices[0].text in ("alpha", "beta"), r


def cut():
    r = client.chat.completions.create(model=model, messages=ASK, seed=1, max_tokens=5, response_format={"type": "json_object"})
    assert r.choices[0].finish_reason == "length" and r.choices[0].message.content.startswith("{"), r


def engine_killed():
    args = dict(model=model, messages=ASK, temperature=1, seed=5, max_tokens=900, stream=True,
                extra_body={"grammar": 'root ::= "[" ([0-9]{3} ","){200} "0]"'})
    calm = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(**args) if c.choices)
    text, killed = "", False
    for chunk in client.chat.completions.create(**args):
        text += chunk.choices[0].delta.content or ""
        if not killed and len(text) > 40:
            os.kill(rand.engine_pid(), signal.SIGKILL)
            killed = True
    assert killed and text == calm and text.endswith("0]") and text.count(",") == 200, text[-40:]


def messages():
    try:
        import anthropic
    except ImportError:
        print("SKIP structured: the anthropic package is not there")
        return
    a = anthropic.Anthropic(base_url=rand.env["OPENAI_BASE_URL"].removesuffix("/v1"), api_key=rand.env["OPENAI_API_KEY"])
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
    r = a.messages.create(model=model, max_tokens=100, messages=ASK, extra_body={"output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert 1 <= json.loads(r.content[0].text)["n"] <= 9 and r.stop_reason == "end_turn", r


def real():
    if not os.path.exists(REAL):
        print("SKIP structured: no", REAL)
        return
    s = Server(REAL)
    os.environ.update(s.env)
    c = openai.OpenAI(base_url=s.env["OPENAI_BASE_URL"], api_key=s.env["OPENAI_API_KEY"])
    parsed(c, c.models.list().data[0].id, 3)
    assert s.stop() == 0


def stops():
    assert rand.stop() == 0


sys.exit(run([("pydantic models", parse), ("a stream", streamed), ("grammars and choices", grammar), ("cut by max_tokens", cut),
              ("the engine killed in mid-answer", engine_killed), ("the anthropic package", messages), ("a real model", real), ("SIGTERM", stops)]))
