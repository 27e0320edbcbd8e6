#!/usr/bin/env python3
"""A made-up decoder of 0.5 billion parameters as safetensors, for measuring unquantised weights: random numbers, no sense.

  bench/synthetic.py DIR [bf16|f16|f32]      about 1 or 2 GB; the tokenizer is that of the small llama among the tests
"""
import json, os, random, shutil, sys

HIDDEN, LAYERS, HEADS, KV, DIM, FF, VOCAB = 896, 24, 14, 2, 64, 4864, 151936
TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data", "models", "llama")


def tensors():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", (HIDDEN,)
        yield at + "post_attention_layernorm.weight", (HIDDEN,)
        yield at + "self_attn.q_proj.weight", (HEADS * DIM, HIDDEN)
        yield at + "self_attn.k_proj.weight", (KV * DIM, HIDDEN)
        yield at + "self_attn.v_proj.weight", (KV * DIM, HIDDEN)
        yield at + "self_attn.o_proj.weight", (HIDDEN, HEADS * DIM)
        yield at + "mlp.gate_proj.weight", (FF, HIDDEN)
        yield at + "mlp.up_proj.weight", (FF, HIDDEN)
        yield at + "mlp.down_proj.weight", (HIDDEN, FF)


def block(dtype):
    """1 MiB of numbers between 0.008 and 0.03, either sign; the file repeats it."""
    rnd, n = random.Random(1), 1 << 20
    data = bytearray(rnd.randbytes(n))
    size, top = {"bf16": (2, 0x3C), "f16": (2, 0x24), "f32": (4, 0x3C)}[dtype]
    for i in range(size - 1, n, size):
        data[i] = top | (data[i] & 0x80)
    return bytes(data), size


def main():
    out, dtype = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "bf16"
    if dtype not in ("bf16", "f16", "f32"):
        sys.exit(f"{dtype}: expected bf16, f16 or f32")
    os.makedirs(out, exist_ok=True)
    chunk, size = block(dtype)
    header, at = {}, 0
    for name, shape in tensors():
        n = size
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype.upper(), "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for left in range(at, 0, -len(chunk)):
            f.write(chunk[: min(left, len(chunk))])
    config = json.load(open(os.path.join(TOKENIZER, "config.json")))
    config.update(hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM, intermediate_size=FF,
                  vocab_size=VOCAB, tie_word_embeddings=True, max_position_embeddings=32768, rope_scaling=None,
                  torch_dtype={"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[dtype])
    json.dump(config, open(os.path.join(out, "config.json"), "w"), indent=1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if os.path.exists(os.path.join(TOKENIZER, name)):
            shutil.copy(os.path.join(TOKENIZER, name), out)


main()
