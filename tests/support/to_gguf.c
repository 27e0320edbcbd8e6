/* What changes on the way: names; dims of one axis and norms become F32, gemma's with 1 added; rows of q and k of architecture llama
 * are interleaved within each head; scaling of rope becomes factors as tensors; the rest of the config becomes metadata. */
#include "tests/support/to_gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "offload/catalog.h"
#include "tests/support/make_model.h"

#define MUST(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s failed\n", __FILE__, __LINE__, #x); abort(); } } while (0)
enum { KV_MAX = 64, TENSORS_MAX = 256, TOKENS_MAX = 4096 };

struct conv {
    const char *arch;
    struct arena mem;
    off_catalog *cat;
    const struct json *config;
    bool gemma, llama;
    struct mm_kv kv[KV_MAX]; size_t n_kv;
    struct mm_tensor t[TENSORS_MAX]; size_t n;
    const char *tokens[TOKENS_MAX], *merges[TOKENS_MAX];
    int32_t types[TOKENS_MAX];
    float scores[TOKENS_MAX];
};

static const char *const names[][2] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
static const char *const block_names[][3] = { /* of a layer; the third: gemma's */
    {"input_layernorm", "attn_norm", "attn_norm"}, {"self_attn.q_proj", "attn_q", "attn_q"}, {"self_attn.k_proj", "attn_k", "attn_k"},
    {"self_attn.v_proj", "attn_v", "attn_v"}, {"self_attn.o_proj", "attn_output", "attn_output"}, {"self_attn.qkv_proj", "attn_qkv", "attn_qkv"},
    {"self_attn.q_norm", "attn_q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm", "post_attention_norm"}, {"pre_feedforward_layernorm", "ffn_norm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm", "post_ffw_norm"}, {"mlp.gate_proj", "ffn_gate", "ffn_gate"}, {"mlp.up_proj", "ffn_up", "ffn_up"},
    {"mlp.gate_up_proj", "ffn_up", "ffn_up"}, {"mlp.down_proj", "ffn_down", "ffn_down"}};

static double num(const struct conv *c, const char *key, double dflt)
{
    double v;
    return json_num(json_path(c->config, key), &v) ? v : dflt;
}

static void kv(struct conv *c, struct mm_kv v, bool of_arch)
{
    MUST(c->n_kv < KV_MAX);
    if (of_arch)
        v.key = arena_printf(&c->mem, "%s.%s", c->arch, v.key);
    c->kv[c->n_kv++] = v;
}
static void kv_u32(struct conv *c, const char *key, double v) { kv(c, (struct mm_kv)MM_KV_U32(key, (int64_t)v), true); }
static void kv_f32(struct conv *c, const char *key, double v) { kv(c, (struct mm_kv)MM_KV_F32(key, v), true); }

static char *new_name(struct conv *c, const char *name)
{
    const char *dot = strrchr(name, '.'), *rest = name;
    int n = dot ? (int)(dot - name) : 0;
    unsigned layer;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((int)strlen(names[i][0]) == n && !strncmp(name, names[i][0], (size_t)n))
            return arena_printf(&c->mem, "%s%s", names[i][1], dot);
    MUST(sscanf(name, "model.layers.%u.", &layer) == 1);
    for (int k = 0; k < 3; k++)
        rest = strchr(rest, '.') + 1;
    for (size_t i = 0; i < sizeof block_names / sizeof *block_names; i++)
        if ((long)strlen(block_names[i][0]) == dot - rest && !strncmp(rest, block_names[i][0], (size_t)(dot - rest)))
            return arena_printf(&c->mem, "blk.%u.%s%s", layer, block_names[i][c->gemma ? 2 : 1], dot);
    MUST(!"a name of the table");
    return NULL;
}

