#!/usr/bin/env python3
"""Writes a made-up mixture of experts in the shape of Qwen3-30B-A3B, as GGUF, for measuring decode.

  python3 scripts/moe_model.py OUT.gguf [--layers 11] [--type q4_k|mxfp4|q8_0] [--skew 0] [--vocab 32768] [--experts 128] [--seed 1]

Hidden 2048, 32 heads over 4 of 128, experts of width 768, 8 a token; bytes grow by some 350 MB a layer in q4_k (11 layers: 4 GB).
Weights are random with the deviation of a trained model and mean nothing. --skew S scales row e of every router by (e+1)^-S: 0 sends
tokens everywhere alike, 0.3 gives a tenth of the experts most of the work. Needs nothing but Python."""
import argparse
import array
import random
import struct

HIDDEN, HEADS, KV, HEAD, WIDTH, CHOSEN = 2048, 32, 4, 128, 768, 8
TYPES = {"f32": (0, 1, 4), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144), "mxfp4": (39, 32, 17)}


def half(x):
    return struct.pack("<e", x)


def block(kind, rnd):
    """One block whose values have a deviation of about 0.02."""
    if kind == "q8_0":
        return half(2.7e-4 * rnd.uniform(0.8, 1.2)) + rnd.randbytes(32)
    if kind == "mxfp4":
        return bytes([rnd.choice((119, 120))]) + rnd.randbytes(16)
    d = 1.1e-4 * rnd.uniform(0.8, 1.2)
    return half(d) + half(7.5 * d) + rnd.randbytes(140)


class Pool:
    """Random blocks made once; a tensor is a stretch of them from a random place on."""

    def __init__(self, kind, rnd, n=1 << 15):
        self.rnd, self.size = rnd, TYPES[kind][2]
        self.n = n
        self.bytes = b"".join(block(kind, rnd) for _ in range(n))

    def write(self, f, n_bytes):
        left = n_bytes
        while left:
            at = self.rnd.randrange(self.n) * self.size
            part = self.bytes[at:at + min(left, len(self.bytes) - at)]
            f.write(part)
            left -= len(part)


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def pair(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def strings(key, items):
    return pair(key, 9, struct.pack("<IQ", 8, len(items)) + b"".join(map(text, items)))


def numbers(key, kind, fmt, items):
    return pair(key, 9, struct.pack("<IQ", kind, len(items)) + array.array(fmt, items).tobytes())


def vocabulary(n):
    """The 256 bytes as byte-level BPE spells them, fillers, an end."""
    seen = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    spare = iter(range(256, 512))
    tokens = [chr(b) if b in seen else chr(next(spare)) for b in range(256)]
    tokens += ["filler%d" % i for i in range(n - 257)] + ["<|endoftext|>"]
    return tokens, [1] * 256 + [5] * (n - 257) + [3]


def metadata(a):
    tokens, kinds = vocabulary(a.vocab)
    u32 = lambda k, v: pair(k, 4, struct.pack("<I", v))
    f32 = lambda k, v: pair(k, 6, struct.pack("<f", v))
    q = "qwen3moe."
    return [
        pair("general.architecture", 8, text("qwen3moe")), pair("general.name", 8, text("made-up 30B-A3B shape")), u32("general.alignment", 32),
        u32(q + "block_count", a.layers), u32(q + "context_length", 32768), u32(q + "embedding_length", HIDDEN), u32(q + "feed_forward_length", 6144),
        u32(q + "attention.head_count", HEADS), u32(q + "attention.head_count_kv", KV), u32(q + "attention.key_length", HEAD), u32(q + "attention.value_length", HEAD),
        f32(q + "attention.layer_norm_rms_epsilon", 1e-6), f32(q + "rope.freq_base", 1e6), u32(q + "expert_count", a.experts),
        u32(q + "expert_used_count", CHOSEN), u32(q + "expert_feed_forward_length", WIDTH),
        pair("tokenizer.ggml.model", 8, text("gpt2")), pair("tokenizer.ggml.pre", 8, text("qwen2")), strings("tokenizer.ggml.tokens", tokens),
        numbers("tokenizer.ggml.token_type", 5, "i", kinds), strings("tokenizer.ggml.merges", []),
        u32("tokenizer.ggml.eos_token_id", a.vocab - 1), pair("tokenizer.ggml.add_bos_token", 7, b"\0"),
    ]


def tensors(a):
    """(name, type, dims outermost first)"""
    m = a.type
    yield "token_embd.weight", m, (a.vocab, HIDDEN)
    for i in range(a.layers):
        b = "blk.%d." % i
        yield b + "attn_norm.weight", "f32", (HIDDEN,)
        yield b + "attn_q.weight", m, (HEADS * HEAD, HIDDEN)
        yield b + "attn_k.weight", m, (KV * HEAD, HIDDEN)
        yield b + "attn_v.weight", m, (KV * HEAD, HIDDEN)
        yield b + "attn_output.weight", m, (HIDDEN, HEADS * HEAD)
        yield b + "attn_q_norm.weight", "f32", (HEAD,)
        yield b + "attn_k_norm.weight", "f32", (HEAD,)
        yield b + "ffn_norm.weight", "f32", (HIDDEN,)
        yield b + "ffn_gate_inp.weight", "f32", (a.experts, HIDDEN)
        yield b + "ffn_gate_exps.weight", m, (a.experts, WIDTH, HIDDEN)
        yield b + "ffn_up_exps.weight", m, (a.experts, WIDTH, HIDDEN)
        yield b + "ffn_down_exps.weight", m, (a.experts, HIDDEN, WIDTH)
    yield "output_norm.weight", "f32", (HIDDEN,)
    yield "output.weight", m, (a.vocab, HIDDEN)


def floats(name, dims, a, rnd):
    if len(dims) == 1:
        return array.array("f", [1.0]) * dims[0]
    out = array.array("f")
    for e in range(dims[0]):
        scale = 0.05 * (e + 1) ** -a.skew
        out.extend(scale * rnd.gauss(0, 1) for _ in range(dims[1]))
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--layers", type=int, default=11)
    p.add_argument("--type", choices=("q4_k", "mxfp4", "q8_0"), default="q4_k")
    p.add_argument("--skew", type=float, default=0)
    p.add_argument("--vocab", type=int, default=32768)
    p.add_argument("--experts", type=int, default=128)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rnd = random.Random(a.seed)
    pool, kv, list_ = Pool(a.type, rnd), metadata(a), list(tensors(a))
    at, infos, sizes = 0, [], []
    for name, kind, dims in list_:
        number, per, size = TYPES[kind]
        n = 1
        for d in dims:
            n *= d
        n = n // per * size
        infos.append(text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in reversed(dims)) + struct.pack("<IQ", number, at))
        sizes.append(n)
        at += (n + 31) // 32 * 32
    with open(a.out, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(kv)) + b"".join(kv) + b"".join(infos))
        f.write(b"\0" * (-f.tell() % 32))
        for (name, kind, dims), n in zip(list_, sizes):
            if kind == "f32":
                f.write(floats(name, dims, a, rnd).tobytes())
            else:
                pool.write(f, n)
            f.write(b"\0" * (-n % 32))
        print("%s: %d layers, %.2f GB" % (a.out, a.layers, f.tell() / 1e9))


main()
