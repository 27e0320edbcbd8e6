#!/usr/bin/env python3
"""Makes tests/data/operators/known.json: inputs, weights and answers of every operator of the registry, computed here in double precision
with numpy, from the formulas of docs/operators.md and their papers, apart from the engine. For each case the plausible mistakes are computed
too; the nearest of them must lie far outside the operator's tolerance, else the case tells nothing and this script ends with an error.

Only a developer runs it, in an environment with numpy:  python3 scripts/dev/operator_answers.py
"""
import json, os

import numpy as np

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "data", "operators", "known.json")
rng = np.random.default_rng(5)
cases = []


def draw(shape, lo=-1.0, hi=1.0):
    return np.asarray(rng.uniform(lo, hi, shape), np.float32).astype(np.float64)


def case(op, name, rows, attrs, ins, ws, out, variants, out_heads=1, least=1e-3, **more):
    """ins: (values [rows, heads, dim], extra); ws: None or (values [rows, cols], extra); variants: what a mistake would give."""
    out = np.asarray(out, np.float64)
    apart = {k: float(np.abs(np.asarray(v) - out).max() / np.abs(out).max()) for k, v in variants.items()}
    for k, v in apart.items():
        assert v > least, (op, name, k, v)
    def reg(v, extra):
        v = np.asarray(v, np.float64)
        return {"heads": v.shape[-2], "dim": v.shape[-1], **extra, "v": v}
    def weight(w):
        return None if w is None else {"rows": w[0].shape[0], "cols": w[0].shape[1], **(w[1] if len(w) > 1 else {}), "v": w[0]}
    cases.append({"op": op, "case": name, "rows": rows, **more, "attrs": attrs, "in": [reg(v[0], v[1] if len(v) > 1 else {}) for v in ins], "w": [weight(w) for w in ws],
                  "out": {"heads": out_heads, "dim": out.reshape(rows, out_heads, -1).shape[2], "v": out}, "apart": apart})


def one(x):  # [rows, n] as one head
    return np.asarray(x)[:, None, :]


sig = lambda x: 1 / (1 + np.exp(-x))
silu = lambda x: x * sig(x)
from math import erf, sqrt, pi
gelu = lambda x: 0.5 * x * (1 + np.vectorize(erf)(x / sqrt(2)))
gelu_tanh = lambda x: 0.5 * x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))
softmax = lambda s: np.exp(s - s.max(-1, keepdims=True)) / np.exp(s - s.max(-1, keepdims=True)).sum(-1, keepdims=True)
rms = lambda x, w, eps, off=0.0: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (w + off)


def elementwise():
    a, b = draw((4, 9), -3, 3), draw((4, 9), -3, 3)
    f32 = lambda v: np.asarray(v, np.float32).astype(np.float64)
    case("add", "two rows", 4, {}, [(one(a),), (one(b),)], [], f32(a + b), {"subtracted": a - b})
    case("mul", "two rows", 4, {}, [(one(a),), (one(b),)], [], f32(a * b), {"added": a + b})
    case("scale", "by 0.3", 4, {"c": 0.3}, [(one(a),)], [], f32(a * np.float64(np.float32(0.3))), {"not at all": a})
    case("sigmoid", "one row", 4, {}, [(one(a),)], [], sig(a), {"times x": silu(a)})
    case("silu", "one row", 4, {}, [(one(a),)], [], silu(a), {"gelu": gelu(a), "without x": sig(a)})
    case("softcap", "at 2", 4, {"c": 2.0}, [(one(a),)], [], 2 * np.tanh(a / 2), {"clipped": np.clip(a, -2, 2), "none": a})
    w = draw((6, 8))
    case("embed", "scaled by 4", 6, {"scale": 4.0}, [], [(w,)], 4 * w, {"not scaled": w})
    x = draw((5, 7))
    case("pick", "rows of tokens", 5, {}, [(one(x),)], [], x, {"another row": x[::-1]})
    case("push", "copied", 5, {}, [(one(x),)], [], x, {"another row": x[::-1]})


