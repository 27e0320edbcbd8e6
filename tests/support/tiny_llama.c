#include "tests/support/tiny_llama.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/make_model.h"

enum { H = TINY_HIDDEN, KV = 32, FF = 128, TENSORS = 24 * 9 + 3, V = TINY_VOCAB, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, N_MERGES = V - 259 };

/* ---- vocabulary ------------------------------------------------------------------------------------------- */
/* In the alphabet of byte-level BPE: "\xc4\xa0" is its letter for a space. */
#define SP "\xc4\xa0"
static const char *const merges[N_MERGES] = {
    "h e", "t he", SP " the", "i n", "in g", "e r", "o u", "y ou", SP " a", "a n", "an d", SP " and", SP " s", "l l", "he ll", "hell o",
    "a s", "as s", "i s", "is t", "ass ist", "an t", "assist ant", "u s", "us er", "s y", "sy s", "t e", "te m", "sys tem", "o n", "o r", "a t",
    "e n", SP " w", SP " o", "o f", SP " of", SP " t", SP "t o", SP " in",
};
static char texts[V][24];

static void letter(uint8_t byte, char *out)
{
    /* printable Latin-1 stands for itself, the other 68 bytes for 256, 257, ... in their order */
    unsigned c = byte;
    bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    if (!printable) {
        c = 256;
        for (unsigned b = 0; b < byte; b++)
            c += !((b >= 33 && b <= 126) || (b >= 161 && b != 173));
    }
    if (c < 0x80) {
        *out++ = (char)c;
    } else {
        *out++ = (char)(0xC0 | (c >> 6));
        *out++ = (char)(0x80 | (c & 63));
    }
    *out = 0;
}

static void vocabulary(const char **tokens, int32_t *types)
{
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < V; i++) {
        if (i < TINY_BYTE0) {
            strcpy(texts[i], special[i]);
        } else if (i < TINY_BYTE0 + 256) {
            letter((uint8_t)(i - TINY_BYTE0), texts[i]);
        } else {
            const char *m = merges[i - TINY_BYTE0 - 256], *space = strchr(m, ' ');
            snprintf(texts[i], sizeof texts[i], "%.*s%s", (int)(space - m), m, space + 1);
        }
        tokens[i] = texts[i];
        types[i] = i < TINY_BYTE0 ? 3 : 1; /* control, normal */
    }
}

/* What greedy decoding may say: printable ASCII. Merged tokens are letters and spaces, all of them. */
static bool sayable(int id)
{
    return id >= TINY_BYTE0 + 256 || (id >= TINY_BYTE0 + 32 && id < TINY_BYTE0 + 127);
}

