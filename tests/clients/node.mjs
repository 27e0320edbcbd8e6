// The openai and @anthropic-ai/sdk packages for Node, unmodified: run by test_node.py with the environment that `serve` prints.
// It lies beside node_modules when it runs, since that is where modules are looked for.
import assert from "node:assert";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";

const CHAIN = "abcdefghijklmnopqrstuvwxyz0123456789";
const ask = [{ role: "user", content: "Say it." }];
const client = new OpenAI();
const model = (await client.models.list()).data[0].id;
const claude = new Anthropic({ baseURL: process.env.OPENAI_BASE_URL.replace(/\/v1$/, ""), apiKey: process.env.OPENAI_API_KEY });

const tests = {
  async "openai: a whole answer"() {
    const r = await client.chat.completions.create({ model, messages: ask, temperature: 0, logprobs: true, top_logprobs: 2 });
    assert.equal(r.choices[0].message.content, CHAIN);
    assert.equal(r.choices[0].logprobs.content.map((t) => t.token).join(""), CHAIN);
    assert.ok(r._request_id);
  },
  async "openai: a stream"() {
    let text = "", usage;
    for await (const c of await client.chat.completions.create({ model, messages: ask, temperature: 0, stream: true, stream_options: { include_usage: true } })) {
      text += c.choices[0]?.delta?.content ?? "";
      usage = c.usage ?? usage;
    }
    assert.equal(text, CHAIN);
    assert.ok(usage.completion_tokens >= CHAIN.length);
  },
  async "openai: completions"() {
    const r = await client.completions.create({ model, prompt: ["xyz", "abc"], max_tokens: 3, temperature: 0 });
    assert.deepEqual(r.choices.map((c) => c.text), ["012", "def"]);
  },
  async "openai: errors"() {
    await assert.rejects(client.chat.completions.create({ model: "other", messages: ask }), (e) => e instanceof OpenAI.NotFoundError && e.code === "model_not_found");
    await assert.rejects(client.chat.completions.create({ model, messages: ask, n: 1000 }), (e) => e instanceof OpenAI.BadRequestError && e.param === "n");
  },
  async "anthropic: a whole answer"() {
    const r = await claude.messages.create({ model, max_tokens: 100, messages: ask, temperature: 0, stop_sequences: ["lmn"] });
    assert.equal(r.content[0].text, CHAIN.slice(0, 11));
    assert.equal(r.stop_sequence, "lmn");
  },
  async "anthropic: a stream"() {
    const s = claude.messages.stream({ model, max_tokens: 100, messages: ask, temperature: 0 });
    const last = await s.finalMessage();
    assert.equal(last.content[0].text, CHAIN);
    assert.equal(last.stop_reason, "end_turn");
  },
  async "anthropic: count_tokens and errors"() {
    assert.ok((await claude.messages.countTokens({ model, messages: ask })).input_tokens > 0);
    await assert.rejects(claude.messages.create({ model: "other", max_tokens: 5, messages: ask }), Anthropic.NotFoundError);
  },
};

let failed = 0, passed = 0;
for (const [name, f] of Object.entries(tests)) {
  try {
    await f();
    passed++;
    console.log("ok     " + name);
  } catch (e) {
    failed++;
    console.log(`FAILED ${name}: ${e}`);
  }
}
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