def matrices():
    x, w, b = draw((5, 8)), draw((6, 8)), draw((1, 6))
    case("linear", "with a bias", 5, {}, [(one(x),)], [(w,), (b,)], x @ w.T + b, {"no bias": x @ w.T, "bias taken away": x @ w.T - b})
    case("linear", "without a bias", 5, {}, [(one(x),)], [(w,)], x @ w.T, {"rows exchanged": x @ w[::-1].T})


def norms():
    x, w = draw((4, 3, 8)), draw((1, 8), 0.5, 1.5)
    y = rms(x, w[0], 1e-2)
    whole = (x.reshape(4, -1) / np.sqrt((x.reshape(4, -1) ** 2).mean(-1, keepdims=True) + 1e-2)).reshape(x.shape) * w[0]
    case("rmsnorm", "over each head", 4, {"eps": 1e-2}, [(x,)], [(w,)], y,
         {"over the row": whole, "eps forgotten": rms(x, w[0], 0), "sum for mean": x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-2) * w[0], "1 + w": rms(x, w[0], 1e-2, 1)}, 3)
    case("rmsnorm", "1 + w", 4, {"eps": 1e-5, "offset": 1.0}, [(x,)], [(w,)], rms(x, w[0], 1e-5, 1), {"plain w": rms(x, w[0], 1e-5)}, 3)
    case("rmsnorm", "no weight", 4, {"eps": 1e-5}, [(x,)], [], rms(x, 1, 1e-5), {"a weight of 2": 2 * rms(x, 1, 1e-5)}, 3)
    l2 = x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-2)
    case("l2norm", "over each head", 4, {"eps": 1e-2}, [(x,)], [], l2,
         {"mean for sum": rms(x, 1, 1e-2), "eps outside of the root": x / (np.sqrt((x * x).sum(-1, keepdims=True)) + 1e-2)}, 3)


def acts():
    g, u = draw((4, 10), -4, 4), draw((4, 10), -4, 4)
    situ = lambda g, u, b1, b2: b1 * np.tanh(g / b1) * sig(g) * (b2 * np.tanh(u / b2) if b2 else u)
    clamp = lambda g, u, a, l: np.minimum(g, l) * sig(a * np.minimum(g, l)) * (np.clip(u, -l, l) + 1)
    forms = {"silu": silu(g) * u, "gelu": gelu(g) * u, "gelu_pytorch_tanh": gelu_tanh(g) * u, "relu": np.maximum(g, 0) * u, "quick_gelu": g * sig(1.702 * g) * u}
    for k, y in forms.items():
        others = {o: v for o, v in forms.items() if o != k}
        case("glu", k, 4, {"act": k}, [(one(g),), (one(u),)], [], y, {**others, "gate and up exchanged": {"silu": silu(u) * g, "gelu": gelu(u) * g, "gelu_pytorch_tanh": gelu_tanh(u) * g, "relu": np.maximum(u, 0) * g, "quick_gelu": u * sig(1.702 * u) * g}[k]}, least=1e-5)
    case("glu", "situ", 4, {"act": "situ", "beta": 1.5, "beta_u": 2.0}, [(one(g),), (one(u),)], [], situ(g, u, 1.5, 2.0), {"silu": forms["silu"], "up as it is": situ(g, u, 1.5, 0), "betas exchanged": situ(g, u, 2.0, 1.5)})
    case("glu", "situ, up as it is", 4, {"act": "situ", "beta": 1.5}, [(one(g),), (one(u),)], [], situ(g, u, 1.5, 0), {"silu": forms["silu"]})
    case("glu", "clamp_swiglu", 4, {"act": "clamp_swiglu", "alpha": 1.702, "limit": 2.0}, [(one(g),), (one(u),)], [], clamp(g, u, 1.702, 2.0),
         {"no limit": clamp(g, u, 1.702, 1e9), "no 1 + up": np.minimum(g, 2) * sig(1.702 * np.minimum(g, 2)) * np.clip(u, -2, 2), "gate clamped below too": np.clip(g, -2, 2) * sig(1.702 * np.clip(g, -2, 2)) * (np.clip(u, -2, 2) + 1), "alpha 1": clamp(g, u, 1.0, 2.0)})


