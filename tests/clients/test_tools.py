"""Tools with a real model (scripts/fetch.sh qwen2.5-coder-0.5b), by the openai and anthropic packages, unmodified: a call, its result, an answer."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(__file__))
from server import Server, run

import openai

try:
    import anthropic
except ImportError:
    anthropic = None

models = os.environ.get("SLUICE_MODELS") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "sluice/models")
files = [os.path.join(models, f) for f in ("qwen2.5-coder-0.5b-q4.gguf", "qwen2.5-coder-1.5b.gguf")]
found = [f for f in files if os.path.exists(f)]
if not found:
    print(f"SKIP no Qwen2.5-Coder in {models} (scripts/fetch.sh qwen2.5-coder-0.5b)\n0 passed, 0 failed")
    sys.exit(0)

server = Server(found[0], "-c", "2048")
os.environ["SSL_CERT_FILE"] = server.env["SSL_CERT_FILE"]
base, key = server.env["OPENAI_BASE_URL"], server.env["OPENAI_API_KEY"]
client = openai.OpenAI(base_url=base, api_key=key, timeout=900)
model = client.models.list().data[0].id

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
           "required": ["city", "unit"], "additionalProperties": False}
ADD = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Get the current weather of a city", "parameters": WEATHER}},
         {"type": "function", "function": {"name": "add", "description": "Add two integers", "parameters": ADD}}]
SUM = [{"role": "user", "content": "What is 17 plus 25? Use the tool."}]


def work(name, args):
    assert name in ("add", "get_weather"), name
    if name == "add":
        assert set(args) == {"a", "b"} and all(isinstance(v, int) for v in args.values()), args
        return str(args["a"] + args["b"])
    assert set(args) == {"city", "unit"} and args["unit"] in ("celsius", "fahrenheit"), args
    return json.dumps({"temperature": 21, "unit": args["unit"]})


def make(**more):
    return client.chat.completions.create(model=model, tools=TOOLS, temperature=0, max_tokens=200, **more)


def required():
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        r = make(messages=SUM, tool_choice=choice).choices[0]
        assert r.finish_reason == "tool_calls" and r.message.content is None and len(r.message.tool_calls) == 1, r
        call = r.message.tool_calls[0]
        assert call.id.startswith("call_") and call.type == "function"
        result = work(call.function.name, json.loads(call.function.arguments))
        history = SUM + [r.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
        last = make(messages=history, tool_choice="none").choices[0]
        assert last.finish_reason in ("stop", "length") and last.message.content and not last.message.tool_calls, last


def streamed():
    calls, finish, text = {}, None, ""
    for chunk in make(messages=SUM, tool_choice="required", stream=True):
        for c in chunk.choices:
            finish = c.finish_reason or finish
            text += c.delta.content or ""
            for t in c.delta.tool_calls or []:
                call = calls.setdefault(t.index, {"id": t.id, "name": t.function.name, "arguments": "", "pieces": 0})
                call["arguments"] += t.function.arguments or ""
                call["pieces"] += 1
    assert finish == "tool_calls" and not text and len(calls) == 1, (finish, text, calls)
    assert calls[0]["pieces"] > 3, calls  # as they come, not at the end
    work(calls[0]["name"], json.loads(calls[0]["arguments"]))


def accumulated():
    strict = [{"type": "function", "function": {**t["function"], "strict": True}} for t in TOOLS]
    with client.chat.completions.stream(model=model, messages=SUM, tools=strict, tool_choice="required", temperature=0, max_tokens=200) as s:
        kinds = {e.type for e in s}
        r = s.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds and "tool_calls.function.arguments.done" in kinds, kinds
    call = r.message.tool_calls[0]
    work(call.function.name, call.function.parsed_arguments)


def auto():
    r = make(messages=[{"role": "user", "content": "What is the weather in Paris in celsius?"}]).choices[0]
    assert r.finish_reason == "tool_calls", r
    call = r.message.tool_calls[0]
    assert call.function.name == "get_weather" and "Paris" in json.loads(call.function.arguments)["city"], call
    r = make(messages=[{"role": "user", "content": "Say hello."}], tool_choice="none").choices[0]
    assert r.message.content and not r.message.tool_calls


ANTHROPIC_TOOLS = [{"name": t["function"]["name"], "description": t["function"]["description"], "input_schema": t["function"]["parameters"]} for t in TOOLS]


def messages_api():
    if not anthropic:
        print("SKIP the anthropic package is not installed")
        return
    other = anthropic.Anthropic(base_url=base.removesuffix("/v1"), api_key=key, timeout=900)
    ask = dict(model=model, max_tokens=200, tools=ANTHROPIC_TOOLS, extra_body={"temperature": 0})
    r = other.messages.create(messages=SUM, tool_choice={"type": "any"}, **ask)
    use = [b for b in r.content if b.type == "tool_use"]
    assert r.stop_reason == "tool_use" and len(use) == 1 and use[0].id.startswith("toolu_"), r
    result = {"type": "tool_result", "tool_use_id": use[0].id, "content": work(use[0].name, use[0].input)}
    history = SUM + [{"role": "assistant", "content": r.content}, {"role": "user", "content": [result]}]
    with other.messages.stream(messages=history, tool_choice={"type": "none"}, **ask) as s:
        last = s.get_final_message()
    assert last.content[0].type == "text" and last.content[0].text and last.stop_reason in ("end_turn", "max_tokens"), last
    with other.messages.stream(messages=SUM, tool_choice={"type": "tool", "name": "add"}, **ask) as s:
        kinds = [e.type for e in s]
        last = s.get_final_message()
    assert "input_json" in kinds and last.stop_reason == "tool_use", kinds
    work(last.content[-1].name, last.content[-1].input)
    assert other.messages.count_tokens(model=model, messages=SUM, tools=ANTHROPIC_TOOLS).input_tokens > other.messages.count_tokens(model=model, messages=SUM).input_tokens


def refused():
    for more, param in (({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"), ({"tool_choice": "maybe"}, "tool_choice")):
        try:
            make(messages=SUM, **more)
        except openai.BadRequestError as e:
            assert e.param == param, e
        else:
            raise AssertionError("taken")


def stops():
    assert server.stop() == 0


sys.exit(run([("openai: required and named", required), ("openai: streamed", streamed), ("openai: accumulated by the package, strict", accumulated),
              ("openai: auto and none", auto), ("anthropic: a round trip", messages_api), ("errors", refused), ("SIGTERM", stops)]))
