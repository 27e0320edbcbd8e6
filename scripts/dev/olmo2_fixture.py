#!/usr/bin/env python3
"""Makes tests/data/models/olmo2: a tiny random OLMo 2 checkpoint and what it must compute, in plain Python and double precision.

Independent of the engine and of any framework: the formulas are those of the OLMo 2 report (reordered norms, norms of q and k over
the whole row) and of Su et al. 2021. Only a developer runs it, after a change here:  scripts/dev/olmo2_fixture.py
"""
import json, math, os, random, shutil, struct

L, H, A, G, F, V, THETA, EPS, CTX = 3, 64, 4, 2, 96, 512, 500000.0, 1e-6, 2048
D = H // A
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "data", "models")
OUT = os.path.join(ROOT, "olmo2")
rng = random.Random(7)


def bf16(x):
    """The nearest bfloat16 (ties to even), as its 16 bits and as a float."""
    u = struct.unpack("<I", struct.pack("<f", x))[0]
    u = (u + 0x7FFF + (u >> 16 & 1)) >> 16
    return u, struct.unpack("<f", struct.pack("<I", u << 16))[0]


def tensor(rows, cols, spread, middle=0.0):
    """bits, values: values as rows of floats (one row for a vector)."""
    cells = [bf16(middle + rng.gauss(0, spread)) for _ in range(rows * cols)]
    values = [c[1] for c in cells]
    return b"".join(struct.pack("<H", c[0]) for c in cells), [values[r * cols:(r + 1) * cols] for r in range(rows)]


def make_weights():
    shapes = {"model.embed_tokens.weight": (V, H, 1.0, 0), "model.norm.weight": (1, H, 0.2, 1), "lm_head.weight": (V, H, 0.4, 0)}
    for l in range(L):
        b = f"model.layers.{l}."
        for name, rows, cols in (("self_attn.q_proj", A * D, H), ("self_attn.k_proj", G * D, H), ("self_attn.v_proj", G * D, H),
                                 ("self_attn.o_proj", H, A * D), ("mlp.gate_proj", F, H), ("mlp.up_proj", F, H), ("mlp.down_proj", H, F)):
            shapes[b + name + ".weight"] = (rows, cols, 0.15, 0)
        for name, n in (("self_attn.q_norm", A * D), ("self_attn.k_norm", G * D), ("post_attention_layernorm", H), ("post_feedforward_layernorm", H)):
            shapes[b + name + ".weight"] = (1, n, 0.3, 1)
    return {name: (s[:2], *tensor(*s)) for name, s in shapes.items()}


def write_safetensors(path, entries):
    header, at = {}, 0
    for name, dtype, shape, data in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(e[3] for e in entries))


def mul(w, x):
    return [math.fsum(a * b for a, b in zip(row, x)) for row in w]


def rms(x, w):
    r = 1 / math.sqrt(math.fsum(v * v for v in x) / len(x) + EPS)
    return [v * r * g for v, g in zip(x, w)]