def turn(x, freq, pos0, adjacent, first=0, sign=1):
    y, n = x.copy(), len(freq)
    for r in range(x.shape[0]):
        for j, f in enumerate(freq):
            a, b = (first + 2 * j, first + 2 * j + 1) if adjacent else (first + j, first + j + n)
            c, s = np.cos((pos0 + r) * f), sign * np.sin((pos0 + r) * f)
            y[r, :, a], y[r, :, b] = x[r, :, a] * c - x[r, :, b] * s, x[r, :, b] * c + x[r, :, a] * s
    return y


def ropes():
    x = draw((5, 2, 10))
    freq = [500.0 ** (-j / 3) for j in range(3)]
    for adjacent in (False, True):
        case("rope", "adjacent, the first 6 of 10" if adjacent else "halves, the first 6 of 10", 5, {"pairs": "adjacent" if adjacent else "halves", "freq": freq}, [(x,)], [], turn(x, freq, 3, adjacent),
             {"the other pairs": turn(x, freq, 3, not adjacent), "the last 6": turn(x, freq, 3, adjacent, 4), "turned back": turn(x, freq, 3, adjacent, 0, -1), "one position on": turn(x, freq, 4, adjacent)}, 2, pos0=3)
    case("rope", "at position 2^20", 5, {"pairs": "halves", "freq": freq}, [(x,)], [], turn(x, freq, 2 ** 20, False),
         {"one position on": turn(x, freq, 2 ** 20 + 1, False), "frequencies in f32": turn(x, [float(np.float32(f)) for f in freq], 2 ** 20, False)}, 2, least=1e-4, pos0=2 ** 20)


def attention(q, k, v, scale, window=0, cap=0, sinks=None, group=None, causal=True):
    T, A, G = q.shape[0], q.shape[1], k.shape[1]
    out = np.zeros((T, A, v.shape[2]))
    for i in range(T):
        for a in range(A):
            g = a // (A // G) if group is None else a % G
            keys = [j for j in range(T) if (j <= i or not causal) and (not window or i - j < window)]
            s = np.array([q[i, a] @ k[j, g] * scale for j in keys])
            s = cap * np.tanh(s / cap) if cap else s
            e = np.exp(s)
            out[i, a] = sum(x * v[j, g] for x, j in zip(e, keys)) / (e.sum() + (np.exp(sinks[0, a]) if sinks is not None else 0))
    return out