/* ---- weights ---------------------------------------------------------------------------------------------- */
static uint64_t rng;
static uint64_t draw(void)
{
    uint64_t z = rng += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
/* About normal, variance 1: four uniforms, no libm, so the same everywhere. */
static float normal(void)
{
    float s = 0;
    for (int i = 0; i < 4; i++)
        s += (float)(draw() >> 40) * (1.0f / 16777216.0f) - 0.5f;
    return s * 1.7320508f;
}

static void put16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static int clamp(float x, int lo, int hi)
{
    int q = (int)floorf(x + 0.5f);
    return q < lo ? lo : q > hi ? hi : q;
}

/* One block of 32 in the ggml layouts: scale (and minimum), then quants; the low nibbles are the first 16 elements. */
static void quantise_block(enum krn_type t, const float *x, uint8_t *out)
{
    float lo = x[0], hi = x[0], far = x[0];
    for (int i = 1; i < 32; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
        far = fabsf(x[i]) > fabsf(far) ? x[i] : far;
    }
    float d = t == KRN_Q8_0 ? fabsf(far) / 127 : t == KRN_Q4_0 ? far / -8 : (hi - lo) / 15;
    uint16_t half = krn_f32_to_f16(d);
    d = krn_f16_to_f32(half);
    float inv = d != 0 ? 1 / d : 0;
    put16(out, half);
    if (t == KRN_Q8_0) {
        for (int i = 0; i < 32; i++)
            out[2 + i] = (uint8_t)(int8_t)clamp(x[i] * inv, -127, 127);
        return;
    }
    uint16_t min = krn_f32_to_f16(lo);
    float m = krn_f16_to_f32(min);
    uint8_t *q = out + 2;
    if (t == KRN_Q4_1) {
        put16(out + 2, min);
        q += 2;
    }
    for (int i = 0; i < 16; i++) {
        int a = t == KRN_Q4_0 ? clamp(x[i] * inv + 8, 0, 15) : clamp((x[i] - m) * inv, 0, 15);
        int b = t == KRN_Q4_0 ? clamp(x[i + 16] * inv + 8, 0, 15) : clamp((x[i + 16] - m) * inv, 0, 15);
        q[i] = (uint8_t)(a | b << 4);
    }
}

static void *encode(enum krn_type t, const float *x, size_t n)
{
    uint8_t *out = calloc(n / krn_types[t].block, krn_types[t].block_bytes);
    assert(out);
    for (size_t i = 0; i < n; i += krn_types[t].block) {
        uint8_t *p = out + i / krn_types[t].block * krn_types[t].block_bytes;
        if (t == KRN_F32)
            memcpy(p, &x[i], 4);
        else if (t == KRN_F16)
            put16(p, krn_f32_to_f16(x[i]));
        else if (t == KRN_BF16)
            put16(p, krn_f32_to_bf16(x[i]));
        else
            quantise_block(t, &x[i], p);
    }
    return out;
}

struct set {
    struct mm_tensor t[TENSORS];
    size_t n;
    char names[TENSORS][40];
    bool f32;
};

static void add(struct set *s, const char *name, int layer, enum krn_type type, uint64_t rows, uint64_t cols, const float *x)
{
    struct mm_tensor *t = &s->t[s->n];
    char *own = s->names[s->n++];
    assert(s->n <= TENSORS);
    if (layer < 0)
        snprintf(own, sizeof s->names[0], "%s", name);
    else
        snprintf(own, sizeof s->names[0], "blk.%d.%s", layer, name);
    type = s->f32 ? KRN_F32 : type;
    *t = (struct mm_tensor){.name = own, .type = type, .n_dims = rows ? 2 : 1, .dims = {rows ? rows : cols, rows ? cols : 0},
                            .data = encode(type, x, (size_t)(rows ? rows * cols : cols))};
}

static void matrix(struct set *s, const char *name, int layer, enum krn_type type, uint64_t rows, uint64_t cols, float scale)
{
    float *x = malloc((size_t)(rows * cols) * sizeof *x);
    assert(x);
    for (uint64_t i = 0; i < rows * cols; i++)
        x[i] = normal() * scale;
    add(s, name, layer, type, rows, cols, x);
    free(x);
}

static void norm(struct set *s, const char *name, int layer)
{
    float x[H];
    for (int i = 0; i < H; i++)
        x[i] = 1 + 0.1f * normal();
    add(s, name, layer, KRN_F32, 0, H, x);
}

/* Embedding and output. chain: the output row of a token's successor is that token's own embedding. */
static void ends(struct set *s, const struct tiny_llama *o)
{
    static float embed[V][H], out[V][H];
    int next[V];
    for (int i = 0; i < V; i++) {
        bool quiet = !o->chain && !o->untied && !sayable(i);
        for (int k = 0; k < H; k++)
            embed[i][k] = normal() * (quiet ? 0.02f : 1);
        for (int k = 0; k < H; k++)
            out[i][k] = normal() * (o->chain ? 0.05f : sayable(i) ? 0.2f : 0.01f);
        next[i] = -1;
    }
    if (o->chain) {
        static const char text[] = "\n" TINY_CHAIN;
        for (size_t i = 0; text[i]; i++)
            next[tiny_llama_byte((uint8_t)text[i])] = text[i + 1] ? tiny_llama_byte((uint8_t)text[i + 1]) : TINY_IM_END;
        for (int i = 0; i < V; i++)
            for (int k = 0; next[i] >= 0 && k < H; k++)
                out[next[i]][k] = embed[i][k];
    }
    add(s, "token_embd.weight", -1, KRN_Q8_0, V, H, &embed[0][0]);
    if (o->chain || o->untied)
        add(s, "output.weight", -1, KRN_Q4_1, V, H, &out[0][0]);
}

static void layers(struct set *s, const struct tiny_llama *o)
{
    static const enum krn_type types[TINY_LAYERS][7] = {
        {KRN_Q4_1, KRN_Q8_0, KRN_F16, KRN_Q4_0, KRN_Q4_1, KRN_Q8_0, KRN_Q4_1},
        {KRN_F16, KRN_Q4_1, KRN_Q4_0, KRN_F32, KRN_Q4_0, KRN_BF16, KRN_Q8_0},
    };
    float back = o->chain ? 0.01f : 0.25f; /* of what a layer adds to the stream */
    uint32_t ff = o->ff ? o->ff : FF;
    for (int l = 0; l < (int)(o->layers ? o->layers : TINY_LAYERS); l++) {
        const enum krn_type *t = types[l % TINY_LAYERS];
        norm(s, "attn_norm.weight", l);
        matrix(s, "attn_q.weight", l, t[0], HEADS * HEAD_DIM, H, 0.25f);
        matrix(s, "attn_k.weight", l, t[1], KV, H, 0.25f);
        matrix(s, "attn_v.weight", l, t[2], KV, H, 0.25f);
        matrix(s, "attn_output.weight", l, t[3], H, HEADS * HEAD_DIM, back);
        norm(s, "ffn_norm.weight", l);
        matrix(s, "ffn_gate.weight", l, t[4], ff, H, 0.2f);
        matrix(s, "ffn_up.weight", l, t[5], ff, H, 0.2f);
        matrix(s, "ffn_down.weight", l, t[6], H, ff, back);
    }
    norm(s, "output_norm.weight", -1);
}

void tiny_llama_write(const char *path, const struct tiny_llama *o)
{
    static const struct tiny_llama plain;
    const char *tokens[V];
    int32_t types[V];
    struct set *s = calloc(1, sizeof *s);
    assert(s);
    o = o ? o : &plain;
    s->f32 = o->f32;
    rng = o->seed * 0xD1342543DE82EF95ull + 12345;
    vocabulary(tokens, types);
    const struct mm_kv kv[] = {
        MM_KV_STR("general.architecture", "llama"),
        MM_KV_STR("general.name", "tiny"),
        MM_KV_U32("llama.block_count", o->layers ? o->layers : TINY_LAYERS),
        MM_KV_U32("llama.context_length", o->ctx ? o->ctx : 2048),
        MM_KV_U32("llama.embedding_length", H),
        MM_KV_U32("llama.feed_forward_length", o->ff ? o->ff : FF),
        MM_KV_U32("llama.attention.head_count", HEADS),
        MM_KV_U32("llama.attention.head_count_kv", KV_HEADS),
        MM_KV_F32("llama.rope.freq_base", 10000),
        MM_KV_F32("llama.attention.layer_norm_rms_epsilon", 1e-5),
        MM_KV_U32("llama.vocab_size", V),
        MM_KV_U32("llama.rope.dimension_count", HEAD_DIM),
        MM_KV_STR("tokenizer.ggml.model", "gpt2"),
        MM_KV_STR("tokenizer.ggml.pre", "smollm"),
        {.key = "tokenizer.ggml.tokens", .type = MM_ARR, .elem = MM_STR, .n = V, .strs = tokens},
        {.key = "tokenizer.ggml.token_type", .type = MM_ARR, .elem = MM_I32, .n = V, .ints = types},
        {.key = "tokenizer.ggml.merges", .type = MM_ARR, .elem = MM_STR, .n = N_MERGES, .strs = merges},
        MM_KV_U32("tokenizer.ggml.bos_token_id", TINY_IM_START),
        MM_KV_U32("tokenizer.ggml.eos_token_id", TINY_IM_END),
        MM_KV_U32("tokenizer.ggml.unknown_token_id", TINY_ENDOFTEXT),
        MM_KV_U32("tokenizer.ggml.padding_token_id", TINY_IM_END),
        MM_KV_BOOL("tokenizer.ggml.add_bos_token", 0),
        MM_KV_BOOL("tokenizer.ggml.add_space_prefix", 0),
        MM_KV_STR("tokenizer.chat_template",
                  "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
                  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"),
    };
    ends(s, o);
    layers(s, o);
    mm_gguf(path, kv, sizeof kv / sizeof *kv, s->t, s->n);
    for (size_t i = 0; i < s->n; i++)
        free((void *)s->t[i].data);
    free(s);
}