/* Row 2j of a head becomes row j, row 2j + 1 becomes row j + d/2: llama's pairs lie side by side. */
static void interleave(uint8_t *p, uint64_t rows, uint64_t heads, uint64_t row_bytes)
{
    uint64_t d = rows / heads;
    uint8_t *old = malloc(rows * row_bytes);
    MUST(old);
    memcpy(old, p, rows * row_bytes);
    for (uint64_t h = 0; h < heads; h++)
        for (uint64_t j = 0; j < d; j++)
            memcpy(p + (h * d + j) * row_bytes, old + (h * d + j / 2 + (j % 2) * d / 2) * row_bytes, row_bytes);
    free(old);
}

static void add_f32(struct conv *c, const char *name, const float *v, uint64_t n)
{
    MUST(c->n < TENSORS_MAX);
    c->t[c->n++] = (struct mm_tensor){.name = name, .type = KRN_F32, .n_dims = 1, .dims = {n}, .data = v};
}

static void convert(struct conv *c, const struct off_tensor *t)
{
    uint8_t *p = arena_alloc(&c->mem, t->bytes);
    char *name = new_name(c, t->name);
    MUST(p && pread(off_catalog_file(c->cat, t->file)->fd, p, t->bytes, (off_t)t->offset) == (ssize_t)t->bytes && t->type == KRN_BF16);
    bool q = strstr(name, "attn_q.") != NULL, k = strstr(name, "attn_k.") != NULL;
    if (c->llama && (q || k))
        interleave(p, t->dims[0], (uint64_t)num(c, q ? "num_attention_heads" : "num_key_value_heads", 1), t->bytes / t->dims[0]);
    if (t->n_dims == 1) {
        float *v = ARENA_ARRAY(&c->mem, float, t->dims[0]);
        for (uint64_t i = 0; i < t->dims[0]; i++) {
            uint32_t bits = (uint32_t)(p[2 * i] | p[2 * i + 1] << 8) << 16;
            memcpy(&v[i], &bits, 4);
            v[i] += c->gemma ? 1.0f : 0.0f;
        }
        add_f32(c, name, v, t->dims[0]);
        return;
    }
    MUST(c->n < TENSORS_MAX);
    c->t[c->n++] = (struct mm_tensor){.name = name, .type = t->type, .n_dims = t->n_dims, .dims = {t->dims[0], t->dims[1]}, .data = p};
}

/* llama3 scaling is told by a tensor alone; longrope by two and a magnitude; linear by metadata. */
static void rope(struct conv *c, uint32_t d)
{
    const struct json *s = json_get(c->config, "rope_scaling");
    const char *kind = json_str(json_get(s, "rope_type")) ? json_str(json_get(s, "rope_type")) : json_str(json_get(s, "type"));
    double theta = num(c, "rope_theta", 10000), orig = num(c, "original_max_position_embeddings", num(c, "rope_scaling.original_max_position_embeddings", 0));
    double ctx = num(c, "max_position_embeddings", 0), factor = num(c, "rope_scaling.factor", ctx / orig);
    kv_f32(c, "rope.freq_base", theta);
    kv_u32(c, "rope.dimension_count", d);
    if (!kind)
        return;
    if (!strcmp(kind, "linear")) {
        kv(c, (struct mm_kv)MM_KV_STR("rope.scaling.type", "linear"), true);
        kv_f32(c, "rope.scaling.factor", factor);
    } else if (!strcmp(kind, "llama3")) {
        float *v = ARENA_ARRAY(&c->mem, float, d / 2);
        double low = num(c, "rope_scaling.low_freq_factor", 1), high = num(c, "rope_scaling.high_freq_factor", 4);
        for (uint32_t j = 0; j < d / 2; j++) {
            double wave = 2 * M_PI * pow(theta, 2.0 * j / d), s01 = (orig / wave - low) / (high - low);
            v[j] = (float)(wave < orig / high ? 1 : wave > orig / low ? factor : 1 / ((1 - s01) / factor + s01));
        }
        add_f32(c, "rope_freqs.weight", v, d / 2);
    } else {
        static const char *const lists[][2] = {{"rope_scaling.long_factor", "rope_factors_long.weight"}, {"rope_scaling.short_factor", "rope_factors_short.weight"}};
        MUST(!strcmp(kind, "longrope"));
        for (int k = 0; k < 2; k++) {
            const struct json *l = json_path(c->config, lists[k][0]);
            float *v = ARENA_ARRAY(&c->mem, float, d / 2);
            double x;
            for (uint32_t j = 0; j < d / 2; j++) {
                MUST(json_num(l->items[j], &x));
                v[j] = (float)x;
            }
            add_f32(c, lists[k][1], v, d / 2);
        }
        kv_f32(c, "rope.scaling.attn_factor", sqrt(1 + log(ctx / orig) / log(orig)));
        kv_u32(c, "rope.scaling.original_context_length", orig);
    }
}