def rope(head, pos):
    out = head[:]
    for j in range(D // 2):
        a = pos * THETA ** (-2 * j / D)
        c, s, x, y = math.cos(a), math.sin(a), head[j], head[j + D // 2]
        out[j], out[j + D // 2] = x * c - y * s, y * c + x * s
    return out


def heads(row, n):
    return [row[i * D:(i + 1) * D] for i in range(n)]


def attention(w, l, x, pos, cache):
    def at(name):
        return w[f"model.layers.{l}.self_attn.{name}.weight"][2]
    q = [rope(h, pos) for h in heads(rms(mul(at("q_proj"), x), at("q_norm")[0]), A)]
    k = [rope(h, pos) for h in heads(rms(mul(at("k_proj"), x), at("k_norm")[0]), G)]
    cache[l].append((k, heads(mul(at("v_proj"), x), G)))
    out = []
    for a in range(A):
        g = a // (A // G)
        s = [math.fsum(x * y for x, y in zip(q[a], kj[g])) * D ** -0.5 for kj, _ in cache[l]]
        top = max(s)
        p = [math.exp(v - top) for v in s]
        total = math.fsum(p)
        out += [math.fsum(p[j] * cache[l][j][1][g][i] for j in range(len(p))) / total for i in range(D)]
    return mul(at("o_proj"), out)


def step(w, token, pos, cache, taps):
    x = w["model.embed_tokens.weight"][2][token][:]
    taps.setdefault("embed", []).append(x)
    for l in range(L):
        b = f"model.layers.{l}."
        x = [u + v for u, v in zip(x, rms(attention(w, l, x, pos, cache), w[b + "post_attention_layernorm.weight"][2][0]))]
        gate, up = mul(w[b + "mlp.gate_proj.weight"][2], x), mul(w[b + "mlp.up_proj.weight"][2], x)
        f = mul(w[b + "mlp.down_proj.weight"][2], [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)])
        x = [u + v for u, v in zip(x, rms(f, w[b + "post_feedforward_layernorm.weight"][2][0]))]
        taps.setdefault(f"layer.{l}", []).append(x)
    x = rms(x, w["model.norm.weight"][2][0])
    taps.setdefault("final_norm", []).append(x)
    taps.setdefault("logits", []).append(mul(w["lm_head.weight"][2], x))
    return taps["logits"][-1]


def main():
    os.makedirs(os.path.join(OUT, "reference"), exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(ROOT, "llama", name), os.path.join(OUT, name))
    config = {"architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 507, "eos_token_id": 511,
              "hidden_act": "silu", "hidden_size": H, "initializer_range": 0.02, "intermediate_size": F, "max_position_embeddings": CTX,
              "model_type": "olmo2", "num_attention_heads": A, "num_hidden_layers": L, "num_key_value_heads": G, "rms_norm_eps": EPS,
              "rope_scaling": None, "rope_theta": THETA, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": V}
    newer = {k: v for k, v in config.items() if k not in ("rope_scaling", "rope_theta", "torch_dtype")}
    newer.update(dtype="bfloat16", rope_parameters={"rope_type": "default", "rope_theta": THETA})
    for path, value in ((("config.json",), config), (("reference", "config-newer.json"), newer),
                        (("generation_config.json",), {"bos_token_id": 507, "eos_token_id": 508})):
        with open(os.path.join(OUT, *path), "w") as f:
            json.dump(value, f, indent=1)
    w = make_weights()
    write_safetensors(os.path.join(OUT, "model.safetensors"),
                      [(n, "BF16", [c] if r == 1 else [r, c], bits) for n, ((r, c), bits, _) in w.items()])
    with open(os.path.join(ROOT, "llama", "reference", "prompts.json")) as f:
        texts = [p for p in json.load(f) if p["name"] in ("short", "middle", "long")]
    prompts, entries = [], []
    for p in texts:
        cache, taps, greedy, margin = [[] for _ in range(L)], {}, [], math.inf
        for pos, token in enumerate(p["ids"]):
            row = step(w, token, pos, cache, taps)
        for _ in range(32):
            best = sorted(row, reverse=True)
            margin = min(margin, best[0] - best[1])
            greedy.append(row.index(best[0]))
            row = step(w, greedy[-1], len(p["ids"]) + len(greedy) - 1, cache, {})
        prompts.append({"name": p["name"], "text": p["text"], "ids": p["ids"], "greedy": greedy, "min_margin": margin})
        for name, rows in taps.items():
            entries.append((f"{p['name']}.{name}", "F32", [len(rows), len(rows[0])], b"".join(struct.pack(f"<{len(r)}f", *r) for r in rows)))
        print(p["name"], len(p["ids"]), "ids, smallest margin", margin)
    write_safetensors(os.path.join(OUT, "reference", "activations.safetensors"), entries)
    with open(os.path.join(OUT, "reference", "prompts.json"), "w") as f:
        json.dump(prompts, f, indent=1)


main()