def attends():
    q, k, v = draw((9, 4, 6), -2, 2), draw((9, 2, 6), -2, 2), draw((9, 2, 5))
    regs = [(q,), (k,), (v,)]
    y = attention(q, k, v, 0.4)
    case("attend", "grouped heads", 9, {"scale": 0.4}, regs, [], y, {"heads dealt in turn": attention(q, k, v, 0.4, group=1), "scale of the head size": attention(q, k, v, 6 ** -0.5), "sees what follows": attention(q, k, v, 0.4, causal=False)}, 4)
    case("attend", "a window of 3", 9, {"scale": 0.4, "window": 3}, regs, [], attention(q, k, v, 0.4, 3), {"4 keys": attention(q, k, v, 0.4, 4), "2 keys": attention(q, k, v, 0.4, 2), "no window": y}, 4)
    sinks = draw((1, 4))
    case("attend", "sinks", 9, {"scale": 0.4}, regs, [(sinks, {"grow": ""})], attention(q, k, v, 0.4, sinks=sinks), {"no sinks": y, "sinks exchanged": attention(q, k, v, 0.4, sinks=sinks[:, ::-1])}, 4)
    case("attend", "capped at 1.5", 9, {"scale": 0.4, "softcap": 1.5}, regs, [], attention(q, k, v, 0.4, cap=1.5), {"no cap": y}, 4)
    A, n, r, rank, vd = 3, 6, 4, 8, 5
    qn, qr, c, kr, ku, vu = draw((9, A, n), -2, 2), draw((9, A, r), -2, 2), draw((9, 1, rank)), draw((9, 1, r), -2, 2), draw((A, n, rank)), draw((A, vd, rank))

    def mla(rope=True, scale=0.3, causal=True):
        out = np.zeros((9, A, vd))
        for i in range(9):
            for a in range(A):
                keys = range(i + 1 if causal else 9)
                s = np.array([((ku[a].T @ qn[i, a]) @ c[j, 0] + (qr[i, a] @ kr[j, 0] if rope else 0)) * scale for j in keys])
                p = softmax(s)
                out[i, a] = vu[a] @ sum(x * c[j, 0] for x, j in zip(p, keys))
        return out
    case("attend_mla", "three heads", 9, {"scale": 0.3}, [(qn,), (qr,), (c,), (kr,)], [(ku.reshape(A * n, rank),), (vu.reshape(A * vd, rank),)], mla(),
         {"no rope part": mla(False), "scale of the nope part": mla(scale=n ** -0.5), "sees what follows": mla(causal=False)}, A)


def choose(score, bias, k, groups=1, keep=1, how="biased"):
    pick = score + bias
    if groups > 1:
        per = pick.reshape(groups, -1)
        rank = np.sort(per, 1)[:, -2:].sum(1) if how == "biased" else per.max(1)
        left = np.argsort(-rank, kind="stable")[:keep]
        mask = np.full(per.shape, -np.inf)
        mask[left] = 0
        pick = (per + mask).reshape(-1)
    return np.sort(np.argsort(-pick, kind="stable")[:k])


def routing(z, kind, k, norm=True, norm_eps=0.0, scale=1.0, bias=None, groups=1, keep=1, how="biased", biased_weights=False):
    out = np.zeros((z.shape[0], 2, k))
    b = np.zeros(z.shape[1]) if bias is None else bias[0]
    for i, row in enumerate(z):
        s = softmax(row) if kind == "softmax" else sig(row) if kind == "sigmoid" else row
        e = choose(s, b, k, groups, keep, how)
        w = softmax(s[e]) if kind == "topk_softmax" else (s + b)[e] if biased_weights else s[e]
        w = w / (w.sum() + norm_eps) if norm and kind != "topk_softmax" else w
        out[i] = e, w * scale
    return out


def routes():
    z, b = draw((6, 8), -2, 2), draw((1, 8), -0.4, 0.4)
    reg = [(one(z),)]
    o = {"k": 3}
    case("route", "softmax, normalised", 6, {**o, "kind": "softmax", "norm": True, "norm_eps": 0.0}, reg, [], routing(z, "softmax", 3), {"as they are": routing(z, "softmax", 3, norm=False)}, 2)
    case("route", "softmax as it is, times 2.5", 6, {**o, "kind": "softmax", "norm": False, "scale": 2.5}, reg, [], routing(z, "softmax", 3, norm=False, scale=2.5), {"normalised": routing(z, "softmax", 3, scale=2.5), "not scaled": routing(z, "softmax", 3, norm=False)}, 2)
    case("route", "softmax over the chosen", 6, {**o, "kind": "topk_softmax"}, reg, [], routing(z, "topk_softmax", 3), {"over all": routing(z, "softmax", 3, norm=False)}, 2)
    g = {"groups": 4, "keep": 2, "bias": b}
    y = routing(z, "sigmoid", 3, norm_eps=1e-20, scale=1.5, **g)
    case("route", "sigmoid, 2 of 4 groups, correction bias, times 1.5", 6, {**o, "kind": "sigmoid", "norm": True, "norm_eps": 1e-20, "scale": 1.5, "groups": 4, "keep": 2}, reg, [(b, {"range": [-0.4, 0.4]})], y,
         {"no groups": routing(z, "sigmoid", 3, scale=1.5, bias=b), "no bias": routing(z, "sigmoid", 3, scale=1.5, groups=4, keep=2), "weights with the bias": routing(z, "sigmoid", 3, scale=1.5, biased_weights=True, **g),
          "groups by their best": routing(z, "sigmoid", 3, scale=1.5, how="max", **g), "not scaled": routing(z, "sigmoid", 3, **g)}, 2)