static void metadata(struct conv *c)
{
    double heads = num(c, "num_attention_heads", 0), hidden = num(c, "hidden_size", 0), d = num(c, "head_dim", hidden / heads);
    kv(c, (struct mm_kv)MM_KV_STR("general.architecture", c->arch), false);
    kv_u32(c, "embedding_length", hidden);
    kv_u32(c, "block_count", num(c, "num_hidden_layers", 0));
    kv_u32(c, "feed_forward_length", num(c, "intermediate_size", 0));
    kv_u32(c, "attention.head_count", heads);
    kv_u32(c, "attention.head_count_kv", num(c, "num_key_value_heads", heads));
    kv_u32(c, "attention.key_length", d);
    kv_u32(c, "attention.value_length", d);
    kv_u32(c, "context_length", num(c, "max_position_embeddings", 0));
    kv_f32(c, "attention.layer_norm_rms_epsilon", num(c, "rms_norm_eps", 0));
    if (c->gemma) {
        kv_f32(c, "rope.freq_base_swa", num(c, "rope_local_base_freq", 10000));
        kv_u32(c, "attention.sliding_window_pattern", num(c, "sliding_window_pattern", 6));
    }
    if (c->gemma || !strcmp(c->arch, "phi3"))
        kv_u32(c, "attention.sliding_window", num(c, "sliding_window", 0));
    rope(c, (uint32_t)d);
}

static const char *merge_text(struct conv *c, const struct json *m)
{
    return m->type == JSON_ARRAY ? arena_printf(&c->mem, "%s %s", json_str(m->items[0]), json_str(m->items[1])) : json_str(m);
}

static const char *pre_of(const struct conv *c, const struct json *tok)
{
    const struct json *first = json_path(tok, "pre_tokenizer.pretokenizers");
    bool digits = first && json_eq(json_path(first->items[0], "pattern.Regex"), "\\p{N}"); /* SmolLM2's: each digit alone */
    return !strncmp(c->arch, "qwen", 4) ? "qwen2" : digits ? "smollm" : "llama-bpe";
}

