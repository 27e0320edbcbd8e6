#!/usr/bin/env python3
"""Makes tests/data/models/glm4: a tiny random GLM-4 checkpoint and what the family's own implementation computes with it in float32.

The reference is Glm4ForCausalLM of the Python package transformers (with torch), eager attention, weights as stored. Only a developer
runs it, in an environment that has both:  python3 scripts/dev/glm4_fixture.py
"""
import json, math, os, shutil, struct

import torch
import transformers
from transformers import Glm4Config, Glm4ForCausalLM

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "data", "models")
OUT = os.path.join(ROOT, "glm4")
V, CTX, THETA, EPS = 512, 2048, 20000.0, 1e-5
CONFIG = {"architectures": ["Glm4ForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": [508, 511], "head_dim": 16, "hidden_act": "silu",
          "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 80, "max_position_embeddings": CTX, "model_type": "glm4", "num_attention_heads": 4,
          "num_hidden_layers": 3, "num_key_value_heads": 2, "pad_token_id": 511, "partial_rotary_factor": 0.5, "rms_norm_eps": EPS, "rope_theta": THETA,
          "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": V}


def make_model():
    torch.manual_seed(11)
    newer = {k: v for k, v in CONFIG.items() if k not in ("rope_theta", "partial_rotary_factor", "torch_dtype", "architectures", "model_type")}
    cfg = Glm4Config(**newer, rope_parameters={"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": 0.5})
    cfg._attn_implementation = "eager"
    m = Glm4ForCausalLM(cfg).float().eval()
    with torch.no_grad():
        for name, p in m.named_parameters():
            norm = name.endswith("norm.weight")
            spread = 0.3 if norm else 1.0 if "embed" in name else 0.4 if "lm_head" in name else 0.5 if name.endswith("bias") else 0.2
            p.copy_((torch.randn_like(p) * spread + (1.0 if norm else 0.0)).bfloat16().float())  # as stored
    return m, cfg


def write_safetensors(path, entries):
    header, at = {}, 0
    for name, dtype, shape, data in entries:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(e[3] for e in entries))


def f32(t):
    return t.detach().contiguous().float().numpy().tobytes()


def run(m, ids):
    with torch.no_grad():
        out = m(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        taps = {"embed": out.hidden_states[0][0]}
        x = {}
        hooks = [layer.register_forward_hook(lambda mod, a, o, i=i: x.__setitem__(i, (o[0] if isinstance(o, tuple) else o).reshape(len(ids), -1))) for i, layer in enumerate(m.model.layers)]
        m(torch.tensor([ids]), use_cache=False)
        for h in hooks:
            h.remove()
        for i in sorted(x):
            taps[f"layer.{i}"] = x[i]
        taps["final_norm"] = m.model.norm(x[max(x)])
        taps["logits"] = out.logits[0]
    return taps


def greedy(m, ids, n):
    ids, out, margin = list(ids), [], math.inf
    for _ in range(n):
        with torch.no_grad():
            row = m(torch.tensor([ids]), use_cache=False).logits[0, -1]
        best = torch.topk(row, 2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        out.append(int(best.indices[0]))
        ids.append(out[-1])
    return out, margin


def main():
    os.makedirs(os.path.join(OUT, "reference"), exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(os.path.join(ROOT, "qwen3", name), os.path.join(OUT, name))
    newer = {k: v for k, v in CONFIG.items() if k not in ("rope_theta", "partial_rotary_factor", "torch_dtype")}
    newer.update(dtype="bfloat16", rope_parameters={"rope_type": "default", "rope_theta": THETA, "partial_rotary_factor": 0.5})
    for path, value in ((("config.json",), CONFIG), (("reference", "config-newer.json"), newer), (("generation_config.json",), {"eos_token_id": [508, 511]})):
        with open(os.path.join(OUT, *path), "w") as f:
            json.dump(value, f, indent=1)
    m, _ = make_model()
    state = m.state_dict()
    write_safetensors(os.path.join(OUT, "model.safetensors"), [(n, "BF16", list(t.shape), t.bfloat16().view(torch.int16).numpy().tobytes()) for n, t in sorted(state.items())])
    with open(os.path.join(ROOT, "qwen3", "reference", "prompts.json")) as f:
        texts = [p for p in json.load(f) if p["name"] in ("short", "middle", "long")]
    prompts, entries, worst = [], [], 0.0
    for p in texts:
        taps = run(m, p["ids"])
        exact = m.double()
        d = run(exact, p["ids"])
        worst = max(worst, max(((taps[k].double() - d[k]).abs().max() / d[k].abs().max()).item() for k in taps))
        m = exact.float()
        ids, margin = greedy(m, p["ids"], 32)
        prompts.append({"name": p["name"], "text": p["text"], "ids": p["ids"], "greedy": ids, "min_margin": margin})
        for name, t in taps.items():
            keep = t[-48:] if name == "logits" else t
            entries.append((f"{p['name']}.{name}", "F32", list(keep.shape), f32(keep)))
        print(p["name"], len(p["ids"]), "ids, smallest margin", margin)
    write_safetensors(os.path.join(OUT, "reference", "activations.safetensors"), entries)
    with open(os.path.join(OUT, "reference", "prompts.json"), "w") as f:
        json.dump(prompts, f, indent=1)
    with open(os.path.join(OUT, "reference", "README.md"), "w") as f:
        f.write(f"# glm4: reference\n\nRandom weights, `Glm4ForCausalLM` (seed 11), {CONFIG['num_hidden_layers']} layers, hidden {CONFIG['hidden_size']}, vocabulary {V}, one file, bfloat16; tokenizer of `models/qwen3`.\n"
                "Exercises: norms before and after each sublayer, adjacent pairs on the first half of each head, biases on q, k, v, fused gate and up, grouped heads.\n"
                f"Computed by `scripts/dev/glm4_fixture.py` with transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}, CPU, eager attention, float32, weights exactly as stored.\n"
                f"Tolerance: max|a-b| / max|b| <= 1e-4 a tensor, the same argmax, identical greedy ids. Rounding alone (float32 against float64) moves a tensor by {worst:.1g}; smallest greedy margin {min(p['min_margin'] for p in prompts):.3f}.\n"
                "Logits are those of a prompt's last 48 positions.\n")


main()