def experts():
    E, k, i, f, o, T = 5, 2, 7, 6, 8, 6
    h, z = draw((T, i)), draw((T, E), -2, 2)
    G, U, D = draw((E, f, i)), draw((E, f, i)), draw((E, o, f))
    gb, ub, db = draw((E, f)), draw((E, f)), draw((E, o))
    clamp = lambda g, u: np.minimum(g, 1) * sig(1.702 * np.minimum(g, 1)) * (np.clip(u, -1, 1) + 1)

    def mix(act, biases, weighted=True, chosen=k):
        out = np.zeros((T, o))
        r = routing(z, "softmax", chosen)
        for t in range(T):
            for e, w in zip(r[t, 0].astype(int), r[t, 1]):
                y = D[e] @ act(G[e] @ h[t] + (gb[e] if biases else 0), U[e] @ h[t] + (ub[e] if biases else 0)) + (db[e] if biases else 0)
                out[t] += (w if weighted else 1) * y
        return out
    sg = lambda g, u: silu(g) * u
    st = lambda m: (m.reshape(E * m.shape[1], -1), {"stack": E})
    sv = lambda m: (m, {"stack": E, "grow": "c"})
    route = {"k": k, "kind": "softmax", "norm": True, "norm_eps": 0.0}
    case("experts", "silu", T, {"act": "silu", "route": route}, [(one(h),), (one(z), {"fixed": True, "range": [-2, 2]})], [st(G), st(U), st(D)], mix(sg, False),
         {"not weighted": mix(sg, False, False), "all experts": mix(sg, False, chosen=E), "gate and up exchanged": mix(lambda g, u: silu(u) * g, False)})
    case("experts", "clamp_swiglu with biases", T, {"act": "clamp_swiglu", "alpha": 1.702, "limit": 1.0, "route": route}, [(one(h),), (one(z), {"fixed": True, "range": [-2, 2]})], [st(G), st(U), st(D), sv(gb), sv(ub), sv(db)],
         mix(clamp, True), {"no biases": mix(clamp, False), "silu": mix(sg, True)})