/* Merges by rank for byte-level vocabularies; SentencePiece's pieces get the rank of the merge that makes them as score. */
static void vocabulary(struct conv *c, const struct json *tok)
{
    const struct json *vocab = json_path(tok, "model.vocab"), *merges = json_path(tok, "model.merges"), *added = json_get(tok, "added_tokens");
    size_t rows = (size_t)num(c, "vocab_size", 0);
    int64_t id;
    MUST(rows <= TOKENS_MAX && merges->n <= TOKENS_MAX);
    for (size_t i = 0; i < rows; i++) {
        c->tokens[i] = arena_printf(&c->mem, "[PAD%zu]", i);
        c->types[i] = 5;
    }
    for (size_t i = 0; i < vocab->n; i++) {
        const char *s = vocab->members[i].key;
        MUST(json_int(vocab->members[i].value, &id) && (size_t)id < rows);
        c->tokens[id] = s;
        c->types[id] = c->gemma && strlen(s) == 6 && !strncmp(s, "<0x", 3) ? 6 : 1;
        c->scores[id] = -1e6f;
    }
    for (size_t i = 0; i < merges->n; i++) {
        const char *text = c->merges[i] = merge_text(c, merges->items[i]), *gap = strchr(text, ' ');
        const char *whole = arena_printf(&c->mem, "%.*s%s", (int)(gap - text), text, gap + 1);
        if (json_int(json_get(vocab, whole), &id))
            c->scores[id] = -(float)i;
    }
    for (size_t i = 0; i < added->n; i++) {
        const struct json *special = json_get(added->items[i], "special");
        MUST(json_int(json_get(added->items[i], "id"), &id) && (size_t)id < rows);
        c->tokens[id] = json_str(json_get(added->items[i], "content"));
        c->types[id] = special && special->b ? 3 : 4;
    }
    kv(c, (struct mm_kv)MM_KV_STR("tokenizer.ggml.model", c->gemma ? "llama" : "gpt2"), false);
    if (!c->gemma) {
        kv(c, (struct mm_kv)MM_KV_STR("tokenizer.ggml.pre", pre_of(c, tok)), false);
        kv(c, (struct mm_kv){.key = "tokenizer.ggml.merges", .type = MM_ARR, .elem = MM_STR, .n = merges->n, .strs = c->merges}, false);
    } else {
        kv(c, (struct mm_kv){.key = "tokenizer.ggml.scores", .type = MM_ARR, .elem = MM_F32, .n = rows, .floats = c->scores}, false);
        kv(c, (struct mm_kv)MM_KV_BOOL("tokenizer.ggml.add_space_prefix", 0), false);
        if (json_int(json_get(vocab, "<unk>"), &id))
            kv(c, (struct mm_kv)MM_KV_U32("tokenizer.ggml.unknown_token_id", id), false);
    }
    kv(c, (struct mm_kv){.key = "tokenizer.ggml.tokens", .type = MM_ARR, .elem = MM_STR, .n = rows, .strs = c->tokens}, false);
    kv(c, (struct mm_kv){.key = "tokenizer.ggml.token_type", .type = MM_ARR, .elem = MM_I32, .n = rows, .ints = c->types}, false);
    kv(c, (struct mm_kv)MM_KV_U32("tokenizer.ggml.bos_token_id", (int64_t)num(c, "bos_token_id", 0)), false);
    if (json_int(json_get(c->config, "eos_token_id"), &id))
        kv(c, (struct mm_kv)MM_KV_U32("tokenizer.ggml.eos_token_id", id), false);
}

static void write_files(struct conv *c, const char *out_dir, unsigned files)
{
    if (files == 1) {
        mm_gguf(mm_path(out_dir, "m.gguf"), c->kv, c->n_kv, c->t, c->n);
        return;
    }
    size_t own = c->n_kv;
    for (unsigned f = 0; f < files; f++) { /* the metadata is in the first one only */
        struct mm_kv split[] = {{.key = "split.no", .type = MM_U16, .i = f}, {.key = "split.count", .type = MM_U16, .i = files},
                                {.key = "split.tensors.count", .type = MM_I32, .i = (int64_t)c->n}};
        struct mm_kv all[KV_MAX + 3];
        char name[64];
        size_t from = c->n * f / files, to = c->n * (f + 1) / files, n_kv = f ? 0 : own;
        memcpy(all, c->kv, n_kv * sizeof *all);
        memcpy(all + n_kv, split, sizeof split);
        snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", f + 1, files);
        mm_gguf(mm_path(out_dir, name), all, n_kv + 3, c->t + from, to - from);
    }
}

void mm_to_gguf(const char *dir, const char *arch, const char *out_dir, unsigned files)
{
    struct conv *c = calloc(1, sizeof *c);
    struct err e = {0};
    struct json *tok;
    MUST(c);
    c->arch = arch;
    c->gemma = !strcmp(arch, "gemma3");
    c->llama = !strcmp(arch, "llama");
    arena_init(&c->mem, 64u << 20);
    MUST(!off_catalog_open(&c->cat, dir, 0, &e));
    c->config = off_catalog_config(c->cat);
    MUST(!json_parse_file(&tok, mm_path(dir, "tokenizer.json"), 1u << 20, &c->mem, &e));
    metadata(c);
    vocabulary(c, tok);
    for (size_t i = 0; i < off_catalog_count(c->cat); i++)
        convert(c, off_catalog_at(c->cat, i));
    write_files(c, out_dir, files);
    off_catalog_close(c->cat);
    arena_free(&c->mem);
    free(c);
}