def recurrent():
    T, C, taps = 20, 6, 4
    x, w = draw((T, C)), draw((C, taps))

    def conv(w, act=True):
        p = np.concatenate([np.zeros((taps - 1, C)), x])
        y = np.array([sum(w[:, i] * p[t + i] for i in range(taps)) for t in range(T)])
        return silu(y) if act else y
    case("conv1d", "4 taps", T, {}, [(one(x),)], [(w, {"grow": "r"})], conv(w), {"no silu": conv(w, False), "taps the other way round": conv(w[:, ::-1])})
    z, A, dt = draw((5, 12), -3, 3), draw((1, 3)), draw((1, 12))
    pre = z + dt
    a = np.repeat(A[0], 4)
    soft = -np.exp(a) * np.log1p(np.exp(pre))
    case("decay", "softplus", 5, {"kind": "softplus"}, [(z.reshape(5, 3, 4),)], [(A, {"grow": ""}), (dt,)], soft.reshape(5, 3, 4), {"no dt": -np.exp(a) * np.log1p(np.exp(z)), "A for its exponential": -a * np.log1p(np.exp(pre)), "the other sign": -soft} and
         {"no dt": (-np.exp(a) * np.log1p(np.exp(z))).reshape(5, 3, 4), "A for its exponential": (-a * np.log1p(np.exp(pre))).reshape(5, 3, 4), "the other sign": -soft.reshape(5, 3, 4)}, 3)
    low = -5 * sig(np.exp(a) * pre)
    case("decay", "bounded below by -5", 5, {"kind": "bounded", "lower": -5.0}, [(z.reshape(5, 3, 4),)], [(A, {"grow": ""}), (dt,)], low.reshape(5, 3, 4), {"softplus": soft.reshape(5, 3, 4), "no slope": (-5 * sig(pre)).reshape(5, 3, 4)}, 3)
    H, dk, dv = 2, 8, 6
    q, k, v, g, b = draw((T, H, dk), -0.35, 0.35), draw((T, H, dk), -0.35, 0.35), draw((T, H, dv)), draw((T, H, dk), -2, 0), draw((T, 1, H), 0, 1)

    def delta(correct=True, decay_first=True, per_head=False):
        out = np.zeros((T, H, dv))
        for h in range(H):
            S = np.zeros((dk, dv))
            for t in range(T):
                e = np.exp(g[t, h].mean() if per_head else g[t, h])[..., None] if not per_head else np.exp(g[t, h].mean())
                if decay_first:
                    S = e * S
                S = S + b[t, 0, h] * np.outer(k[t, h], v[t, h] - (S.T @ k[t, h] if correct else 0))
                if not decay_first:
                    S = e * S
                out[t, h] = S.T @ q[t, h]
        return out
    small = {"range": [-0.2, 0.2]}
    case("delta", "20 tokens, more than a tile", T, {}, [(q, small), (k, small), (v,), (g, {"range": [-2, 0]}), (b, {"fixed": True, "range": [0, 1]})], [], delta(),
         {"no correction": delta(False), "decay after the update": delta(True, False), "one decay a head": delta(True, True, True)}, H)
    T, n = 5, 8
    e0, e1, x = draw((T, n)), draw((T, n)), draw((T, n))
    wn, wp = draw((1, n), 0.5, 1.5), draw((1, n))

    def mixed(norm=True, all_of_them=True):
        out = np.zeros((T, n))
        for t in range(T):
            es = [e0[t], e1[t], x[t]] if all_of_them else [e0[t], e1[t]]
            p = softmax(np.array([wp[0] @ (rms(v, wn[0], 1e-5) if norm else v) for v in es]))
            out[t] = sum(a * v for a, v in zip(p, es))
        return out
    case("mix", "two entries and one beside", T, {"eps": 1e-5}, [(np.stack([e0, e1], 1), {"list": True}), (one(x),)], [(wn,), (wp,)], mixed(), {"scores of the entries as they are": mixed(False), "the entries alone": mixed(True, False)})


for f in (elementwise, matrices, norms, acts, ropes, attends, routes, experts, recurrent):
    f()
text = lambda v: "[" + ",".join(np.format_float_scientific(np.float32(x), unique=True, trim="-", exp_digits=1) if 0 < abs(x) < 1e-3 else str(float(str(np.float32(x)))) for x in np.asarray(v).reshape(-1)) + "]"


def dump(o):
    if isinstance(o, np.ndarray):
        return text(o)
    if isinstance(o, dict):
        return "{" + ",".join(json.dumps(k) + ":" + dump(v) for k, v in o.items()) + "}"
    if isinstance(o, (list, tuple)):
        return "[" + ",".join(dump(v) for v in o) + "]"
    return "%.3g" % o if isinstance(o, float) and False else json.dumps(o)


os.makedirs(os.path.dirname(OUT), exist_ok=True)
with open(OUT, "w") as f:
    f.write('{"about":"Inputs, weights and answers of each operator, by scripts/dev/operator_answers.py; `apart`: how far plausible mistakes lie from the answer, of its largest value.",\n"cases":[\n')
    f.write(",\n".join(dump(c) for c in cases) + "\n]}\n")
print(len(cases), "cases,", os.path.getsize(OUT), "bytes; the nearest mistake:", min((min(c["apart"].values()), c["op"], c["case"]) for c in cases))
